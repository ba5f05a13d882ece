"""What operators watch of the committer."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from railweave.contracts.placement import JobState
from railweave.jobs.book import Book
from railweave.runtime.metrics import Metrics


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
