"""Which nodes a job gets."""

from __future__ import annotations

from typing import Any

import pytest

from railweave.cache.model import CacheConfig
from railweave.cache.propose import Answered, propose
from railweave.contracts.desired import NodeMode
from railweave.contracts.reasons import Lack, ReasonCode
from railweave.runtime.outstanding import Outstanding
from railweave_testing.clusters import GIB, ClusterBuilder, ask, ask_for, cached, spec


def proposed(cluster: ClusterBuilder, outstanding: Outstanding | None = None, **wanted: Any) -> Answered:
    return propose(ask(**wanted), cluster.state, outstanding or Outstanding(), CacheConfig())


def nodes(answer: Answered) -> list[str]:
    assert not answer.nodes.reasons, answer.nodes.reasons
    return [str(name) for name in answer.nodes.nodes]


def leaves(cluster: ClusterBuilder, sizes: dict[str, int], pods: dict[str, str] | None = None, **fields: Any) -> None:
    """Leaves with so many nodes each, named `<leaf>-n<i>`."""
    for leaf, size in sizes.items():
        for index in range(1, size + 1):
            cluster.node(f"{leaf}-n{index}", leaf=leaf, pod=(pods or {}).get(leaf, "pod-1"), **fields)


class TestScreen:
    @pytest.mark.parametrize("mode", [NodeMode.CORDONED, NodeMode.DRAINING, NodeMode.RETIRED], ids=str)
    def test_a_node_that_an_operator_took_out_is_not_chosen(self, mode: NodeMode) -> None:
        cluster = ClusterBuilder()
        cluster.node("a")
        cluster.node("b")
        cluster.mode("a", mode)
        assert nodes(proposed(cluster)) == ["b"]

    def test_labels_exclusions_and_earlier_refusals_are_respected(self) -> None:
        cluster = ClusterBuilder()
        for name in ("a", "b", "c", "d"):
            cluster.node(name, labels={"gpu": "a10" if name == "a" else "h100"})
        assert nodes(proposed(cluster, selector={"gpu": "h100"}, exclude=["b"], failed=["c"])) == ["d"]

    def test_nodes_kept_for_an_older_gang_are_left_alone_and_said_to_be_kept(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a")
        cluster.node("b")
        assert nodes(proposed(cluster, avoid=["a"])) == ["b"]
        (reason,) = proposed(cluster, avoid=["a", "b"]).nodes.reasons
        assert reason.code is ReasonCode.KEPT_FOR_GANG
        assert reason.numbers["nodes_kept"] == 2

    def test_gpus_of_the_model_must_be_free_for_all_workers_of_a_slot(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", model="A10")
        cluster.node("b")
        cluster.node("c")
        cluster.place("old", "b", gpus=[(0, 100)])
        assert nodes(proposed(cluster, workers=4, per_node=4, gpus=2, gpu_model="H100")) == ["c"]

    def test_a_sick_gpu_does_not_count(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", gpus=[{}, {"healthy": False}])
        cluster.node("b", gpus=2)
        assert nodes(proposed(cluster, gpus=2)) == ["b"]

    def test_a_fraction_goes_where_a_split_card_has_room(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a")
        cluster.node("b")
        cluster.place("old", "b", gpus=[(0, 500)])
        assert nodes(proposed(cluster, gpus=1, gpu_fraction_milli=400)) == ["b"]

    def test_vf_groups_are_counted_by_index_over_all_rails(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", vfs=2)
        cluster.node("b", vfs=2)
        # Another index on each rail: one VF is free on both, yet no index is.
        cluster.place("old", "a", vfs=[(0, 0), (1, 1)])
        assert nodes(proposed(cluster, network={})) == ["b"]

    def test_vfs_of_a_cordoned_rail_or_without_a_link_are_not_asked_for(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", vfs=1)
        cluster.place("old", "a", vfs=[(1, 0)])
        assert proposed(cluster, network={}).nodes.reasons
        cluster.mode("a", NodeMode.SCHEDULABLE, cordoned_rails=[1])
        assert nodes(proposed(cluster, network={})) == ["a"]

    def test_no_more_vf_groups_are_counted_than_a_slot_of_the_leaf_has_addresses(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", vfs=32)
        assert nodes(proposed(cluster, workers=16, per_node=16, network={})) == ["a"]
        assert proposed(cluster, workers=17, per_node=17, network={}).nodes.reasons

    def test_without_gpus_the_rule_near_gpus_takes_a_whole_group(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", vfs=1)
        cluster.place("old", "a", vfs=[(0, 0)])
        assert proposed(cluster, network={"vfs": "near-gpus"}).nodes.reasons
        assert nodes(proposed(cluster, gpus=1, network={"vfs": "near-gpus"})) == ["a"]

    def test_a_node_outside_the_fabric_does_for_a_job_without_a_network_only(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", in_fabric=False)
        assert nodes(proposed(cluster)) == ["a"]
        (reason,) = proposed(cluster, network={}).nodes.reasons
        assert reason.code is ReasonCode.FABRIC_UNKNOWN
        assert Lack.FABRIC in reason.lacks

    def test_a_node_held_alone_takes_nobody_and_a_job_alone_takes_no_shared_node(self) -> None:
        cluster = ClusterBuilder()
        for name in ("a", "b", "c"):
            cluster.node(name)
        cluster.place("whole", "a", exclusive=True)
        cluster.place("part", "b")
        assert nodes(proposed(cluster, exclusive=True)) == ["c"]
        assert "a" not in nodes(proposed(cluster, workers=2))

    def test_scratch_is_what_live_jobs_leave(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", scratch_bytes=500 * GIB)
        cluster.node("b", scratch_bytes=400 * GIB)
        cluster.place("old", "a", scratch_bytes=200 * GIB)
        assert nodes(proposed(cluster, workers=2, per_node=2, scratch_bytes=200 * GIB)) == ["b"]


class TestTogether:
    def test_a_gang_goes_to_the_leaf_that_it_fills_best(self) -> None:
        cluster = ClusterBuilder()
        leaves(cluster, {"leaf-1": 6, "leaf-2": 4, "leaf-3": 3})
        assert nodes(proposed(cluster, workers=4)) == [f"leaf-2-n{i}" for i in range(1, 5)]

    def test_two_nodes_go_to_one_leaf_where_all_else_is_equal(self) -> None:
        cluster = ClusterBuilder()
        pods = {"leaf-1": "pod-1", "leaf-2": "pod-1", "leaf-3": "pod-2", "leaf-4": "pod-2"}
        leaves(cluster, {"leaf-1": 1, "leaf-2": 1, "leaf-3": 2, "leaf-4": 1}, pods)
        assert nodes(proposed(cluster, workers=2)) == ["leaf-3-n1", "leaf-3-n2"]

    def test_a_gang_that_no_leaf_holds_takes_as_few_leaves_of_one_pod_as_can_be(self) -> None:
        cluster = ClusterBuilder()
        pods = {"leaf-1": "pod-1", "leaf-2": "pod-1", "leaf-3": "pod-2", "leaf-4": "pod-2", "leaf-5": "pod-2"}
        leaves(cluster, {"leaf-1": 3, "leaf-2": 2, "leaf-3": 4, "leaf-4": 1, "leaf-5": 3}, pods)
        chosen = nodes(proposed(cluster, workers=7))
        assert {name.rpartition("-")[0] for name in chosen} == {"leaf-3", "leaf-5"}

    def test_ranks_follow_the_fabric_leaf_by_leaf_in_natural_order(self) -> None:
        cluster = ClusterBuilder()
        for name, leaf in (("n10", "leaf-2"), ("n9", "leaf-2"), ("n2", "leaf-10"), ("n1", "leaf-10")):
            cluster.node(name, leaf=leaf)
        assert nodes(proposed(cluster, workers=4)) == ["n9", "n10", "n1", "n2"]

    def test_a_required_leaf_that_is_too_small_now_says_how_many_would_fit(self) -> None:
        cluster = ClusterBuilder()
        leaves(cluster, {"leaf-1": 4, "leaf-2": 3})
        cluster.place("old", "leaf-1-n1", gpus=[(0, 1000)])
        (reason,) = proposed(cluster, workers=4, gpus=8, topology={"required": "leaf"}).nodes.reasons
        assert reason.code is ReasonCode.TOPOLOGY_FRAGMENTED
        assert reason.numbers["largest_nodes"] == 3
        assert reason.numbers["fitting_nodes"] == 6
        assert "allow a wider topology.required" in (reason.remedy or "")

    def test_nodes_of_two_islands_never_make_a_gang(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", island="east")
        cluster.node("b", island="west")
        answer = proposed(cluster, workers=2)
        assert answer.nodes.never
        assert "island" in answer.nodes.reasons[0].text

    def test_groups_that_need_different_nodes_each_get_theirs(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("cpu", gpus=0)
        cluster.node("gpu-1")
        cluster.node("gpu-2")
        groups = [{"name": "ps", "count": 1}, {"count": 2, "gpus": 8}]
        assert nodes(proposed(cluster, workers=groups)) == ["cpu", "gpu-1", "gpu-2"]

    def test_a_group_that_fits_anywhere_does_not_take_the_only_node_of_another(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("only", gpus=8)
        cluster.node("small", gpus=1)
        groups = [{"count": 1, "gpus": 1}, {"count": 1, "gpus": 8}]
        assert nodes(proposed(cluster, workers=groups)) == ["small", "only"]

    def test_the_last_node_of_a_group_may_be_one_that_holds_fewer_workers(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("large", gpus=4)
        cluster.node("small", gpus=2)
        assert nodes(proposed(cluster, workers=3, per_node=2, gpus=2)) == ["large", "small"]

    def test_a_small_job_fills_up_a_node_that_is_in_use_and_a_leaf_that_is_small(self) -> None:
        cluster = ClusterBuilder()
        leaves(cluster, {"leaf-1": 3, "leaf-2": 1})
        assert nodes(proposed(cluster, gpus=2)) == ["leaf-2-n1"]
        cluster.place("old", "leaf-1-n2", gpus=[(index, 1000) for index in range(6)])
        assert nodes(proposed(cluster, gpus=2)) == ["leaf-1-n2"]

    def test_a_job_without_gpus_leaves_gpus_alone(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a-gpu")
        cluster.node("b-cpu", gpus=0)
        assert nodes(proposed(cluster)) == ["b-cpu"]


class TestProposedElsewhere:
    def test_what_was_proposed_a_moment_ago_is_not_proposed_again(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a")
        cluster.node("b")
        outstanding = Outstanding()
        taken: list[str] = []
        for job in ("one", "two", "three", "four"):
            asked = ask(job, gpus=4, network={})
            answer = propose(asked, cluster.state, outstanding, CacheConfig())
            outstanding.put(asked.round_key, answer.holds, now=0.0)
            taken += nodes(answer)
        assert sorted(taken) == ["a", "a", "b", "b"]
        (reason,) = proposed(cluster, outstanding, job="five", gpus=1).nodes.reasons
        assert reason.code is ReasonCode.INSUFFICIENT_GPUS
        assert reason.numbers["best_free_gpus"] == 0

    def test_a_jobs_own_earlier_round_is_not_in_its_way(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a")
        outstanding = Outstanding()
        first = ask(gpus=8)
        answer = propose(first, cluster.state, outstanding, CacheConfig())
        outstanding.put(first.round_key, answer.holds, now=0.0)
        assert nodes(proposed(cluster, outstanding, gpus=8, round_number=2)) == ["a"]

    def test_vf_groups_scratch_and_a_node_of_ones_own_are_kept_in_mind_too(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", vfs=1, gpus=0)
        for wanted in ({"network": {}}, {"scratch_bytes": 600 * GIB}, {"exclusive": True}):
            outstanding = Outstanding()
            first = ask("one", **wanted)
            outstanding.put(first.round_key, propose(first, cluster.state, outstanding, CacheConfig()).holds, now=0.0)
            assert proposed(cluster, outstanding, job="two", **wanted).nodes.reasons, wanted


class TestNodesOfTheSchedulers:
    def test_they_are_taken_in_the_order_given(self) -> None:
        cluster = ClusterBuilder()
        for name in ("a", "b", "c"):
            cluster.node(name)
        assert nodes(proposed(cluster, workers=2, node_list=["c", "a"])) == ["c", "a"]

    def test_each_that_cannot_be_used_is_named_with_its_own_cause(self) -> None:
        cluster = ClusterBuilder()
        for name in ("a", "b", "c"):
            cluster.node(name)
        cluster.mode("a", NodeMode.DRAINING)
        cluster.place("whole", "b", exclusive=True)
        answer = proposed(cluster, workers=4, node_list=["a", "b", "c", "ghost"])
        by_node = {str(reason.node): reason for reason in answer.nodes.reasons}
        assert by_node.keys() == {"a", "b", "ghost"}
        assert by_node["a"].code is ReasonCode.NODE_NOT_SCHEDULABLE
        assert "draining" in by_node["a"].text
        assert "held alone by slurm-a/whole" in by_node["b"].text
        assert Lack.AGENT in by_node["ghost"].lacks
        assert not answer.nodes.never

    def test_one_that_hangs_in_the_fabric_and_whose_agent_never_spoke_is_told_from_one_nobody_knows(self) -> None:
        cluster = ClusterBuilder()
        cluster.fabric("mute")
        answer = proposed(cluster, workers=2, node_list=["mute", "ghost"])
        assert [(reason.node, reason.code, Lack.AGENT in reason.lacks) for reason in answer.nodes.reasons] == [
            ("mute", ReasonCode.AGENT_UNREACHABLE, True),
            ("ghost", ReasonCode.NODE_NOT_SCHEDULABLE, True),
        ]
        cluster.node("mute", in_fabric=False)
        assert nodes(proposed(cluster, node_list=["mute"])) == ["mute"]

    def test_gpus_and_vfs_of_them_are_left_to_the_services_that_name_the_card_and_the_rail(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", gpus=1)
        assert nodes(proposed(cluster, gpus=8, node_list=["a"])) == ["a"]

    def test_islands_apart_are_told_apart(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", island="east")
        cluster.node("b", island="west")
        (reason,) = proposed(cluster, workers=2, node_list=["a", "b"]).nodes.reasons
        assert reason.code is ReasonCode.TOPOLOGY_FRAGMENTED

    def test_a_dataset_larger_than_the_cache_of_a_listed_node_never_fits(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", cache_bytes=100 * GIB)
        cluster.node("b")
        answer = proposed(cluster, node_list=["a"], datasets=[f"c4@1={200 * GIB}"])
        assert answer.nodes.never
        assert answer.nodes.reasons[0].node == "a"


class TestReasons:
    def test_too_few_gpus_says_how_many_nodes_fit_and_which_is_nearest(self) -> None:
        cluster = ClusterBuilder()
        for name, used in (("a", 3), ("b", 1), ("c", 5)):
            cluster.node(name)
            cluster.place("old", name, gpus=[(index, 1000) for index in range(used)])
        (reason,) = proposed(cluster, workers=2, gpus=8).nodes.reasons
        assert reason.code is ReasonCode.INSUFFICIENT_GPUS
        assert reason.numbers["fitting_nodes"] == 0
        assert reason.numbers["best_free_gpus"] == 7
        assert "most free: b with 7 GPUs" in reason.text
        assert reason.lacks == (Lack.GPU,)

    @pytest.mark.parametrize(
        ("workers", "code"),
        [(2, ReasonCode.AGENT_UNREACHABLE), (3, ReasonCode.INSUFFICIENT_NODES)],
        ids=["agents", "operators"],
    )
    def test_nodes_missed_for_their_agents_are_told_from_nodes_taken_out(self, workers: int, code: ReasonCode) -> None:
        cluster = ClusterBuilder()
        for name in ("a", "b"):
            cluster.fabric(name)
        cluster.node("c")
        cluster.mode("c", NodeMode.CORDONED)
        answer = proposed(cluster, workers=workers)
        (reason,) = answer.nodes.reasons
        assert (reason.code, answer.nodes.never) == (code, False)
        assert "1 cordoned, draining or retired, 2 whose agent has not spoken: a, b" in reason.text
        assert (reason.numbers["nodes_silent"], reason.numbers["nodes_taken_out"]) == (2, 1)
        assert Lack.AGENT in reason.lacks

    def test_a_node_taken_out_before_its_agent_spoke_is_not_missed_for_its_agent(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a")
        cluster.fabric("b")
        cluster.mode("b", NodeMode.DRAINING)
        (reason,) = proposed(cluster, workers=2).nodes.reasons
        assert reason.code is ReasonCode.INSUFFICIENT_NODES

    def test_what_took_nodes_away_before_the_decisive_check_wakes_the_job_too(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a")
        cluster.node("b")
        cluster.mode("a", NodeMode.CORDONED)
        cluster.place("old", "b", gpus=[(0, 1000)])
        (reason,) = proposed(cluster, gpus=8).nodes.reasons
        assert reason.code is ReasonCode.INSUFFICIENT_GPUS
        assert set(reason.lacks) >= {Lack.GPU, Lack.NODE}

    def test_more_nodes_than_there_are_is_refused_for_good_with_both_numbers(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a")
        answer = proposed(cluster, workers=3, gpus=8)
        assert answer.nodes.never
        (reason,) = answer.nodes.reasons
        assert reason.code is ReasonCode.EXCEEDS_CLUSTER_CAPACITY
        assert (reason.numbers["needed_nodes"], reason.numbers["possible_nodes"]) == (3, 1)
        assert not reason.lacks

    def test_more_gpus_than_any_node_has_is_refused_for_good(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", gpus=4)
        answer = proposed(cluster, gpus=8)
        assert answer.nodes.never
        assert answer.nodes.reasons[0].numbers["largest_node_gpus"] == 4

    def test_a_cluster_that_nobody_has_told_of_refuses_nobody_for_good(self) -> None:
        cluster = ClusterBuilder()
        answer = proposed(cluster, workers=3)
        assert not answer.nodes.never
        assert Lack.AGENT in answer.nodes.reasons[0].lacks

    def test_a_node_in_the_fabric_whose_agent_has_not_spoken_may_yet_be_what_is_wanted(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", gpus=4)
        cluster.fabric("b")
        assert not proposed(cluster, gpus=8).nodes.never
        assert proposed(cluster, workers=3, gpus=8).nodes.never

    def test_a_cordoned_node_may_come_back_and_a_retired_one_does_not(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a")
        cluster.node("b")
        cluster.mode("b", NodeMode.CORDONED)
        assert not proposed(cluster, workers=2).nodes.never
        cluster.mode("b", NodeMode.RETIRED)
        assert proposed(cluster, workers=2).nodes.never

    def test_both_proposals_of_a_round_are_refused_alike(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", gpus=1)
        asked = ask_for(spec(gpus=4, datasets=[f"c4@1={GIB}"]))
        answer = propose(asked, cluster.state, Outstanding(), CacheConfig())
        assert answer.data is not None
        assert answer.data.reasons == answer.nodes.reasons
        assert answer.data.never
        assert not answer.holds

    def test_a_job_without_datasets_gets_no_data_proposal(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", datasets=[cached("c4", GIB)])
        assert proposed(cluster).data is None
