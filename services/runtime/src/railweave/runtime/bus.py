"""The bus: everything a service says and hears, over one connection to NATS with JetStream.

It moves `WireMessage` and `StoredMessage` and knows nothing of what they mean. What a caller can rely on:
a publish is stored once or its outcome is told to be unknown; a commit is stored whole or not at all; a follower tells
whole batches in order and says when what it told is void; a consumer hands on one message at a time per key.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from nats.aio.msg import Msg

from railweave.contracts.wire import StoredMessage, WireMessage
from railweave.runtime.backoff import Backoff, BackoffPolicy
from railweave.runtime.connection import BusObserver, BusSettings, Connection, SilentObserver, timed_write
from railweave.runtime.consumer import Consumer, Handler
from railweave.runtime.deadletters import DeadLetters
from railweave.runtime.errors import (
    BusUnavailable,
    NotStored,
    OutcomeUnknown,
    PermissionRefused,
    PublishRefused,
)
from railweave.runtime.follower import Follower, Start
from railweave.runtime.history import ResetCause
from railweave.runtime.jsapi import JetStreamApi, StreamState
from railweave.runtime.replies import Replies
from railweave.runtime.service_api import ServiceApi
from railweave.runtime.streams import stream_of
from railweave.runtime.writes import GuardedWrites, check_size, refusal

__all__ = ["Bus", "BusObserver", "BusSettings", "ResetCause", "Stored", "StreamState"]

_PIPELINE = 128
_LEAST_TRY_S = 0.02
_RETRY = BackoffPolicy(first_s=0.05, cap_s=1.0)


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a message is stored. `duplicate`: it had been stored before under the same id."""

    stream: str
    sequence: int
    duplicate: bool


class Bus:
    """A connection to NATS. `await Bus.connect(...)`, then `close()`, or `async with await Bus.connect(...)`."""

    def __init__(self, connection: Connection) -> None:
        """Use `connect`."""
        self.connection = connection
        self.replies = Replies(connection)
        self.api = JetStreamApi(connection, self.replies)
        self._writes = GuardedWrites(connection, self.replies)
        self._rng = random.Random()

    @classmethod
    async def connect(
        cls,
        settings: BusSettings,
        *,
        on_closed: Callable[[], Awaitable[None] | None] | None = None,
        observer: BusObserver | None = None,
    ) -> Bus:
        """Connect, waiting with backoff and jitter until a server is there.

        Args:
            settings: where, as whom, how patiently.
            on_closed: called when the server closes the connection for good: end the process, to be restarted.
            observer: where reconnects, errors, redeliveries and dead letters are counted.

        Raises:
            BusUnavailable: `settings.connect_patience_s` is over.
        """
        bus = cls(Connection(settings, observer or SilentObserver()))
        await bus.connection.open(on_closed)
        try:
            await bus.replies.open()
        except BaseException:
            await bus.close()
            raise
        return bus

    async def close(self) -> None:
        """Close. Stop consumers and followers before."""
        await self.connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def is_up(self) -> bool:
        """Whether a server is connected right now."""
        return self.connection.is_up

    async def wait_up(self, timeout_s: float | None = None) -> None:
        """Wait for the connection; raises BusUnavailable after `timeout_s`, BusClosed."""
        await self.connection.wait_up(timeout_s)

    # Writing

    async def publish(self, message: WireMessage, *, stream: str | None = None, deadline_s: float = 10.0) -> Stored:
        """Store one message, once: repeated with the same id until it is acknowledged.

        Args:
            message: with a `msg_id`; without one it is not repeated once it may have been stored.
            stream: where it must end up; by default the stream of the table that has the subject, if any has.
            deadline_s: all tries together, in seconds.

        Raises:
            PublishRefused: the server said no; nothing was stored.
            OutcomeUnknown: no acknowledgement within the deadline (NotStored where that is certain).
        """
        with timed_write(self.connection.observer, stream or stream_of(message.subject) or "other"):
            return await self._publish(message, stream, deadline_s)

    async def _publish(self, message: WireMessage, stream: str | None, deadline_s: float) -> Stored:
        check_size(message, self.connection.client.max_payload)
        headers = dict(message.headers)
        if message.msg_id is not None:
            headers["Nats-Msg-Id"] = message.msg_id
        expected = stream or stream_of(message.subject)
        if expected is not None:
            headers["Nats-Expected-Stream"] = expected
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        backoff = Backoff(_RETRY, self._rng)
        may_be_stored = False
        why = ""
        # No further try without time for its answer: it would only make a known outcome unknown.
        while (left_s := deadline - loop.time()) > _LEAST_TRY_S or not why:
            try:
                await self.connection.wait_up(max(left_s, 0.001))
                reply = await self.replies.ask(
                    message.subject,
                    message.body,
                    min(max(left_s, 0.001), self.connection.settings.request_timeout_s),
                    headers,
                )
                stored = self._acknowledged(reply)
                if stored is not None:
                    return stored
                why = "JetStream is not available"
            except PermissionRefused as refused:
                raise PublishRefused(0, str(refused)) from None
            except BusUnavailable as lost:
                why = str(lost)
                may_be_stored = may_be_stored or lost.was_sent
                if may_be_stored and message.msg_id is None:
                    break
            await asyncio.sleep(min(backoff.next_s(), max(deadline - loop.time(), 0.0)))
        kind = OutcomeUnknown if may_be_stored else NotStored
        raise kind(f"{message.subject} ({message.msg_id or 'no id'}): {why}")

    @staticmethod
    def _acknowledged(reply: Msg) -> Stored | None:
        """The acknowledgement, or None when JetStream is not available for the moment."""
        try:
            answer = json.loads(reply.data)
        except ValueError:
            raise PublishRefused(0, "answered by something that is not JetStream") from None
        error = answer.get("error")
        if error is None:
            return Stored(answer["stream"], answer["seq"], bool(answer.get("duplicate", False)))
        if error.get("code") == 503:
            return None
        raise refusal(int(error.get("err_code", 0)), str(error.get("description")))

    async def put(
        self, stream: str, message: WireMessage, *, expected_subject_last: int, deadline_s: float = 5.0
    ) -> int:
        """Store one message if the last one of its subject is `expected_subject_last` (0: there is none).

        Returns:
            Its sequence.

        Raises:
            StaleFence: the subject's last message is another one.
            PublishRefused: any other refusal.
            OutcomeUnknown: read the subject's last message.
        """
        headers = dict(message.headers) | {"Nats-Expected-Last-Subject-Sequence": str(expected_subject_last)}
        guarded = WireMessage(message.subject, message.body, headers)
        try:
            return (await self.publish(guarded, stream=stream, deadline_s=deadline_s)).sequence
        except PublishRefused as refused:
            raise refusal(refused.code, refused.description, expected_subject_last) from None

    async def publish_many(self, messages: Iterable[WireMessage], *, deadline_s: float = 10.0) -> list[Stored]:
        """Store many messages, some at a time, in no particular order; return where, in the order given.

        Raises:
            PublishRefused, OutcomeUnknown: as `publish`, the first one; others may have been stored: repeat all.
        """
        queue = list(enumerate(messages))
        stored: list[Stored | None] = [None] * len(queue)
        queue.reverse()

        async def work() -> None:
            while queue:
                place, message = queue.pop()
                stored[place] = await self.publish(message, deadline_s=deadline_s)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(_PIPELINE, len(queue))):
                    group.create_task(work())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [place for place in stored if place is not None]

    async def commit(
        self,
        stream: str,
        messages: Sequence[WireMessage],
        *,
        expected_last: int,
        batch_id: str,
        deadline_s: float = 5.0,
    ) -> int:
        """Store all `messages` in one atomic batch, if the stream ends at `expected_last`.

        One batch at a time is open per bus. A single message goes as a guarded plain write. Ids are not sent.

        Returns:
            The stream's last sequence, that of the last message.

        Raises:
            StaleFence: the stream ends elsewhere; nothing was stored.
            StreamBusy: too many batches are open; nothing was stored: back off and repeat.
            BatchTooLarge: more than 1,000 messages; nothing was stored.
            PublishRefused: any other refusal; nothing was stored.
            OutcomeUnknown: read the head (NotStored where it is certain that nothing was stored).
        """
        with timed_write(self.connection.observer, stream):
            return await self._writes.commit(
                stream, messages, expected_last=expected_last, batch_id=batch_id, deadline_s=deadline_s
            )

    async def append(
        self, stream: str, messages: Sequence[WireMessage], *, expected_last: int, deadline_s: float = 10.0
    ) -> int:
        """Store `messages` in order, as many as there are, all guarded by the stream's end. Ids are not sent.

        Not all or nothing: after a failure a leading part may be stored. Where the stream takes atomic batches, that
        part ends between batches of a thousand; elsewhere every message costs a round trip.

        Returns:
            The stream's last sequence.

        Raises:
            StaleFence: someone else wrote; `stored_up_to` names the last of ours that was stored, if any.
            OutcomeUnknown: some may be stored, always a leading part: read the stream's end.
            PublishRefused: any other refusal.
        """
        with timed_write(self.connection.observer, stream):
            return await self._writes.append(stream, messages, expected_last=expected_last, deadline_s=deadline_s)

    # Reading

    async def read_last(self, stream: str, subject: str, *, deadline_s: float = 5.0) -> StoredMessage | None:
        """The last message of a subject, from the stream's leader; raises StreamMissing, BusUnavailable."""
        return await self.api.message(stream, {"last_by_subj": subject}, deadline_s=deadline_s)

    async def read(self, stream: str, sequence: int, *, deadline_s: float = 5.0) -> StoredMessage | None:
        """The message at `sequence`, from the stream's leader; raises StreamMissing, BusUnavailable."""
        return await self.api.message(stream, {"seq": sequence}, deadline_s=deadline_s)

    async def read_next(
        self, stream: str, subject: str, *, from_sequence: int, deadline_s: float = 5.0
    ) -> StoredMessage | None:
        """The first message at or behind `from_sequence` that matches `subject` (wildcards allowed)."""
        return await self.api.message(stream, {"seq": from_sequence, "next_by_subj": subject}, deadline_s=deadline_s)

    async def stream_state(self, stream: str, *, deadline_s: float = 5.0) -> StreamState:
        """Where the stream stands; raises StreamMissing, BusUnavailable."""
        return await self.api.stream_state(stream, deadline_s=deadline_s)

    def follow(
        self,
        stream: str,
        filters: Sequence[str],
        on_messages: Callable[[Sequence[StoredMessage]], None],
        *,
        on_reset: Callable[[ResetCause], None],
        start: Start = "last_per_subject",
        whole_batches: bool = True,
    ) -> Follower:
        """Follow a stream: a snapshot up to a fixed sequence, then every change (see `Follower`).

        Args:
            stream: its name; it may not exist yet.
            filters: subjects with wildcards; empty for all.
            on_messages: called with as many messages as have come, in order.
            on_reset: called when everything told so far is void; everything is told again afterwards.
            start: what the snapshot is: the latest of each subject, all, or nothing.
            whole_batches: hold back unfinished batches (R13). Off where the filter takes at most one message of a
                batch: it saves two requests each time.
        """
        return Follower(
            self.connection,
            self.api,
            stream,
            filters,
            on_messages,
            on_reset=on_reset,
            start=start,
            whole_batches=whole_batches,
        )

    def consume(
        self,
        stream: str,
        durable: str,
        handler: Handler,
        *,
        key: Callable[[StoredMessage], str],
        concurrency: int = 16,
        ack_wait_s: float | None = None,
        dead_letter: DeadLetters,
    ) -> Consumer:
        """Handle every message of a durable consumer at least once (see `Consumer`). Bootstrap must have made it.

        Args:
            stream: its stream.
            durable: its name.
            handler: returning means done (or call `delivery.defer()` and settle later); raising `Reject` makes a dead
                letter, `Retry` or anything else has it delivered again after a growing delay, up to the consumer's
                `max_deliver`, and then makes a dead letter.
            key: what must not be handled by two at a time; messages of one key keep their order.
            concurrency: handlers at a time.
            ack_wait_s: what the consumer should have; the real one counts, a difference is logged.
            dead_letter: where to put what cannot be handled.
        """
        return Consumer(
            self,
            stream,
            durable,
            handler,
            key=key,
            concurrency=concurrency,
            ack_wait_s=ack_wait_s,
            dead_letter=dead_letter,
        )

    # Requests

    def service(self, name: str, version: str, *, description: str = "") -> ServiceApi:
        """A service that NATS tools can list, ping and read statistics of (ADR-32); `async with` it."""
        return ServiceApi(self.connection, self.barrier, name, version, description)

    async def request(self, subject: str, payload: bytes, timeout_s: float = 2.0) -> Msg:
        """Ask over core NATS; raises NoResponders, PermissionRefused, BusUnavailable. Not repeated."""
        return await self.replies.ask(subject, payload, timeout_s)

    async def barrier(self, timeout_s: float = 2.0) -> None:
        """Wait until the server has taken everything sent so far, subscriptions included.

        nats-py's `flush()` is none: its PING overtakes what is pending (events.md, row 1). This is a message to our own
        inbox, which the server can only deliver after everything before it on the connection.
        """
        await self.replies.echo(timeout_s)
