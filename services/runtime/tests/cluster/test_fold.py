"""The laws of the fold: any order, any repeats, only the latest of a subject, and nothing of what a reset took."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.contracts import JobKey, StoredMessage, encode_event
from railweave.contracts.desired import Dataset, Environment, NodeDesired, NodeMode, Tenant
from railweave.contracts.envelope import Event
from railweave.contracts.fabric import FabricLeaf, FabricNode
from railweave.contracts.identity import JobRun
from railweave.contracts.inventory import Gpu, NodeHardware, NodeStorage, Report, ReportState, Space
from railweave.contracts.placement import (
    DataRecord,
    Epoch,
    Fence,
    Grant,
    Head,
    JobState,
    PlacedDataset,
    PlacedGpu,
    Placement,
    PlacementState,
    Scratch,
    Worker,
)
from railweave.contracts.proposal import Eviction
from railweave.contracts.types import Attempt, ClusterName, JobName, NodeName
from railweave.runtime import cluster as cluster_module
from railweave.runtime.cluster import STREAMS, Change, ClusterState
from railweave_testing.clusters import GIB, cached, spec

Told = tuple[str, int, Event]
NODES = ("n1", "n2", "n3")
JOBS = ("a", "b", "c")


def make(model: type[Any], /, **fields: Any) -> Any:
    return model.model_validate(fields, strict=False)


# -- a history: what the streams may hold, written in some order ------------------------------------------------------

nodes, jobs = st.sampled_from(NODES), st.sampled_from(JOBS)
small = st.integers(1, 3)
tenants = st.sampled_from(("default", "nlp", "cv"))


def _placement(job: str, node: str, attempt: int, state: str, gpus: int, milli: int, tenant: str) -> Placement:
    cards = [
        make(PlacedGpu, index=index, uuid=f"GPU-{index}", fraction_milli=milli, memory_mib=1) for index in range(gpus)
    ]
    return make(
        Placement,
        cluster="slurm-a",
        job=job,
        attempt=attempt,
        node=node,
        state=PlacementState(state),
        epoch=1,
        round=1,
        commit="c",
        tenant=tenant,
        workers=(make(Worker, name="w", worker=0, gpus=cards),),
        datasets=(make(PlacedDataset, name="c4", version="1", action="fetch", bytes=GIB * gpus),),
        evict=(make(Eviction, dataset="web@1", bytes=GIB, reason="LeastValue"),),
        scratch=make(Scratch, bytes=GIB),
    )


def _report(job: str, node: str, attempt: int, state: ReportState, sequence: int) -> Report:
    held = _placement(job, node, attempt, "desired", 1, 500, "cv") if state is ReportState.ORPHAN else None
    fields = {"cluster": "slurm-a", "job": job, "attempt": attempt, "node": node, "revision": 1, "boot_id": "b"}
    return make(Report, fence=Fence(1, sequence), state=state, held=held, **fields)


def _head(job: str, attempt: int, state: JobState, number: int) -> Head:
    fields = {"cluster": "slurm-a", "job": job, "attempt": attempt, "epoch": 1, "round": number, "commit": "c"}
    return make(
        Head, state=state, spec=spec(job), submitted_at=datetime(2026, 12, 1, tzinfo=UTC), nodes=NODES, **fields
    )


def _hardware(node: str, gpus: int) -> NodeHardware:
    cards = [make(Gpu, index=index, uuid=f"GPU-{index}", model="H100", memory_mib=80) for index in range(gpus)]
    return make(NodeHardware, node=node, revision=1, boot_id="b", agent_version="t", gpus=cards)


def _storage(node: str, datasets: Sequence[str]) -> NodeStorage:
    space = make(Space, total_bytes=5 * GIB, used_bytes=0)
    on_disk = [cached(name, GIB) for name in datasets]
    return make(NodeStorage, node=node, revision=1, boot_id="b", cache=space, scratch=space, datasets=on_disk)


def _fabric(node: str, leaf: int) -> FabricNode:
    attachments = [{"rail": 0, "leaf": f"l{leaf}", "port": "p", "slot": 1}]
    return make(FabricNode, node=node, revision=1, ordinal=1, island="i", pod=f"p{leaf // 2}", attachments=attachments)


def _leaf(leaf: int) -> FabricLeaf:
    return make(FabricLeaf, leaf=f"l{leaf}", revision=1, island="i", pod="p", vlans=())


def _grant(node: str, lease: int, state: str) -> Grant:
    cards = [make(PlacedGpu, index=0, uuid="GPU-0", fraction_milli=300, memory_mib=1)]
    fields = {"cluster": "k8s-b", "environment": "e", "lease": f"l{lease}", "epoch": 1, "tenant": "nlp"}
    return make(Grant, node=node, state=state, gpus=cards, **fields)


def _data(node: str, state: str, generation: int) -> DataRecord:
    fields = {"name": "web", "version": "1", "epoch": 1, "bytes": GIB}
    return make(DataRecord, node=node, generation=generation, state=state, **fields)


PRESENCE = st.sampled_from(("present", "absent"))
EVENTS: dict[str, st.SearchStrategy[Event]] = {
    "PLACEMENTS": st.one_of(
        st.builds(
            _placement,
            jobs,
            nodes,
            st.integers(1, 2),
            st.sampled_from([str(state) for state in PlacementState]),
            st.integers(0, 4),
            st.sampled_from((250, 1000)),
            tenants,
        ),
        st.builds(_head, jobs, st.integers(1, 2), st.sampled_from(JobState), small),
        st.builds(_grant, nodes, small, st.sampled_from(("granted", "releasing", "released"))),
        st.builds(_data, nodes, st.sampled_from(("present", "evicting", "absent")), small),
        st.builds(lambda epoch: make(Epoch, epoch=epoch, cause="restore", text="t"), small),
    ),
    "NODES": st.one_of(
        st.builds(_report, jobs, nodes, st.integers(1, 2), st.sampled_from(ReportState), st.integers(1, 40)),
        st.builds(_hardware, nodes, st.integers(0, 4)),
        st.builds(_storage, nodes, st.lists(st.sampled_from(("c4@1", "web@1")), unique=True)),
    ),
    "DESIRED": st.one_of(
        st.builds(
            lambda node, mode: make(NodeDesired, node=node, generation=1, mode=mode), nodes, st.sampled_from(NodeMode)
        ),
        st.builds(lambda tenant, state: make(Tenant, tenant=tenant, generation=1, state=state), tenants, PRESENCE),
        st.builds(lambda name, state: make(Dataset, name=name, generation=1, state=state), jobs, PRESENCE),
        st.builds(
            lambda name, state: make(Environment, cluster="k", environment=name, generation=1, state=state),
            jobs,
            PRESENCE,
        ),
    ),
    "FABRIC": st.one_of(st.builds(_fabric, nodes, small), st.builds(_leaf, small)),
}


@st.composite
def histories(draw: st.DrawFn) -> list[Told]:
    """Messages of all four streams, each stream's sequences counting up."""
    told: list[Told] = []
    for stream in STREAMS:
        events = draw(st.lists(EVENTS[stream], max_size=14))
        told += [(stream, sequence, event) for sequence, event in enumerate(events, start=1)]
    return told


def folded(told: Sequence[Told]) -> ClusterState:
    state = ClusterState()
    for stream, sequence, event in told:
        state.apply_event(event, sequence, stream)
    return state


def picture(state: ClusterState) -> dict[str, Any]:
    """All that can be asked of a state, in a form that can be compared."""
    names = sorted(state.nodes)
    return {
        "nodes": {
            name: (
                node.hardware,
                node.storage,
                node.mode,
                node.fabric,
                dict(sorted(node.holds.items(), key=str)),
                node.gpu_used,
                sorted(node.vfs_used),
                node.free_whole_gpus,
                node.cache_free_bytes(),
                node.scratch_free_bytes(),
                node.grants,
                node.data,
            )
            for name, node in state.nodes.items()
        },
        "heads": state.heads,
        "leaves": state.leaves,
        "tenants": state.tenants,
        "datasets": state.datasets,
        "environments": state.environments,
        "epoch": state.epoch,
        "sequences": state.sequences,
        "free": {count: sorted(n.name for n in state.nodes_with_free_gpus(count)) for count in range(9)},
        "milli": {tenant: state.tenant_gpu_milli(tenant) for tenant in ("default", "nlp", "cv")},
        "by_job": {job: sorted(state.nodes_held_by(job)) for job in state.heads},
        "by_dataset": {name: sorted(state.nodes_with_dataset(name)) for name in ("c4@1", "web@1")},
        "distance": [state.distance(one, other) for one in names for other in names],
    }


@settings(deadline=None, max_examples=60)
@given(history=histories(), seed=st.integers(0, 2**32))
def test_any_order_with_repeats_gives_the_same_state(history: list[Told], seed: int) -> None:
    rng = random.Random(seed)
    shuffled = history + rng.choices(history, k=len(history)) if history else []
    rng.shuffle(shuffled)
    assert picture(folded(shuffled)) == picture(folded(history))


@settings(deadline=None, max_examples=60)
@given(history=histories())
def test_the_latest_of_each_subject_is_enough(history: list[Told]) -> None:
    """Followers start from the last message of each subject."""
    latest = {(stream, event.subject()): (stream, sequence, event) for stream, sequence, event in history}
    assert picture(folded(list(latest.values()))) == _but_sequences(picture(folded(history)), latest.values())


def _but_sequences(found: dict[str, Any], told: Any) -> dict[str, Any]:
    found["sequences"] = {}
    for stream, sequence, _ in told:
        found["sequences"][stream] = max(sequence, found["sequences"].get(stream, 0))
    return found


@settings(deadline=None, max_examples=60)
@given(history=histories(), stream=st.sampled_from(STREAMS))
def test_a_stream_that_is_lost_leaves_what_the_others_said(history: list[Told], stream: str) -> None:
    others = folded([told for told in history if told[0] != stream])
    state = folded(history)
    state.reset(stream)
    assert picture(state) == picture(others)
    for _, sequence, event in [told for told in history if told[0] == stream]:
        state.apply_event(event, sequence, stream)
    assert picture(state) == picture(folded(history))


@settings(deadline=None, max_examples=60)
@given(history=histories())
def test_nothing_is_negative_and_every_index_agrees_with_the_nodes(history: list[Told]) -> None:
    state = folded(history)
    for node in state.nodes.values():
        assert node.cache_free_bytes() >= 0
        assert node.scratch_free_bytes() >= 0
        assert node.free_whole_gpus >= 0
        assert all(node.free_gpu_milli(index) >= 0 for index in range(5))
        found = [count for count, names in state._index.by_free_gpus.items() if node.name in names]
        assert found == ([node.free_whole_gpus] if node.is_schedulable else [])
        for run in node.holds:
            assert node.name in state.nodes_held_by(run.key)
    for tenant in ("default", "nlp", "cv"):
        holds = [hold for node in state.nodes.values() for hold in (*node.holds.values(), *node.grants.values())]
        assert state.tenant_gpu_milli(tenant) == sum(
            milli for hold in holds if hold.tenant == tenant for _, milli in hold.gpus
        )
    assert all(members for members in state._index.by_job.values())


@settings(deadline=None, max_examples=40)
@given(history=histories())
def test_a_change_names_every_node_that_looks_different(history: list[Told]) -> None:
    state = ClusterState()
    before = picture(state)
    for stream, sequence, event in history:
        change = state.apply_event(event, sequence, stream)
        after = picture(state)
        known = before["nodes"].keys() | after["nodes"].keys()
        assert {name for name in known if before["nodes"].get(name) != after["nodes"].get(name)} <= change.nodes
        heads = before["heads"].keys() | after["heads"].keys()
        assert {job for job in heads if before["heads"].get(job) != after["heads"].get(job)} <= change.jobs
        before = after


def stored(event: Event, sequence: int = 1, stream: str = "NODES") -> StoredMessage:
    wire = encode_event(event)
    return StoredMessage(stream, wire.subject, sequence, datetime(2026, 12, 1, tzinfo=UTC), wire.headers, wire.body)


class TestMalformed:
    @pytest.mark.parametrize(
        ("subject", "headers", "body", "field"),
        [
            ("rw.inventory.n1.hardware", {}, b"", "body"),
            ("rw.inventory.n1.hardware", {}, b"\xff\xfe", "body"),
            ("rw.inventory.n1.hardware", {}, b"[]", "type"),
            ("rw.inventory.n1.hardware", {"ce-type": "railweave.unknown.v9"}, b"{}", "type"),
            ("rw.inventory.n1.hardware", {"ce-type": "railweave.inventory.hardware.v1"}, b"{}", "specversion"),
            ("rw.inventory.n1.hardware", {}, b"[" * 100_000, "body"),
        ],
    )
    def test_a_malformed_message_is_counted_and_changes_nothing(
        self, subject: str, headers: dict[str, str], body: bytes, field: str
    ) -> None:
        skipped = []
        state = ClusterState(on_skipped=lambda stream, where: skipped.append((stream, where)))
        message = StoredMessage("NODES", subject, 7, datetime(2026, 12, 1, tzinfo=UTC), headers, body)
        assert not state.apply(message)
        assert state.nodes == {}
        assert skipped == [("NODES", field)]

    def test_what_came_before_a_malformed_message_still_counts(self) -> None:
        state = ClusterState()
        good = stored(_hardware("n1", 4), 1)
        bad = StoredMessage("NODES", good.subject, 2, good.stored_at, good.headers, b"{}")
        for message in (bad, good):
            state.apply(message)
        assert state.node(NodeName("n1")).free_whole_gpus == 4
        assert state.skipped == 1

    def test_a_body_that_speaks_for_another_node_is_passed_over(self) -> None:
        state = ClusterState()
        good = stored(_hardware("n1", 4))
        state.apply(StoredMessage("NODES", "rw.inventory.n2.hardware", 1, good.stored_at, good.headers, good.body))
        assert state.nodes == {}

    @settings(deadline=None, max_examples=200)
    @given(body=st.binary(max_size=200), kind=st.sampled_from(("railweave.placement.v1", "railweave.report.v1", "")))
    def test_no_bytes_raise(self, body: bytes, kind: str) -> None:
        headers = {"ce-type": kind} if kind else {}
        ClusterState().apply(StoredMessage("NODES", "rw.x", 1, datetime(2026, 12, 1, tzinfo=UTC), headers, body))


class TestMemory:
    def test_what_has_ended_is_forgotten_beyond_a_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """At 40 jobs/s a week of tombstones is 24 million; the stream forgets them, and so does the view."""
        monkeypatch.setattr(cluster_module, "ENDED_KEPT", 30)
        state = ClusterState()
        state.apply_event(_hardware("n1", 4), 1, "NODES")
        for number in range(200):
            job, sequence = f"j{number}", 10 * number
            state.apply_event(_head(job, 1, JobState.PLACED, 1), sequence + 1, "PLACEMENTS")
            state.apply_event(_placement(job, "n1", 1, "desired", 1, 1000, "nlp"), sequence + 2, "PLACEMENTS")
            state.apply_event(_report(job, "n1", 1, ReportState.UNDONE, sequence + 3), sequence + 2, "NODES")
            state.apply_event(_placement(job, "n1", 1, "released", 1, 1000, "nlp"), sequence + 4, "PLACEMENTS")
            state.apply_event(_head(job, 1, JobState.RELEASED, 1), sequence + 5, "PLACEMENTS")
        assert len(state._ended) == 30
        assert sum(map(len, state._seen.values())) <= 31
        assert len(state.heads) <= 30
        assert len(state.nodes[NodeName("n1")]._tasks) <= 30
        assert state.nodes[NodeName("n1")].free_whole_gpus == 4

    def test_what_still_lives_is_never_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cluster_module, "ENDED_KEPT", 5)
        state = ClusterState()
        state.apply_event(_placement("live", "n1", 1, "desired", 1, 1000, "nlp"), 1, "PLACEMENTS")
        state.apply_event(_head("live", 1, JobState.ATTACHED, 1), 2, "PLACEMENTS")
        for number in range(50):
            state.apply_event(_head(f"j{number}", 1, JobState.REJECTED, 1), number + 3, "PLACEMENTS")
        live = JobRun(ClusterName("slurm-a"), JobName("live"), Attempt(1), None)
        assert live in state.nodes[NodeName("n1")].holds
        assert live.key in state.heads

    def test_a_job_that_came_back_is_not_forgotten_with_its_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cluster_module, "ENDED_KEPT", 5)
        state = ClusterState()
        state.apply_event(_head("j", 1, JobState.RELEASED, 1), 1, "PLACEMENTS")
        state.apply_event(_head("j", 2, JobState.PLACED, 2), 2, "PLACEMENTS")
        for number in range(50):
            state.apply_event(_head(f"x{number}", 1, JobState.REJECTED, 1), number + 3, "PLACEMENTS")
        assert state.heads[JobKey(ClusterName("slurm-a"), JobName("j"))].state is JobState.PLACED


def test_changes_are_taken_together() -> None:
    whole = Change()
    assert not whole
    whole.merge(Change(nodes={NodeName("n1")}))
    whole.merge(Change(epoch=True))
    assert whole
    assert whole == Change(nodes={NodeName("n1")}, epoch=True)
