"""Whose turn it is: nothing that became free is forgotten, nobody is passed over, and few are asked for in vain."""

from __future__ import annotations

import pytest
from desk import Desk, lacking, small_cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.contracts.desired import Tenant
from railweave.contracts.inventory import ReportState
from railweave.contracts.placement import JobState
from railweave.contracts.reasons import Lack
from railweave.jobs.committer import Freed
from railweave.jobs.model import CommitterConfig
from railweave_testing.clusters import ask_for

SLOW = CommitterConfig(retry_pending_s=100_000.0, keep_nodes_after_s=100_000.0, ask_timeout_s=10_000.0)
NARROW = CommitterConfig(
    retry_pending_s=100_000.0, keep_nodes_after_s=100_000.0, ask_timeout_s=10_000.0, asks_at_once=2
)


def asked(desk: Desk) -> list[str]:
    return [str(ask.job) for ask in desk.asks]


def full(desk: Desk, nodes: int) -> None:
    """Every node is taken by a job of its own."""
    for index in range(nodes):
        desk.place(f"holds{index}", nodes=[f"n{index}"], workers=1, gpus=2)


def free(desk: Desk, index: int) -> None:
    desk.end(f"holds{index}")
    desk.report(f"holds{index}", ReportState.UNDONE)


def test_what_became_free_while_all_places_for_asks_were_taken_wakes_who_waits_for_it() -> None:
    desk = Desk(config=NARROW)
    full(desk, 4)
    desk.submit("old", workers=1, gpus=2)
    desk.refuse("old")
    desk.submit("new1", workers=1, gpus=2)
    desk.submit("new2", workers=1, gpus=2)
    assert asked(desk) == ["new1", "new2"]
    free(desk, 0)
    assert asked(desk) == ["new1", "new2"]
    desk.refuse("new1")
    assert asked(desk) == ["new2", "old"]


def test_jobs_that_were_never_asked_for_do_not_pass_older_ones_that_wait_for_what_became_free() -> None:
    desk = Desk(config=NARROW)
    full(desk, 4)
    desk.submit("old", workers=1, gpus=2)
    desk.refuse("old")
    for number in range(20):
        desk.submit(f"new{number}", workers=1, gpus=2)
    free(desk, 0)
    desk.refuse("new0")
    assert asked(desk) == ["new1", "old"]


def test_no_more_are_asked_for_than_what_became_free_is_enough_for() -> None:
    desk = Desk(config=SLOW)
    full(desk, 4)
    for number in range(6):
        desk.submit(f"j{number}", workers=1, gpus=2)
        desk.refuse(f"j{number}")
    free(desk, 0)
    assert asked(desk) == ["j0"]
    free(desk, 1)
    assert asked(desk) == ["j0", "j1"]


def test_who_was_not_asked_because_others_were_is_asked_when_those_are_told_no() -> None:
    desk = Desk(config=SLOW)
    full(desk, 4)
    desk.submit("first", workers=1, gpus=2)
    desk.refuse("first")
    desk.submit("second", workers=1, gpus=1)
    desk.refuse("second")
    free(desk, 0)
    assert asked(desk) == ["first"]
    desk.refuse("first", lacking(Lack.QUOTA))
    assert asked(desk) == ["second"]


def test_who_was_not_asked_because_others_were_is_asked_when_those_are_over() -> None:
    desk = Desk(config=SLOW)
    full(desk, 4)
    for name in ("first", "second"):
        desk.submit(name, workers=1, gpus=2)
        desk.refuse(name)
    free(desk, 0)
    desk.end("first")
    assert asked(desk)[-1] == "second"


def test_all_that_fit_are_asked_for_at_once() -> None:
    desk = Desk(builder=small_cluster(40), config=SLOW)
    full(desk, 40)
    for number in range(30):
        desk.submit(f"j{number}", workers=1, gpus=2, tenant=f"t{number}")
        desk.refuse(f"j{number}")
    for index in range(40):
        desk.end(f"holds{index}")
    for index in range(40):
        desk.report(f"holds{index}", ReportState.UNDONE)
    assert len(asked(desk)) == 30


def test_one_tries_for_all_of_its_kind_after_they_were_asked_in_vain() -> None:
    desk = Desk(builder=small_cluster(40), config=SLOW)
    for number in range(20):
        desk.submit(f"j{number}", workers=1)
    desk.submit("other", workers=1, gpus=1)
    for number in range(20):
        desk.refuse(f"j{number}", lacking(Lack.VF))
    desk.refuse("other", lacking(Lack.VF))
    counts = []
    for _ in range(4):
        desk.tell(Freed(frozenset({Lack.VF})))
        counts.append(len(desk.asks) - ("other" in asked(desk)))
        assert "other" in asked(desk), "it is of another kind"
        for name in asked(desk):
            desk.refuse(name, lacking(Lack.VF))
        desk.wait(2.0)
    assert counts == [8, 1, 1, 1]


def test_a_kind_that_got_a_place_is_asked_for_by_as_many_as_fit_again() -> None:
    desk = Desk(config=SLOW)
    for number in range(12):
        desk.submit(f"j{number}", workers=1)
        desk.refuse(f"j{number}", lacking(Lack.VF))
    for _ in range(3):
        desk.tell(Freed(frozenset({Lack.VF})))
        for name in asked(desk):
            desk.refuse(name, lacking(Lack.VF))
        desk.wait(2.0)
    desk.tell(Freed(frozenset({Lack.VF})))
    assert len(desk.asks) == 1
    desk.propose(asked(desk)[0])
    desk.propose(most=1000)
    placed = [number for number in range(12) if desk.state_of(f"j{number}") is JobState.PLACED]
    assert len(placed) == 12


def test_kinds_that_are_told_no_again_and_again_rest_so_that_others_get_their_turn() -> None:
    config = CommitterConfig(retry_pending_s=100_000.0, keep_nodes_after_s=100_000.0, asks_at_once=1)
    desk = Desk(config=config)
    for tenant in ("stubborn", "late"):
        desk.submit(tenant, workers=1, tenant=tenant)
        desk.refuse(tenant, lacking(Lack.VF))
    seen = set()
    for _ in range(6):
        desk.tell(Freed(frozenset({Lack.VF})))
        for name in asked(desk):
            seen.add(name)
            if name == "stubborn":
                desk.refuse(name, lacking(Lack.VF))
    assert seen == {"stubborn", "late"}


def test_a_kind_that_rests_is_asked_for_what_became_free_meanwhile() -> None:
    desk = Desk(config=SLOW)
    desk.submit(workers=1)
    desk.refuse("j", lacking(Lack.VF))
    for _ in range(4):
        desk.tell(Freed(frozenset({Lack.VF})))
        if desk.asks:
            desk.refuse("j", lacking(Lack.VF))
    desk.tell(Freed(frozenset({Lack.VF})))
    assert not desk.asks
    desk.wait(1.5, step=0.25)
    assert asked(desk) == ["j"]


def test_a_tenant_without_quota_is_not_asked_for_until_a_job_of_it_ends() -> None:
    desk = Desk(config=SLOW)
    limited = Tenant.model_validate({"tenant": "t", "generation": 1, "quota": {"gpus": {"limit": 1}}}, strict=False)
    desk.state.apply_event(limited, 1, "DESIRED")
    desk.place("runs", workers=1, gpus=1, tenant="t")
    desk.submit("waits", workers=1, gpus=1, tenant="t")
    desk.refuse("waits", lacking(Lack.QUOTA))
    desk.tell(Freed(frozenset({Lack.QUOTA})))
    assert not desk.asks
    desk.end("runs")
    desk.report("runs", ReportState.UNDONE)
    assert asked(desk) == ["waits"]


def test_when_the_gang_is_over_those_that_its_nodes_were_kept_from_are_asked_again() -> None:
    config = CommitterConfig(retry_pending_s=100_000.0, keep_nodes_after_s=1.0)
    desk = Desk(nodes=2, config=config)
    desk.place("runs", nodes=["n0"], workers=1, gpus=2)
    desk.submit("gang", workers=2, gpus=2)
    desk.refuse("gang")
    desk.wait(2)
    desk.submit("small", workers=1, gpus=1)
    desk.refuse("small", lacking(Lack.NODE))
    desk.wait(5)
    assert not desk.asks
    desk.end("gang")
    desk.wait(2)
    assert asked(desk) == ["small"]


@pytest.mark.timeout(120)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_job_that_fits_never_sleeps(data: st.DataObject) -> None:
    config = CommitterConfig(
        retry_pending_s=100_000.0, keep_nodes_after_s=100_000.0, ask_timeout_s=10_000.0, asks_at_once=3, wake_at_once=1
    )
    desk = Desk(builder=small_cluster(5), config=config)
    for number in range(data.draw(st.integers(5, 25))):
        desk.submit(
            f"j{number}",
            workers=data.draw(st.integers(1, 3)),
            gpus=data.draw(st.integers(0, 2)),
            per_node=data.draw(st.integers(1, 2)),
            priority=data.draw(st.integers(0, 1)),
        )
        if data.draw(st.booleans()):
            desk.propose(most=10_000)
        running = [str(job.run.job) for job in desk.book.jobs.values() if job.state is JobState.PLACED]
        if running and data.draw(st.booleans()):
            name = data.draw(st.sampled_from(running))
            desk.end(name)
            if data.draw(st.booleans()):
                desk.report(name, ReportState.UNDONE)
    for job in list(desk.book.jobs.values()):
        if job.state is JobState.RELEASING:
            desk.report(str(job.run.job), ReportState.UNDONE)
    for _ in range(30):
        desk.propose(most=10_000)
        desk.wait(0.5, step=0.25)
    assert not desk.asks
    asleep = [job for job in desk.book.jobs.values() if job.state is JobState.PENDING]
    for job in asleep:
        answers = desk.answers(ask_for(job.spec))
        assert answers[0].reasons, f"{job.run} would fit, and nobody asks for it"
