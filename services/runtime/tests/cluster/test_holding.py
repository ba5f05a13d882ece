"""What is held on a node, and until when: the record and the node's own word, in any order."""

from __future__ import annotations

from typing import Any

import pytest

from railweave.contracts.desired import NodeDesired, NodeMode
from railweave.contracts.identity import JobKey, JobRun
from railweave.contracts.inventory import Report, ReportState
from railweave.contracts.placement import DataRecord, Fence, Grant, PlacedGpu, Placement, PlacementState, Worker
from railweave.contracts.types import Attempt, ClusterName, JobName, NodeName, RunUid
from railweave.runtime.cluster import ClusterState, Distance
from railweave_testing.clusters import GIB, ClusterBuilder, cached

N1 = NodeName("n1")


def make(model: type[Any], /, **fields: Any) -> Any:
    return model.model_validate(fields, strict=False)


def run_of(job: str = "j", *, attempt: int = 1, uid: str | None = None) -> JobRun:
    return JobRun(ClusterName("slurm-a"), JobName(job), Attempt(attempt), RunUid(uid) if uid else None)


def placement(
    job: str = "j", *, state: str = "desired", gpus: int = 1, epoch: int = 1, uid: str | None = None, attempt: int = 1
) -> Placement:
    cards = [
        make(PlacedGpu, index=index, uuid=f"GPU-{index}", fraction_milli=1000, memory_mib=1) for index in range(gpus)
    ]
    return make(
        Placement,
        cluster="slurm-a",
        job=job,
        attempt=attempt,
        uid=uid,
        node="n1",
        state=PlacementState(state),
        epoch=epoch,
        round=1,
        commit="c",
        workers=(make(Worker, name="worker", worker=0, gpus=cards),),
    )


def report(state: ReportState, fence: tuple[int, int], job: str = "j", *, revision: int = 1, **fields: Any) -> Report:
    return make(
        Report,
        cluster="slurm-a",
        job=job,
        attempt=1,
        node="n1",
        revision=revision,
        boot_id="b",
        fence=Fence(*fence),
        state=state,
        **fields,
    )


@pytest.fixture
def state() -> ClusterState:
    builder = ClusterBuilder()
    builder.node("n1", gpus=8)
    return builder.state


def held(state: ClusterState) -> list[JobRun]:
    return list(state.node(N1).holds)


def test_a_placement_holds_until_its_node_says_undone(state: ClusterState) -> None:
    state.apply_event(placement(), 10, "PLACEMENTS")
    assert held(state) == [run_of()]
    state.apply_event(placement(state="releasing"), 20, "PLACEMENTS")
    assert held(state) == [run_of()]
    assert state.node(N1).holds[run_of()].releasing
    state.apply_event(report(ReportState.UNDONE, (1, 20)), 5000, "NODES")
    assert held(state) == []
    assert state.node(N1).free_whole_gpus == 8


def test_undone_frees_before_the_release_is_seen(state: ClusterState) -> None:
    state.apply_event(report(ReportState.UNDONE, (1, 20)), 5000, "NODES")
    state.apply_event(placement(), 10, "PLACEMENTS")
    state.apply_event(placement(state="releasing"), 20, "PLACEMENTS")
    assert held(state) == []


def test_undone_of_an_older_fence_frees_nothing(state: ClusterState) -> None:
    state.apply_event(placement(), 30, "PLACEMENTS")
    state.apply_event(report(ReportState.UNDONE, (1, 20)), 5000, "NODES")
    assert held(state) == [run_of()]


def test_undone_of_an_earlier_epoch_frees_nothing_whatever_its_sequence(state: ClusterState) -> None:
    """After a restore sequences start over: 900 of epoch 1 is older than 3 of epoch 2."""
    state.apply_event(placement(epoch=2), 3, "PLACEMENTS")
    state.apply_event(report(ReportState.UNDONE, (1, 900)), 5000, "NODES")
    assert held(state) == [run_of()]


@pytest.mark.parametrize("said", [ReportState.PREPARED, ReportState.ATTACHED, ReportState.REFUSED, ReportState.FAILED])
def test_no_other_report_frees(state: ClusterState, said: ReportState) -> None:
    state.apply_event(placement(), 10, "PLACEMENTS")
    state.apply_event(report(said, (1, 10)), 5000, "NODES")
    assert held(state) == [run_of()]
    assert state.node(N1).report_of(run_of()) is said


def test_a_released_placement_holds_nothing(state: ClusterState) -> None:
    state.apply_event(placement(), 10, "PLACEMENTS")
    state.apply_event(placement(state="released"), 20, "PLACEMENTS")
    assert held(state) == []


def test_a_retired_node_holds_nothing_and_is_not_offered(state: ClusterState) -> None:
    state.apply_event(placement(), 10, "PLACEMENTS")
    state.apply_event(make(NodeDesired, node="n1", generation=1, mode=NodeMode.RETIRED), 7, "DESIRED")
    assert held(state) == []
    assert list(state.nodes_with_free_gpus(0)) == []
    assert state.tenant_gpu_milli("default") == 0


@pytest.mark.parametrize("mode", [NodeMode.CORDONED, NodeMode.DRAINING])
def test_a_cordoned_node_keeps_what_it_holds_and_is_not_offered(state: ClusterState, mode: NodeMode) -> None:
    state.apply_event(placement(), 10, "PLACEMENTS")
    state.apply_event(make(NodeDesired, node="n1", generation=1, mode=mode), 7, "DESIRED")
    assert held(state) == [run_of()]
    assert list(state.nodes_with_free_gpus(0)) == []


def test_a_new_uid_under_an_old_name_takes_the_old_ones_place(state: ClusterState) -> None:
    state.apply_event(placement(uid="one"), 10, "PLACEMENTS")
    state.apply_event(placement(uid="two"), 20, "PLACEMENTS")
    assert held(state) == [run_of(uid="two")]


def test_two_attempts_may_hold_at_once_while_the_first_is_undone(state: ClusterState) -> None:
    state.apply_event(placement(state="releasing", gpus=2), 10, "PLACEMENTS")
    second = placement(attempt=2, gpus=1)
    state.apply_event(second, 11, "PLACEMENTS")
    assert set(held(state)) == {run_of(), run_of(attempt=2)}
    assert set(state.nodes_held_by(JobKey(ClusterName("slurm-a"), JobName("j")))) == {N1}


class TestOrphans:
    def test_what_a_node_holds_without_a_record_is_in_use(self, state: ClusterState) -> None:
        state.apply_event(report(ReportState.ORPHAN, (1, 9), held=placement(gpus=3)), 50, "NODES")
        assert held(state) == [run_of()]
        assert state.node(N1).free_whole_gpus == 5

    def test_adopted_it_is_held_by_its_record(self, state: ClusterState) -> None:
        state.apply_event(report(ReportState.ORPHAN, (1, 9), held=placement(gpus=3)), 50, "NODES")
        state.apply_event(placement(epoch=2, gpus=2), 3, "PLACEMENTS")
        assert state.node(N1).free_whole_gpus == 6

    def test_undone_it_is_free(self, state: ClusterState) -> None:
        state.apply_event(report(ReportState.ORPHAN, (1, 9), held=placement(gpus=3)), 50, "NODES")
        state.apply_event(report(ReportState.UNDONE, (2, 4), revision=2), 51, "NODES")
        assert held(state) == []


class TestApartFromJobs:
    def test_a_grant_holds_gpus_until_it_is_released(self, state: ClusterState) -> None:
        def grant(said: str) -> Grant:
            cards = [make(PlacedGpu, index=2, uuid="GPU-2", fraction_milli=500, memory_mib=1)]
            fields = {"cluster": "k8s-b", "environment": "nb", "node": "n1", "lease": "l1", "epoch": 1, "tenant": "nlp"}
            return make(Grant, state=said, gpus=cards, **fields)

        state.apply_event(grant("granted"), 5, "PLACEMENTS")
        assert state.node(N1).free_gpu_milli(2) == 500
        assert state.tenant_gpu_milli("nlp") == 500
        state.apply_event(grant("releasing"), 6, "PLACEMENTS")
        assert state.tenant_gpu_milli("nlp") == 500
        state.apply_event(grant("released"), 7, "PLACEMENTS")
        assert state.node(N1).free_gpu_milli(2) == 1000
        assert state.tenant_gpu_milli("nlp") == 0

    def test_a_prefetch_takes_room_until_it_is_on_disk_and_no_more_then(self) -> None:
        builder = ClusterBuilder()
        builder.node("n1", cache_bytes=100 * GIB)

        def wish(said: str, generation: int) -> DataRecord:
            fields = {"node": "n1", "name": "c4", "version": "1", "epoch": 1, "bytes": 30 * GIB, "pinned": True}
            return make(DataRecord, state=said, generation=generation, **fields)

        builder.tell(wish("present", 1), "PLACEMENTS")
        node = builder.state.node(N1)
        assert node.cache_free_bytes() == 70 * GIB
        assert node.is_fetching("c4@1")
        assert node.is_pinned("c4@1")
        builder.storage("n1", cache_bytes=100 * GIB, datasets=[cached("c4@1", 30 * GIB)])
        assert node.cache_free_bytes() == 70 * GIB
        assert not node.is_fetching("c4@1")
        builder.tell(wish("evicting", 2), "PLACEMENTS")
        assert node.is_evicting("c4@1")
        assert not node.has_ready("c4@1")
        builder.storage("n1", cache_bytes=100 * GIB)
        builder.tell(wish("absent", 3), "PLACEMENTS")
        assert node.cache_free_bytes() == 100 * GIB


class TestSpace:
    def test_a_dataset_two_jobs_fetch_takes_its_room_once(self) -> None:
        builder = ClusterBuilder()
        builder.node("n1", cache_bytes=100 * GIB)
        builder.place("a", "n1", fetch={"c4@1": 30 * GIB}, scratch_bytes=10 * GIB)
        builder.place("b", "n1", fetch={"c4@1": 30 * GIB}, scratch_bytes=5 * GIB)
        node = builder.state.node(N1)
        assert node.cache_free_bytes() == 70 * GIB
        assert node.scratch_free_bytes() == 985 * GIB
        assert node.is_used("c4@1")

    def test_more_held_than_there_is_leaves_nothing_and_not_less(self) -> None:
        builder = ClusterBuilder()
        builder.node("n1", cache_bytes=10 * GIB, scratch_bytes=10 * GIB)
        builder.place("a", "n1", fetch={"c4@1": 30 * GIB}, scratch_bytes=30 * GIB, gpus=[(0, 1000)])
        builder.place("b", "n1", gpus=[(0, 1000)])
        node = builder.state.node(N1)
        assert (node.cache_free_bytes(), node.scratch_free_bytes(), node.free_gpu_milli(0)) == (0, 0, 0)


class TestIndices:
    def test_nodes_are_found_by_free_gpus_fewest_first(self) -> None:
        builder = ClusterBuilder()
        for name, used in (("n1", 0), ("n2", 6), ("n3", 3)):
            builder.node(name, gpus=8)
            if used:
                builder.place(f"j-{name}", name, gpus=[(index, 1000) for index in range(used)])
        assert [node.name for node in builder.state.nodes_with_free_gpus(3)] == ["n3", "n1"]
        builder.release("j-n2", "n2")
        assert {node.name for node in builder.state.nodes_with_free_gpus(8)} == {"n1", "n2"}

    def test_a_node_is_found_by_what_is_on_its_disk(self) -> None:
        builder = ClusterBuilder()
        builder.node("n1", datasets=[cached("c4@1", GIB)])
        builder.node("n2")
        assert set(builder.state.nodes_with_dataset("c4@1")) == {"n1"}
        builder.storage("n1")
        assert set(builder.state.nodes_with_dataset("c4@1")) == set()

    def test_a_node_without_an_agent_is_not_offered(self) -> None:
        builder = ClusterBuilder()
        builder.fabric("n1")
        assert list(builder.state.nodes_with_free_gpus(0)) == []

    def test_asking_for_an_unknown_node_does_not_make_it_known(self, state: ClusterState) -> None:
        assert not state.node(NodeName("ghost")).is_schedulable
        assert "ghost" not in state.nodes


class TestDistance:
    @pytest.fixture
    def state(self) -> ClusterState:
        builder = ClusterBuilder()
        builder.fabric("a", leaf="l1")
        builder.fabric("b", leaf="l1")
        builder.fabric("c", leaf="l2")
        builder.fabric("d", leaf="l3", pod="pod-2")
        builder.fabric("e", leaf="l4", island="island-2")
        builder.node("f", in_fabric=False)
        return builder.state

    @pytest.mark.parametrize(
        ("other", "expected"),
        [
            ("a", Distance.SAME_NODE),
            ("b", Distance.SAME_LEAF),
            ("c", Distance.SAME_POD),
            ("d", Distance.SAME_ISLAND),
            ("e", Distance.UNREACHABLE),
            ("f", Distance.UNREACHABLE),
            ("ghost", Distance.UNREACHABLE),
        ],
    )
    def test_nearer_is_less(self, state: ClusterState, other: str, expected: Distance) -> None:
        assert state.distance(NodeName("a"), NodeName(other)) is expected
        assert state.distance(NodeName(other), NodeName("a")) is expected
