"""What a journal holds and the record does not: adopted where it runs, undone where it is over, never forgotten."""

from __future__ import annotations

import pytest
from desk import Desk

from railweave.contracts.inventory import ReportState
from railweave.contracts.job import JobReleased
from railweave.contracts.placement import Fence, JobState, Placement, PlacementState
from railweave.contracts.reasons import Lack, ReasonCode
from railweave.jobs.model import CommitterConfig

CONFIG = CommitterConfig(orphan_grace_s=2.0)


def journals(desk: Desk, job: str = "j") -> list[tuple[Placement, Fence]]:
    """What the nodes of a job have in their journals."""
    return [(item.event, Fence(item.event.epoch, item.sequence)) for item in desk.placements(job)]


def lost(desk: Desk, keep: tuple[dict, int] | None = None) -> None:
    """The record is lost, or put back, and a committer finds it so."""
    desk.lose_record(*(keep or ({}, 0)))
    desk.reports.clear()
    desk.activate()


def speak(desk: Desk, held: list[tuple[Placement, Fence]]) -> None:
    for placement, fence in held:
        desk.orphan(placement, fence)


def test_running_jobs_of_a_lost_record_are_adopted_from_journals() -> None:
    desk = Desk(config=CONFIG)
    desk.attach(workers=2, gpus=1, network={})
    held = journals(desk)
    lost(desk)
    speak(desk, held)
    desk.wait(5)
    assert desk.nodes_of() == ("n0", "n1")
    assert (desk.state_of(), desk.head().spec, desk.head().round) == (JobState.STARTED, None, 1)
    assert {item.event.state for item in desk.placements()} == {PlacementState.DESIRED}
    assert [item.event.workers for item in desk.placements()] == [placement.workers for placement, _ in held]
    assert desk.book.counts.adopted == 2
    desk.report("j", ReportState.ATTACHED)
    assert desk.state_of() is JobState.ATTACHED


def test_an_adopted_job_is_released_like_any_other() -> None:
    desk = Desk(config=CONFIG)
    desk.attach(workers=2, gpus=1, network={})
    held = journals(desk)
    lost(desk)
    speak(desk, held)
    desk.wait(5)
    desk.end()
    desk.report("j", ReportState.UNDONE)
    assert desk.state_of() is JobState.RELEASED
    assert desk.book.ledger.is_empty()


def test_an_adopted_job_gets_its_wishes_back_when_it_is_submitted_again() -> None:
    desk = Desk(config=CONFIG)
    desk.attach(workers=1, gpus=1)
    held = journals(desk)
    lost(desk)
    speak(desk, held)
    desk.wait(5)
    desk.submit(workers=1, gpus=1)
    assert desk.head().spec is not None
    assert not desk.asks
    assert desk.state_of() is JobState.STARTED


def test_an_adopted_job_is_not_given_back_for_a_deadline_of_its_start() -> None:
    desk = Desk(config=CONFIG)
    desk.attach(workers=1, gpus=1, attach_deadline_s=5)
    held = journals(desk)
    lost(desk)
    speak(desk, held)
    desk.wait(5)
    desk.submit(workers=1, gpus=1, attach_deadline_s=5)
    desk.wait(30)
    desk.activate()
    desk.wait(30)
    assert desk.state_of() is JobState.STARTED


def test_what_was_adopted_is_given_to_nobody_else() -> None:
    desk = Desk(nodes=2, config=CONFIG)
    desk.attach("runs", workers=1, gpus=2)
    held = journals(desk, "runs")
    lost(desk)
    desk.submit("new", workers=1, gpus=2)
    speak(desk, held)
    desk.wait(5)
    desk.propose()
    assert (desk.nodes_of("runs"), desk.nodes_of("new")) == (("n0",), ("n1",))


def test_an_adopted_job_counts_for_its_tenants_quota() -> None:
    desk = Desk(config=CONFIG)
    desk.builder.tenant("t", gpu_limit=2)
    desk.attach("runs", workers=2, gpus=1, tenant="t")
    held = journals(desk, "runs")
    lost(desk)
    speak(desk, held)
    desk.wait(5)
    desk.submit("new", workers=1, gpus=1, tenant="t")
    desk.wait(1)
    desk.propose("new")
    assert (desk.state_of("new"), desk.head("new").lacks) == (JobState.PENDING, (Lack.QUOTA,))


def test_what_its_scheduler_does_not_list_any_more_is_undone_instead_of_adopted() -> None:
    desk = Desk(config=CONFIG)
    desk.attach("kept", workers=1, gpus=1)
    desk.attach("gone", workers=1, gpus=1)
    held = journals(desk, "kept") + journals(desk, "gone")
    lost(desk)
    desk.snapshot("kept")
    speak(desk, held)
    desk.wait(5)
    assert desk.state_of("kept") is JobState.STARTED
    assert [item.event.state for item in desk.placements("gone")] == [PlacementState.RELEASING]
    desk.report("gone", ReportState.UNDONE)
    assert not desk.placements("gone")
    assert desk.book.ledger.holders_on("n0") == (held[0][0].run,)


def test_a_run_that_is_over_is_undone_where_a_journal_still_has_it() -> None:
    desk = Desk(config=CONFIG)
    desk.attach(workers=1, gpus=1)
    held = journals(desk)
    desk.end()
    desk.report("j", ReportState.UNDONE)
    speak(desk, held)
    desk.wait(3)
    assert desk.placement("j", "n0").event.state is PlacementState.RELEASING
    assert desk.state_of() is JobState.RELEASED
    desk.report("j", ReportState.UNDONE)
    assert not desk.placements()


def test_what_is_left_of_an_earlier_round_is_undone_beside_the_later_one() -> None:
    desk = Desk(config=CONFIG)
    desk.place(workers=1, gpus=1, nodes=["n0"])
    held = journals(desk)
    desk.report("j", ReportState.REFUSED)
    desk.report("j", ReportState.UNDONE)
    desk.wait(1)
    desk.propose(nodes=["n1"])
    speak(desk, held)
    desk.wait(3)
    assert desk.placement("j", "n0").event.state is PlacementState.RELEASING
    assert (desk.state_of(), desk.placement("j", "n1").event.state) == (JobState.PLACED, PlacementState.DESIRED)


def test_an_orphan_that_the_record_names_after_all_is_none() -> None:
    desk = Desk(config=CONFIG)
    desk.attach(workers=1, gpus=1)
    speak(desk, journals(desk))
    assert not desk.book.orphans


def test_a_record_put_back_to_before_the_commit_takes_the_job_as_its_nodes_have_it() -> None:
    desk = Desk(config=CONFIG)
    sequence = desk.submit(workers=2, gpus=1)
    desk.refuse()
    earlier = desk.copy_of_record()
    desk.wait(31)
    desk.propose()
    desk.report("j", ReportState.PREPARED)
    held = journals(desk)
    lost(desk, earlier)
    speak(desk, held)
    desk.wait(5)
    assert (desk.nodes_of(), desk.head().round, desk.state_of()) == (("n0", "n1"), 2, JobState.PREPARED)
    assert not desk.asks
    assert sequence in desk.acked


def test_a_record_put_back_to_before_the_release_undoes_it_again() -> None:
    desk = Desk(config=CONFIG)
    desk.attach(workers=1, gpus=1)
    earlier = desk.copy_of_record()
    desk.end()
    undone = Fence(1, desk.placement("j", "n0").sequence)
    placement = desk.placement("j", "n0").event
    desk.report("j", ReportState.UNDONE)
    lost(desk, earlier)
    desk.report_on(placement, ReportState.UNDONE, undone)
    assert desk.book.epoch == 2
    desk.wait(5)
    assert desk.state_of() is JobState.RELEASED
    assert [event.reasons[-1].code for event in desk.told(JobReleased)][-1] is ReasonCode.NODE_NOT_ATTACHED


def test_two_that_hold_the_same_are_not_both_adopted() -> None:
    desk = Desk(config=CONFIG)
    desk.place("a", workers=1, gpus=1, network={}, nodes=["n0"])
    held = journals(desk, "a")
    lost(desk)
    other = held[0][0].model_copy(update={"job": "b"})
    speak(desk, held)
    desk.orphan(other, held[0][1])
    desk.wait(5)
    adopted = [name for name in ("a", "b") if desk.has_head(name)]
    assert len(adopted) == 1


def test_an_orphan_in_conflict_does_not_stop_the_cluster_for_ever() -> None:
    desk = Desk(config=CONFIG)
    desk.place("a", workers=1, gpus=1, network={}, nodes=["n0"])
    held = journals(desk, "a")
    lost(desk)
    speak(desk, held)
    desk.orphan(held[0][0].model_copy(update={"job": "b"}), held[0][1])
    desk.submit("new", workers=1)
    desk.wait(26)
    desk.propose()
    assert desk.nodes_of("new")


def test_an_orphan_is_adopted_also_where_its_disk_has_shrunk() -> None:
    desk = Desk(config=CONFIG)
    desk.attach(workers=1, scratch_bytes=1000)
    held = journals(desk)
    lost(desk)
    desk.builder.storage("n0", scratch_bytes=10)
    speak(desk, held)
    desk.wait(5)
    assert desk.nodes_of() == ("n0",)


def test_of_two_attempts_in_journals_the_later_submitted_counts() -> None:
    desk = Desk(config=CONFIG)
    desk.attach(workers=1, gpus=1, nodes=["n0"])
    first = journals(desk)
    desk.end()
    desk.report("j", ReportState.UNDONE)
    desk.attach(workers=1, gpus=1, attempt=2, nodes=["n1"])
    second = [(item.event, Fence(1, item.sequence)) for item in desk.placements()]
    lost(desk)
    speak(desk, first + second)
    desk.wait(5)
    desk.report("j", ReportState.UNDONE, ["n0"])
    desk.wait(5)
    assert desk.head().attempt == 2
    assert desk.placement("j", "n1").event.state is PlacementState.DESIRED
    assert desk.placement("j", "n0").event.state is PlacementState.RELEASED


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_submitted_that_comes_again_after_the_loss_finds_its_job_running(when: str) -> None:
    desk = Desk(config=CONFIG)
    desk.attach(workers=1, gpus=1)
    held = journals(desk)
    lost(desk)
    if when == "before":
        desk.submit(workers=1, gpus=1)
    speak(desk, held)
    desk.wait(5)
    if when == "after":
        desk.submit(workers=1, gpus=1)
    desk.propose()
    assert desk.nodes_of() == ("n0",)
    assert desk.head().round == 1
    assert desk.state_of() is JobState.STARTED
    assert desk.head().spec is not None


def test_a_running_job_was_undone_because_an_older_list_did_not_have_it() -> None:
    desk = Desk(config=CONFIG)
    before = desk.now
    desk.wait(1)
    desk.attach(workers=1, gpus=1)
    held = journals(desk)
    lost(desk)
    desk.snapshot(taken_at=before)
    speak(desk, held)
    desk.wait(5)
    assert desk.state_of() is JobState.STARTED
    assert [item.event.state for item in desk.placements()] == [PlacementState.DESIRED]


def test_a_running_job_was_undone_because_the_end_of_an_earlier_one_of_its_name_was_said_again() -> None:
    desk = Desk(config=CONFIG)
    desk.attach(uid="later", workers=1, gpus=1)
    held = journals(desk)
    lost(desk)
    desk.end(uid="earlier")
    speak(desk, held)
    desk.wait(5)
    assert desk.head().uid == "later"
    assert desk.state_of() is JobState.STARTED


def test_an_end_said_again_was_answered_with_released_while_nodes_still_held_the_job() -> None:
    desk = Desk(config=CONFIG)
    desk.attach(workers=1, gpus=1)
    held = journals(desk)
    lost(desk)
    desk.end()
    assert not desk.told(JobReleased)
    speak(desk, held)
    desk.wait(10)
    assert desk.state_of() is JobState.RELEASING
    assert not desk.told(JobReleased)
    desk.report("j", ReportState.UNDONE)
    assert desk.state_of() is JobState.RELEASED
    assert len(desk.told(JobReleased)) == 1


def test_a_running_job_was_placed_a_second_time_while_its_journals_were_to_be_judged() -> None:
    desk = Desk(config=CONFIG)
    desk.attach(workers=2, gpus=1, network={})
    held = journals(desk)
    desk.lose_record()
    desk.reports.clear()
    desk.activate()
    desk.wait(2.5)  # the one who saw the loss would wait on, for the sake of what comes now
    speak(desk, held)
    desk.activate()
    speak(desk, held)
    desk.submit(workers=2, gpus=1, network={})
    assert desk.asks == []
    desk.wait(5)
    assert desk.nodes_of() == ("n0", "n1")
    assert desk.book.counts.adopted == 2


def test_who_takes_over_while_the_other_waits_for_the_journals_waits_too() -> None:
    desk = Desk(config=CONFIG)
    desk.attach(workers=2, gpus=1, network={})
    held = journals(desk)
    lost(desk)
    desk.wait(0.5)
    desk.activate()
    desk.submit("other", workers=4, gpus=1)
    assert desk.asks == []
    speak(desk, held)
    desk.wait(10)
    assert desk.nodes_of() == ("n0", "n1")
