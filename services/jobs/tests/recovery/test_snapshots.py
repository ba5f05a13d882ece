"""A scheduler's list of what lives: what it lacks is released, but not at once."""

from __future__ import annotations

from datetime import timedelta

import pytest
from desk import Desk

from railweave.contracts.inventory import ReportState
from railweave.contracts.placement import JobState
from railweave.contracts.reasons import ReasonCode
from railweave.jobs.model import CommitterConfig

GRACE = CommitterConfig(snapshot_grace_s=60.0)


def desk_with(*jobs: str) -> Desk:
    desk = Desk(config=GRACE)
    for job in jobs:
        desk.attach(job, workers=1, gpus=1)
    desk.wait(1)
    return desk


def test_a_job_that_the_list_lacks_is_released_after_the_grace_period() -> None:
    desk = desk_with("kept", "gone")
    desk.snapshot("kept")
    desk.wait(59)
    assert desk.state_of("gone") is JobState.ATTACHED
    desk.wait(2)
    assert (desk.state_of("gone"), desk.codes("gone")) == (JobState.RELEASING, [ReasonCode.NOT_IN_SNAPSHOT])
    assert desk.state_of("kept") is JobState.ATTACHED


def test_a_job_that_a_later_list_has_is_kept() -> None:
    desk = desk_with("j")
    desk.snapshot()
    desk.wait(50)
    desk.snapshot("j", number=2)
    desk.wait(100)
    assert desk.state_of() is JobState.ATTACHED


def test_a_job_submitted_after_the_list_was_read_is_not_judged_by_it() -> None:
    desk = desk_with()
    read_at = desk.now
    desk.attach(workers=1)
    desk.wait(1)
    desk.snapshot(taken_at=read_at)
    desk.wait(100)
    assert desk.state_of() is JobState.ATTACHED


@pytest.mark.parametrize("state", ["pending", "asked", "placed"])
def test_a_job_is_released_from_whatever_state(state: str) -> None:
    desk = desk_with()
    desk.submit(workers=1)
    if state == "pending":
        desk.refuse()
    if state == "placed":
        desk.propose()
    desk.wait(1)
    desk.snapshot()
    desk.wait(61)
    desk.report("j", ReportState.UNDONE)
    assert desk.state_of() is JobState.RELEASED
    assert desk.codes() == [ReasonCode.NOT_IN_SNAPSHOT]


def test_another_attempt_of_the_same_name_is_not_the_run() -> None:
    desk = desk_with("j")
    desk.snapshot("j#2")
    desk.wait(61)
    assert desk.state_of() is JobState.RELEASING


def test_a_list_of_another_cluster_says_nothing_of_this_one() -> None:
    desk = desk_with("j")
    desk.snapshot("j")
    assert desk.book.snapshots
    other = Desk(config=GRACE)
    other.attach("k", workers=1)
    other.wait(100)
    assert other.state_of("k") is JobState.ATTACHED


def test_an_older_list_changes_nothing() -> None:
    desk = desk_with("a", "b")
    early = desk.now
    desk.wait(5)
    desk.snapshot("a", "b", number=5)
    desk.wait(1)
    desk.snapshot("a", number=4, taken_at=early)
    desk.wait(100)
    assert desk.state_of("b") is JobState.ATTACHED


def test_a_scheduler_that_begins_to_count_anew_is_heard() -> None:
    desk = desk_with("a", "b")
    desk.snapshot("a", "b", number=900)
    desk.wait(10)
    desk.snapshot("a", number=1)
    desk.wait(61)
    assert desk.state_of("b") is JobState.RELEASING


def test_the_grace_period_counts_from_the_list_also_for_the_next_committer() -> None:
    desk = desk_with("j")
    desk.snapshot()
    stored_at, taken_at = desk.now, desk.now
    desk.wait(50)
    desk.activate()
    desk.now = stored_at
    desk.snapshot(taken_at=taken_at)
    desk.now = stored_at + timedelta(seconds=50)
    desk.wait(9)
    assert desk.state_of() is JobState.ATTACHED
    desk.wait(2)
    assert desk.state_of() is JobState.RELEASING
