"""The scheduler may say that workers started before, while or after their nodes are prepared."""

from __future__ import annotations

import pytest
from desk import Desk

from railweave.contracts.inventory import ReportState
from railweave.contracts.job import JobReleased
from railweave.contracts.placement import JobState

NETNS = [{"worker": 0, "netns": "/run/netns/a"}, {"worker": 1, "netns": "/run/netns/b"}]


def test_started_tells_every_node_where_its_own_workers_are() -> None:
    desk = Desk()
    desk.prepare(workers=2, gpus=1)
    desk.start(workers=NETNS)
    assert desk.state_of() is JobState.STARTED
    found = [item.event for item in desk.placements()]
    assert [(item.started, item.workers[0].namespace.netns) for item in found] == [
        (True, "/run/netns/a"),
        (True, "/run/netns/b"),
    ]


@pytest.mark.parametrize("when", ["asked", "pending", "placed"])
def test_started_early_attaches_as_soon_as_the_nodes_are_prepared(when: str) -> None:
    desk = Desk()
    desk.submit(workers=2, gpus=1)
    if when == "pending":
        desk.refuse()
    if when == "placed":
        desk.propose()
    desk.start(workers=NETNS)
    desk.wait(31 if when == "pending" else 1)
    desk.propose()
    assert [item.event.started for item in desk.placements()] == [True, True]
    assert desk.state_of() is JobState.PLACED
    desk.report("j", ReportState.PREPARED)
    assert desk.state_of() is JobState.STARTED
    desk.report("j", ReportState.ATTACHED)
    assert desk.state_of() is JobState.ATTACHED
    assert desk.names_told()[-3:] == ["placed", "prepared", "attached"]


def test_started_before_anything_is_stored_is_acked_only_with_the_head() -> None:
    desk = Desk()
    desk.submit(workers=2, gpus=1)
    started = desk.start()
    assert started not in desk.acked
    desk.propose()
    assert desk.head().started
    assert started in desk.acked


def test_updated_before_anything_is_stored_is_acked_only_with_the_head() -> None:
    desk = Desk()
    desk.submit(workers=2, gpus=1)
    updated = desk.update(priority=3)
    assert updated not in desk.acked
    desk.propose()
    assert (desk.head().spec.priority, desk.head().updated_revision) == (3, 1)
    assert updated in desk.acked


def test_attached_says_prepared_too() -> None:
    desk = Desk()
    desk.place(workers=1, gpus=1)
    desk.start()
    desk.report("j", ReportState.ATTACHED)
    assert desk.names_told() == ["placed", "prepared", "attached"]
    assert desk.state_of() is JobState.ATTACHED


def test_attached_waits_for_every_node() -> None:
    desk = Desk()
    desk.prepare(workers=3, gpus=1)
    desk.start()
    desk.report("j", ReportState.ATTACHED, ["n0", "n2"])
    assert desk.state_of() is JobState.STARTED
    desk.report("j", ReportState.ATTACHED, ["n1"])
    assert desk.state_of() is JobState.ATTACHED


def test_started_while_it_is_given_back_calls_off_another_round() -> None:
    # Its workers run on nodes it is losing, and its scheduler cannot say `started` of this attempt again.
    desk = Desk()
    desk.prepare(workers=2, gpus=1)
    desk.report("j", ReportState.FAILED, ["n0"])
    assert desk.head().requeue
    desk.start()
    desk.report("j", ReportState.UNDONE)
    assert desk.state_of() is JobState.RELEASED
    assert [event.requeued for event in desk.told(JobReleased)] == [False]
