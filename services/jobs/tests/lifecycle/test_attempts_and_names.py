"""Attempts count up, and a name belongs to one run at a time."""

from __future__ import annotations

import pytest
from desk import Desk

from railweave.contracts.inventory import ReportState
from railweave.contracts.job import JobReleased, JobSubmitted, Outcome
from railweave.contracts.placement import JobState
from railweave.contracts.reasons import ReasonCode
from railweave.jobs.committer import JobInput
from railweave_testing.clusters import spec


def test_an_attempt_that_goes_back_is_refused_with_its_field() -> None:
    desk = Desk()
    desk.place(workers=1, gpus=1, attempt=2)
    desk.submit(workers=1, gpus=1, attempt=1)
    assert [(refusal.field, refusal.sequence) for refusal in desk.refused] == [("data.attempt", 2)]
    assert "expected an attempt after 2, found 1" in desk.refused[0].reason
    assert desk.head().attempt == 2


def test_an_attempt_that_goes_back_is_refused_also_when_the_later_one_is_over() -> None:
    desk = Desk()
    desk.place(workers=1, gpus=1, attempt=2)
    desk.end(attempt=2)
    desk.report("j", ReportState.UNDONE)
    desk.submit(workers=1, gpus=1, attempt=1)
    assert [refusal.field for refusal in desk.refused] == ["data.attempt"]


def test_an_attempt_of_another_uid_may_begin_at_one_again() -> None:
    desk = Desk()
    desk.place(workers=1, gpus=1, attempt=3, uid="a")
    desk.end(attempt=3, uid="a")
    desk.report("j", ReportState.UNDONE)
    desk.place(workers=1, gpus=1, attempt=1, uid="b")
    assert not desk.refused
    assert desk.head().uid == "b"


def test_an_older_attempt_delivered_late_is_no_error() -> None:
    desk = Desk()
    sequence = desk.submit(workers=1, gpus=1, attempt=1)
    stored_at = desk.now
    desk.propose()
    desk.submit(workers=1, gpus=1, attempt=2)
    desk.report("j", ReportState.UNDONE)
    desk.propose()
    desk.tell(JobInput(JobSubmitted.of(spec("j", workers=1, gpus=1, attempt=1)), sequence, stored_at))
    assert not desk.refused
    assert (desk.head().attempt, desk.state_of()) == (2, JobState.PLACED)


def test_a_requeue_waits_until_the_old_attempt_is_undone_everywhere() -> None:
    desk = Desk()
    desk.place(workers=2, gpus=1)
    desk.submit(workers=2, gpus=1, attempt=2)
    assert (desk.head().attempt, desk.state_of()) == (1, JobState.RELEASING)
    desk.report("j", ReportState.UNDONE, ["n0"])
    assert desk.head().attempt == 1
    assert not desk.asks
    desk.report("j", ReportState.UNDONE, ["n1"])
    desk.propose()
    assert (desk.head().attempt, desk.state_of()) == (2, JobState.PLACED)
    assert [reason.code for event in desk.told(JobReleased) for reason in event.reasons] == [ReasonCode.SUPERSEDED]


def test_a_new_uid_under_an_old_name_ends_the_old_run_first() -> None:
    desk = Desk()
    desk.attach(workers=1, gpus=1, uid="a")
    desk.submit(workers=1, gpus=1, uid="b")
    assert (desk.head().uid, desk.state_of(), desk.codes()) == ("a", JobState.RELEASING, [ReasonCode.SUPERSEDED])
    desk.report("j", ReportState.UNDONE)
    desk.propose()
    assert (desk.head().uid, desk.state_of()) == ("b", JobState.PLACED)


def test_of_several_newer_runs_the_last_counts() -> None:
    desk = Desk()
    desk.place(workers=1, gpus=1)
    second = desk.submit(workers=1, gpus=1, attempt=2)
    desk.submit(workers=1, gpus=1, attempt=3)
    assert second in desk.acked
    desk.report("j", ReportState.UNDONE)
    desk.propose()
    assert desk.head().attempt == 3


def test_a_requeue_cancelled_while_it_waits_never_begins() -> None:
    desk = Desk()
    desk.place(workers=1, gpus=1)
    desk.submit(workers=1, gpus=1, attempt=2)
    desk.end(outcome=Outcome.CANCELLED, attempt=2)
    desk.report("j", ReportState.UNDONE)
    desk.propose()
    assert (desk.head().attempt, desk.state_of()) == (2, JobState.RELEASED)
    assert not desk.book.jobs
    assert set(desk.acked) == {1, 2, 3}


def test_an_end_of_the_old_attempt_that_comes_late_does_not_end_the_new_one() -> None:
    desk = Desk()
    desk.place(workers=1, gpus=1)
    desk.submit(workers=1, gpus=1, attempt=2)
    desk.report("j", ReportState.UNDONE)
    desk.propose()
    desk.end(attempt=1)
    assert (desk.head().attempt, desk.state_of()) == (2, JobState.PLACED)


def test_an_end_of_the_replaced_uid_that_comes_late_does_not_end_the_new_one() -> None:
    desk = Desk()
    desk.place(workers=1, gpus=1, uid="a")
    desk.submit(workers=1, gpus=1, uid="b")
    desk.report("j", ReportState.UNDONE)
    desk.propose()
    desk.end(uid="a")
    assert (desk.head().uid, desk.state_of()) == ("b", JobState.PLACED)


def test_what_is_said_of_a_requeue_that_waits_counts_when_it_begins() -> None:
    desk = Desk()
    desk.place(workers=1, gpus=1)
    desk.submit(workers=1, gpus=1, attempt=2)
    started = desk.start(attempt=2)
    updated = desk.update(attempt=2, priority=9)
    assert not {started, updated} & set(desk.acked)
    desk.report("j", ReportState.UNDONE)
    desk.propose()
    head = desk.head()
    assert (head.attempt, head.started, head.spec.priority) == (2, True, 9)
    assert {started, updated} <= set(desk.acked)


def test_what_was_said_of_a_requeue_that_another_replaced_is_acked() -> None:
    desk = Desk()
    desk.place(workers=1, gpus=1)
    desk.submit(workers=1, gpus=1, attempt=2)
    started = desk.start(attempt=2)
    desk.submit(workers=1, gpus=1, attempt=3)
    assert started in desk.acked
    desk.report("j", ReportState.UNDONE)
    desk.propose()
    assert not desk.head().started


@pytest.mark.parametrize("state", ["live", "over", "waiting"])
def test_of_two_attempts_stored_within_a_microsecond_the_later_counts(state: str) -> None:
    desk = Desk()
    desk.submit(workers=1, attempt=1)
    at = desk.now
    if state == "over":
        desk.end(attempt=1)
    elif state == "waiting":
        desk.propose()
        desk.job_event(JobSubmitted.of(spec("j", workers=1, attempt=2)), at=at)
    last = 3 if state == "waiting" else 2
    desk.job_event(JobSubmitted.of(spec("j", workers=1, attempt=last)), at=at)
    desk.report("j", ReportState.UNDONE)
    desk.propose()
    assert (desk.head().attempt, desk.state_of()) == (last, JobState.PLACED)
