"""Work: each message of a durable consumer is handled at least once, one at a time per key, and acknowledged last.

Binds only: bootstrap makes the consumer. What is in hand is kept from being redelivered (in progress at a third of
the ack wait), what fails comes again after a growing delay, what cannot succeed becomes a dead letter, and on an
orderly stop everything in hand is finished and acknowledged before the consumer returns.

A message that is put off may be overtaken by a later one of its key: handlers are idempotent and bear it (R2, R4).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

from nats.aio.msg import Msg

from railweave.contracts.errors import ContractError
from railweave.contracts.wire import StoredMessage
from railweave.runtime.backoff import Backoff, BackoffPolicy
from railweave.runtime.deadletters import DeadLetters
from railweave.runtime.delivery import Delivery
from railweave.runtime.errors import ApiError, BusError, BusUnavailable, ConsumerLost, Reject, Retry
from railweave.runtime.pull import Puller, delivered_as, stored_message

if TYPE_CHECKING:
    from railweave.runtime.bus import Bus

_log = logging.getLogger("railweave.consumer")

Handler = Callable[[StoredMessage, Delivery], Awaitable[None]]

_RETRY_DELAY = BackoffPolicy(first_s=0.25, cap_s=30.0, jitter=0.3)
_REMEMBERED = 4096


class Consumer:
    """A bound durable consumer. Made by `Bus.consume`; `async with`, or `run()` in a task group and `stop()`."""

    def __init__(
        self,
        bus: Bus,
        stream: str,
        durable: str,
        handler: Handler,
        *,
        key: Callable[[StoredMessage], str],
        concurrency: int,
        ack_wait_s: float | None,
        dead_letter: DeadLetters,
    ) -> None:
        self.stream = stream
        self.durable = durable
        self._connection = bus.connection
        self._api = bus.api
        self._barrier = bus.barrier
        self._handler = handler
        self._key = key
        self._concurrency = concurrency
        self._wanted_ack_wait_s = ack_wait_s
        self._dead_letter = dead_letter

        self._ack_wait_s = ack_wait_s or 30.0
        self._max_deliver = -1
        self._pending = 0
        self._room = concurrency * 4
        self._in_hand: dict[int, Delivery] = {}  # by stream sequence; deferred ones too
        self._unhandled = 0  # in hand and not deferred: what the room is for
        self._verdicts: OrderedDict[tuple[int, datetime], bytes] = OrderedDict()  # of what was settled lately
        self._owing: dict[int, Delivery] = {}
        self._queues: dict[str, deque[Delivery]] = {}
        self._keys: asyncio.Queue[str] = asyncio.Queue()
        self._nothing_unhandled = asyncio.Event()
        self._nothing_unhandled.set()
        self._puller: Puller | None = None
        self._stopping = asyncio.Event()
        self._grace_s = 4.0
        self._is_bound = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._rng = random.Random()
        self._last_logged = -60.0

    @property
    def in_hand(self) -> int:
        """How many messages are delivered and not settled, deferred ones included."""
        return len(self._in_hand)

    @property
    def pending(self) -> int:
        """How many messages were still to be delivered when the last one was: the lag."""
        return self._pending

    @property
    def is_ready(self) -> bool:
        """Whether it is bound to the durable consumer."""
        return self._is_bound.is_set()

    async def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until bound; raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            await self._is_bound.wait()

    async def run(self) -> None:
        """Consume until `stop` is called, then finish what is in hand and return. Cancelling drops what is in hand.

        Raises:
            BusClosed: the connection is closed for good.
            PermissionRefused: this user may not use the consumer.
        """
        try:
            async with asyncio.TaskGroup() as group:
                helpers = [group.create_task(self._work()) for _ in range(self._concurrency)]
                helpers.append(group.create_task(self._keep_in_hand()))
                await self._receive()
                await self._finish(None)
                for helper in helpers:
                    helper.cancel()
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        if self._connection.is_up:
            await self._barrier()  # the acks are in front of it

    async def stop(self, grace_s: float = 4.0) -> None:
        """Ask `run` to end in an orderly way: what is not handled within `grace_s` is given back to the broker."""
        self._grace_s = grace_s
        self._stopping.set()
        if self._puller is not None:
            self._puller.poke()

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self.run(), name=f"consume-{self.durable}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            await self.stop()
            await self._task

    # Receiving

    async def _receive(self) -> None:
        backoff = Backoff(BackoffPolicy(first_s=0.05, cap_s=5.0), self._rng)
        while not self._stopping.is_set():
            puller: Puller | None = None
            try:
                await self._or_stop(self._connection.wait_up())
                if self._stopping.is_set():
                    break
                await self._bind()
                puller = self._puller = Puller(
                    self._connection,
                    self.stream,
                    self.durable,
                    want=lambda: 0 if self._stopping.is_set() else self._room - self._unhandled,
                    largest_request=max(self._concurrency, 2),
                )
                await puller.open()
                self._is_bound.set()
                backoff.reset()
                while not self._stopping.is_set():
                    await self._accept(await puller.next_slice(None))
            except (ConsumerLost, BusUnavailable, ApiError) as lost:
                self._is_bound.clear()
                _log.info("binding %s of %s again: %s", self.durable, self.stream, lost)
            finally:
                self._puller = None
                if puller is not None:
                    if self._stopping.is_set():
                        await self._finish(puller)
                    await puller.close()
            if not self._stopping.is_set():
                await self._or_stop(asyncio.sleep(backoff.next_s()))

    async def _or_stop(self, waiting: Awaitable[None]) -> None:
        """Wait for something, or for `stop`."""
        task = asyncio.ensure_future(waiting)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not task.done():
                task.cancel()
        if task.done() and not task.cancelled():
            task.result()

    async def _bind(self) -> None:
        info = await self._api.call(f"CONSUMER.INFO.{self.stream}.{self.durable}")
        config = info["config"]
        self._ack_wait_s = config.get("ack_wait", 30e9) / 1e9
        if self._wanted_ack_wait_s is not None and self._wanted_ack_wait_s != self._ack_wait_s:
            _log.warning(
                "%s of %s waits %g s for an ack, %g s were expected: run bootstrap",
                self.durable, self.stream, self._ack_wait_s, self._wanted_ack_wait_s,
            )  # fmt: skip
        self._max_deliver = config.get("max_deliver", -1)
        self._room = max(1, min(self._concurrency * 4, config.get("max_ack_pending") or 1000))

    async def _accept(self, came: list[Msg]) -> None:
        for raw in came:
            delivered = delivered_as(raw.reply)
            message = stored_message(self.stream, raw, delivered)
            self._pending = delivered.pending
            if delivered.attempt > 1:
                self._connection.observer.count("redeliveries", stream=self.stream)
            if delivered.attempt > 1 and await self._is_known(message, raw.reply):
                continue
            delivery = Delivery(self._connection, message, raw.reply, delivered.attempt, self._was_settled)
            self._in_hand[message.sequence] = delivery
            self._unhandled += 1
            self._nothing_unhandled.clear()
            key = self._key_of(message)
            queue = self._queues.get(key)
            if queue is None:
                self._queues[key] = deque((delivery,))
                self._keys.put_nowait(key)
            else:
                queue.append(delivery)

    async def _is_known(self, message: StoredMessage, reply: str) -> bool:
        """Whether a redelivered message is in hand, or was settled here and only its verdict was lost."""
        in_hand = self._in_hand.get(message.sequence)
        # A stream made again has the same sequences: the time tells them apart.
        if in_hand is not None and in_hand.message.stored_at == message.stored_at:
            in_hand.redelivered(reply)
            return True
        verdict = self._verdicts.get((message.sequence, message.stored_at))
        if verdict is None:
            return False
        with contextlib.suppress(BusUnavailable):  # then it comes once more
            await self._connection.publish(reply, verdict, "", None)
        return True

    def _observe(self, message: StoredMessage, begun: float, outcome: str) -> None:
        tokens = message.subject.split(".")
        # Of a job's event the third token says what it is; of others the second.
        kind = tokens[2] if tokens[1] == "job" else tokens[1]
        took_s = time.perf_counter() - begun
        self._connection.observer.took("handler", took_s, service=self.durable, type=kind, outcome=outcome)

    def _key_of(self, message: StoredMessage) -> str:
        try:
            return self._key(message)
        except (ValueError, LookupError, TypeError):
            return message.subject  # malformed: the handler will say so

    async def _finish(self, puller: Puller | None) -> None:
        """Handle what is in hand, within the grace; give back the rest."""
        try:
            async with asyncio.timeout(self._grace_s):
                if puller is not None:
                    await self._accept(await puller.drain(self._barrier))
                await self._nothing_unhandled.wait()
        except (TimeoutError, BusError):
            _log.warning("%s stopped with %d messages unhandled: given back", self.durable, self._unhandled)
        for delivery in list(self._in_hand.values()):
            await delivery.retry(0.001)

    # Handling

    async def _work(self) -> None:
        while True:
            key = await self._keys.get()
            queue = self._queues[key]
            delivery = queue[0]
            try:
                if not delivery.is_settled:
                    await self._handle(delivery)
            finally:
                queue.popleft()
                if queue:
                    self._keys.put_nowait(key)
                else:
                    del self._queues[key]
                self._unhandled -= 1
                if self._unhandled == 0:
                    self._nothing_unhandled.set()
                if self._puller is not None:
                    self._puller.poke()

    async def _handle(self, delivery: Delivery) -> None:
        message = delivery.message
        begun, outcome = time.perf_counter(), "ok"
        try:
            await self._handler(message, delivery)
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except (Reject, ContractError) as rejected:
            outcome = "rejected"
            await self._bury(delivery, rejected.reason, rejected.field)
        except Retry as later:
            outcome = "retried"
            await self._put_off(delivery, str(later), later.delay_s)
        except Exception as failure:  # noqa: BLE001 - a handler's fault must not stop the others
            outcome = "error"
            now = time.monotonic()
            if now - self._last_logged > 1.0:
                self._last_logged = now
                _log.exception("handling %s (sequence %d) failed", message.subject, message.sequence)
            await self._put_off(delivery, f"{type(failure).__name__}: {failure}", None)
        else:
            if not delivery.is_deferred:
                await delivery.ack()
        finally:
            self._observe(message, begun, outcome)

    async def _put_off(self, delivery: Delivery, cause: str, delay_s: float | None) -> None:
        if self._max_deliver > 0 and delivery.attempt >= self._max_deliver:
            await self._bury(delivery, f"gave up after {delivery.attempt} deliveries: {cause}", None)
            return
        await delivery.retry(delay_s if delay_s is not None else _RETRY_DELAY.wait_s(delivery.attempt - 1, self._rng))

    async def _bury(self, delivery: Delivery, cause: str, field: str | None) -> None:
        if delivery.is_settled:
            return
        try:
            await self._dead_letter.store(delivery.message, cause, field)
        except BusError as error:
            # Not stored, so not given up; past its last delivery the broker's own advisory is in DEAD.
            _log.warning("no dead letter for %s yet: %s", delivery.message.subject, error)
            await delivery.retry(5.0)
            return
        await delivery.terminate(cause if field is None else f"{field}: {cause}")

    def _was_settled(self, delivery: Delivery) -> None:
        message = delivery.message
        if self._in_hand.get(message.sequence) is delivery:
            del self._in_hand[message.sequence]
        if delivery.was_put_off:
            return
        self._verdicts[message.sequence, message.stored_at] = delivery.verdict or b""
        if len(self._verdicts) > _REMEMBERED:
            self._verdicts.popitem(last=False)
        if delivery.owes_verdict:
            self._owing[message.sequence] = delivery

    # Keeping

    async def _keep_in_hand(self) -> None:
        """Tell the server of what is still in hand, and what it could not be told while it was away."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(self._ack_wait_s / 6, 5.0))
            if not self._connection.is_up:
                continue
            for sequence, delivery in list(self._owing.items()):
                await delivery.repeat_verdict()
                if not delivery.owes_verdict:
                    self._owing.pop(sequence, None)
            now = loop.time()
            for delivery in list(self._in_hand.values()):
                if delivery.silent_since(now) >= self._ack_wait_s / 3:
                    await delivery.in_progress()
