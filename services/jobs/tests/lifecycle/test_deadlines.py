"""Every wait has a deadline: of an ask, of preparing, of attaching."""

from __future__ import annotations

import pytest
from desk import Desk

from railweave.contracts.inventory import ReportState
from railweave.contracts.job import JobPending, JobReleased, JobReleasing
from railweave.contracts.placement import JobState
from railweave.contracts.reasons import Lack, ReasonCode
from railweave.jobs.model import CommitterConfig


@pytest.mark.parametrize("on_deadline", ["give_back", "retry"])
def test_a_job_not_prepared_in_time_is_given_back_or_proposed_without_the_late_nodes(on_deadline: str) -> None:
    desk = Desk()
    desk.place(workers=2, gpus=1, prepare_deadline_s=30, on_deadline=on_deadline)
    desk.report("j", ReportState.PREPARED, ["n0"])
    desk.wait(29)
    assert desk.state_of() is JobState.PLACED
    desk.wait(2)
    exceeded, late = desk.told(JobReleasing)[0].reasons
    assert (exceeded.code, exceeded.node) == (ReasonCode.DEADLINE_EXCEEDED, None)
    assert exceeded.text == "not prepared within 30 s: 1 of 2 nodes are late: n1"
    assert exceeded.remedy is not None
    assert exceeded.remedy.endswith("a longer prepare_deadline_s")
    assert (late.code, late.node) == (ReasonCode.NODE_NOT_PREPARED, "n1")
    assert exceeded.numbers == late.numbers == {"limit_s": 30, "late_nodes": 1, "nodes": 2}
    desk.report("j", ReportState.UNDONE)
    desk.wait(1)
    desk.propose()
    if on_deadline == "retry":
        assert desk.nodes_of() == ("n0", "n2")
    else:
        assert desk.state_of() is JobState.RELEASED


def test_a_job_not_attached_in_time_is_given_back_even_where_a_retry_is_wished() -> None:
    desk = Desk()
    desk.prepare(workers=2, gpus=1, attach_deadline_s=20, on_deadline="retry")
    desk.start()
    desk.report("j", ReportState.ATTACHED, ["n1"])
    desk.wait(21)
    assert desk.codes() == [ReasonCode.DEADLINE_EXCEEDED, ReasonCode.NODE_NOT_ATTACHED]
    desk.report("j", ReportState.UNDONE)
    assert [event.requeued for event in desk.told(JobReleased)] == [False]


def test_many_late_nodes_are_counted_and_some_are_named() -> None:
    desk = Desk(nodes=12)
    desk.place(workers=12, gpus=1, prepare_deadline_s=30)
    desk.wait(31)
    reasons = desk.told(JobReleasing)[0].reasons
    assert "12 of 12 nodes are late: n0, n1, " in reasons[0].text
    assert reasons[0].text.endswith(", ...")
    assert len(reasons) == 1 + 8


def test_a_prepared_job_may_wait_for_its_scheduler_for_ever() -> None:
    desk = Desk()
    desk.prepare(workers=1, gpus=1, prepare_deadline_s=10, attach_deadline_s=10)
    desk.wait(3600, step=30)
    assert desk.state_of() is JobState.PREPARED


def test_a_released_job_whose_node_is_silent_stays_releasing_and_holds_on() -> None:
    desk = Desk()
    desk.place(workers=1, gpus=1)
    desk.end()
    desk.wait(3600, step=30)
    assert desk.state_of() is JobState.RELEASING
    assert desk.book.ledger.use_of("n0").holds == 1


def test_an_ask_nobody_answers_is_asked_again_and_then_told_as_pending() -> None:
    desk = Desk(config=CommitterConfig(ask_timeout_s=10.0, asks_before_pending=3))
    desk.submit(workers=1, gpus=1)
    desk.wait(29)
    assert [ask.round for ask in desk.asks] == [1, 2, 3]
    assert desk.head().reasons == ()
    desk.wait(2)
    reason = desk.told(JobPending)[0].reasons[0]
    assert (reason.code, reason.numbers, reason.lacks) == (ReasonCode.PROPOSAL_TIMEOUT, {"asks": 3}, (Lack.AGENT,))
    assert "nodes, gpu" in reason.text


def test_an_answer_in_between_starts_the_count_of_unanswered_asks_anew() -> None:
    desk = Desk(config=CommitterConfig(ask_timeout_s=10.0, asks_before_pending=3, retry_pending_s=5.0))
    desk.submit(workers=1, gpus=1)
    desk.wait(21)
    desk.refuse()
    desk.wait(17)
    assert [event.reasons[0].code for event in desk.told(JobPending)] == [ReasonCode.INSUFFICIENT_GPUS]


def test_a_part_of_the_answers_is_not_an_answer() -> None:
    desk = Desk(config=CommitterConfig(asks_before_pending=1))
    desk.submit(workers=1, gpus=1, network={})
    for proposal in desk.answers(desk.asks[0])[:-1]:
        desk.tell(proposal)
    desk.wait(11)
    assert "no proposal of nic within" in desk.told(JobPending)[0].reasons[0].text


def test_a_deadline_passed_before_the_new_committer_had_heard_that_it_was_met() -> None:
    desk = Desk(config=CommitterConfig(orphan_grace_s=2.0))
    desk.prepare(workers=2, gpus=1, attach_deadline_s=20)
    desk.start()
    desk.wait(19)
    desk.activate(reports=False)
    desk.wait(2.5)
    assert desk.state_of() is JobState.STARTED
    desk.report("j", ReportState.ATTACHED)
    desk.wait(30)
    assert desk.state_of() is JobState.ATTACHED


def test_a_deadline_that_nobody_met_passes_under_a_new_committer_too() -> None:
    desk = Desk(config=CommitterConfig(orphan_grace_s=2.0))
    desk.prepare(workers=2, gpus=1, attach_deadline_s=20)
    desk.start()
    desk.wait(19)
    desk.activate()
    desk.wait(4)
    assert desk.state_of() is JobState.RELEASING
