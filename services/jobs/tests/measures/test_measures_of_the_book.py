"""What operators see of the committer's book."""

from __future__ import annotations

import pytest
from desk import Desk

from railweave.contracts.inventory import ReportState
from railweave.jobs.measures import Measures, nodes_behind, oldest_unplaced_s
from railweave.runtime.metrics import Metrics


def test_the_oldest_waiting_job_counts_from_its_submission() -> None:
    desk = Desk()
    assert oldest_unplaced_s(desk.book) == 0.0
    desk.submit("old", workers=1)
    desk.wait(10)
    desk.submit("young", workers=1)
    desk.wait(5)
    assert oldest_unplaced_s(desk.book) == pytest.approx(15, abs=0.1)
    desk.end("old")
    assert oldest_unplaced_s(desk.book) == pytest.approx(5, abs=0.1)
    desk.propose("young")
    assert oldest_unplaced_s(desk.book) == 0.0


def test_nodes_are_behind_until_they_report_what_is_wanted_of_them() -> None:
    desk = Desk(nodes=3)
    behind = []

    def look() -> None:
        behind.append(nodes_behind(desk.book))

    desk.place(workers=2, gpus=2)
    look()
    desk.report("j", ReportState.PREPARED, ["n0"])
    look()
    desk.report("j", ReportState.PREPARED, ["n1"])
    look()
    desk.start("j")
    look()
    desk.report("j", ReportState.ATTACHED, ["n0", "n1"])
    look()
    desk.end("j")
    look()
    desk.report("j", ReportState.UNDONE, ["n0"])
    look()
    desk.report("j", ReportState.UNDONE, ["n1"])
    look()
    assert behind == [2, 1, 0, 2, 0, 2, 1, 0]


def test_a_standby_shows_nothing_of_the_book() -> None:
    metrics = Metrics(process_metrics=False)
    Measures(metrics, lambda: None)
    assert "railweave_oldest" not in metrics.exposition().decode()


def test_what_is_described_is_what_is_shown() -> None:
    desk = Desk()
    measures = Measures(Metrics(process_metrics=False), lambda: desk.book)
    assert [family.name for family in measures.describe()] == [family.name for family in measures.collect()]
