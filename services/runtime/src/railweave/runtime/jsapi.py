"""JetStream's own API as raw JSON: what nats-py's dataclasses do not carry, and reads from the leader only.

Direct get is never used: it may be answered by a follower that is behind, and decisions must not rest on that.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from railweave.contracts.wire import StoredMessage
from railweave.runtime.backoff import Backoff, BackoffPolicy
from railweave.runtime.connection import Connection
from railweave.runtime.errors import ApiError, BusUnavailable, StreamMissing
from railweave.runtime.replies import Replies

STREAM_NOT_FOUND = 10059
CONSUMER_NOT_FOUND = 10014
MESSAGE_NOT_FOUND = 10037

_RETRY = BackoffPolicy(first_s=0.02, cap_s=1.0)
_NANOSECONDS = re.compile(r"\.(\d{6})\d*")


@dataclass(frozen=True, slots=True)
class StreamState:
    """Where a stream stands. `created` tells a stream from another that took its name."""

    created: datetime
    first_sequence: int
    last_sequence: int
    messages: int


class JetStreamApi:
    """Requests to `$JS.API.>`, repeated until their deadline where repeating changes nothing."""

    def __init__(self, connection: Connection, replies: Replies) -> None:
        self._connection = connection
        self._replies = replies
        self._rng = random.Random()

    async def call(
        self, operation: str, body: Mapping[str, Any] | None = None, *, deadline_s: float = 5.0, repeat: bool = True
    ) -> dict[str, Any]:
        """Ask `$JS.API.<operation>`.

        Args:
            operation: the subject after `$JS.API.`.
            body: the request, JSON; None for an empty one.
            deadline_s: when to give up, all tries together.
            repeat: whether a lost request may be repeated (reads, and writes that are idempotent).

        Raises:
            ApiError: JetStream said no.
            BusUnavailable: no answer within the deadline.
        """
        payload = b"" if body is None else json.dumps(body).encode()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        backoff = Backoff(_RETRY, self._rng)
        while True:
            left_s = deadline - loop.time()
            try:
                await self._connection.wait_up(max(left_s, 0.001))
                message = await self._replies.ask(
                    f"$JS.API.{operation}",
                    payload,
                    min(max(left_s, 0.001), self._connection.settings.request_timeout_s),
                )
                answer: dict[str, Any] = json.loads(message.data)
                error = answer.get("error")
                if error is None:
                    return answer
                # 503 of JetStream itself: it is starting, or has no leader for a moment.
                refused = ApiError(
                    operation, int(error.get("code", 0)), int(error.get("err_code", 0)), str(error.get("description"))
                )
                if refused.status != 503 or not repeat or loop.time() >= deadline:
                    raise refused
            except BusUnavailable as lost:
                if (lost.was_sent and not repeat) or loop.time() >= deadline:
                    raise
            await asyncio.sleep(min(backoff.next_s(), max(deadline - loop.time(), 0)))

    async def stream_info(self, stream: str, *, deadline_s: float = 5.0) -> dict[str, Any]:
        """The stream's configuration and state; raises StreamMissing."""
        try:
            return await self.call(f"STREAM.INFO.{stream}", deadline_s=deadline_s)
        except ApiError as error:
            if error.code == STREAM_NOT_FOUND:
                raise StreamMissing(stream) from None
            raise

    async def stream_state(self, stream: str, *, deadline_s: float = 5.0) -> StreamState:
        """Where the stream stands; raises StreamMissing."""
        info = await self.stream_info(stream, deadline_s=deadline_s)
        state = info["state"]
        return StreamState(
            created=parse_time(info["created"]),
            first_sequence=state["first_seq"],
            last_sequence=state["last_seq"],
            messages=state["messages"],
        )

    async def message(
        self, stream: str, request: Mapping[str, Any], *, deadline_s: float = 5.0
    ) -> StoredMessage | None:
        """One message from the leader (`seq`, `last_by_subj`, `next_by_subj`), or None; raises StreamMissing."""
        try:
            answer = await self.call(f"STREAM.MSG.GET.{stream}", request, deadline_s=deadline_s)
        except ApiError as error:
            if error.code == MESSAGE_NOT_FOUND:
                return None
            if error.code == STREAM_NOT_FOUND:
                raise StreamMissing(stream) from None
            raise
        found = answer["message"]
        return StoredMessage(
            stream=stream,
            subject=found["subject"],
            sequence=found["seq"],
            stored_at=parse_time(found["time"]),
            headers=_headers(found.get("hdrs")),
            body=base64.b64decode(found.get("data") or ""),
        )


def parse_time(text: str) -> datetime:
    """RFC 3339 with nanoseconds, as JetStream writes it, cut to microseconds (which is what followers see too)."""
    return datetime.fromisoformat(_NANOSECONDS.sub(r".\1", text)).astimezone(UTC)


def _headers(encoded: str | None) -> dict[str, str]:
    if not encoded:
        return {}
    try:
        block = base64.b64decode(encoded).decode(errors="replace")
    except binascii.Error:
        return {}
    found: dict[str, str] = {}
    for line in block.split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            found[name.strip()] = value.strip()
    return found
