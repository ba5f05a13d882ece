"""Every event in every state: what it makes of the job, and that the same again makes nothing more of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from desk import Desk, key_of, make

from railweave.contracts.desired import NodeMode
from railweave.contracts.inventory import ReportState
from railweave.contracts.job import JobEnded, JobStarted, JobSubmitted, JobUpdated, Outcome
from railweave.contracts.placement import Fence, JobState, PlacementState
from railweave.jobs.committer import JobInput
from railweave_testing.clusters import CLUSTER, spec

Reach = Callable[[Desk], None]


def _released(desk: Desk) -> None:
    desk.place(workers=2, gpus=1)
    desk.end()
    desk.report("j", ReportState.UNDONE)


def _releasing(desk: Desk) -> None:
    desk.place(workers=2, gpus=1)
    desk.end()


def _requeued(desk: Desk) -> None:
    desk.place(workers=2, gpus=1)
    desk.report("j", ReportState.REFUSED, ["n0"])


def _pending(desk: Desk) -> None:
    desk.submit(workers=2, gpus=1)
    desk.refuse()


def _rejected(desk: Desk) -> None:
    desk.submit(workers=2, gpus=1)
    desk.refuse(never=True)


def _started(desk: Desk) -> None:
    desk.prepare(workers=2, gpus=1)
    desk.start()


STATES: dict[str, Reach] = {
    "unknown": lambda desk: None,
    "asked": lambda desk: _ignore(desk.submit(workers=2, gpus=1)),
    "pending": _pending,
    "placed": lambda desk: desk.place(workers=2, gpus=1),
    "prepared": lambda desk: desk.prepare(workers=2, gpus=1),
    "started": _started,
    "attached": lambda desk: desk.attach(workers=2, gpus=1),
    "releasing": _releasing,
    "releasing to be proposed again": _requeued,
    "released": _released,
    "rejected": _rejected,
}


def _ignore(_: object) -> None:
    return None


RUN = {"cluster": CLUSTER, "job": "j", "attempt": 1}
EVENTS: dict[str, JobSubmitted | JobUpdated | JobStarted | JobEnded] = {
    "submitted": JobSubmitted.of(spec("j", workers=2, gpus=1)),
    "submitted, the next attempt": JobSubmitted.of(spec("j", workers=2, gpus=1, attempt=2)),
    "submitted, another uid": JobSubmitted.of(spec("j", workers=2, gpus=1, uid="b")),
    "updated": make(JobUpdated, **RUN, revision=1, priority=7),
    "started": make(JobStarted, **RUN),
    "ended": make(JobEnded, **RUN, outcome="failed"),
    "ended, the next attempt": make(JobEnded, **(RUN | {"attempt": 2}), outcome="failed"),
    "ended, another uid": make(JobEnded, **RUN, uid="b", outcome="failed"),
}


def standing(desk: Desk) -> dict[str, object]:
    """Everything that may not change when the same comes again."""
    job = desk.book.jobs.get(key_of("j"))
    return {
        "record": {subject: (item.event, item.sequence) for subject, item in desk.record.items()},
        "said": list(desk.said),
        "asks": list(desk.asks),
        "ledger": desk.book.ledger.snapshot(),
        "jobs": set(desk.book.jobs),
        "job": None if job is None else (job.state, job.round, job.started, job.requeue, job.reasons, job.successor),
    }


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_an_event_that_comes_again_changes_nothing_more(state: str, event: str) -> None:
    desk = Desk()
    STATES[state](desk)
    sequence = desk.job_event(EVENTS[event])
    after = standing(desk)
    for _ in range(2):
        desk.tell(JobInput(EVENTS[event], sequence, desk.now))
        assert standing(desk) == after


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("event", EVENTS)
def test_an_event_is_acked_or_refused_by_the_time_the_job_is_stored(state: str, event: str) -> None:
    desk = Desk()
    STATES[state](desk)
    desk.job_event(EVENTS[event])
    for _ in range(20):
        desk.report("j", ReportState.UNDONE, [n for n in desk.nodes_of() if _is_releasing(desk, n)])
        desk.propose()
        desk.wait(1)
    settled = set(desk.acked) | {refusal.sequence for refusal in desk.refused}
    assert settled == set(range(1, desk.job_sequence + 1))


def _is_releasing(desk: Desk, node: str) -> bool:
    return desk.placement("j", node).event.state is PlacementState.RELEASING


@pytest.mark.parametrize("state", [state for state in STATES if state not in {"unknown", "released", "rejected"}])
@pytest.mark.parametrize("report", [ReportState.PREPARED, ReportState.ATTACHED, ReportState.FAILED, ReportState.UNDONE])
def test_a_report_about_an_earlier_write_changes_nothing(state: str, report: ReportState) -> None:
    desk = Desk()
    STATES[state](desk)
    before = standing(desk)
    for node in desk.nodes_of():
        desk.report("j", report, [node], fence=Fence(1, 1))
    assert standing(desk) == before
    assert desk.book.counts.stale_reports == len(desk.nodes_of())


@pytest.mark.parametrize("state", ["placed", "prepared", "started", "attached", "releasing"])
@pytest.mark.parametrize("report", [state for state in ReportState if state is not ReportState.ORPHAN])
def test_a_report_that_comes_again_changes_nothing_more(state: str, report: ReportState) -> None:
    desk = Desk()
    STATES[state](desk)
    item = desk.placement("j", "n0")
    fence = Fence(item.event.epoch, item.sequence)
    desk.report_on(item.event, report, fence)
    after = standing(desk)
    desk.report_on(item.event, report, fence)
    assert standing(desk) == after


@pytest.mark.parametrize("state", STATES)
def test_an_end_leaves_nothing_held_whatever_the_state(state: str) -> None:
    desk = Desk()
    STATES[state](desk)
    desk.end(outcome=Outcome.CANCELLED)
    desk.report("j", ReportState.UNDONE)
    assert desk.head().state in {JobState.RELEASED, JobState.REJECTED}
    assert desk.book.ledger.is_empty()
    assert not desk.book.jobs
    desk.propose()
    desk.wait(60)
    assert not desk.placements()


@pytest.mark.parametrize("state", STATES)
def test_a_submitted_that_comes_again_after_an_end_starts_nothing(state: str) -> None:
    desk = Desk()
    event = EVENTS["submitted"]
    stored_at = desk.now
    STATES[state](desk)
    desk.end()
    desk.tell(JobInput(event, 1, stored_at))
    desk.report("j", ReportState.UNDONE)
    desk.tell(JobInput(event, 1, stored_at))
    desk.propose()
    assert not desk.placements()
    assert not desk.book.jobs


@pytest.mark.parametrize("state", ["placed", "prepared", "started", "attached", "releasing"])
def test_a_node_taken_out_for_good_holds_nothing_of_it_any_more(state: str) -> None:
    desk = Desk()
    STATES[state](desk)
    desk.mode("n0", NodeMode.RETIRED)
    assert "n0" not in desk.nodes_of()
    assert not desk.book.ledger.use_of("n0").holds
    assert desk.state_of() is JobState.RELEASING
