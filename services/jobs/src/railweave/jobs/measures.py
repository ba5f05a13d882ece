"""What operators watch of the committer."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from railweave.contracts.inventory import ReportState
from railweave.contracts.placement import JobState
from railweave.jobs.book import Book
from railweave.runtime.metrics import Metrics

_OLDEST = "railweave_oldest_unplaced_job_age_seconds"


class Measures(Collector):
    """Reads the book when it is scraped; a standby shows nothing."""

    def __init__(self, metrics: Metrics, book: Callable[[], Book | None]) -> None:
        self._book = book
        metrics.registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Names only: there may be no book yet."""
        return (
            GaugeMetricFamily("railweave_jobs", "Live jobs by state", labels=["state"]),
            CounterMetricFamily("railweave_jobs_rounds", "Rounds by what became of them", labels=["outcome"]),
            GaugeMetricFamily("railweave_jobs_orphans", "Held by a journal and not by the record"),
            GaugeMetricFamily("railweave_jobs_epoch", "The epoch of fences"),
            GaugeMetricFamily(_OLDEST, "Age of the job that waits longest"),
        )

    def collect(self) -> Iterable[Metric]:
        """The book's numbers now."""
        book = self._book()
        if book is None:
            return
        states = GaugeMetricFamily("railweave_jobs", "Live jobs by state", labels=["state"])
        counts = dict.fromkeys(JobState, 0)
        for job in book.jobs.values():
            counts[job.state] += 1
        for state, count in counts.items():
            states.add_metric([str(state)], count)
        yield states
        rounds = CounterMetricFamily("railweave_jobs_rounds", "Rounds by what became of them", labels=["outcome"])
        for outcome in ("asks", "complete_rounds", "commits", "conflicts", "released", "rejected", "adopted"):
            rounds.add_metric([outcome], getattr(book.counts, outcome))
        yield rounds
        yield GaugeMetricFamily(
            "railweave_jobs_orphans", "Held by a journal and not by the record", value=len(book.orphans)
        )
        yield GaugeMetricFamily("railweave_jobs_epoch", "The epoch of fences", value=book.epoch)
        yield GaugeMetricFamily(_OLDEST, "Age of the job that waits longest", value=oldest_unplaced_s(book))


def oldest_unplaced_s(book: Book) -> float:
    """How long the oldest pending job has waited, in seconds; 0 where none waits."""
    since = [job.submitted_at for job in book.jobs.values() if job.state is JobState.PENDING]
    return max(0.0, (book.now - min(since)).total_seconds()) if since else 0.0


def nodes_behind(book: Book) -> int:
    """Placements that their nodes have not said to have applied as they are wanted now, and undone ones not yet so."""
    behind = len(book.strays)
    for job in book.jobs.values():
        match job.state:
            case JobState.PLACED:
                behind += len(job.placements) - len(job.reports)
            case JobState.STARTED:
                behind += sum(job.reports.get(node) is not ReportState.ATTACHED for node in job.placements)
            case JobState.RELEASING:
                behind += len(job.placements)
            case _:
                pass
    return behind
