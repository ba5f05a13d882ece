"""A node that cannot: the job is given back everywhere, and proposed again where that makes sense."""

from __future__ import annotations

import pytest
from desk import Desk

from railweave.contracts.desired import NodeMode
from railweave.contracts.inventory import ReportState
from railweave.contracts.job import JobReleased, JobReleasing
from railweave.contracts.placement import JobState
from railweave.contracts.reasons import ReasonCode


def test_a_refused_node_is_excluded_and_the_job_proposed_again() -> None:
    desk = Desk()
    desk.place(workers=2, gpus=1)
    assert desk.nodes_of() == ("n0", "n1")
    desk.report("j", ReportState.REFUSED, ["n0"])
    assert (desk.state_of(), desk.codes()) == (JobState.RELEASING, [ReasonCode.NODE_REFUSED])
    desk.report("j", ReportState.UNDONE)
    desk.wait(1)
    assert desk.asks[0].exclude == ("n0",)
    assert desk.asks[0].round == 2
    desk.propose()
    assert desk.nodes_of() == ("n1", "n2")
    assert [event.requeued for event in desk.told(JobReleased)] == [True]


@pytest.mark.parametrize(
    ("before", "code"),
    [
        ("placed", ReasonCode.NODE_NOT_PREPARED),
        ("prepared", ReasonCode.NODE_NOT_ATTACHED),
        ("started", ReasonCode.NODE_NOT_ATTACHED),
    ],
)
def test_a_failed_node_gives_the_whole_job_back_naming_node_and_step(before: str, code: ReasonCode) -> None:
    desk = Desk()
    desk.place(workers=3, gpus=1)
    if before != "placed":
        desk.report("j", ReportState.PREPARED)
    if before == "started":
        desk.start()
    desk.report("j", ReportState.FAILED, ["n1"])
    reason = desk.told(JobReleasing)[0].reasons[0]
    assert (reason.code, reason.node) == (code, "n1")
    assert "n1: attach rail0: EBUSY" in reason.text
    assert {item.event.state for item in desk.placements()} == {"releasing"}


def test_a_job_whose_workers_run_is_not_moved() -> None:
    desk = Desk()
    desk.attach(workers=2, gpus=1)
    desk.report("j", ReportState.FAILED, ["n0"])
    desk.report("j", ReportState.UNDONE)
    assert desk.state_of() is JobState.RELEASED
    assert [event.requeued for event in desk.told(JobReleased)] == [False]


def test_a_job_on_the_schedulers_nodes_is_not_moved() -> None:
    desk = Desk()
    desk.place(workers=2, gpus=1, node_list=["n2", "n3"], nodes=["n2", "n3"])
    desk.report("j", ReportState.REFUSED, ["n2"])
    desk.report("j", ReportState.UNDONE)
    assert desk.state_of() is JobState.RELEASED


def test_a_job_on_a_retired_node_is_moved_unless_its_workers_run() -> None:
    desk = Desk()
    desk.place("waits", workers=1, gpus=1)
    desk.attach("runs", workers=1, gpus=1)
    assert desk.nodes_of("waits") == desk.nodes_of("runs") == ("n0",)
    desk.mode("n0", NodeMode.RETIRED)
    assert (desk.state_of("waits"), desk.state_of("runs")) == (JobState.PENDING, JobState.RELEASED)
    assert desk.codes("runs") == [ReasonCode.RELEASED_BY_OPERATOR]
    desk.wait(1)
    desk.propose()
    assert desk.nodes_of("waits") == ("n1",)


@pytest.mark.parametrize("mode", [NodeMode.CORDONED, NodeMode.DRAINING])
def test_what_runs_on_a_node_that_takes_nothing_new_goes_on(mode: NodeMode) -> None:
    desk = Desk()
    desk.attach(workers=1, gpus=1)
    desk.mode("n0", mode)
    assert desk.state_of() is JobState.ATTACHED


def test_a_node_that_says_it_undid_what_is_still_wanted_ends_the_job() -> None:
    desk = Desk()
    desk.attach(workers=2, gpus=1)
    desk.report("j", ReportState.UNDONE, ["n0"])
    assert (desk.state_of(), desk.nodes_of()) == (JobState.RELEASING, ("n1",))
    assert desk.codes() == [ReasonCode.NODE_NOT_ATTACHED]


def test_a_second_failure_while_it_is_given_back_changes_nothing() -> None:
    desk = Desk()
    desk.place(workers=2, gpus=1)
    desk.report("j", ReportState.REFUSED, ["n0"])
    desk.report("j", ReportState.REFUSED, ["n1"])
    assert desk.head().exclude == ("n0",)
    assert len(desk.told(JobReleasing)) == 1
