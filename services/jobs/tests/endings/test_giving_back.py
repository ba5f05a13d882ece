"""Release is a head write, then plain writes to the nodes; something is free when its node says so, and not before."""

from __future__ import annotations

from desk import Desk, key_of

from railweave.contracts.inventory import ReportState
from railweave.contracts.job import JobReleased, JobReleasing, Outcome
from railweave.contracts.placement import Fence, Head, JobState, Placement, PlacementState
from railweave.contracts.reasons import ReasonCode
from railweave.contracts.types import NodeName
from railweave.jobs.model import CommitterConfig


def test_the_head_says_releasing_before_any_node_is_told() -> None:
    desk = Desk()
    desk.place(workers=2, gpus=1)
    desk.stores.clear()
    desk.end()
    events = [event for store in desk.stores for event in store.events]
    assert [type(event) for event in events] == [Head, Placement, Placement]
    assert events[0].state is JobState.RELEASING
    assert not any(store.atomic for store in desk.stores)


def test_nothing_is_free_before_its_node_says_undone() -> None:
    desk = Desk(nodes=2, config=CommitterConfig(conflicts_before_pending=1))
    desk.place("a", workers=2, gpus=2)
    desk.end("a")
    desk.submit("b", workers=1, gpus=1)
    desk.propose("b")
    assert desk.state_of("b") is JobState.PENDING
    desk.report("a", ReportState.UNDONE, ["n1"])
    desk.propose("b")
    assert desk.nodes_of("b") == ("n1",)


def test_a_node_that_still_reports_prepared_frees_nothing() -> None:
    desk = Desk()
    desk.place(workers=1, gpus=1)
    desk.end()
    for state in (ReportState.PREPARED, ReportState.ATTACHED, ReportState.REFUSED, ReportState.FAILED):
        desk.report("j", state)
    assert desk.book.ledger.use_of(NodeName("n0")).holds == 1
    assert desk.state_of() is JobState.RELEASING


def test_undone_that_answers_the_desired_placement_does_not_free_the_releasing_one() -> None:
    desk = Desk()
    desk.place(workers=1, gpus=1)
    item = desk.placement("j", "n0")
    desk.end()
    desk.report_on(item.event, ReportState.UNDONE, Fence(item.event.epoch, item.sequence))
    assert desk.book.ledger.use_of(NodeName("n0")).holds == 1


def test_the_job_is_released_when_the_last_node_is_undone() -> None:
    desk = Desk()
    desk.place(workers=3, gpus=1)
    desk.end(outcome=Outcome.CANCELLED)
    for number, node in enumerate(("n2", "n0", "n1")):
        assert desk.state_of() is JobState.RELEASING, number
        desk.report("j", ReportState.UNDONE, [node])
    assert desk.state_of() is JobState.RELEASED
    assert desk.head().outcome is Outcome.CANCELLED
    assert [event.reasons[0].code for event in desk.told(JobReleased)] == [ReasonCode.ENDED_BY_SCHEDULER]


def test_tombstones_outlive_what_may_come_again() -> None:
    desk = Desk(config=CommitterConfig(tombstone_ttl_s=99))
    desk.place(workers=1, gpus=1)
    desk.end()
    desk.report("j", ReportState.UNDONE)
    last = {type(event): (event.state, store.ttl_s) for store in desk.stores for event in store.events}
    assert last == {Head: (JobState.RELEASED, 99), Placement: (PlacementState.RELEASED, 99)}


def test_what_is_remembered_of_a_run_is_forgotten_with_its_tombstone() -> None:
    desk = Desk(config=CommitterConfig(tombstone_ttl_s=50))
    desk.place(workers=1)
    desk.end()
    desk.report("j", ReportState.UNDONE)
    desk.wait(49)
    assert key_of("j") in desk.book.finished
    desk.wait(2)
    assert key_of("j") not in desk.book.finished


def test_a_release_that_another_committer_left_half_done_is_rolled_forward() -> None:
    desk = Desk()
    desk.place(workers=3, gpus=1)
    before = {node: desk.placement("j", node) for node in desk.nodes_of()}
    desk.end()
    # Only the head and the first node's write were stored before the committer died.
    for node in ("n1", "n2"):
        desk.record[before[node].event.subject()] = before[node]
    desk.activate()
    assert {item.event.state for item in desk.placements()} == {PlacementState.RELEASING}
    desk.report("j", ReportState.UNDONE)
    assert desk.state_of() is JobState.RELEASED
    assert desk.book.ledger.is_empty()


def test_a_release_whose_last_tombstone_was_not_followed_by_a_head_is_finished() -> None:
    desk = Desk()
    desk.place(workers=1, gpus=1)
    desk.end()
    releasing = desk.record[desk.head().subject()]
    desk.report("j", ReportState.UNDONE)
    desk.record[releasing.event.subject()] = releasing
    desk.activate()
    assert desk.state_of() is JobState.RELEASED
    assert not desk.book.jobs


def test_an_end_calls_off_the_round_that_would_follow_a_release() -> None:
    desk = Desk()
    desk.place(workers=2, gpus=1)
    desk.report("j", ReportState.REFUSED, ["n0"])
    assert desk.head().requeue
    desk.end()
    assert (desk.head().requeue, desk.codes()) == (False, [ReasonCode.ENDED_BY_SCHEDULER])
    desk.report("j", ReportState.UNDONE)
    desk.wait(60)
    assert (desk.state_of(), desk.asks) == (JobState.RELEASED, [])
    assert len(desk.told(JobReleasing)) == 1


def test_a_newer_run_calls_off_the_round_that_would_follow_a_release() -> None:
    desk = Desk()
    desk.place(workers=2, gpus=1)
    desk.report("j", ReportState.REFUSED, ["n0"])
    desk.submit(workers=1, attempt=2)
    desk.report("j", ReportState.UNDONE)
    desk.propose()
    assert (desk.head().attempt, desk.head().round, desk.head().exclude) == (2, 1, ())
    assert [event.requeued for event in desk.told(JobReleased)] == [False]


def test_a_job_that_is_proposed_again_survives_its_committer() -> None:
    desk = Desk()
    desk.place(workers=2, gpus=1)
    desk.report("j", ReportState.REFUSED, ["n0"])
    desk.activate()
    desk.report("j", ReportState.UNDONE)
    desk.wait(1)
    assert desk.take_ask().exclude == ("n0",)
