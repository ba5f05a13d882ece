"""Metrics of a process: one Prometheus registry, base units, and labels that stay few.

Labels name services, event types, outcomes, streams: never a job, a node or a tenant (a thousand nodes times the
event types would be a time series each). The set is what an operator needs to see a plane that is ill.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

LATENCY_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Half a millisecond to ten seconds: from one hop on loopback to a deadline."""


_COUNTED_BY_NAME = (
    ("fetch_empty", "Requests for messages that ended without one", ("stream",)),
    ("redeliveries", "Messages delivered more than once", ("stream",)),
    ("dead_letters", "Messages put aside as not to be handled", ("service", "stream")),
    ("commit_conflicts", "Guarded writes refused for a newer one", ("stream",)),
    ("view_resets", "Views read anew because their stream was lost or restored", ("stream", "cause")),
    ("reconnects", "Connections to NATS made anew", ()),
    ("nats_errors", "Errors NATS told outside any call", ("kind",)),
)
"""What the bus counts through `Metrics.count`, there from the start so that a rate has a zero to begin at."""


@dataclass(slots=True)
class Outcome:
    """How a piece of work ended, as `Metrics.handling` will count it; set `value` before the block ends."""

    value: str = "ok"


class Metrics:
    """The metrics every process has. Services make their own in `registry`, named `railweave_<service>_...`.

    Args:
        process_metrics: also export memory, CPU and descriptors of the process; off in tests with many registries.
    """

    def __init__(self, *, process_metrics: bool = True) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=True)
        if process_metrics:
            ProcessCollector(registry=registry)
            PlatformCollector(registry=registry)
        self._counted = {name: _counter(self, name, meaning, *labels) for name, meaning, labels in _COUNTED_BY_NAME}
        self.build = Gauge("railweave_build_info", "1, with the version as label", ["version"], registry=registry)
        self.handler = Histogram(
            "railweave_handler_duration_seconds",
            "Time to handle one message or key",
            ["service", "type", "outcome"],
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self.publish = Histogram(
            "railweave_publish_duration_seconds",
            "Time until a publish or commit was stored or refused",
            ["stream", "outcome"],
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self.dead_letters_stored = _gauge(self, "dead_letters_stored", "Dead letters in the stream", "service")
        self.consumer_pending = _gauge(self, "consumer_pending", "Messages not yet delivered", "consumer")
        self.consumer_unacknowledged = _gauge(self, "consumer_unacknowledged", "Delivered, not yet acked", "consumer")
        self.skipped = _counter(self, "messages_skipped", "Malformed messages a view passed over", "stream", "reason")
        self.view_applied = _gauge(self, "view_applied_sequence", "Last sequence of the stream in the view", "stream")
        self.generation_behind = _gauge(
            self, "generation_behind", "Desired states not yet applied as wanted", "service", "kind"
        )
        self.nats_connected = _gauge(self, "nats_connected", "1 while connected to NATS")
        self.redis_available = _gauge(self, "redis_available", "1 while Redis answers")
        self.redis_failures = _counter(self, "redis_failures", "Redis calls given up", "operation")
        self.redis_flushes = _counter(self, "redis_flushes", "Times Redis was found emptied")
        self.ready = _gauge(self, "service_ready", "1 while the service is ready", "service")
        self.loop_lag = Histogram(
            "railweave_loop_lag_seconds",
            "How late the event loop ran a timer",
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self._timed = {"handler": self.handler, "publish": self.publish}
        self._children: dict[tuple[object, ...], Histogram] = {}

    @contextlib.contextmanager
    def handling(self, service: str, kind: str) -> Iterator[Outcome]:
        """Time work of type `kind`; outcome `ok` unless set, `error` when it raises, `cancelled` when cut short."""
        outcome = Outcome()
        begun = time.perf_counter()
        try:
            yield outcome
        except asyncio.CancelledError:
            outcome.value = "cancelled"
            raise
        except BaseException:
            outcome.value = "error"
            raise
        finally:
            self.handler.labels(service, kind, outcome.value).observe(time.perf_counter() - begun)

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add to the counter `railweave_<name>_total`, made at its first use where it is not there yet.

        Raises:
            ValueError: the counter has other labels.
        """
        counter = self._counted.get(name)
        if counter is None:
            counter = self._counted[name] = _counter(self, name, name.replace("_", " "), *sorted(labels))
        (counter.labels(**labels) if labels else counter).inc(amount)

    def took(self, name: str, seconds: float, **labels: str) -> None:
        """Observe in the histogram `railweave_<name>_duration_seconds`: `handler` or `publish`."""
        key = (name, *labels.items())
        child = self._children.get(key)
        if child is None:
            # Looking a child up by its labels takes longer than observing, and every publish does.
            child = self._children[key] = self._timed[name].labels(**labels)
        child.observe(seconds)

    def exposition(self) -> bytes:
        """Everything in the text format of Prometheus."""
        return generate_latest(self.registry)


def _counter(metrics: Metrics, name: str, meaning: str, *labels: str) -> Counter:
    return Counter(f"railweave_{name}_total", meaning, labels, registry=metrics.registry)


def _gauge(metrics: Metrics, name: str, meaning: str, *labels: str) -> Gauge:
    return Gauge(f"railweave_{name}", meaning, labels, registry=metrics.registry)


async def probe_loop_lag(metrics: Metrics, *, stop: asyncio.Event, every_s: float = 0.25) -> None:
    """Observe how late timers run until `stop` is set: something that blocks the loop shows here first."""
    loop = asyncio.get_running_loop()
    while not stop.is_set():
        due = loop.time() + every_s
        await asyncio.sleep(every_s)
        metrics.loop_lag.observe(max(0.0, loop.time() - due))
