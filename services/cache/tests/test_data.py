"""Where the data decides: who has it, who has room, and what must go."""

from __future__ import annotations

from typing import Any

import pytest

from railweave.cache.evict import plan_eviction
from railweave.cache.model import CacheConfig, Victim
from railweave.cache.propose import Answered, propose
from railweave.contracts.inventory import DatasetState
from railweave.contracts.proposal import NodeData
from railweave.contracts.reasons import Lack, ReasonCode
from railweave.runtime.outstanding import Outstanding
from railweave_testing.clusters import GIB, ClusterBuilder, ask, cached

C4 = f"c4@1={300 * GIB}"


def proposed(cluster: ClusterBuilder, outstanding: Outstanding | None = None, **wanted: Any) -> Answered:
    return propose(ask(**({"datasets": [C4]} | wanted)), cluster.state, outstanding or Outstanding(), CacheConfig())


def plans(answer: Answered) -> dict[str, NodeData]:
    assert not answer.nodes.reasons, answer.nodes.reasons
    assert answer.data is not None
    assert [plan.node for plan in answer.data.nodes] == list(answer.nodes.nodes)
    return {str(plan.node): plan for plan in answer.data.nodes}


def evicted(plan: NodeData) -> list[str]:
    return [item.dataset for item in plan.evict]


class TestWhereItIs:
    def test_a_node_that_has_the_dataset_wins_over_one_that_must_fetch(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a")
        cluster.node("b", datasets=[cached("c4", 300 * GIB)])
        (plan,) = plans(proposed(cluster)).values()
        assert (plan.node, plan.use, plan.fetch) == ("b", ("c4@1",), {})

    def test_it_wins_even_where_gpus_and_leaf_would_fit_better_elsewhere(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", gpus=1, leaf="leaf-2")
        for index in range(4):
            cluster.node(f"b{index}")
        cluster.storage("b2", datasets=[cached("c4", 300 * GIB)])
        assert plans(proposed(cluster, gpus=1)).keys() == {"b2"}

    def test_another_version_of_it_is_another_dataset(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", datasets=[cached("c4@2", 300 * GIB)])
        (plan,) = plans(proposed(cluster)).values()
        assert plan.fetch == {"c4@1": 300 * GIB}

    @pytest.mark.parametrize("state", [DatasetState.FAILED, DatasetState.FETCHING, DatasetState.VERIFYING])
    def test_a_copy_that_is_not_ready_is_fetched(self, state: DatasetState) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", datasets=[cached("c4", 300 * GIB, state=state)])
        (plan,) = plans(proposed(cluster)).values()
        assert plan.fetch == {"c4@1": 300 * GIB}

    def test_a_herd_waits_for_the_copy_that_is_coming(self) -> None:
        cluster = ClusterBuilder()
        for name in ("a", "b", "c"):
            cluster.node(name)
        outstanding = Outstanding()
        chosen = []
        for job in ("one", "two", "three"):
            asked = ask(job, gpus=2, datasets=[C4])
            answer = propose(asked, cluster.state, outstanding, CacheConfig())
            outstanding.put(asked.round_key, answer.holds, now=0.0)
            chosen += list(plans(answer))
        assert len(set(chosen)) == 1

    def test_a_copy_on_its_way_for_a_live_job_counts_nearly_and_a_ready_one_fully(self) -> None:
        cluster = ClusterBuilder()
        for name in ("a", "b", "c"):
            cluster.node(name)
        cluster.place("old", "b", fetch={"c4@1": 300 * GIB})
        (plan,) = plans(proposed(cluster)).values()
        assert (plan.node, plan.fetch) == ("b", {"c4@1": 300 * GIB})
        cluster.storage("c", datasets=[cached("c4", 300 * GIB)])
        assert plans(proposed(cluster)).keys() == {"c"}

    def test_data_on_two_leaves_wins_over_one_leaf_without(self) -> None:
        cluster = ClusterBuilder()
        for index in range(4):
            cluster.node(f"a{index}", leaf="leaf-1")
        for leaf in ("leaf-2", "leaf-3"):
            for index in range(2):
                cluster.node(f"{leaf}-{index}", leaf=leaf, datasets=[cached("c4", 300 * GIB)])
        chosen = plans(proposed(cluster, workers=4))
        assert all(plan.use for plan in chosen.values())

    def test_a_gang_stays_near_the_nodes_that_have_it(self) -> None:
        cluster = ClusterBuilder()
        for leaf in ("leaf-1", "leaf-2", "leaf-3"):
            for index in range(4):
                cluster.node(f"{leaf}-{index}", leaf=leaf)
        for name in ("leaf-2-1", "leaf-2-3"):
            cluster.storage(name, datasets=[cached("c4", 300 * GIB)])
        assert {name[:6] for name in plans(proposed(cluster, workers=4))} == {"leaf-2"}

    def test_a_dataset_being_evicted_can_be_neither_used_nor_fetched_there(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", datasets=[cached("c4", 300 * GIB)])
        cluster.place("old", "a", evict={"c4@1": 300 * GIB})
        (reason,) = proposed(cluster).nodes.reasons
        assert reason.lacks == (Lack.CACHE,)
        assert "c4@1 is being deleted there" in reason.text
        cluster.node("b")
        assert plans(proposed(cluster)).keys() == {"b"}


class TestSize:
    def test_it_is_as_declared_else_as_registered_else_as_of_a_copy(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", gpus=0)
        cluster.node("b", datasets=[cached("c4", 300 * GIB)])
        cluster.place("old", "b", exclusive=True)
        assert plans(proposed(cluster, datasets=["c4@1"]))["a"].fetch == {"c4@1": 300 * GIB}
        cluster.dataset("c4@1", size_bytes=200 * GIB)
        assert plans(proposed(cluster, datasets=["c4@1"]))["a"].fetch == {"c4@1": 200 * GIB}
        assert plans(proposed(cluster, datasets=[f"c4@1={GIB}"]))["a"].fetch == {"c4@1": GIB}

    def test_unknown_is_not_zero(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a")
        answer = proposed(cluster, datasets=["c4@1"])
        (reason,) = answer.nodes.reasons
        assert reason.code is ReasonCode.DATASET_SIZE_UNKNOWN
        assert reason.lacks == (Lack.DATASET,)
        assert not answer.nodes.never

    def test_a_dataset_larger_than_any_cache_is_refused_at_once_with_numbers(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", cache_bytes=100 * GIB)
        cluster.node("b", cache_bytes=200 * GIB)
        answer = proposed(cluster)
        assert answer.nodes.never
        (reason,) = answer.nodes.reasons
        assert reason.code is ReasonCode.CACHE_SPACE_INSUFFICIENT
        assert reason.numbers["needed_bytes"] == 300 * GIB
        assert reason.numbers["largest_cache_bytes"] == 200 * GIB * 98 // 100
        assert "of b" in reason.text

    def test_a_node_that_has_not_told_its_disk_is_not_said_to_be_too_small(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", cache_bytes=100 * GIB)
        cluster.node("b")
        cluster.state.node("b").take_storage(None)  # type: ignore[arg-type]
        assert not proposed(cluster).nodes.never


class TestSource:
    def test_a_dataset_that_nobody_says_where_to_fetch_from_is_used_where_it_is(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a")
        cluster.node("b", datasets=[cached("c4", 300 * GIB)])
        assert plans(proposed(cluster, datasets=["!" + C4])).keys() == {"b"}
        answer = proposed(cluster, datasets=["!" + C4], workers=2)
        (reason,) = answer.nodes.reasons
        assert reason.code is ReasonCode.DATASET_SOURCE_UNKNOWN
        assert reason.lacks == (Lack.DATASET,)
        assert "where to fetch c4@1 from" in reason.text
        assert not answer.nodes.never
        cluster.dataset("c4@1", source_uri="s3://bucket/c4")
        assert plans(proposed(cluster, datasets=["!" + C4], workers=2)).keys() == {"a", "b"}

    def test_it_is_said_of_a_node_that_the_scheduler_chose_too(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a")
        (reason,) = proposed(cluster, datasets=["!" + C4], node_list=["a"]).nodes.reasons
        assert (reason.code, reason.node) == (ReasonCode.DATASET_SOURCE_UNKNOWN, "a")


class TestRoom:
    def test_what_others_are_fetching_and_strangers_files_take_room(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", cache_bytes=700 * GIB)
        cluster.node("b", cache_bytes=700 * GIB)
        cluster.node("c", cache_bytes=700 * GIB, gpus=0)
        cluster.place("old", "a", fetch={"pile@1": 400 * GIB})
        cluster.storage("b", cache_bytes=700 * GIB, used_bytes=400 * GIB)
        assert plans(proposed(cluster)).keys() == {"c"}

    def test_two_jobs_fetching_the_same_take_its_room_once(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", cache_bytes=320 * GIB)
        cluster.place("old", "a", fetch={"c4@1": 300 * GIB})
        assert plans(proposed(cluster)).keys() == {"a"}

    def test_a_part_of_the_space_is_kept_free(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", cache_bytes=300 * GIB)
        assert proposed(cluster).nodes.reasons
        cluster.node("a", cache_bytes=307 * GIB)
        assert plans(proposed(cluster)).keys() == {"a"}

    def test_a_node_with_room_wins_over_one_that_must_evict(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", cache_bytes=400 * GIB, datasets=[cached("old", 300 * GIB)])
        cluster.node("b", leaf="far", pod="far", gpus=0)
        (plan,) = plans(proposed(cluster)).values()
        assert (plan.node, plan.evict) == ("b", ())

    def test_evictions_proposed_to_others_are_not_proposed_again_nor_is_what_they_use(self) -> None:
        cluster = ClusterBuilder()
        copies = [cached("x", 300 * GIB), cached("y", 300 * GIB, uses=5)]
        cluster.node("a", cache_bytes=650 * GIB, datasets=copies)
        outstanding = Outstanding()
        first = ask("one", datasets=[C4])
        answer = propose(first, cluster.state, outstanding, CacheConfig())
        assert evicted(plans(answer)["a"]) == ["x@1"]
        outstanding.put(first.round_key, answer.holds, now=0.0)
        second = ask("two", datasets=[f"pile@1={250 * GIB}"])
        again = propose(second, cluster.state, outstanding, CacheConfig())
        # x is going anyway, but not gone: y makes room for less than what is short by now.
        assert again.nodes.reasons
        third = ask("three", datasets=[f"y@1={300 * GIB}"])
        answer = propose(third, cluster.state, outstanding, CacheConfig())
        assert plans(answer)["a"].use == ("y@1",)


class TestEviction:
    def test_the_node_that_loses_least_is_chosen_and_only_as_much_as_needed_goes(self) -> None:
        cluster = ClusterBuilder()
        cluster.node(
            "a", cache_bytes=600 * GIB, datasets=[cached("hot", 280 * GIB, uses=50), cached("warm", 280 * GIB, uses=9)]
        )
        cluster.node(
            "b", cache_bytes=600 * GIB, datasets=[cached("cold", 290 * GIB), cached("hot2", 280 * GIB, uses=50)]
        )
        (plan,) = plans(proposed(cluster)).values()
        assert (plan.node, evicted(plan)) == ("b", ["cold@1"])
        assert plan.evict[0].bytes == 290 * GIB
        assert plan.evict[0].reason == "LeastValue"

    def test_small_copies_taken_before_a_large_one_are_given_back(self) -> None:
        small, large = Victim("small", 10, 1.0, "LeastValue"), Victim("large", 100, 50.0, "LeastValue")
        assert plan_eviction((small, large), 100) == (large,)
        assert plan_eviction((small, large), 105) == (small, large)
        assert plan_eviction((small, large), 111) is None
        assert plan_eviction((small, large), 5, spared={"small"}) == (large,)

    def test_pinned_used_and_unrepeatable_copies_never_go(self) -> None:
        cluster = ClusterBuilder()
        cluster.node(
            "a",
            cache_bytes=900 * GIB,
            datasets=[
                cached("pinned", 200 * GIB, pinned=True),
                cached("used", 200 * GIB),
                cached("orphan", 200 * GIB, source=None),
                cached("free", 200 * GIB, uses=100),
            ],
        )
        cluster.place("old", "a", use=["used@1"])
        (plan,) = plans(proposed(cluster, datasets=[f"c4@1={250 * GIB}"])).values()
        assert evicted(plan) == ["free@1"]
        (reason,) = proposed(cluster, datasets=[f"c4@1={500 * GIB}"]).nodes.reasons
        assert reason.code is ReasonCode.CACHE_SPACE_INSUFFICIENT
        assert reason.numbers["pinned_bytes"] == 200 * GIB
        assert reason.numbers["in_use_bytes"] == 200 * GIB
        assert reason.numbers["largest_evictable_bytes"] == 200 * GIB

    def test_the_last_copy_is_dearer_than_one_of_several(self) -> None:
        cluster = ClusterBuilder()
        cluster.node(
            "a", cache_bytes=650 * GIB, datasets=[cached("both", 300 * GIB, uses=2), cached("last", 300 * GIB)]
        )
        cluster.node("b", cache_bytes=310 * GIB, datasets=[cached("both", 300 * GIB, uses=9)])
        cluster.place("old", "b", exclusive=True)
        assert evicted(plans(proposed(cluster))["a"]) == ["both@1"]

    def test_what_was_used_long_ago_goes_before_what_was_used_less_but_lately(self) -> None:
        cluster = ClusterBuilder()
        cluster.node(
            "a",
            cache_bytes=650 * GIB,
            datasets=[
                cached("once-popular", 300 * GIB, uses=9, last_used=1),
                cached("new", 300 * GIB, uses=2, last_used=400_000),
            ],
        )
        cluster.state.sequences["PLACEMENTS"] = 400_000
        assert evicted(plans(proposed(cluster))["a"]) == ["once-popular@1"]

    def test_broken_copies_go_first(self) -> None:
        cluster = ClusterBuilder()
        cluster.node(
            "a",
            cache_bytes=650 * GIB,
            datasets=[cached("broken", 300 * GIB, state=DatasetState.FAILED, uses=99), cached("fine", 300 * GIB)],
        )
        (plan,) = plans(proposed(cluster)).values()
        assert [(item.dataset, item.reason) for item in plan.evict] == [("broken@1", "Failed")]

    def test_several_datasets_are_claimed_together_and_none_of_them_makes_room_for_another(self) -> None:
        cluster = ClusterBuilder()
        cluster.node(
            "a", cache_bytes=700 * GIB, datasets=[cached("pile", 300 * GIB), cached("other", 350 * GIB, uses=50)]
        )
        (plan,) = plans(proposed(cluster, datasets=[C4, f"pile@1={300 * GIB}"])).values()
        assert (plan.use, plan.fetch, evicted(plan)) == (("pile@1",), {"c4@1": 300 * GIB}, ["other@1"])

    def test_no_room_anywhere_says_what_is_free_evictable_pinned_and_short_class_by_class(self) -> None:
        cluster = ClusterBuilder()
        cluster.node("a", cache_bytes=1000 * GIB, datasets=[cached("tts", 900 * GIB, pinned=True)])
        cluster.node("b", cache_bytes=500 * GIB, datasets=[cached("old", 450 * GIB)])
        cluster.place("x", "b", use=["old@1"])
        (reason,) = proposed(cluster).nodes.reasons
        assert reason.code is ReasonCode.CACHE_SPACE_INSUFFICIENT
        assert reason.lacks == (Lack.CACHE,)
        assert "best node of 1000 GiB is a" in reason.text
        assert "best of 500 GiB is b" in reason.text
        assert reason.numbers["best_free_bytes"] == 80 * GIB
        assert reason.numbers["short_bytes"] == 220 * GIB
        assert reason.remedy == "unpin tts@1 on a: 900 GiB are pinned there"
