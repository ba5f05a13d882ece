"""Jobs without a first answer are recorded all the same: asked about, and not in the way of what comes after them."""

from __future__ import annotations

from desk import Desk

from railweave.contracts.envelope import Event
from railweave.contracts.job import JobPending, JobReleased
from railweave.contracts.placement import Head, JobState
from railweave.jobs.model import CommitterConfig

FEW = CommitterConfig(asks_at_once=4, unstored_at_most=8, note_after_s=1000.0, ask_timeout_s=10_000.0)


def unacked(desk: Desk) -> int:
    return desk.job_sequence - len(desk.acked)


def test_submissions_past_a_bound_are_acknowledged_while_nobody_answers() -> None:
    desk = Desk(config=FEW)
    for number in range(100):
        desk.submit(f"j{number}", workers=1)
    assert unacked(desk) == 4 + 8
    assert desk.head("j99").state is JobState.PENDING
    assert "j4" not in {item.event.job for item in desk.record.values() if isinstance(item.event, Head)}


def test_a_job_nobody_answers_for_is_known_and_acknowledged_after_a_while() -> None:
    desk = Desk(config=CommitterConfig(note_after_s=2.0))
    sequence = desk.submit(workers=1)
    desk.wait(1.5)
    assert not desk.stores
    desk.wait(1)
    assert (desk.head().state, desk.head().reasons, desk.acked) == (JobState.PENDING, (), [sequence])
    desk.wait(5)
    assert len(desk.stores) == 1, "said once"
    assert not said(desk, JobPending), "it is not known yet what it lacks"


def test_a_job_that_was_noted_is_placed_by_its_first_answer() -> None:
    desk = Desk(config=CommitterConfig(note_after_s=1.0))
    desk.submit(workers=1)
    desk.wait(2)
    desk.propose()
    assert desk.state_of() is JobState.PLACED
    assert desk.acked == [1]


def test_a_noted_job_says_what_it_lacks_when_that_is_known() -> None:
    desk = Desk(config=CommitterConfig(note_after_s=1.0))
    desk.submit(workers=1)
    desk.wait(2)
    desk.refuse()
    assert [event.reasons for event in said(desk, JobPending)] == [desk.head().reasons]
    assert desk.head().reasons


def test_noted_jobs_are_asked_for_by_the_next_committer() -> None:
    desk = Desk(config=FEW)
    for number in range(20):
        desk.submit(f"j{number}", workers=1)
    desk.activate()
    desk.wait(1)
    # The others come again: they are not acknowledged.
    assert {ask.job for ask in desk.asks} <= {f"j{number}" for number in range(12, 20)}
    assert len(desk.asks) == 4


def test_the_end_of_a_noted_job_is_its_end() -> None:
    desk = Desk(config=FEW)
    for number in range(20):
        desk.submit(f"j{number}", workers=1)
    ended = desk.end("j19")
    assert desk.head("j19").state is JobState.RELEASED
    assert ended in desk.acked
    assert [event.job for event in said(desk, JobReleased)] == ["j19"]


def test_nothing_is_noted_while_nodes_may_still_say_that_they_hold_it() -> None:
    desk = Desk(config=CommitterConfig(note_after_s=1.0, orphan_grace_s=5.0))
    desk.activate(is_suspect=True)
    desk.submit(workers=1)
    desk.wait(4)
    assert not desk.acked
    desk.wait(4)
    assert desk.acked


def said(desk: Desk, kind: type[Event]) -> list[Event]:
    return [event for event in desk.said if isinstance(event, kind)]
