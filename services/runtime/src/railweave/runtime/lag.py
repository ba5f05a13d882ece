"""What waits at the broker, as gauges: messages of durable consumers, and dead letters.

Asked of the broker and not counted here: what waits while nothing consumes it is what an operator must see.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

import structlog

from railweave.contracts.codec import decode_token
from railweave.contracts.errors import ContractError
from railweave.runtime.bus import Bus
from railweave.runtime.errors import BusError
from railweave.runtime.metrics import Metrics
from railweave.runtime.streams import CONSUMERS, DEAD, ConsumerSpec

_log = structlog.stdlib.get_logger(__name__)

EVERY_S = 10.0
_BURIED = "rw.dead."
_NEVER_SETTLED = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES."


async def watch_lag(
    bus: Bus, metrics: Metrics, *, consumers: Iterable[ConsumerSpec] = CONSUMERS, every_s: float = EVERY_S
) -> None:
    """Keep the gauges until cancelled. What the broker does not say is not shown: an old number would look well."""
    watched = tuple(consumers)
    while True:
        for spec in watched:
            await _watch_consumer(bus, metrics, spec)
        await _watch_dead(bus, metrics)
        await asyncio.sleep(every_s)


async def _watch_consumer(bus: Bus, metrics: Metrics, spec: ConsumerSpec) -> None:
    try:
        told = await bus.api.call(f"CONSUMER.INFO.{spec.stream}.{spec.durable}")
    except BusError as error:
        _log.info("the lag of a consumer is not known", consumer=spec.durable, error=str(error))
        metrics.consumer_pending.clear()
        metrics.consumer_unacknowledged.clear()
        return
    metrics.consumer_pending.labels(spec.durable).set(told.get("num_pending", 0))
    metrics.consumer_unacknowledged.labels(spec.durable).set(told.get("num_ack_pending", 0))


async def _watch_dead(bus: Bus, metrics: Metrics) -> None:
    try:
        info = await bus.api.call(f"STREAM.INFO.{DEAD}", {"subjects_filter": ">"})
    except BusError as error:
        _log.info("the number of dead letters is not known", error=str(error))
        metrics.dead_letters_stored.clear()
        return
    metrics.dead_letters_stored.clear()
    for service, count in dead_by_service(info).items():
        metrics.dead_letters_stored.labels(service).set(count)


def dead_by_service(info: dict[str, Any]) -> Counter[str]:
    """Dead letters by service, out of the stream's subjects, and messages nobody lived to bury by their consumer.

    Not what a consumer gave up: its service has stored that as a dead letter.
    """
    found: Counter[str] = Counter()
    for subject, count in (info["state"].get("subjects") or {}).items():
        if subject.startswith(_BURIED):
            try:
                found[decode_token(subject[len(_BURIED) :])] += count
            except ContractError:
                found["unknown"] += count
        elif subject.startswith(_NEVER_SETTLED):
            found[subject.rpartition(".")[2]] += count
    return found
