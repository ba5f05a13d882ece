"""Guarded writes to one stream: the atomic batch (ADR-50) and the append. Facts: notes on the committer.

No `Nats-Msg-Id` goes with either: in a batch a repeated id refuses the whole batch, and in an append the fence already
makes a repeat harmless. After an unknown outcome the head tells what was stored.

An append is never a pipeline of single guarded writes. Their sequences do not fence it: where message i is refused
because another writer came before it, the stream ends just where message i+1 expects, which is then stored behind the
other's. Chaining them by `Nats-Expected-Last-Msg-Id` would, but its refusal (10070) wedges a replicated stream of
nats-server 2.15.1 for good. So many go as atomic batches, and few one after the other, each awaited.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any

from nats.aio.msg import Msg
from nats.nuid import NUID

from railweave.contracts.wire import WireMessage
from railweave.runtime.connection import Connection
from railweave.runtime.errors import (
    BatchTooLarge,
    BusUnavailable,
    NotStored,
    OutcomeUnknown,
    PermissionRefused,
    PublishRefused,
    StaleFence,
    StreamBusy,
)
from railweave.runtime.replies import Replies, Reply

MAX_BATCH = 1000
# A batch costs about 5 ms however small, a single write awaited 0.4 ms.
_FEW = 12
_TURNS_TO_SEND = 3
"""Of the loop, until what was handed to the client is on the socket."""

_NUID = NUID()

_STALE = {10071, 10164}
_NOT_ATOMIC = {10174}
_TOO_LARGE = {10199}
_BUSY = {10210, 10167}
_LAST_SEQUENCE = re.compile(r"wrong last sequence: (\d+)")


class GuardedWrites:
    """Writes that the stream's last sequence guards; one call at a time, in order."""

    def __init__(self, connection: Connection, replies: Replies) -> None:
        self._connection = connection
        self._replies = replies
        # A batch that is open blocks one of the 50 places of its stream, and the order of an append must not be cut.
        self._one_at_a_time = asyncio.Lock()
        self._not_atomic: set[str] = set()
        self._takes_batches = ""
        """The server that has opened a batch before."""

    async def commit(
        self, stream: str, messages: Sequence[WireMessage], *, expected_last: int, batch_id: str, deadline_s: float
    ) -> int:
        """Store all `messages` or none, if the stream ends at `expected_last`; return its new last sequence."""
        if not messages:
            raise ValueError("a batch has at least one message")
        if len(messages) > MAX_BATCH:
            raise BatchTooLarge(10199, f"{len(messages)} messages, a batch takes {MAX_BATCH}")
        async with self._one_at_a_time:
            if len(messages) == 1:
                return await self._one(stream, messages[0], expected_last, deadline_s)
            return await self._batch(stream, messages, expected_last, batch_id, deadline_s)

    async def append(
        self, stream: str, messages: Sequence[WireMessage], *, expected_last: int, deadline_s: float
    ) -> int:
        """Store `messages` one after the other, each guarded; return the stream's new last sequence."""
        deadline = asyncio.get_running_loop().time() + deadline_s
        self._check_sizes(messages)
        last = expected_last
        async with self._one_at_a_time:
            while (stored := last - expected_last) < len(messages):
                left_s = max(deadline - asyncio.get_running_loop().time(), 0.001)
                part = messages[stored : stored + MAX_BATCH]
                try:
                    if len(part) <= _FEW or stream in self._not_atomic:
                        last = await self._one(stream, part[0], last, left_s)
                    else:
                        last = await self._batch(stream, part, last, _NUID.next().decode(), left_s)
                except StaleFence as stale:
                    raise StaleFence(stale.expected, stale.actual, stale.code, last if stored else None) from None
                except PublishRefused as refused:
                    if refused.code not in _NOT_ATOMIC:
                        raise
                    self._not_atomic.add(stream)
                except NotStored as lost:
                    if stored:
                        raise OutcomeUnknown(f"append to {stream} stopped at {last}: {lost}") from None
                    raise
        return last

    async def _one(self, stream: str, message: WireMessage, expected_last: int, deadline_s: float) -> int:
        headers = _guarded(message, stream, expected_last)
        try:
            reply = await self._replies.ask(message.subject, message.body, deadline_s, headers)
        except BusUnavailable as lost:
            raise _unknown(lost) from None
        except PermissionRefused as refused:
            raise PublishRefused(0, str(refused)) from None
        return int(_stored(reply, expected_last)["seq"])

    async def _batch(
        self, stream: str, messages: Sequence[WireMessage], expected_last: int, batch_id: str, deadline_s: float
    ) -> int:
        opening, closing = await self._sent(stream, messages, expected_last, batch_id, deadline_s)
        try:
            answer = await closing.result(deadline_s)
            _check_opened(opening, expected_last)
        except BusUnavailable as lost:
            _check_opened(opening, expected_last)
            raise _unknown(lost) from None
        except PermissionRefused as refused:
            raise PublishRefused(0, str(refused)) from None
        finally:
            opening.drop()
        return int(_stored(answer, expected_last)["seq"])

    async def _sent(
        self, stream: str, messages: Sequence[WireMessage], expected_last: int, batch_id: str, deadline_s: float
    ) -> tuple[Reply, Reply]:
        """Send a batch; what its first and its last message will be answered with.

        The server takes two milliseconds to open a batch, so the rest is not held back for that answer. What follows a
        refused opening is refused too. Only a server before 2.12 would store it, message by message: the first batch
        on each server waits. No message is looked at before its turn, so that it can be made while those before it are
        on their way.
        """
        server, limit = self._connection.client.server_id, self._connection.client.max_payload
        opening: Reply | None = None
        try:
            first = messages[0]
            check_size(first, limit)
            headers = _guarded(first, stream, expected_last) | _in_batch(batch_id, 1)
            opening = await self._replies.send(first.subject, first.body, headers)
            for _ in range(_TURNS_TO_SEND):
                await asyncio.sleep(0)
            if server != self._takes_batches:
                await opening.result(deadline_s)
                _check_opened(opening, expected_last)
                self._takes_batches = server
            for number in range(2, len(messages)):
                message = messages[number - 1]
                check_size(message, limit)
                headers = dict(message.headers) | _in_batch(batch_id, number)
                await self._connection.publish(message.subject, message.body, "", headers)
            last = messages[-1]
            check_size(last, limit)
            headers = dict(last.headers) | _in_batch(batch_id, len(messages)) | {"Nats-Batch-Commit": "1"}
            return opening, await self._replies.send(last.subject, last.body, headers)
        except BaseException as failure:
            if opening is not None:
                opening.drop()
            if isinstance(failure, BusUnavailable):
                raise NotStored(f"batch {batch_id} was not finished: {failure}") from None
            if isinstance(failure, PermissionRefused):
                raise PublishRefused(0, str(failure)) from None
            raise

    def _check_sizes(self, messages: Sequence[WireMessage]) -> None:
        limit = self._connection.client.max_payload
        for message in messages:
            check_size(message, limit)


def check_size(message: WireMessage, limit: int) -> None:
    """Raise PublishRefused where headers and body are past the server's payload limit.

    The server would not answer but close the connection; 200 bytes are left for the bus's own headers.
    """
    size = len(message.body) + 200 + sum(len(name) + len(value) + 4 for name, value in message.headers.items())
    if size > limit:
        raise PublishRefused(0, f"{message.subject}: {size} bytes with headers, the server takes {limit}")


def _guarded(message: WireMessage, stream: str, expected_last: int) -> dict[str, str]:
    return dict(message.headers) | {
        "Nats-Expected-Stream": stream,
        "Nats-Expected-Last-Sequence": str(expected_last),
    }


def _in_batch(batch_id: str, number: int) -> dict[str, str]:
    return {"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(number)}


def _check_opened(opening: Reply, expected_last: int) -> None:
    """Raise what the first message of a batch was refused with. Its answer is empty when all is well."""
    future = opening.future
    if not future.done() or future.cancelled() or future.exception() is not None or not future.result().data:
        return
    _stored(future.result(), expected_last)
    raise PublishRefused(0, "the server took the first of a batch for a single message: it is older than 2.12")


def _unknown(lost: BusUnavailable) -> OutcomeUnknown:
    return OutcomeUnknown(str(lost)) if lost.was_sent else NotStored(str(lost))


def _stored(reply: Msg, expected_last: int) -> dict[str, Any]:
    """The acknowledgement in `reply`; raises what the server refused with."""
    answer: dict[str, Any] = json.loads(reply.data)
    error = answer.get("error")
    if error is None:
        return answer
    raise refusal(int(error.get("err_code", 0)), str(error.get("description")), expected_last)


def refusal(code: int, description: str, expected_last: int | None = None) -> PublishRefused:
    """The exception that stands for JetStream's error `code`."""
    if code in _STALE and expected_last is not None:
        found = _LAST_SEQUENCE.search(description)
        return StaleFence(expected_last, int(found[1]) if found else None, code)
    if code in _TOO_LARGE:
        return BatchTooLarge(code, description)
    if code in _BUSY:
        return StreamBusy(code, description)
    return PublishRefused(code, description)
