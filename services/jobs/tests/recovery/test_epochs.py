"""The epoch is raised whenever sequences may have started over, so that a fence from another history is an old one."""

from __future__ import annotations

import pytest
from desk import Desk

from railweave.contracts.inventory import ReportState
from railweave.contracts.placement import Epoch, EpochCause, Fence, JobState
from railweave.jobs.model import CommitterConfig


def epochs(desk: Desk) -> list[Epoch]:
    return [event for store in desk.stores for event in store.events if isinstance(event, Epoch)]


def test_a_first_start_stores_the_first_epoch_before_anything_else() -> None:
    desk = Desk(is_cold=True)
    assert [(epoch.epoch, epoch.cause) for epoch in epochs(desk)] == [(1, EpochCause.BOOTSTRAP)]
    assert isinstance(desk.stores[0].events[0], Epoch)


def test_an_empty_record_beside_agents_that_saw_one_is_a_cold_start_above_what_they_saw() -> None:
    desk = Desk()
    desk.hears_fence("n1", Fence(1, 0))
    desk.state.nodes["n2"].hardware = desk.state.nodes["n2"].hardware.model_copy(update={"fence_seen": Fence(7, 900)})
    desk.lose_record()
    desk.stores.clear()
    desk.activate()
    assert (desk.book.epoch, epochs(desk)[0].cause) == (8, EpochCause.COLD_START)


@pytest.mark.parametrize("by", ["inventory", "report", "orphan"])
def test_a_fence_beyond_the_end_of_the_record_raises_the_epoch(by: str) -> None:
    desk = Desk()
    desk.place(workers=1, gpus=1)
    beyond = Fence(1, desk.last_sequence + 5)
    placement = desk.placement("j", "n0").event
    if by == "inventory":
        desk.hears_fence("n3", beyond)
    elif by == "report":
        desk.report_on(placement, ReportState.PREPARED, beyond)
    else:
        desk.orphan(placement.model_copy(update={"job": "k"}), beyond)
    assert [(epoch.epoch, epoch.cause) for epoch in epochs(desk)] == [(2, EpochCause.AGENT_AHEAD)]
    assert f"has applied 1/{beyond.sequence}" in epochs(desk)[0].text


def test_the_epoch_is_raised_once_for_all_agents_that_were_ahead() -> None:
    desk = Desk()
    for node in ("n0", "n1", "n2"):
        desk.hears_fence(node, Fence(1, 50))
    assert desk.book.epoch == 2


def test_a_fence_within_the_record_raises_nothing() -> None:
    desk = Desk()
    desk.place(workers=1, gpus=1)
    desk.hears_fence("n0", Fence(1, desk.last_sequence))
    assert desk.book.epoch == 1


def test_every_write_after_the_raise_carries_the_new_epoch() -> None:
    desk = Desk()
    desk.place(workers=1, gpus=1)
    desk.hears_fence("n0", Fence(1, 99))
    desk.wait(5)
    desk.end()
    assert desk.head().epoch == 2
    assert desk.placement("j", "n0").event.epoch == 2


def test_nothing_is_placed_while_journals_have_not_spoken_yet() -> None:
    desk = Desk(config=CommitterConfig(orphan_grace_s=2.0))
    desk.hears_fence("n0", Fence(1, 99))
    desk.submit(workers=1)
    desk.wait(2.5)
    assert not desk.asks
    desk.wait(1)
    desk.propose()
    assert desk.state_of() is JobState.PLACED


def test_a_round_that_was_complete_when_the_doubt_arose_is_placed_only_if_asked_before() -> None:
    desk = Desk()
    desk.submit(workers=1, gpus=1)
    answers = desk.answers(desk.take_ask())
    desk.hears_fence("n0", Fence(1, 99))
    for proposal in answers:
        desk.tell(proposal)
    desk.wait(5)
    desk.propose()
    assert desk.state_of() is JobState.PLACED


def test_a_suspect_record_settles_before_it_is_believed() -> None:
    desk = Desk()
    desk.activate(is_suspect=True)
    desk.submit(workers=1)
    assert not desk.asks
    desk.wait(4)
    assert [ask.job for ask in desk.asks] == ["j"]


def test_what_a_node_says_it_undid_counts_only_after_settling() -> None:
    desk = Desk(config=CommitterConfig(orphan_grace_s=2.0))
    desk.attach(workers=1, gpus=1)
    desk.activate(is_suspect=True)
    desk.report("j", ReportState.UNDONE)
    assert desk.state_of() is JobState.ATTACHED
    desk.wait(4)
    assert desk.state_of() is JobState.RELEASED
