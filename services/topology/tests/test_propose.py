"""A job's fabric proposal."""

from __future__ import annotations

from typing import Any

from railweave.contracts.fabric import FabricLeaf
from railweave.contracts.proposal import Ask, FabricProposal, NodesProposal
from railweave.contracts.reasons import Lack, ReasonCode
from railweave.contracts.types import LeafName, NodeName
from railweave.topology.propose import propose
from railweave_testing.clusters import ClusterBuilder, ask


def proposed(cluster: ClusterBuilder, wanted: Ask, *names: str) -> FabricProposal:
    who: dict[str, Any] = {"cluster": wanted.cluster, "job": wanted.job, "attempt": wanted.attempt}
    nodes = NodesProposal(**who, round=wanted.round, nodes=tuple(NodeName(name) for name in names))
    return propose(wanted, nodes, cluster.state)


def test_rail_mode_needs_nothing_but_ports() -> None:
    cluster = ClusterBuilder()
    cluster.node("n1")
    cluster.node("n2")
    found = proposed(cluster, ask(workers=2, network={}), "n1", "n2")
    assert (found.mode, found.segment, found.reasons) == ("rail", None, ())
    assert found.based_on["FABRIC"] > 0


def test_a_node_that_is_not_in_the_inventory_is_named() -> None:
    cluster = ClusterBuilder()
    cluster.node("n1")
    cluster.node("n2", in_fabric=False)
    (reason,) = proposed(cluster, ask(workers=2, network={}), "n1", "n2").reasons
    assert (reason.code, reason.node, reason.lacks) == (ReasonCode.FABRIC_UNKNOWN, "n2", (Lack.FABRIC,))


def test_a_node_without_ports_or_on_a_leaf_without_vlans_is_named() -> None:
    cluster = ClusterBuilder()
    cluster.node("n1", rails=0)
    cluster.node("n2", leaf="leaf-9")
    cluster.tell(FabricLeaf(leaf=LeafName("leaf-9"), revision=9, island="i", pod="p", vlans=()), "FABRIC")
    found = proposed(cluster, ask(workers=2, network={}), "n1", "n2")
    assert [reason.node for reason in found.reasons] == [None, "n1", "n2"]
    assert found.reasons[0].numbers == {"nodes": 2, "nodes_unknown": 2}
    assert "leaf leaf-9 carries no VLAN for rail 0" in found.reasons[2].text


def test_nodes_of_different_islands_are_never_joined() -> None:
    cluster = ClusterBuilder()
    cluster.node("n1", island="a")
    cluster.node("n2", island="b")
    cluster.node("n3", island="b")
    (reason,) = proposed(cluster, ask(workers=3, network={}), "n1", "n2", "n3").reasons
    assert reason.code is ReasonCode.TOPOLOGY_FRAGMENTED
    assert reason.numbers == {"nodes": 3, "islands": 2, "largest_island_nodes": 2}
    assert "1 on a, 2 on b" in reason.text


def test_a_segment_is_refused_honestly_while_none_is_configured() -> None:
    cluster = ClusterBuilder()
    cluster.node("n1")
    found = proposed(cluster, ask(network={"isolation": "tenant"}), "n1")
    (reason,) = found.reasons
    assert (reason.code, found.never) == (ReasonCode.SEGMENTS_EXHAUSTED, True)
    assert reason.numbers == {"segments_used": 0, "segments_total": 0}
