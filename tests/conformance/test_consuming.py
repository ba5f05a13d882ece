"""Work: each message at least once, one at a time per key, acknowledged last, and never lost in silence."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import pytest

from railweave.contracts.errors import ContractError
from railweave.contracts.wire import StoredMessage
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus
from railweave.runtime.consumer import Consumer
from railweave.runtime.deadletters import DeadEntry, DeadLetters
from railweave.runtime.delivery import Delivery
from railweave.runtime.errors import Reject, Retry
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.streams import CONSUMERS, DEAD, STREAMS, ConsumerSpec
from railweave_testing.buses import OwnStream, connected, eventually, own_stream

Handler = Callable[[StoredMessage, Delivery], Awaitable[None]]


@pytest.fixture(autouse=True)
async def dead_stream(nats_server: LocalNatsServer) -> None:
    async with connected(nats_server) as bus:
        await _make_dead(bus)


async def _make_dead(bus: Bus) -> None:
    await bootstrap(bus, streams=[spec for spec in STREAMS if spec.name == DEAD], consumers=[])


def _work(ack_wait_s: float = 30.0, max_deliver: int = 8, max_ack_pending: int = 1000) -> ConsumerSpec:
    return ConsumerSpec("", "work", (), "", ack_wait_s, max_deliver, max_ack_pending)


def _consume(bus: Bus, stream: OwnStream, handler: Handler, concurrency: int = 16) -> Consumer:
    return bus.consume(
        stream.name,
        "work",
        handler,
        key=lambda message: message.subject,
        concurrency=concurrency,
        dead_letter=DeadLetters(bus, stream.token),
    )


async def _info(bus: Bus, stream: OwnStream) -> dict[str, int]:
    info: dict[str, int] = await bus.api.call(f"CONSUMER.INFO.{stream.name}.work")
    return info


async def _settled(bus: Bus, stream: OwnStream) -> None:
    async with asyncio.timeout(10):
        while True:
            info = await _info(bus, stream)
            if info["num_pending"] == 0 and info["num_ack_pending"] == 0:
                return
            await asyncio.sleep(0.02)


async def _dead(bus: Bus, stream: OwnStream) -> list[DeadEntry]:
    entries = await DeadLetters(bus, stream.token).entries()
    return [entry for entry in entries if entry.stream == stream.name]


class Handled:
    """What a handler saw; `wait` it may do meanwhile."""

    def __init__(self, work_s: float = 0.0) -> None:
        self.messages: list[StoredMessage] = []
        self.work_s = work_s
        self.active: set[str] = set()
        self.most_active = 0

    async def __call__(self, message: StoredMessage, delivery: Delivery) -> None:
        assert message.subject not in self.active, "two of one key at a time"
        self.active.add(message.subject)
        self.most_active = max(self.most_active, len(self.active))
        try:
            await asyncio.sleep(self.work_s)
            self.messages.append(message)
        finally:
            self.active.discard(message.subject)


async def test_every_message_is_handled_once_and_acknowledged(bus: Bus) -> None:
    stream = await own_stream(bus, _work())
    await bus.publish_many(stream.messages(500))
    handled = Handled()
    async with _consume(bus, stream, handled):
        await eventually(lambda: len(handled.messages) == 500)
        await _settled(bus, stream)
    assert len({message.sequence for message in handled.messages}) == 500


async def test_one_key_at_a_time_in_order_and_keys_side_by_side(bus: Bus) -> None:
    """Row 27: one slow callback blocks its whole subscription in plain nats-py (0.3, 0.6, 0.9, 1.2 s)."""
    stream = await own_stream(bus, _work())
    for number in range(4):
        for key in range(4):
            await bus.publish(stream.message(f"k.{key}", f"{number}"))
    handled = Handled(work_s=0.1)
    started = time.monotonic()
    async with _consume(bus, stream, handled):
        await eventually(lambda: len(handled.messages) == 16)
    assert time.monotonic() - started < 1.2
    assert handled.most_active == 4
    for key in range(4):
        own = [m.body for m in handled.messages if m.subject == stream.subject(f"k.{key}")]
        assert own == [b"0", b"1", b"2", b"3"]


async def test_no_more_than_concurrency_are_handled_at_a_time(bus: Bus) -> None:
    stream = await own_stream(bus, _work())
    await bus.publish_many(stream.messages(40))
    handled = Handled(work_s=0.02)
    async with _consume(bus, stream, handled, concurrency=5):
        await eventually(lambda: len(handled.messages) == 40)
    assert handled.most_active == 5


async def test_message_is_handled_soon_after_many_empty_pulls(bus: Bus) -> None:
    """Row 3: an orphan of a timed-out fetch stole the next message."""
    stream = await own_stream(bus, _work())
    handled = Handled()
    async with _consume(bus, stream, handled) as consumer:
        await consumer.wait_ready(5)
        waits = []
        for number in range(20):
            await asyncio.sleep(0.03)
            started = time.monotonic()
            await bus.publish(stream.message(f"k.{number}"))
            await eventually(lambda number=number: len(handled.messages) == number + 1, 2)  # type: ignore[misc]
            waits.append(time.monotonic() - started)
        assert sorted(waits)[10] < 0.05
        assert max(waits) < 0.5


async def test_nothing_to_do_is_no_error_and_says_nothing(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    """Row 5: an empty fetch raises TimeoutError in plain nats-py."""
    stream = await own_stream(bus, _work())
    with caplog.at_level(logging.DEBUG, logger="railweave"):
        async with _consume(bus, stream, Handled()) as consumer:
            await consumer.wait_ready(5)
            await asyncio.sleep(2.6)  # past the life of one request
    assert [record for record in caplog.records if record.name.startswith("railweave")] == []


async def test_slow_handler_keeps_its_message(bus: Bus) -> None:
    """In progress at a third of the ack wait: not delivered a second time while the first is handled."""
    stream = await own_stream(bus, _work(ack_wait_s=0.6))
    await bus.publish(stream.message("k"))
    handled = Handled(work_s=2.0)
    async with _consume(bus, stream, handled):
        await eventually(lambda: len(handled.messages) == 1)
        await _settled(bus, stream)
        assert (await _info(bus, stream))["num_redelivered"] == 0
    assert len(handled.messages) == 1


async def test_queued_messages_are_kept_too(bus: Bus) -> None:
    stream = await own_stream(bus, _work(ack_wait_s=0.6))
    for number in range(6):
        await bus.publish(stream.message("k", str(number)))
    handled = Handled(work_s=0.3)
    async with _consume(bus, stream, handled):
        await eventually(lambda: len(handled.messages) == 6)
        await _settled(bus, stream)
    assert [message.body for message in handled.messages] == [str(number).encode() for number in range(6)]


async def test_failing_handler_is_tried_again_and_the_others_go_on(bus: Bus) -> None:
    """Row 28: in plain nats-py an exception only reaches the error callback, and the message stays un-acked."""
    stream = await own_stream(bus, _work())
    tries: dict[str, int] = {}

    async def handle(message: StoredMessage, delivery: Delivery) -> None:
        tries[message.subject] = tries.get(message.subject, 0) + 1
        if message.sequence % 3 == 0 and tries[message.subject] == 1:
            raise RuntimeError("not today")

    await bus.publish_many(stream.messages(30))
    async with _consume(bus, stream, handle):
        await eventually(lambda: sum(tries.values()) == 40)
        await _settled(bus, stream)


async def test_message_that_never_succeeds_becomes_a_dead_letter_after_its_last_delivery(bus: Bus) -> None:
    """Finding 10: the broker drops it silently after max_deliver."""
    stream = await own_stream(bus, _work(max_deliver=3))
    original = stream.message("k", "poison", "id-1", traceparent="00-a-b-01")
    await bus.publish(original)
    deliveries: list[int] = []

    async def handle(message: StoredMessage, delivery: Delivery) -> None:
        deliveries.append(delivery.attempt)
        raise RuntimeError("poison")

    async with _consume(bus, stream, handle):
        await _settled(bus, stream)
    assert deliveries == [1, 2, 3]
    (entry,) = await _dead(bus, stream)
    assert "gave up after 3 deliveries" in entry.cause
    assert "RuntimeError: poison" in entry.cause
    assert (entry.original_sequence, entry.original_subject) == (1, stream.subject("k"))


async def test_deliveries_are_not_burnt_in_milliseconds(bus: Bus) -> None:
    """Finding 10: a plain nak redelivers at once, 3 deliveries in 4 ms."""
    stream = await own_stream(bus, _work(max_deliver=3))
    await bus.publish(stream.message("k"))
    times: list[float] = []

    async def handle(message: StoredMessage, delivery: Delivery) -> None:
        times.append(time.monotonic())
        raise RuntimeError("again")

    async with _consume(bus, stream, handle):
        await eventually(lambda: len(times) == 3)
    assert times[1] - times[0] > 0.15
    assert times[2] - times[1] > 0.3


async def test_rejected_message_is_a_dead_letter_at_once_and_names_the_field(bus: Bus) -> None:
    stream = await own_stream(bus, _work())
    await bus.publish_many([stream.message("a"), stream.message("b")])

    async def handle(message: StoredMessage, delivery: Delivery) -> None:
        if message.subject.endswith("a"):
            raise Reject("workers[0].gpus", "more than 8")
        raise ContractError("data.uid", "missing")

    async with _consume(bus, stream, handle):
        await _settled(bus, stream)
        assert (await _info(bus, stream))["num_redelivered"] == 0
    entries = await _dead(bus, stream)
    assert sorted((entry.field, entry.cause) for entry in entries) == [
        ("data.uid", "missing"),
        ("workers[0].gpus", "more than 8"),
    ]


async def test_handler_says_when_to_try_again(bus: Bus) -> None:
    stream = await own_stream(bus, _work())
    await bus.publish(stream.message("k"))
    times: list[float] = []

    async def handle(message: StoredMessage, delivery: Delivery) -> None:
        times.append(time.monotonic())
        if len(times) == 1:
            raise Retry(0.6)

    async with _consume(bus, stream, handle):
        await eventually(lambda: len(times) == 2)
        await _settled(bus, stream)
    assert 0.5 < times[1] - times[0] < 1.5


async def test_deferred_message_is_kept_until_its_owner_acknowledges_it_twice(bus: Bus) -> None:
    """Row 34: a second `ack()` raises in plain nats-py. The committer acknowledges when its batch is stored."""
    stream = await own_stream(bus, _work(ack_wait_s=0.6))
    await bus.publish_many([stream.message("k", "1"), stream.message("k", "2")])
    kept: list[Delivery] = []

    async def handle(message: StoredMessage, delivery: Delivery) -> None:
        delivery.defer()
        kept.append(delivery)

    async with _consume(bus, stream, handle) as consumer:
        await eventually(lambda: len(kept) == 2)  # a deferred one does not block its key
        await asyncio.sleep(1.5)
        assert len(kept) == 2
        assert consumer.in_hand == 2
        for delivery in kept:
            await delivery.ack()
            await delivery.ack()
            await delivery.retry(1.0)
        await _settled(bus, stream)
        assert (await _info(bus, stream))["num_redelivered"] == 0


async def test_stopping_finishes_what_is_in_hand_and_its_acks_reach_the_server(bus: Bus) -> None:
    """Row 33: closing during drain lost acks."""
    stream = await own_stream(bus, _work(ack_wait_s=1))
    await bus.publish_many(stream.messages(3))
    handled = Handled(work_s=0.3)
    async with _consume(bus, stream, handled):
        await eventually(lambda: len(handled.active) == 3)
    assert len(handled.messages) == 3
    info = await _info(bus, stream)
    assert (info["num_ack_pending"], info["num_redelivered"]) == (0, 0)


async def test_what_stopping_cannot_finish_is_given_back_at_once(bus: Bus) -> None:
    stream = await own_stream(bus, _work(ack_wait_s=30))
    await bus.publish_many(stream.messages(3))
    stuck = Handled(work_s=60)
    consumer = _consume(bus, stream, stuck)
    running = asyncio.create_task(consumer.run())
    await eventually(lambda: len(stuck.active) == 3)
    await consumer.stop(grace_s=0.2)
    async with asyncio.timeout(2):
        await running
    handled = Handled()
    async with _consume(bus, stream, handled):
        await eventually(lambda: len(handled.messages) == 3, 2)


async def test_stopping_while_messages_stream_in_redelivers_none(bus: Bus, nats_server: LocalNatsServer) -> None:
    """What the server had sent when we stopped asking is handled too, not dropped to its ack wait."""
    stream = await own_stream(bus, _work(ack_wait_s=30))
    messages = [stream.message(f"k.{number % 50}", str(number)) for number in range(3000)]
    publishing = asyncio.create_task(bus.publish_many(messages))
    handled: list[bytes] = []

    async def handle(message: StoredMessage, delivery: Delivery) -> None:
        assert delivery.attempt == 1
        handled.append(message.body)

    async with connected(nats_server) as worker:
        for _ in range(6):
            async with _consume(worker, stream, handle):
                await asyncio.sleep(0.1)
        await publishing
        async with _consume(worker, stream, handle):
            await _settled(bus, stream)
    assert sorted(handled) == sorted(message.body for message in messages)


async def test_two_instances_share_the_work(bus: Bus, nats_server: LocalNatsServer) -> None:
    stream = await own_stream(bus, _work())
    first, second = Handled(work_s=0.005), Handled(work_s=0.005)
    async with connected(nats_server) as other, _consume(bus, stream, first), _consume(other, stream, second):
        await bus.publish_many(stream.messages(300))
        await eventually(lambda: len(first.messages) + len(second.messages) == 300)
    assert first.messages
    assert second.messages


async def test_consumer_that_bootstrap_has_not_made_is_waited_for(bus: Bus) -> None:
    """Rows 7 and 10: services only bind; an absent durable is not made by them."""
    stream = await own_stream(bus)
    handled = Handled()
    async with _consume(bus, stream, handled) as consumer:
        await asyncio.sleep(0.3)
        assert not consumer.is_ready
        await bootstrap(bus, streams=[], consumers=[ConsumerSpec(stream.name, "work", (), "")])
        await bus.publish(stream.message("k"))
        await eventually(lambda: len(handled.messages) == 1)


async def test_work_goes_on_after_a_killed_and_restarted_broker(fresh_nats_server: LocalNatsServer) -> None:
    """Row 2. Acknowledgements may be lost with the broker (finding 2): handled again at most, never not at all."""
    async with connected(fresh_nats_server) as bus:
        await _make_dead(bus)
        stream = await own_stream(bus, _work(ack_wait_s=1.0))
        handled = Handled()
        async with _consume(bus, stream, handled) as consumer:
            await consumer.wait_ready(5)
            await bus.publish_many(stream.messages(50))
            await eventually(lambda: len(handled.messages) == 50)
            await asyncio.sleep(0.4)
            await asyncio.to_thread(fresh_nats_server.kill)
            await asyncio.to_thread(fresh_nats_server.start)
            started = time.monotonic()
            await bus.publish(stream.message("after", "a", "id-after"))
            await eventually(lambda: any(m.subject.endswith("after") for m in handled.messages), 5)
            assert time.monotonic() - started < 2.0


async def test_ack_given_while_the_broker_was_away_is_told_when_it_is_back(fresh_nats_server: LocalNatsServer) -> None:
    async with connected(fresh_nats_server) as bus:
        await _make_dead(bus)
        stream = await own_stream(bus, _work(ack_wait_s=1.2))
        await bus.publish(stream.message("k"))
        await asyncio.sleep(0.4)
        handled = Handled(work_s=0.5)
        async with _consume(bus, stream, handled):
            await eventually(lambda: len(handled.active) == 1)
            await asyncio.sleep(0.3)
            await asyncio.to_thread(fresh_nats_server.kill)
            await eventually(lambda: len(handled.messages) == 1)
            await asyncio.to_thread(fresh_nats_server.start)
            await bus.wait_up(10)
            await asyncio.sleep(0.3)
            await _settled(bus, stream)
        assert len(handled.messages) == 1, "it was in hand all the time and must not be handled twice"


async def test_stream_made_again_is_bound_again(bus: Bus) -> None:
    """Row 34: in plain nats-py the old subscription raises ServiceUnavailableError for ever."""
    spec = _work()
    stream = await own_stream(bus, spec)
    handled = Handled()
    async with _consume(bus, stream, handled) as consumer:
        await consumer.wait_ready(5)
        await bus.publish(stream.message("k", "old"))
        await eventually(lambda: len(handled.messages) == 1)
        config = (await bus.api.stream_info(stream.name))["config"]
        await bus.api.call(f"STREAM.DELETE.{stream.name}")
        await bus.api.call(f"STREAM.CREATE.{stream.name}", config)
        await bootstrap(bus, streams=[], consumers=[ConsumerSpec(stream.name, "work", (), "")])
        await bus.publish(stream.message("k", "new"))
        await eventually(lambda: len(handled.messages) == 2, 8)
        assert [message.sequence for message in handled.messages] == [1, 1]


async def test_redelivery_of_what_was_settled_here_is_acknowledged_and_not_handled_again(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ack the broker lost comes back as a redelivery; the answer is known."""
    stream = await own_stream(bus, _work(ack_wait_s=0.5))
    await bus.publish(stream.message("k"))
    publish = bus.connection.publish
    lost: list[str] = []

    async def lose_first_ack(subject: str, body: bytes, reply: str, headers: dict[str, str] | None) -> None:
        if body == b"+ACK" and not lost:
            lost.append(subject)
            return
        await publish(subject, body, reply, headers)

    monkeypatch.setattr(bus.connection, "publish", lose_first_ack)
    handled = Handled()
    async with _consume(bus, stream, handled) as consumer:
        await eventually(lambda: len(lost) == 1)
        assert consumer.in_hand == 0
        assert (await _info(bus, stream))["num_ack_pending"] == 1
        await _settled(bus, stream)
    assert len(handled.messages) == 1


async def test_message_whose_handler_kills_its_process_is_seen_in_dead(bus: Bus, nats_server: LocalNatsServer) -> None:
    """The broker's advisory tells of it: nobody lived to write a dead letter."""
    stream = await own_stream(bus, _work(ack_wait_s=0.3, max_deliver=2))
    await bus.publish(stream.message("k", "deadly", "id-1"))
    for _ in range(2):
        async with connected(nats_server) as victim:
            began = asyncio.Event()

            async def die(message: StoredMessage, delivery: Delivery, began: asyncio.Event = began) -> None:
                began.set()
                await asyncio.sleep(60)

            running = asyncio.create_task(_consume(victim, stream, die).run())
            async with asyncio.timeout(5):
                await began.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    # The advisory is sent when a further delivery would be due.
    async with connected(nats_server) as watcher, _consume(watcher, stream, Handled()):
        letters = DeadLetters(bus, "")
        async with asyncio.timeout(5):
            while not (own := [e for e in await letters.entries() if e.stream == stream.name]):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    (entry,) = own
    assert entry.is_advisory
    assert entry.original_sequence == 1
    replayed = await letters.replay(entry.sequence)
    assert (replayed.stream, replayed.sequence) == (stream.name, 2)


async def test_events_that_cannot_be_settled_yet_do_not_hold_up_what_comes_behind_them(bus: Bus) -> None:
    """Runs that wait for others of their name, which dead nodes hold: their scheduler still ends other jobs."""
    (spec,) = [spec for spec in CONSUMERS if spec.durable == "jobs"]
    stream = await own_stream(bus, _work(max_ack_pending=spec.max_ack_pending))
    waiting: list[Delivery] = []
    ended = asyncio.Event()

    async def handler(message: StoredMessage, delivery: Delivery) -> None:
        if message.body == b"ended":
            ended.set()
        else:
            delivery.defer()
            waiting.append(delivery)

    await bus.publish_many(stream.messages(1500))
    await bus.publish(stream.message("last", "ended"))
    async with _consume(bus, stream, handler):
        async with asyncio.timeout(10):
            await ended.wait()
        assert len(waiting) == 1500
        for delivery in waiting:
            await delivery.ack()
    await _settled(bus, stream)
