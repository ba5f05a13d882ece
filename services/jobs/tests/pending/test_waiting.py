"""Who waits, and who is asked again when: by what is lacked, few at a time, by priority and then age."""

from __future__ import annotations

import pytest
from desk import Desk, about, lacking

from railweave.contracts.desired import NodeMode
from railweave.contracts.inventory import ReportState
from railweave.contracts.placement import JobState
from railweave.contracts.proposal import NicProposal
from railweave.contracts.reasons import Lack, ReasonCode
from railweave.jobs.committer import Freed
from railweave.jobs.model import CommitterConfig

SLOW = CommitterConfig(retry_pending_s=1000.0, keep_nodes_after_s=10_000.0)


def waiting(desk: Desk, *jobs: str, lacks: tuple[Lack, ...] = (Lack.GPU,), **fields: object) -> None:
    """Jobs that were told no."""
    for job in jobs:
        desk.submit(job, workers=1, gpus=1, **fields)
        desk.refuse(job, lacking(*lacks))


def asked(desk: Desk) -> list[str]:
    return [str(ask.job) for ask in desk.asks]


@pytest.mark.parametrize("freed", list(Lack))
def test_only_what_a_job_lacks_wakes_it(freed: Lack) -> None:
    desk = Desk(config=SLOW)
    waiting(desk, "j", lacks=(Lack.GPU, Lack.QUOTA))
    desk.tell(Freed(frozenset({freed})))
    assert asked(desk) == (["j"] if freed in {Lack.GPU, Lack.QUOTA} else [])


def test_a_job_that_lacks_nothing_by_name_is_woken_by_anything() -> None:
    desk = Desk(config=SLOW)
    desk.submit(workers=1)
    desk.refuse("j", lacking().model_copy(update={"lacks": ()}))
    desk.tell(Freed(frozenset({Lack.SEGMENT})))
    assert asked(desk) == ["j"]


def test_what_was_refused_for_proposals_that_came_to_nothing_is_asked_again_when_they_lapse() -> None:
    """Services kept GPUs in mind for a job that then got no VFs; who was refused for that waited half a minute."""
    desk = Desk(config=SLOW)
    desk.submit("first", workers=1, gpus=1, network={})
    first = desk.take_ask("first")
    desk.tell(desk.answers(first)[0])
    desk.submit("second", workers=1, gpus=1)
    desk.refuse("second", lacking(Lack.GPU))
    desk.tell(NicProposal(**about(first), reasons=(lacking(Lack.VF),)))
    desk.wait(5)
    assert asked(desk) == []
    desk.wait(1)
    assert asked(desk) == ["first", "second"]


def test_a_round_that_got_its_nodes_leaves_nothing_to_lapse() -> None:
    desk = Desk(config=SLOW)
    desk.submit("first", workers=1, gpus=1)
    desk.propose("first")
    waiting(desk, "second")
    desk.wait(30)
    assert asked(desk) == []


def test_jobs_are_woken_by_priority_and_then_age() -> None:
    desk = Desk(config=SLOW)
    waiting(desk, "a", "b")
    waiting(desk, "urgent", priority=9)
    desk.tell(Freed(frozenset({Lack.GPU})))
    assert asked(desk) == ["urgent", "a", "b"]


def test_few_are_woken_at_a_time_and_the_others_after_them() -> None:
    desk = Desk(config=CommitterConfig(retry_pending_s=1000.0, keep_nodes_after_s=10_000.0, wake_at_once=2))
    names = [f"j{number}" for number in range(5)]
    waiting(desk, *names)
    desk.tell(Freed(frozenset({Lack.GPU})))
    assert asked(desk) == ["j0", "j1"]
    desk.propose()
    for _ in range(3):
        desk.wait(0.5)
        desk.propose()
    assert {desk.state_of(name) for name in names} == {JobState.PLACED}


def test_those_woken_in_vain_are_not_asked_again_for_the_same_change() -> None:
    desk = Desk(config=CommitterConfig(retry_pending_s=1000.0, keep_nodes_after_s=10_000.0, wake_at_once=2))
    names = [f"j{number}" for number in range(5)]
    waiting(desk, *names)
    desk.tell(Freed(frozenset({Lack.GPU})))
    order = []
    for _ in range(20):
        order += asked(desk)
        for name in asked(desk):
            desk.refuse(name)
        desk.wait(0.5)
    assert order == ["j0", "j1"]


def test_a_job_that_cannot_fit_by_count_is_not_woken() -> None:
    desk = Desk(nodes=1, config=SLOW)
    desk.place("holds", workers=1, gpus=2)
    waiting(desk, "j")
    desk.tell(Freed(frozenset({Lack.GPU})))
    assert not asked(desk)
    desk.end("holds")
    assert not asked(desk)
    desk.report("holds", ReportState.UNDONE)
    assert asked(desk) == ["j"]


@pytest.mark.parametrize("mode", [NodeMode.CORDONED, NodeMode.DRAINING])
def test_a_node_that_comes_back_wakes_who_waits(mode: NodeMode) -> None:
    desk = Desk(nodes=1, config=SLOW)
    desk.mode("n0", mode)
    waiting(desk, "j", lacks=(Lack.NODE,))
    desk.tell(Freed(frozenset({Lack.NODE})))
    assert not asked(desk)
    desk.mode("n0", NodeMode.SCHEDULABLE)
    assert asked(desk) == ["j"]


def test_a_waiting_job_is_asked_again_later_each_time_and_at_most_ten_times_as_late() -> None:
    desk = Desk(config=CommitterConfig(retry_pending_s=2.0, retry_growth=2.0))
    waiting(desk, "j")
    gaps = []
    for _ in range(7):
        before = desk.now
        while not desk.asks:
            desk.wait(0.25, step=0.25)
        gaps.append(round((desk.now - before).total_seconds()))
        desk.refuse("j")
    assert gaps == [2, 4, 8, 16, 20, 20, 20]


def test_a_waiting_job_that_gets_its_place_starts_anew_where_it_waits_again() -> None:
    desk = Desk(config=CommitterConfig(retry_pending_s=2.0, retry_growth=2.0))
    waiting(desk, "j")
    desk.wait(3)
    desk.refuse("j")
    desk.wait(5)
    desk.propose()
    assert (desk.live().retries, desk.live().reasons, desk.head().lacks) == (0, (), ())


def test_freed_nodes_are_kept_for_the_first_gang_that_has_waited() -> None:
    desk = Desk(nodes=4, config=CommitterConfig(retry_pending_s=1000.0, keep_nodes_after_s=20.0))
    for number in range(4):
        desk.place(f"small{number}", workers=1, gpus=2)
    desk.submit("gang", workers=3, gpus=2)
    desk.refuse("gang")
    desk.submit("early", workers=1, gpus=2)
    assert desk.take_ask("early").avoid == ()
    desk.end("early")
    desk.wait(21)
    desk.submit("late", workers=1, gpus=2)
    ask = desk.take_ask("late")
    assert len(ask.avoid) == 3
    assert set(ask.avoid) <= {"n0", "n1", "n2", "n3"}


def test_nodes_are_kept_neither_for_nor_from_who_is_before_the_gang() -> None:
    desk = Desk(nodes=4, config=CommitterConfig(keep_nodes_after_s=1.0))
    desk.submit("gang", workers=4, gpus=2, priority=1)
    desk.refuse("gang")
    desk.wait(2)
    desk.submit("urgent", workers=1, priority=2)
    desk.submit("behind", workers=1, priority=1)
    avoid = {ask.job: ask.avoid for ask in desk.asks}
    assert avoid["urgent"] == ()
    assert len(avoid["behind"]) == 4


def test_nodes_that_could_never_hold_it_are_not_kept_for_a_gang() -> None:
    desk = Desk(nodes=4, config=CommitterConfig(keep_nodes_after_s=1.0))
    desk.mode("n0", NodeMode.CORDONED)
    desk.submit("gang", workers=2, gpus=2, exclude=["n1"])
    desk.refuse("gang")
    desk.wait(2)
    desk.submit("behind", workers=1)
    assert desk.take_ask("behind").avoid == ("n2", "n3")


def test_nothing_is_kept_any_more_when_the_gang_is_placed_or_over() -> None:
    desk = Desk(nodes=4, config=CommitterConfig(keep_nodes_after_s=1.0))
    desk.submit("gang", workers=2, gpus=2)
    desk.refuse("gang")
    desk.wait(2)
    desk.end("gang")
    desk.submit("next", workers=1)
    assert desk.take_ask("next").avoid == ()


def test_a_reason_that_stays_the_same_keeps_the_place_in_the_queue() -> None:
    desk = Desk(config=SLOW)
    waiting(desk, "a")
    waiting(desk, "b", tenant="another")
    desk.tell(Freed(frozenset({Lack.GPU})))
    desk.refuse("a", lacking(Lack.VF, code=ReasonCode.VF_GROUPS_EXHAUSTED))
    desk.refuse("b")
    desk.tell(Freed(frozenset({Lack.GPU, Lack.VF})))
    assert asked(desk) == ["a", "b"]
