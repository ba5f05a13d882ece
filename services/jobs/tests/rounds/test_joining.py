"""Rounds: proposals of one round are joined, one no is enough, and a lost round is followed by another at once."""

from __future__ import annotations

import itertools
import random

import pytest
from desk import Desk, about, lacking, small_cluster

from railweave.contracts.desired import NodeMode
from railweave.contracts.job import JobPending, JobPlaced, JobRejected
from railweave.contracts.placement import Head, JobState, Placement
from railweave.contracts.proposal import Concern, GpuProposal, GpuShare, NodesProposal, WorkerGpus
from railweave.contracts.reasons import Lack, ReasonCode
from railweave.contracts.types import Milli, NodeName
from railweave.jobs.committer import AskRepeated
from railweave.jobs.model import CommitterConfig
from railweave_testing.clusters import ClusterBuilder


def test_an_ask_names_what_the_job_wants_and_nobody_else() -> None:
    desk = Desk()
    desk.submit("plain", workers=1)
    desk.submit("full", workers=1, gpus=1, network={}, datasets=["c4=1"])
    asks = {ask.job: set(ask.concerns) for ask in desk.asks}
    assert asks == {"plain": {Concern.NODES}, "full": set(Concern)}


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_proposals_may_come_in_any_order(order: tuple[int, ...]) -> None:
    desk = Desk()
    desk.submit(workers=1, gpus=1, network={})
    answers = desk.answers(desk.take_ask())
    for index in order[:-1]:
        desk.tell(answers[index])
        assert not desk.has_head()
    desk.tell(answers[order[-1]])
    assert desk.state_of() is JobState.PLACED


def test_proposals_of_different_rounds_are_never_joined() -> None:
    desk = Desk(config=CommitterConfig(ask_timeout_s=5.0))
    desk.submit(workers=1, gpus=1)
    first = desk.answers(desk.asks[0])
    desk.tell(first[0])
    desk.wait(6)
    second = desk.answers(desk.take_ask())
    desk.tell(first[1])
    desk.tell(second[0])
    assert desk.state_of() is JobState.PENDING
    desk.tell(second[1])
    assert desk.head().round == 2


def test_an_ask_taken_for_an_earlier_committers_is_followed_by_the_next_round_at_once() -> None:
    desk = Desk()
    desk.submit(workers=1, gpus=1)
    unheard = desk.take_ask()
    desk.tell(AskRepeated(unheard.run, unheard.round))
    again = desk.take_ask()
    assert (again.run, again.round) == (unheard.run, unheard.round + 1)
    for answer in desk.answers(again):
        desk.tell(answer)
    assert desk.state_of() is JobState.PLACED


def test_our_own_repetition_of_an_ask_that_was_heard_changes_nothing() -> None:
    desk = Desk()
    desk.submit(workers=1, gpus=1)
    ask = desk.take_ask()
    first, *rest = desk.answers(ask)
    desk.tell(first)
    desk.tell(AskRepeated(ask.run, ask.round))
    for answer in rest:
        desk.tell(answer)
    assert desk.state_of() is JobState.PLACED
    desk.tell(AskRepeated(ask.run, ask.round))
    assert desk.head().round == ask.round


def test_a_proposal_for_another_run_changes_nothing() -> None:
    desk = Desk()
    desk.submit(workers=1, attempt=2)
    ask = desk.asks[0].model_copy(update={"attempt": 1})
    desk.tell(NodesProposal(**about(ask), nodes=(NodeName("n0"),)))
    assert not desk.has_head()


def test_a_proposal_that_comes_again_after_the_commit_changes_nothing() -> None:
    desk = Desk()
    desk.submit(workers=1)
    answers = desk.answers(desk.take_ask())
    for _ in range(3):
        for proposal in answers:
            desk.tell(proposal)
    assert len(desk.told(JobPlaced)) == 1


def test_one_no_is_enough() -> None:
    desk = Desk()
    desk.submit(workers=1, gpus=1, network={})
    reason = lacking(Lack.GPU)
    desk.tell(GpuProposal(**about(desk.take_ask()), reasons=(reason,)))
    assert desk.state_of() is JobState.PENDING
    assert desk.told(JobPending)[0].reasons == (reason,)
    assert desk.head().lacks == (Lack.GPU,)


def test_what_can_never_be_met_is_rejected_at_once() -> None:
    desk = Desk()
    desk.submit(workers=1)
    desk.refuse(never=True)
    assert desk.state_of() is JobState.REJECTED
    assert [event.reasons[0].code for event in desk.told(JobRejected)] == [ReasonCode.INSUFFICIENT_GPUS]
    assert not desk.book.jobs


def test_head_and_placements_are_one_atomic_write_with_the_head_last() -> None:
    desk = Desk()
    desk.place(workers=3, gpus=1)
    atomic = [store for store in desk.stores if store.atomic]
    assert [[type(event) for event in store.events] for store in atomic] == [[Placement, Placement, Placement, Head]]
    assert {event.commit for event in atomic[0].events} == {desk.told(JobPlaced)[0].commit}


def test_a_job_that_loses_its_claim_is_asked_again_at_once_and_alone() -> None:
    desk = Desk()
    desk.submit("a", workers=1, gpus=2)
    desk.submit("b", workers=1, gpus=2)
    both = [proposal for name in ("a", "b") for proposal in desk.answers(desk.take_ask(name))]
    for proposal in both:
        desk.tell(proposal)
    assert desk.state_of("a") is JobState.PLACED
    assert [(ask.job, ask.round) for ask in desk.asks] == [("b", 2)]
    assert desk.book.counts.conflicts == 1
    desk.propose()
    assert desk.nodes_of("b") == ("n1",)


def test_a_job_that_loses_round_after_round_waits_and_says_to_whom() -> None:
    desk = Desk(nodes=1, config=CommitterConfig(conflicts_before_pending=3))
    desk.place("a", workers=1, gpus=2)
    desk.submit("b", workers=1, gpus=1)
    stubborn = (WorkerGpus(worker=0, gpus=(GpuShare(0, Milli(1000)),)),)
    for _ in range(3):
        ask = desk.take_ask("b")
        desk.tell(NodesProposal(**about(ask), nodes=(NodeName("n0"),)))
        desk.tell(GpuProposal(**about(ask), workers=stubborn))
    reason = desk.head("b").reasons[0]
    assert (desk.state_of("b"), reason.code, reason.lacks) == (JobState.PENDING, ReasonCode.CLAIM_CONFLICT, (Lack.GPU,))
    assert "held by slurm-a/a#1" in reason.text
    desk.wait(2)
    assert desk.asks[0].round == 4


def test_a_node_taken_out_between_proposal_and_commit_is_not_used() -> None:
    desk = Desk()
    desk.submit(workers=1)
    answers = desk.answers(desk.take_ask())
    desk.mode("n0", NodeMode.CORDONED)
    for proposal in answers:
        desk.tell(proposal)
    assert not desk.has_head()
    desk.propose()
    assert desk.nodes_of() == ("n1",)


def test_a_job_past_one_batch_is_refused_with_that_reason() -> None:
    desk = Desk(nodes=4, config=CommitterConfig(max_batch=4))
    desk.submit("fits", workers=3)
    desk.submit("too-large", workers=4)
    desk.propose()
    assert desk.state_of("fits") is JobState.PLACED
    reason = desk.head("too-large").reasons[0]
    assert (desk.state_of("too-large"), reason.code) == (JobState.REJECTED, ReasonCode.TOO_LARGE)
    assert reason.numbers == {"nodes": 4, "largest_nodes": 3}


def test_a_tenant_over_its_quota_waits_for_quota() -> None:
    desk = Desk(builder=_with_quota(2), config=CommitterConfig(conflicts_before_pending=1))
    desk.place("a", workers=2, gpus=1, tenant="t")
    desk.submit("b", workers=1, gpus=1, tenant="t")
    desk.propose()
    assert desk.head("b").lacks == (Lack.QUOTA,)
    assert desk.book.ledger.use_of(NodeName("n2")).holds == 0


def _with_quota(gpus: int) -> ClusterBuilder:
    builder = small_cluster(4)
    builder.tenant("t", gpu_limit=gpus)
    return builder


def test_a_pending_job_is_told_and_stored_again_only_when_its_reasons_change() -> None:
    desk = Desk(config=CommitterConfig(retry_pending_s=1.0, retry_growth=1.0))
    desk.submit(workers=1)
    for _ in range(3):
        desk.refuse()
        desk.wait(2)
    stored = len(desk.stores)
    assert len(desk.told(JobPending)) == 1
    desk.refuse("j", lacking(Lack.VF, code=ReasonCode.VF_GROUPS_EXHAUSTED))
    assert len(desk.told(JobPending)) == 2
    assert len(desk.stores) == stored + 1


def test_as_many_rounds_are_open_as_services_can_answer() -> None:
    desk = Desk(config=CommitterConfig(asks_at_once=3))
    for number in range(8):
        desk.submit(f"j{number}", workers=1)
    assert len(desk.asks) == 3
    desk.refuse("j0")
    assert len(desk.asks) == 3


def test_jobs_that_wait_for_their_turn_are_asked_by_priority_and_then_age() -> None:
    desk = Desk(config=CommitterConfig(asks_at_once=1))
    priorities = [0, 0, 5, -1, 5, 0]
    for number, priority in enumerate(priorities):
        desk.submit(f"j{number}", workers=1, priority=priority)
    order = []
    while desk.asks:
        order.append(str(desk.asks[0].job))
        desk.refuse(order[-1])
    assert order == ["j0", "j2", "j4", "j1", "j5", "j3"]


def test_a_job_whose_priority_is_raised_while_it_waits_for_its_turn_is_asked_sooner() -> None:
    desk = Desk(config=CommitterConfig(asks_at_once=1))
    for number in range(4):
        desk.submit(f"j{number}", workers=1)
    desk.update("j3", priority=9)
    assert len(desk.asks) == 1
    desk.refuse("j0")
    assert desk.asks[0].job == "j3"


def test_a_job_that_ended_while_it_waited_for_its_turn_is_not_asked_for() -> None:
    desk = Desk(config=CommitterConfig(asks_at_once=1))
    for number in range(3):
        desk.submit(f"j{number}", workers=1)
    desk.end("j1")
    desk.refuse("j0")
    assert desk.asks[0].job == "j2"
    assert desk.state_of("j1") is JobState.RELEASED


def test_every_job_that_waited_for_its_turn_gets_it() -> None:
    desk = Desk(nodes=4, config=CommitterConfig(asks_at_once=3, retry_pending_s=1.0))
    rng = random.Random(3)
    for number in range(30):
        desk.submit(f"j{number}", workers=rng.randint(1, 2), priority=rng.randint(0, 2))
        if desk.asks and rng.random() < 0.5:
            desk.refuse(str(rng.choice(desk.asks).job))
    desk.propose(most=1000)
    for _ in range(10):
        desk.wait(1)
        desk.propose(most=1000)
    assert {desk.state_of(f"j{number}") for number in range(30)} == {JobState.PLACED}
