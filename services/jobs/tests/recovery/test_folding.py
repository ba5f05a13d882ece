"""A committer that folds the record knows what the one before it knew."""

from __future__ import annotations

from typing import Any

import pytest
from desk import Desk, key_of, lacking

from railweave.contracts.inventory import ReportState
from railweave.contracts.job import JobPlaced
from railweave.contracts.placement import Head, JobState, Placement, PlacementState
from railweave.contracts.reasons import Lack, ReasonCode
from railweave.jobs.book import Book
from railweave.jobs.model import Job


def known(book: Book) -> dict[str, Any]:
    """What of a book is in the record."""
    return {
        "jobs": {key: _known_of(job) for key, job in book.jobs.items() if job.stored},
        "finished": {key: item.run for key, item in book.finished.items()},
        "strays": {key: (held.placement, held.sequence) for key, held in book.strays.items()},
        "ledger": book.ledger.snapshot(),
        "epoch": book.epoch,
        "last_sequence": book.last_sequence,
    }


def _known_of(job: Job) -> tuple[Any, ...]:
    placements = {node: (held.placement, held.sequence) for node, held in job.placements.items()}
    return (
        *(job.run, job.spec, job.submitted_at, job.state, job.commit, job.reasons, job.times, job.outcome, job.claims),
        job.is_adopted,
        *(max(job.round, 1), job.exclude, job.lacks, job.started, job.namespaces, job.requeue, job.updated_revision),
        placements,
    )


def test_a_folded_book_equals_the_live_one() -> None:
    desk = Desk()
    desk.attach("attached", workers=2, gpus=1, network={}, tenant="t")
    desk.place("placed", workers=1, gpus=1)
    desk.start("placed", workers=[{"worker": 0, "pid": 7}])
    desk.prepare("given-back", workers=1, gpus=1)
    desk.end("given-back")
    desk.submit("waits", workers=4, gpus=2)
    desk.refuse("waits", lacking(Lack.GPU, Lack.VF))
    desk.update("waits", priority=3)
    desk.place("over", workers=1)
    desk.end("over")
    desk.report("over", ReportState.UNDONE)
    live = known(desk.book)
    desk.activate(reports=False)
    assert known(desk.book) == live


def test_a_waiting_job_is_asked_for_again_at_once() -> None:
    desk = Desk()
    desk.submit(workers=1)
    desk.refuse()
    desk.activate()
    desk.wait(0.5)
    assert desk.take_ask().round == 2
    assert desk.live().reasons[0].code is ReasonCode.INSUFFICIENT_GPUS


def test_a_job_that_was_asked_for_and_not_stored_comes_again_from_its_stream() -> None:
    desk = Desk()
    sequence = desk.submit(workers=1)
    desk.activate()
    assert sequence not in desk.acked
    assert key_of("j") not in desk.book.jobs


def test_a_start_that_did_not_reach_every_node_is_written_again() -> None:
    desk = Desk()
    desk.prepare(workers=2, gpus=1)
    before = desk.placement("j", "n1")
    desk.start()
    desk.record[before.event.subject()] = before
    desk.activate()
    assert [item.event.started for item in desk.placements()] == [True, True]


def test_a_report_that_was_read_before_comes_again_and_counts() -> None:
    desk = Desk()
    desk.place(workers=2, gpus=1)
    desk.report("j", ReportState.PREPARED, ["n0"])
    desk.activate()
    desk.report("j", ReportState.PREPARED, ["n1"])
    assert desk.state_of() is JobState.PREPARED


@pytest.mark.parametrize("age_s", [1.0, 599.0, 700.0])
def test_the_last_answer_of_a_young_head_is_published_again(age_s: float) -> None:
    desk = Desk()
    desk.place(workers=1)
    told = desk.told(JobPlaced)[0]
    desk.wait(age_s, step=5)
    desk.said.clear()
    desk.activate()
    assert [event.event_id() for event in desk.told(JobPlaced)] == ([told.event_id()] if age_s < 600 else [])
    assert all(event == told for event in desk.told(JobPlaced))


def test_a_placement_without_a_head_is_undone() -> None:
    desk = Desk()
    desk.place(workers=2, gpus=1)
    del desk.record[desk.head().subject()]
    desk.activate()
    assert {item.event.state for item in desk.placements()} == {PlacementState.RELEASING}
    assert not desk.book.ledger.is_empty()
    desk.report("j", ReportState.UNDONE)
    assert not desk.placements()
    assert desk.book.ledger.is_empty()


def test_a_head_without_its_placements_is_released() -> None:
    desk = Desk()
    desk.place(workers=2, gpus=1)
    desk.record = {subject: item for subject, item in desk.record.items() if not isinstance(item.event, Placement)}
    desk.activate()
    assert desk.state_of() is JobState.RELEASED
    assert desk.codes() == [ReasonCode.SUPERSEDED]


def test_a_placement_of_an_older_run_than_its_head_is_undone_as_a_stray() -> None:
    desk = Desk()
    desk.place(workers=1, gpus=1, nodes=["n0"])
    old = desk.placement("j", "n0")
    desk.end()
    desk.report("j", ReportState.UNDONE)
    desk.place(workers=1, gpus=1, attempt=2, nodes=["n1"])
    desk.record[old.event.subject()] = old
    desk.activate()
    assert desk.state_of() is JobState.PLACED
    assert desk.placement("j", "n0").event.state is PlacementState.RELEASING
    desk.report("j", ReportState.UNDONE, ["n0"])
    assert desk.nodes_of() == ("n1",)
    assert desk.book.ledger.use_of("n0").holds == 0


def test_a_released_run_is_remembered() -> None:
    desk = Desk()
    desk.place(workers=1)
    desk.end()
    desk.report("j", ReportState.UNDONE)
    desk.activate()
    desk.submit(workers=1)
    desk.propose()
    assert desk.state_of() is JobState.RELEASED


def test_commit_ids_of_two_committers_never_agree() -> None:
    desk = Desk()
    desk.place("a", workers=1)
    desk.activate()
    desk.place("b", workers=1)
    assert len({item.event.commit for item in desk.record.values() if isinstance(item.event, Head)}) == 2
