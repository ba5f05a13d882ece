"""Following a stream: a snapshot up to a fixed sequence, then every change, whole batches only, whatever breaks.

A follower acknowledges nothing and owns nothing on the server but an ephemeral consumer that dies with it. After a gap,
a reconnect or a lost consumer it goes on behind the last message it received. Where the stream itself was lost,
re-created or put back to an older copy, what it told so far is void: it says so (`on_reset`) and tells everything
again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self

from nats.aio.msg import Msg
from nats.nuid import NUID

from railweave.contracts.wire import StoredMessage
from railweave.runtime.backoff import Backoff, BackoffPolicy
from railweave.runtime.connection import Connection
from railweave.runtime.errors import ApiError, BusUnavailable, ConsumerLost, PermissionRefused, StreamMissing
from railweave.runtime.history import History, ResetCause
from railweave.runtime.jsapi import JetStreamApi, StreamState
from railweave.runtime.pull import Puller, delivered_as, stored_message
from railweave.runtime.whole_batches import BATCH_ID, WholeBatches, is_inside_batch

_log = logging.getLogger("railweave.follower")

Start = Literal["last_per_subject", "all", "new"]

_WINDOW = 4000
_NANO = 1_000_000_000
_INACTIVE_S = 10
_TURNS = 6
_BATCH_POLL_S = 0.002
_NUID = NUID()


class Follower:
    """One stream, followed. Made by `Bus.follow`; use `async with`, or `run()` in a task group.

    `on_messages` and `on_reset` are called from the event loop and must not raise: an exception of theirs ends `run`.
    """

    def __init__(
        self,
        connection: Connection,
        api: JetStreamApi,
        stream: str,
        filters: Sequence[str],
        on_messages: Callable[[Sequence[StoredMessage]], None],
        *,
        on_reset: Callable[[ResetCause], None],
        start: Start,
        whole_batches: bool,
    ) -> None:
        self.stream = stream
        self.filters = tuple(filters)
        self._connection = connection
        self._api = api
        self._on_messages = on_messages
        self._on_reset = on_reset
        self._start: Start = start
        self._whole_batches = whole_batches
        self._task: asyncio.Task[None] | None = None
        self._backoff = Backoff(BackoffPolicy(first_s=0.03, cap_s=5.0), random.Random())
        self._advanced = asyncio.Event()  # a new one after each advance
        self._is_ready = asyncio.Event()
        self._failure: BaseException | None = None

        self._history = History(connection, api, stream)
        self._consumer = ""
        self._fixed = 0  # the last sequence of the snapshot
        self._floor: int | None = None  # start="new": nothing up to here is told
        self._received = 0
        self._consumer_sequence = 0
        self._applied = 0
        self._batches = WholeBatches()
        self._pending = 0
        self._heard_at = 0.0
        self._idle_while_holding = 0

    @property
    def applied_sequence(self) -> int:
        """The sequence up to which everything that matches has been told."""
        return self._applied

    @property
    def silent_s(self) -> float:
        """Seconds since anything was heard of the stream, heartbeats included: the age of what was told."""
        return asyncio.get_running_loop().time() - self._heard_at

    @property
    def stream_created(self) -> datetime | None:
        """When the stream that is followed was made: tells it from another of the same name."""
        return self._history.created

    @property
    def is_ready(self) -> bool:
        """Whether the snapshot has been told whole; false again between a reset and the end of the next one."""
        return self._is_ready.is_set()

    async def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until the snapshot has been told; raises TimeoutError, or what ended the follower."""
        async with asyncio.timeout(timeout_s):
            await self._is_ready.wait()
        if self._failure is not None:
            raise self._failure

    async def wait_applied(self, sequence: int, timeout_s: float | None = None) -> None:
        """Wait until everything that matches up to `sequence` has been told.

        `sequence` need not match the filters: where it does not, the consumer is asked whether anything is left.

        Raises:
            TimeoutError: after `timeout_s` seconds.
        """
        async with asyncio.timeout(timeout_s):
            while self._applied < sequence or not self.is_ready:
                if self._failure is not None:
                    raise self._failure
                try:
                    async with asyncio.timeout(0.02):
                        await self._advanced.wait()
                except TimeoutError:
                    await self._look_for_nothing_left()

    async def run(self) -> None:
        """Follow until cancelled.

        Raises:
            BusClosed: the connection is closed for good.
            PermissionRefused: this user may not follow the stream.
        """
        try:
            while True:
                await self._follow_once()
                await asyncio.sleep(self._backoff.next_s())
        except BaseException as failure:
            if not isinstance(failure, asyncio.CancelledError):
                self._failure = failure
                self._is_ready.set()  # wakes those who wait, who then see the failure
            raise

    async def _follow_once(self) -> None:
        puller: Puller | None = None
        try:
            await self._connection.wait_up()
            state = await self._api.stream_state(self.stream)
            cause = await self._history.compare(state, max(self._received, self._applied))
            if cause is not None:
                self._reset(cause, state)
            puller = await self._attach(state)
            await self._pump(puller)
        except StreamMissing:
            _log.debug("stream %s does not exist yet", self.stream)
        except (ConsumerLost, BusUnavailable, ApiError) as lost:
            # Once or twice is what a restarting broker does; more is for an operator.
            level = logging.WARNING if self._backoff.attempt > 5 else logging.INFO
            _log.log(level, "following %s again: %s", self.stream, lost)
        finally:
            if puller is not None:
                await puller.close()
            self._consumer = ""

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self.run(), name=f"follow-{self.stream}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            consumer = self._consumer
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._delete(consumer)

    # Attaching

    def _reset(self, cause: ResetCause, state: StreamState) -> None:
        _log.warning(
            "stream %s: %s (ends at %d, seen up to %d)", self.stream, cause, state.last_sequence, self._received
        )
        self._connection.observer.count("view_resets", stream=self.stream, cause=cause.value)
        self._is_ready.clear()
        self._batches.drop()
        self._received = self._applied = self._fixed = 0
        if self._start == "new":
            # What a new stream holds is new; what is left of a restored one was told or skipped before.
            self._floor = 0 if cause is ResetCause.RECREATED else state.last_sequence
        self._on_reset(cause)

    async def _attach(self, state: StreamState) -> Puller:
        if not self.is_ready:
            self._fixed = await self._end_between_batches(state.last_sequence)
            if self._start == "new" and self._floor is None:
                self._floor = state.last_sequence
        name = f"follow-{_NUID.next().decode()}"
        puller = Puller(self._connection, self.stream, name, want=lambda: _WINDOW, largest_request=_WINDOW // 2)
        try:
            await puller.open()
            answer = await self._create(name)
        except BaseException:
            await puller.close()
            raise
        self._consumer = name
        self._consumer_sequence = 0
        self._pending = int(answer.get("num_pending", 0))
        if self._pending == 0:
            self._nothing_left_of_snapshot()
        return puller

    async def _end_between_batches(self, last_sequence: int) -> int:
        """A sequence between batches, at or behind `last_sequence`: a batch is stored message by message."""
        for _ in range(500):
            try:
                end = await self._api.message(self.stream, {"last_by_subj": ">"})
            except PermissionRefused:
                return last_sequence
            if end is None or not is_inside_batch(end) or end.sequence < last_sequence:
                # (the last case: the rest of its batch was stored, and has expired since)
                return max(last_sequence, end.sequence if end is not None else 0)
            await asyncio.sleep(_BATCH_POLL_S)
        return last_sequence  # its commit was taken away: no batch is still being stored after a second

    async def _create(self, name: str) -> dict[str, Any]:
        config: dict[str, Any] = {
            "name": name,
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _INACTIVE_S * _NANO,
        }
        behind = max(self._received, self._floor or 0)
        if self._received or self._start == "new":
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": behind + 1}
        else:
            config["deliver_policy"] = "all" if self._start == "all" else "last_per_subject"
        operation = f"CONSUMER.CREATE.{self.stream}.{name}"
        if len(self.filters) == 1:
            # The filter in the subject, so that a user can be given the right to this filter alone.
            config["filter_subject"] = self.filters[0]
            operation += f".{self.filters[0]}"
        else:
            config["filter_subjects"] = list(self.filters)
            if not self.filters:
                config["filter_subjects"] = [">"]
        return await self._api.call(operation, {"stream_name": self.stream, "config": config, "action": "create"})

    async def _delete(self, consumer: str) -> None:
        if not consumer or not self._connection.is_up:
            return  # the server removes it after its inactivity
        try:
            await self._api.call(f"CONSUMER.DELETE.{self.stream}.{consumer}", deadline_s=0.5, repeat=False)
        except (ApiError, BusUnavailable, PermissionRefused) as error:
            _log.debug("consumer %s is left to its inactivity: %s", consumer, error)

    # Receiving

    async def _pump(self, puller: Puller) -> None:
        while True:
            came = await puller.next_slice(_BATCH_POLL_S if self._batches.is_holding and self._pending == 0 else None)
            if came or not self._batches.is_holding:  # while holding, an empty slice is our own short timeout
                self._heard_at = asyncio.get_running_loop().time()
            if came:
                if self._whole_batches:
                    await _let_others_go_first()
                self._take(came)
                self._backoff.reset()
            elif self._pending == 0:
                self._nothing_left_of_snapshot()
            else:
                await self._recount()
            if self._batches.is_holding and self._pending == 0 and not puller.has_more:
                await self._finish_batch(puller)

    def _take(self, came: list[Msg]) -> None:
        taken: list[StoredMessage] = []
        gap: str | None = None
        for message in came:
            delivered = delivered_as(message.reply)
            if delivered.consumer_sequence != self._consumer_sequence + 1:
                gap = f"delivery {delivered.consumer_sequence} came after {self._consumer_sequence}"
                break
            self._consumer_sequence += 1
            self._pending = delivered.pending
            taken.append(stored_message(self.stream, message, delivered))
        if taken:
            last = taken[-1]
            self._received = last.sequence
            self._history.remember(last)
            if self._whole_batches:
                self._tell(self._batches.feed(taken, as_they_are_up_to=self._fixed))
            else:
                self._tell(taken)
        if gap is not None:
            raise ConsumerLost(f"{self.stream}: {gap}")
        if self._pending == 0:
            # Not as soon as the fixed sequence is passed: a subject that was written again meanwhile is no longer in
            # the snapshot and not yet told. With nothing pending, every subject's latest has been told.
            self._nothing_left_of_snapshot()

    def _tell(self, messages: Sequence[StoredMessage]) -> None:
        if messages:
            self._on_messages(messages)
            self._advance(messages[-1].sequence)

    def _advance(self, sequence: int) -> None:
        if sequence > self._applied:
            self._applied = sequence
            self._advanced.set()
            self._advanced = asyncio.Event()

    def _nothing_left_of_snapshot(self) -> None:
        if not self._batches.is_holding:
            self._advance(max(self._fixed, self._received))
        self._is_ready.set()

    async def _recount(self) -> None:
        """The server is idle though more was pending: what was pending has been superseded or has expired."""
        try:
            info = await self._consumer_info()
        except PermissionRefused:
            self._pending = 0
        else:
            if info["delivered"]["consumer_seq"] != self._consumer_sequence:
                return
            self._pending = int(info["num_pending"])
        if self._pending == 0:
            self._nothing_left_of_snapshot()

    async def _consumer_info(self) -> dict[str, Any]:
        return await self._api.call(f"CONSUMER.INFO.{self.stream}.{self._consumer}", deadline_s=2.0)

    async def _finish_batch(self, puller: Puller) -> None:
        """Tell the batch that is held when it is whole in the stream and nothing of it is still to come.

        Its commit may never come: not matching the filters, or superseded.
        """
        batch = self._batches.held[0].headers[BATCH_ID]
        try:
            end = await self._api.message(self.stream, {"last_by_subj": ">"}, deadline_s=1.0)
            if end is not None and end.headers.get(BATCH_ID) == batch and is_inside_batch(end):
                return
            info = await self._consumer_info()
            is_whole = info["num_pending"] == 0 and info["delivered"]["consumer_seq"] == self._consumer_sequence
        except PermissionRefused:
            # Without the right to look, two heartbeats of silence have to do: a batch is stored within milliseconds.
            self._idle_while_holding += 1
            is_whole = self._idle_while_holding * _BATCH_POLL_S > 1.0
        if is_whole and not puller.has_more:
            self._idle_while_holding = 0
            self._tell(self._batches.release())

    async def _look_for_nothing_left(self) -> None:
        """Move `applied_sequence` to the stream's end where nothing that matches is left before it."""
        consumer, received = self._consumer, self._received
        if not consumer or not self.is_ready:
            return
        try:
            state = await self._api.stream_state(self.stream, deadline_s=1.0)
            info = await self._consumer_info()
        except (BusUnavailable, ApiError, StreamMissing, PermissionRefused):
            return
        nothing_left = info["num_pending"] == 0 and info["delivered"]["consumer_seq"] == self._consumer_sequence
        is_same = consumer == self._consumer and received == self._received and state.created == self._history.created
        if nothing_left and is_same and not self._batches.is_holding:
            self._advance(state.last_sequence)


async def _let_others_go_first() -> None:
    """Let what became ready in the same moment run before a slice is folded.

    A commit's reply and the committed messages arrive together; folding them takes milliseconds, and what waits for the
    reply (the announcement of what was committed) takes a few turns of the loop to get out.
    """
    for _ in range(_TURNS):
        await asyncio.sleep(0)
