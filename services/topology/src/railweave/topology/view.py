"""What the topology service shows of the fabric as stored. Pure."""

from __future__ import annotations

from typing import Any

from railweave.runtime.cluster import ClusterState
from railweave.topology.keeper import claimed_nodes
from railweave.topology.plan import slots_of


def describe(state: ClusterState, error: str | None) -> dict[str, Any]:
    """The stored fabric as JSON: leaves with their VLANs and use, nodes with their ports."""
    claimed = claimed_nodes(state)
    used: dict[tuple[str, int], int] = {}
    nodes = []
    for name, node in sorted(state.nodes.items()):
        if node.fabric is None:
            continue
        for port in node.fabric.attachments:
            key = (str(port.leaf), int(port.rail))
            used[key] = used.get(key, 0) + 1
        nodes.append(node.fabric.model_dump(mode="json") | {"in_use": name in claimed})
    return {
        "error": error,
        "revision": max((leaf.revision for leaf in state.leaves.values()), default=0),
        "islands": sorted({leaf.island for leaf in state.leaves.values()}),
        "leaves": [
            leaf.model_dump(mode="json")
            | {
                "vlans": [
                    vlan.model_dump(mode="json")
                    | {"slots": slots_of(vlan), "ports": used.get((str(name), int(vlan.rail)), 0)}
                    for vlan in leaf.vlans
                ]
            }
            for name, leaf in sorted(state.leaves.items())
        ],
        "nodes": nodes,
    }
