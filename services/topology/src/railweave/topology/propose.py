"""A job's fabric proposal: how it is isolated on the leaves of its nodes, or why it cannot be. Pure.

Ids only: leaf, port, VLAN and subnet of each VF follow from the records when the placement is rendered.
"""

from __future__ import annotations

from collections.abc import Sequence

from railweave.contracts.proposal import Ask, FabricProposal, NodesProposal
from railweave.contracts.reasons import Lack, Reason, ReasonCode
from railweave.contracts.types import NodeName, build
from railweave.runtime.cluster import ClusterState

MOST_NODES_NAMED = 8
"""Nodes given a reason of their own; the summary counts the rest."""


def propose(ask: Ask, nodes: NodesProposal, state: ClusterState) -> FabricProposal:
    """Propose `rail` mode for a job on the proposed nodes, or say why they cannot carry it.

    Args:
        ask: the round.
        nodes: the nodes of that round.
        state: the folded cluster.
    """
    if ask.spec.network is not None and ask.spec.network.isolation == "tenant":
        return _answer(ask, state, (_no_segments(),), never=True)
    unknown = [reason for name in nodes.nodes if (reason := _fault(name, state)) is not None]
    if unknown:
        return _answer(ask, state, _summed(unknown, len(nodes.nodes)))
    apart = _apart(nodes.nodes, state)
    return _answer(ask, state, (apart,) if apart is not None else ())


def _no_segments() -> Reason:
    return Reason(
        code=ReasonCode.SEGMENTS_EXHAUSTED,
        text="isolation tenant needs a segment, and this fabric has none configured: 0 of 0 free",
        numbers={"segments_used": 0, "segments_total": 0},
        remedy="ask for isolation rail",
    )


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


def _answer(ask: Ask, state: ClusterState, reasons: tuple[Reason, ...], *, never: bool = False) -> FabricProposal:
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
    )
