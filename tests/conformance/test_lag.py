"""What waits at the broker is shown, also while nobody consumes it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from railweave.contracts.wire import StoredMessage
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus
from railweave.runtime.deadletters import DeadLetters
from railweave.runtime.delivery import Delivery
from railweave.runtime.errors import Reject
from railweave.runtime.lag import dead_by_service, watch_lag
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.metrics import Metrics
from railweave.runtime.streams import DEAD, STREAMS, ConsumerSpec
from railweave_testing.buses import OwnStream, connected, eventually, own_stream

WORK = ConsumerSpec("", "work", (), "", max_ack_pending=4)


@contextlib.asynccontextmanager
async def watched(bus: Bus, stream: OwnStream) -> AsyncIterator[Metrics]:
    """Metrics that are kept, quickly."""
    await bootstrap(bus, streams=[spec for spec in STREAMS if spec.name == DEAD], consumers=[])
    metrics = Metrics(process_metrics=False)
    consumer = replace(WORK, stream=stream.name)
    watching = asyncio.create_task(watch_lag(bus, metrics, consumers=[consumer], every_s=0.05))
    try:
        yield metrics
    finally:
        watching.cancel()
        await asyncio.wait((watching,))


def lag(metrics: Metrics) -> tuple[float | None, float | None]:
    """Pending and unacknowledged."""
    values = [
        metrics.registry.get_sample_value(f"railweave_consumer_{what}", {"consumer": "work"})
        for what in ("pending", "unacknowledged")
    ]
    return values[0], values[1]


async def test_messages_nobody_consumes_are_pending(bus: Bus) -> None:
    stream = await own_stream(bus, WORK)
    await bus.publish_many(stream.messages(10))
    async with watched(bus, stream) as metrics:
        await eventually(lambda: lag(metrics) == (10.0, 0.0))


async def test_messages_in_hand_are_unacknowledged_until_they_are_settled(bus: Bus) -> None:
    stream = await own_stream(bus, WORK)
    await bus.publish_many(stream.messages(10))
    in_hand: list[Delivery] = []
    is_open = False

    async def keep(_message: StoredMessage, delivery: Delivery) -> None:
        if not is_open:
            delivery.defer()
            in_hand.append(delivery)

    dead = DeadLetters(bus, stream.token)
    consumer = bus.consume(stream.name, "work", keep, key=lambda message: message.subject, dead_letter=dead)
    async with watched(bus, stream) as metrics, consumer:
        await eventually(lambda: lag(metrics) == (6.0, 4.0))
        is_open = True
        for delivery in in_hand:
            await delivery.ack()
        await eventually(lambda: lag(metrics) == (0.0, 0.0))


async def test_dead_letters_are_shown_by_service(bus: Bus) -> None:
    stream = await own_stream(bus, WORK)
    await bus.publish_many(stream.messages(3))

    async def refuse(message: StoredMessage, _delivery: Delivery) -> None:
        if message.sequence != 2:
            raise Reject("body", "no")

    dead = DeadLetters(bus, stream.token)
    consumer = bus.consume(stream.name, "work", refuse, key=lambda message: message.subject, dead_letter=dead)
    async with watched(bus, stream) as metrics, consumer:
        read = metrics.registry.get_sample_value
        # The broker tells of each that it was given up; that is not another one.
        await eventually(lambda: read("railweave_dead_letters_stored", {"service": stream.token}) == 2.0)


async def test_what_the_broker_does_not_say_is_not_shown_any_more(fresh_nats_server: LocalNatsServer) -> None:
    async with connected(fresh_nats_server) as bus:
        stream = await own_stream(bus, WORK)
        async with watched(bus, stream) as metrics:
            await eventually(lambda: lag(metrics) == (0.0, 0.0))
            await bus.api.call(f"CONSUMER.DELETE.{stream.name}.work")
            await eventually(lambda: lag(metrics) == (None, None))


@pytest.mark.parametrize(
    ("subject", "service"),
    [
        ("rw.dead.jobs", "jobs"),
        ("rw.dead.node=20agent", "node agent"),
        ("rw.dead.=ZZ", "unknown"),
        ("$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.JOBS.jobs", "jobs"),
        ("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.JOBS.jobs", None),
    ],
)
def test_a_dead_letter_is_its_service_s(subject: str, service: str | None) -> None:
    found = dead_by_service({"state": {"subjects": {subject: 3}}})
    assert found == ({service: 3} if service else {})


def test_a_stream_without_subjects_has_no_dead_letters() -> None:
    assert not dead_by_service({"state": {"messages": 0}})
