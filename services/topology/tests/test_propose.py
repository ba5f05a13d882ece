"""A job's fabric proposal."""

from __future__ import annotations

from typing import Any

from railweave.contracts.fabric import FabricLeaf, FabricReport
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
    assert "set topology.segments" in (reason.remedy or "")


def of_tenant(job: str, tenant: str) -> Ask:
    return ask(job, network={"isolation": "tenant"}, tenant=tenant)


def with_segments(count: int) -> ClusterBuilder:
    cluster = ClusterBuilder()
    cluster.node("n1", segments=count)
    cluster.node("n2", leaf="leaf-2", segments=count)
    return cluster


def test_jobs_of_one_tenant_share_its_segment_and_those_of_another_get_another() -> None:
    cluster = with_segments(3)
    first = proposed(cluster, of_tenant("a", "nlp"), "n1")
    assert (first.mode, first.owner, first.reasons) == ("tenant", "tenant/nlp", ())
    assert first.segment is not None
    assert proposed(cluster, of_tenant("b", "nlp"), "n2").segment == first.segment, "also before either is stored"
    cluster.place("a", "n1", vfs=[(0, 0)], tenant="nlp", segment=first.segment)
    assert proposed(cluster, of_tenant("c", "nlp"), "n2").segment == first.segment
    assert proposed(cluster, of_tenant("d", "vision"), "n1").segment not in {None, first.segment}


def test_each_job_has_its_own_where_the_site_says_so() -> None:
    cluster = with_segments(8)
    wanted = of_tenant("a", "nlp")
    who: dict[str, Any] = {"cluster": wanted.cluster, "job": wanted.job, "attempt": wanted.attempt}
    nodes = NodesProposal(**who, round=wanted.round, nodes=(NodeName("n1"),))
    found = propose(wanted, nodes, cluster.state, segment_owner="job")
    assert found.owner == "job/slurm-a/a#1"


def test_exhausted_segments_are_a_rejection_with_used_and_total() -> None:
    cluster = with_segments(2)
    for number, tenant in enumerate(("nlp", "vision")):
        cluster.place(tenant, "n1", vfs=[(0, number)], tenant=tenant, segment=number)
    found = proposed(cluster, of_tenant("c", "speech"), "n1", "n2")
    (reason,) = found.reasons
    assert (reason.code, reason.lacks, found.never) == (ReasonCode.SEGMENTS_EXHAUSTED, (Lack.SEGMENT,), False)
    assert reason.numbers == {"segments_used": 2, "segments_total": 2, "segments_with_members_left": 0}
    cluster.release("nlp", "n1")
    assert proposed(cluster, of_tenant("c", "speech"), "n1", "n2").segment == 0


def test_a_segment_is_not_given_again_while_a_leaf_has_a_member_in_it() -> None:
    cluster = with_segments(1)
    cluster.place("a", "n1", vfs=[(0, 0)], tenant="nlp", segment=0)
    report = FabricReport(leaf=LeafName("leaf-1"), revision=1, applied=True, segments_in_use=(0,))
    cluster.tell(report, "FABRIC")
    cluster.release("a", "n1")
    (reason,) = proposed(cluster, of_tenant("b", "vision"), "n1").reasons
    assert reason.numbers == {"segments_used": 0, "segments_total": 1, "segments_with_members_left": 1}
    cluster.tell(report.model_copy(update={"segments_in_use": ()}), "FABRIC")
    assert proposed(cluster, of_tenant("b", "vision"), "n1").segment == 0


def test_only_the_leaves_that_a_job_touches_need_the_segment() -> None:
    cluster = ClusterBuilder()
    cluster.node("n1", segments=2)
    cluster.node("n2", leaf="leaf-2", segments=1)
    cluster.node("n3", leaf="leaf-3")
    for number, tenant in enumerate(("nlp", "vision")):
        found = proposed(cluster, of_tenant("a", tenant), "n1")
        assert found.segment in {0, 1}
        cluster.place(tenant, "n1", vfs=[(0, number)], tenant=tenant, segment=number)
    assert proposed(cluster, of_tenant("b", "speech"), "n1", "n2").reasons[0].numbers["segments_total"] == 1
    (reason,) = proposed(cluster, of_tenant("b", "speech"), "n1", "n3").reasons
    assert "carry none in common" in reason.text
    assert reason.numbers == {"segments_used": 0, "segments_total": 2}
