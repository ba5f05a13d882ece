"""Metrics of the agents of a process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from prometheus_client import Counter, Gauge

from railweave.runtime.metrics import Metrics


class Measures:
    """What an operator needs to see of the agents. Labels never name a node or a job."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        registry = metrics.registry
        self.unsaid = Counter(
            "railweave_agent_unsaid_total", "Reports and inventories that were not stored at first", registry=registry
        )
        self._held = Gauge("railweave_agent_held_placements", "Placements held on these nodes", registry=registry)
        self._mended = Gauge("railweave_agent_mended_changes", "Changes made to mend drift", registry=registry)
        self._stale = Gauge("railweave_agent_refused_stale", "Placements refused for an older fence", registry=registry)

    def watch(self, held: Callable[[], float], mended: Callable[[], float], stale: Callable[[], float]) -> None:
        """Where the gauges come from when they are asked for."""
        self._held.set_function(held)
        self._mended.set_function(mended)
        self._stale.set_function(stale)

    @contextlib.contextmanager
    def reconciling(self) -> Iterator[None]:
        """Time one piece of work."""
        with self._metrics.handling("agent", "reconcile"):
            yield
