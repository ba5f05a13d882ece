"""Reading a stream from some point and following it, over whatever happens to the connection and the broker.

An own short pull loop and no KV watch or waiting fetch: those of nats-py are deaf for up to 19 seconds after a broker
restart. The consumer is short-lived, in memory, and made again behind the last message seen: nothing is counted on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections import deque
from datetime import UTC, datetime
from typing import Any, Literal

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from railweave.contracts.client.errors import ClientError, NotAnswered, Refused
from railweave.contracts.client.link import ApiRefused, Link
from railweave.contracts.wire import StoredMessage

_log = logging.getLogger("railweave.client")

Start = Literal["latest", "all", "new"]
"""`latest`: the last message of every subject, then what comes. `all`: all that is stored first. `new`: what comes."""

_STREAM_NOT_FOUND = 10059
_BATCH = 256
_EXPIRES_S = 2.0
_HEARTBEAT_S = 0.5
_SILENCE_S = 1.25
"""Two and a half heartbeats: the server or the consumer is gone."""
_LOOK_S = 0.1
"""How soon a reconnect is noticed."""
_FORGOTTEN_AFTER_S = 30
_LONGEST_WAIT_S = 2.0
_NANO = 1_000_000_000


class StreamReader:
    """The messages of one stream that match one filter, in order, each once.

    Args:
        link: an open link.
        stream: the stream's name.
        subject: the filter. One, so that a user may be given the right to make consumers on his own subjects alone.
        start: where to begin.
        start_after: begin behind this sequence instead (resume).
        patience_s: how long `open` waits for the stream to be there.
    """

    def __init__(
        self,
        link: Link,
        stream: str,
        subject: str,
        *,
        start: Start,
        start_after: int | None = None,
        patience_s: float = 10.0,
    ) -> None:
        self._link = link
        self._stream = stream
        self._subject = subject
        self._start: Start = start
        self._patience_s = patience_s
        self._last = start_after
        self._created: str | None = None
        self._consumer: str | None = None
        self._consumer_sequence = 0
        self._pending = 0
        self._reconnects = 0
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._came: deque[Msg] = deque()
        self._requests = 0
        self._wanted = 0
        self._heard = 0.0
        self._is_lost = False
        self._wake = asyncio.Event()

    @property
    def is_caught_up(self) -> bool:
        """Whether everything stored has been given."""
        return self._pending == 0 and not self._came

    async def open(self) -> None:
        """Make the consumer, so that nothing stored from now on is missed.

        Raises:
            Refused: the broker does not allow it, or there is no such stream.
            NotAnswered: JetStream does not answer.
        """
        deadline = asyncio.get_running_loop().time() + self._patience_s
        while True:
            try:
                await self._make_consumer()
                return
            except ClientError as error:
                is_final = isinstance(error, Refused) and not _may_pass(error)
                if is_final or asyncio.get_running_loop().time() >= deadline:
                    raise
                await asyncio.sleep(_LOOK_S)

    async def close(self) -> None:
        """Forget the consumer."""
        consumer = self._consumer
        await self._drop_consumer()
        if consumer is not None and self._link.is_up:
            try:
                await self._link.api(f"CONSUMER.DELETE.{self._stream}.{consumer}", None, 1.0)
            except ClientError:
                _log.debug("%s is left to its inactivity threshold", consumer)

    async def next(self) -> StoredMessage:
        """Wait for the next message. May be cancelled without losing one."""
        while True:
            while self._came:
                message = self._take(self._came[0])
                if message is None:
                    await self._drop_consumer()
                    break
                self._came.popleft()
                if self._last is None or message.sequence > self._last:
                    self._last = message.sequence
                    return message
            if self._consumer is None or self._is_lost or self._reconnects != self._link.reconnects:
                await self._make_consumer_again()
            await self._ask()
            await self._listen()

    def _take(self, message: Msg) -> StoredMessage | None:
        """Read a delivered message; None where one before it is missing."""
        # $JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<attempt>.<stream seq>.<consumer seq>.<time>.<pending>
        tokens = message.reply.split(".")
        at = 5 if len(tokens) == 9 else 7
        stream_sequence, consumer_sequence, stored_at, pending = (int(token) for token in tokens[at : at + 4])
        if consumer_sequence != self._consumer_sequence + 1:
            return None
        self._consumer_sequence = consumer_sequence
        self._pending = pending
        return StoredMessage(
            stream=self._stream,
            subject=message.subject,
            sequence=stream_sequence,
            stored_at=datetime.fromtimestamp(stored_at // 1000 / 1_000_000, UTC),
            headers=message.headers or {},
            body=message.data,
        )

    async def _make_consumer_again(self) -> None:
        wait_s = _LOOK_S
        while True:
            self._check_open()
            await self._drop_consumer()
            try:
                await self._make_consumer()
                return
            except ClientError as error:
                _log.warning("%s is not readable for now: %s", self._stream, error)
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)

    async def _make_consumer(self) -> None:
        reconnects = self._link.reconnects
        info = await self._link.api(f"STREAM.INFO.{self._stream}", None)
        last_stored = int(info["state"]["last_seq"])
        is_another = self._created is not None and info["created"] != self._created
        if is_another or (self._last or 0) > last_stored:
            # Lost, or put back to an older copy: what is there now is all there is, so it is told from the start.
            self._last = None
        elif self._created is None and self._last is None and self._start == "new":
            self._last = last_stored
        self._created = info["created"]
        name = f"rw-client-{secrets.token_hex(8)}"
        inbox = f"{self._link.client.new_inbox()}."
        self._inbox, self._came, self._consumer_sequence = inbox, deque(), 0
        self._wanted, self._is_lost, self._reconnects = 0, False, reconnects
        self._subscription = await self._link.client.subscribe(f"{inbox}*", cb=self._deliver)
        config: dict[str, Any] = {
            "name": name,
            "ack_policy": "none",
            "filter_subject": self._subject,
            "inactive_threshold": _FORGOTTEN_AFTER_S * _NANO,
            "mem_storage": True,
            "num_replicas": 1,
            **self._position(),
        }
        made = await self._link.api(
            f"CONSUMER.CREATE.{self._stream}.{name}.{self._subject}",
            {"stream_name": self._stream, "config": config, "action": "create"},
        )
        self._pending = int(made.get("num_pending", 0))
        self._consumer = name

    def _position(self) -> dict[str, Any]:
        if self._last is not None:
            return {"deliver_policy": "by_start_sequence", "opt_start_seq": self._last + 1}
        return {"deliver_policy": "last_per_subject" if self._start == "latest" else "all"}

    async def _drop_consumer(self) -> None:
        subscription, self._subscription, self._consumer = self._subscription, None, None
        self._came.clear()
        if subscription is not None and not self._link.client.is_closed:
            await subscription.unsubscribe()

    async def _ask(self) -> None:
        if self._wanted > 0 or self._came or not self._link.is_up:
            return
        self._requests += 1
        self._wanted = _BATCH
        self._heard = asyncio.get_running_loop().time()
        request = {
            "batch": _BATCH,
            "expires": int(_EXPIRES_S * _NANO),
            "idle_heartbeat": int(_HEARTBEAT_S * _NANO),
        }
        await self._link.client.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}",
            json.dumps(request).encode(),
            reply=f"{self._inbox}{self._requests}",
        )

    async def _listen(self) -> None:
        """Wait until something came, or a moment has passed."""
        self._check_open()
        self._wake.clear()
        if not self._came:
            try:
                async with asyncio.timeout(_LOOK_S):
                    await self._wake.wait()
            except TimeoutError:
                silent_s = asyncio.get_running_loop().time() - self._heard
                if self._link.is_up and self._wanted > 0 and silent_s > _SILENCE_S:
                    self._is_lost = True

    def _check_open(self) -> None:
        if self._link.client.is_closed:
            raise NotAnswered("the connection is closed")

    async def _deliver(self, message: Msg) -> None:
        if self._inbox and message.subject.startswith(self._inbox):
            self._hear(message)
        elif message.reply.startswith("$JS.ACK.") and f".{self._consumer}." in message.reply:
            self._came.append(message)
            self._wanted -= 1
        self._heard = asyncio.get_running_loop().time()
        self._wake.set()

    def _hear(self, message: Msg) -> None:
        headers = message.headers or {}
        status, text = headers.get("Status", ""), headers.get("Description", "")
        if status == "100":
            # It has nothing for us: what was said to be pending has expired or was replaced since.
            self._pending = 0
            return
        if message.subject != f"{self._inbox}{self._requests}":
            return
        self._wanted = 0
        if status in {"404", "408"}:
            self._pending = 0
        elif status == "503" or (status == "409" and "Consumer" in text):
            self._is_lost = True
        elif status == "409":
            _log.debug("%s: %s", self._stream, text)


def _may_pass(error: Refused) -> bool:
    return isinstance(error, ApiRefused) and (error.status == 503 or error.code == _STREAM_NOT_FOUND)
