"""Why a job is where it is: headline, wants, what blocks it, what changes it; and its row in lists."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from desk import START, make

from railweave.contracts.inventory import Failure, ReportState
from railweave.contracts.placement import Head, JobState
from railweave.contracts.query import JobRow, NodeProgress
from railweave.contracts.reasons import Lack, Reason, ReasonCode
from railweave.jobs.rows import projected, row_of
from railweave.jobs.why import age, explain
from railweave_testing.clusters import CLUSTER, GIB, spec

FULL = Reason(
    code=ReasonCode.INSUFFICIENT_GPUS,
    text="6 of 8 GPUs free",
    numbers={"free_gpus": 6},
    lacks=(Lack.GPU,),
    remedy="wait, or ask for fewer",
)


def head(job: str = "j", state: JobState = JobState.PENDING, **fields: Any) -> Head:
    document = {
        "cluster": CLUSTER,
        "job": job,
        "attempt": 1,
        "state": state,
        "epoch": 1,
        "round": 1,
        "commit": "c",
        "spec": spec(job, workers=2, gpus=4),
        "submitted_at": START,
    }
    return make(Head, **(document | fields))


def row(job: str, priority: int = 0, age_s: int = 0) -> JobRow:
    return row_of(head(job, spec=spec(job, priority=priority), submitted_at=START - timedelta(seconds=age_s)))


def test_a_waiting_job_is_told_its_reason_age_and_place() -> None:
    waiting = [row("young"), row("urgent", priority=5), row("old", age_s=60), row("j", age_s=30)]
    told = explain(head(reasons=(FULL,), lacks=(Lack.GPU,)), waiting, (), START + timedelta(minutes=14))
    assert told.headline == "PENDING InsufficientGpus, 14 min, 3rd of 4 waiting"
    assert (told.position, told.queue_length) == (3, 4)
    assert told.blocked == ("6 of 8 GPUs free",)
    assert told.next == ("wait, or ask for fewer", "asked again as soon as there is more gpu")
    assert told.reasons == (FULL,)


def test_numbers_that_a_text_leaves_out_are_told_behind_it() -> None:
    reason = FULL.model_copy(update={"text": "not enough GPUs", "numbers": {"free_gpus": 6, "needed_gpus": 8}})
    assert explain(head(reasons=(reason,)), (), (), START).blocked == ("not enough GPUs (free_gpus 6, needed_gpus 8)",)


def test_attempt_and_round_are_told_where_they_are_not_the_first() -> None:
    told = explain(head(state=JobState.PLACED, attempt=2, round=3), (), (), START + timedelta(hours=3))
    assert told.headline == "PLACED, 3 h, attempt 2, round 3"


@pytest.mark.parametrize(
    ("state", "following"),
    [
        (JobState.PLACED, "its nodes prepare; then the workers may start"),
        (JobState.PREPARED, "waits for the scheduler to start the workers"),
        (JobState.STARTED, "its nodes attach VFs into the workers' namespaces"),
        (JobState.RELEASING, "its nodes undo; what they held is free when they say so"),
    ],
)
def test_what_comes_next_is_told(state: JobState, following: str) -> None:
    assert explain(head(state=state), (), (), START).next == (following,)


@pytest.mark.parametrize("state", [JobState.ATTACHED, JobState.RELEASED, JobState.REJECTED])
def test_nothing_is_promised_where_nothing_comes(state: JobState) -> None:
    assert explain(head(state=state), (), (), START).next == ()


def test_a_node_that_failed_is_told_with_its_step() -> None:
    progress = (
        NodeProgress(node="n0", state=ReportState.ATTACHED),
        NodeProgress(
            node="n1", state=ReportState.FAILED, failure=Failure(step="attach rail3", error="EBUSY", text="in use")
        ),
        NodeProgress(node="n2"),
    )
    told = explain(head(state=JobState.STARTED, nodes=["n0", "n1", "n2"]), (), progress, START)
    assert told.blocked == ("n1: attach rail3: EBUSY: in use", "2 of 3 nodes have reported")


@pytest.mark.parametrize(
    ("state", "reported", "is_missed"),
    [
        (JobState.PLACED, None, True),
        (JobState.PLACED, ReportState.PREPARED, False),
        (JobState.PLACED, ReportState.ATTACHED, False),
        (JobState.STARTED, ReportState.PREPARED, True),
        (JobState.STARTED, ReportState.ATTACHED, False),
        (JobState.RELEASING, ReportState.ATTACHED, True),
        (JobState.RELEASING, ReportState.UNDONE, False),
        (JobState.PREPARED, ReportState.PREPARED, False),
        (JobState.ATTACHED, ReportState.ATTACHED, False),
    ],
)
def test_a_node_that_is_waited_for_and_has_no_heartbeat_is_told(
    state: JobState, reported: ReportState | None, is_missed: bool
) -> None:
    progress = (NodeProgress(node="n0", state=reported), NodeProgress(node="n1"))
    told = explain(head(state=state, nodes=["n0", "n1"]), (), progress, START, silent={"n0"})
    assert [(reason.code, reason.node, reason.lacks) for reason in told.reasons] == (
        [(ReasonCode.AGENT_UNREACHABLE, "n0", (Lack.AGENT,))] if is_missed else []
    )
    assert any("no heartbeat" in line for line in told.blocked) is is_missed
    assert any("agent of n0 runs" in line for line in told.next) is is_missed


def test_a_silent_node_is_told_with_when_it_was_heard_last_and_how_to_go_on_without_it() -> None:
    progress = (NodeProgress(node="n0", state=ReportState.ATTACHED, reported_at=START),)
    now = START + timedelta(hours=2)
    told = explain(head(state=JobState.RELEASING, nodes=["n0"]), (), progress, now, silent={"n0"})
    assert "n0: its agent has no heartbeat, and last reported attached 2 h ago, at 2026-12-01T00:00:00Z" in told.blocked
    assert told.reasons[0].numbers == {"last_report_age_s": 7200}
    assert "railweave node forget n0" in told.next[0]


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({"workers": 2, "gpus": 4}, "2 worker x 4 GPUs"),
        ({"workers": 1, "gpus": 1, "gpu_fraction_milli": 250}, "1 worker x 1 GPU at 250/1000"),
        ({"workers": 16, "gpus": 1, "per_node": 8, "gpu_model": "H100"}, "16 worker x 1 GPUs (H100), 8 a node"),
        ({"workers": 1, "scratch_bytes": 3 * GIB // 2}, "1 worker, scratch 1.5 GiB"),
        ({"workers": 1, "network": {"isolation": "tenant"}}, "1 worker; VFs one-per-pf, tenant network"),
        ({"workers": 1, "network": {"vfs": "none"}}, "1 worker"),
        ({"workers": 1, "topology": {"required": "leaf"}}, "1 worker; in one leaf"),
        ({"workers": 1, "node_list": ["n0"]}, "1 worker; on nodes chosen by the scheduler"),
        ({"workers": 1, "datasets": [f"c4@2={2 * GIB}", "x"]}, "1 worker; c4@2 2.0 GiB; x@1"),
    ],
)
def test_what_a_job_wants_is_told_in_a_line(wanted: dict[str, Any], text: str) -> None:
    assert explain(head(spec=spec("j", **wanted)), (), (), START).wants == text


def test_an_adopted_job_says_that_its_wishes_are_unknown() -> None:
    assert "adopted from the nodes' journals" in explain(head(spec=None), (), (), START).wants


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.4, "0 s"), (59, "59 s"), (60, "1 min"), (3599, "59 min"), (3600, "1 h"), (86_400 * 3, "3 d")],
)
def test_an_age_is_said_in_its_largest_unit(seconds: float, text: str) -> None:
    assert age(seconds) == text


@pytest.mark.parametrize(
    ("position", "ordinal"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (22, "22nd")]
)
def test_a_place_is_said_as_an_ordinal(position: int, ordinal: str) -> None:
    waiting = [row(f"k{number}", age_s=100 - number) for number in range(position - 1)]
    told = explain(head(), [*waiting, row("j")], (), START)
    assert f"{ordinal} of {position} waiting" in told.headline


def test_a_row_counts_what_the_job_wants() -> None:
    wanted = spec(
        "j", workers=[{"count": 16, "gpus": 1, "per_node": 8}, {"count": 1, "gpus": 2}], tenant="t", priority=3
    )
    found = row_of(head(spec=wanted, state=JobState.PLACED, nodes=["n0", "n1", "n2"], reasons=[FULL, FULL]))
    assert (found.workers, found.node_slots, found.gpus, found.tenant, found.priority) == (17, 3, 18, "t", 3)
    assert (found.nodes, found.reasons) == (("n0", "n1", "n2"), (ReasonCode.INSUFFICIENT_GPUS,))


def test_a_row_without_a_spec_says_what_its_head_knows() -> None:
    found = row_of(head(spec=None, state=JobState.PREPARED, nodes=["n0"]))
    assert (found.workers, found.node_slots, found.tenant) == (0, 1, "default")


def test_a_job_stands_in_an_index_of_each_thing_it_is_asked_for_by() -> None:
    found = projected(head(reasons=[FULL], nodes=["n0", "n1"]), 7, 60.0)
    assert set(found.indices) == {
        "jobs",
        "jobs:state:pending",
        f"jobs:cluster:{CLUSTER}",
        "jobs:tenant:default",
        "jobs:node:n0",
        "jobs:node:n1",
        "jobs:reason:InsufficientGpus",
    }
    assert (found.name, found.sequence, found.ttl_s) == (f"{CLUSTER}/j", 7, 60.0)
