"""A job's fabric proposal: how it is isolated on the leaves of its nodes, or why it cannot be. Pure.

Ids only: leaf, port, VLAN and subnet of each VF follow from the records when the placement is rendered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from railweave.contracts.proposal import Ask, FabricProposal, NodesProposal
from railweave.contracts.reasons import Lack, Reason, ReasonCode
from railweave.contracts.types import NodeName, build
from railweave.runtime.cluster import ClusterState
from railweave.topology.segments import choose_segment

MOST_NODES_NAMED = 8
"""Nodes given a reason of their own; the summary counts the rest."""


def propose(
    ask: Ask, nodes: NodesProposal, state: ClusterState, *, segment_owner: Literal["tenant", "job"] = "tenant"
) -> FabricProposal:
    """Propose how a job is isolated on the proposed nodes, or say why they cannot carry it.

    Args:
        ask: the round.
        nodes: the nodes of that round.
        state: the folded cluster.
        segment_owner: who shares a segment in tenant mode.
    """
    unknown = [reason for name in nodes.nodes if (reason := _fault(name, state)) is not None]
    if unknown:
        return _answer(ask, state, _summed(unknown, len(nodes.nodes)))
    apart = _apart(nodes.nodes, state)
    if apart is not None:
        return _answer(ask, state, (apart,))
    if ask.spec.network is None or ask.spec.network.isolation == "rail":
        return _answer(ask, state, ())
    owner = f"tenant/{ask.spec.tenant}" if segment_owner == "tenant" else f"job/{ask.run}"
    segment = choose_segment(owner, nodes.nodes, state)
    if isinstance(segment, Reason):
        return _answer(ask, state, (segment,), never=not segment.lacks)
    return _answer(ask, state, (), segment=segment, owner=owner)


def _fault(name: NodeName, state: ClusterState) -> Reason | None:
    """Why a node cannot carry a job's network; None where it can."""
    node = state.nodes.get(name)
    if node is None or node.fabric is None:
        return _unknown(
            name, f"{name} is not in the fabric inventory", 0, f"add {name} to the fabric file and apply it"
        )
    ports = node.fabric.attachments
    if not ports:
        return _unknown(name, f"{name} has no port on any leaf", 0, f"add the ports of {name} to the fabric file")
    bare = [port for port in ports if state.vlan_of(port.leaf, port.rail) is None]
    if len(bare) == len(ports):
        return _unknown(
            name,
            f"{name}: leaf {bare[0].leaf} carries no VLAN for rail {int(bare[0].rail)}, nor has any other rail one",
            len(ports),
            "apply the fabric file again",
        )
    return None


def _unknown(name: NodeName, text: str, ports: int, remedy: str) -> Reason:
    return Reason(
        code=ReasonCode.FABRIC_UNKNOWN,
        text=text,
        numbers={"ports": ports},
        node=name,
        lacks=(Lack.FABRIC,),
        remedy=remedy,
    )


def _summed(reasons: Sequence[Reason], nodes: int) -> tuple[Reason, ...]:
    if len(reasons) == 1:
        return tuple(reasons)
    first = Reason(
        code=ReasonCode.FABRIC_UNKNOWN,
        text=f"{len(reasons)} of {nodes} nodes have no port in the fabric inventory",
        numbers={"nodes": nodes, "nodes_unknown": len(reasons)},
        lacks=(Lack.FABRIC,),
    )
    return (first, *reasons[:MOST_NODES_NAMED])


def _apart(names: Sequence[NodeName], state: ClusterState) -> Reason | None:
    """A reason where some nodes cannot reach each other."""
    islands: dict[str, int] = {}
    for name in names:
        record = state.nodes[name].fabric
        if record is not None:
            islands[record.island] = islands.get(record.island, 0) + 1
    if len(islands) < 2:
        return None
    counts = ", ".join(f"{count} on {island}" for island, count in sorted(islands.items()))
    return Reason(
        code=ReasonCode.TOPOLOGY_FRAGMENTED,
        text=f"the {len(names)} nodes are on {len(islands)} islands that do not reach each other: {counts}",
        numbers={"nodes": len(names), "islands": len(islands), "largest_island_nodes": max(islands.values())},
        lacks=(Lack.NODE,),
        remedy="choose nodes of one island",
    )


def _answer(
    ask: Ask, state: ClusterState, reasons: tuple[Reason, ...], *, never: bool = False, **isolation: Any
) -> FabricProposal:
    return build(
        FabricProposal,
        cluster=ask.cluster,
        job=ask.job,
        attempt=ask.attempt,
        uid=ask.uid,
        round=ask.round,
        based_on=dict(state.sequences),
        reasons=reasons,
        never=never,
        **({"mode": "tenant"} | isolation if isolation else {}),
    )
