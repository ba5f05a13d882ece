"""One continuous pull on one JetStream consumer: a request is always open, and never blind.

A waiting fetch of nats-py is deaf after a broker restart until its own timeout (nats.py #504). Here a request lives two
seconds at most, heartbeats tell of silence sooner, and after a reconnect it is sent again at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import NamedTuple

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from railweave.contracts.wire import StoredMessage
from railweave.runtime.connection import Connection
from railweave.runtime.errors import BusUnavailable, ConsumerLost

_NANO = 1_000_000_000
_EMPTY: dict[str, str] = {}


class DeliveredAs(NamedTuple):
    """What the acknowledgement subject of a delivered message says about it."""

    stream_sequence: int
    consumer_sequence: int
    attempt: int
    pending: int
    stored_at: datetime


def delivered_as(reply: str) -> DeliveredAs:
    """Read `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<attempt>.<seq>.<consumer seq>.<time>.<pending>`."""
    tokens = reply.split(".")
    at = 4 if len(tokens) == 9 else 6
    return DeliveredAs(
        attempt=int(tokens[at]),
        stream_sequence=int(tokens[at + 1]),
        consumer_sequence=int(tokens[at + 2]),
        stored_at=datetime.fromtimestamp(int(tokens[at + 3]) // 1000 / 1_000_000, UTC),
        pending=int(tokens[at + 4]),
    )


def stored_message(stream: str, message: Msg, delivered: DeliveredAs) -> StoredMessage:
    """The delivered message as the stream holds it."""
    return StoredMessage(
        stream=stream,
        subject=message.subject,
        sequence=delivered.stream_sequence,
        stored_at=delivered.stored_at,
        headers=message.headers or _EMPTY,
        body=message.data,
    )


class Puller:
    """Keeps up to `want()` messages asked for, and gives what came in slices as large as are there.

    Args:
        connection: where to pull.
        stream: the stream's name.
        consumer: the consumer's name.
        want: how many messages there is room for now, those on their way included; asked before every request.
        largest_request: the most messages of one request.
        expires_s: the life of a request.
        heartbeat_s: how often the server says that it is still there.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        consumer: str,
        *,
        want: Callable[[], int],
        largest_request: int = 2000,
        expires_s: float = 2.0,
        heartbeat_s: float = 0.5,
    ) -> None:
        self._connection = connection
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._name = f"{stream}/{consumer}"
        self._want = want
        self._largest_request = largest_request
        self._expires_s = expires_s
        self._heartbeat_s = heartbeat_s
        self._inbox = ""
        self._requests = 0
        self._open: dict[str, int] = {}  # inbox token of an open request -> messages still to come; oldest first
        self._stream = stream
        self._untouched: set[str] = set()  # open requests that nothing has come for
        self._came: list[Msg] = []
        self._is_idle = False
        self._lost: str | None = None
        self._is_draining = False
        self._is_late = False
        self._wake = asyncio.Event()
        self._subscription: Subscription | None = None

    async def open(self) -> None:
        """Subscribe; the first request goes with the first `next_slice`."""
        self._inbox = self._connection.client.new_inbox() + "."
        self._subscription = await self._connection.client.subscribe(self._inbox + "*", cb=self._take)
        self._connection.on_connected.add(self._reconnected)

    async def close(self) -> None:
        """Unsubscribe; what is asked for and still comes is lost to us (and redelivered where acks are explicit)."""
        self._connection.on_connected.discard(self._reconnected)
        subscription = self._subscription
        self._subscription = None
        if subscription is not None and not self._connection.client.is_closed:
            await subscription.unsubscribe()

    async def drain(self, barrier: Callable[[], Awaitable[None]]) -> list[Msg]:
        """Stop asking, and give everything the server had sent by then. `close` comes after."""
        self._is_draining = True
        if self._subscription is not None:
            await self._connection.take_no_more([self._subscription], barrier)
        came, self._came = self._came, []
        return came

    @property
    def has_more(self) -> bool:
        """Whether messages have come that no slice has given yet."""
        return bool(self._came)

    def poke(self) -> None:
        """Look at `want()` again: the slice that is waited for ends, empty."""
        self._is_idle = True
        self._wake.set()

    async def next_slice(self, timeout_s: float | None = None) -> list[Msg]:
        """Give what has come, or an empty list when the server says that there is nothing (or after `timeout_s`).

        Raises:
            ConsumerLost: the consumer is gone, or the server is silent although it is connected.
            BusClosed: the connection is closed for good.
        """
        silences = 0
        while True:
            if self._lost is None:
                await self._ask()
            if self._came:
                came, self._came = self._came, []
                return came
            if self._lost is not None:
                raise ConsumerLost(f"{self._name}: {self._lost}")
            if self._is_idle:
                self._is_idle = False
                return []
            if not self._connection.is_up:
                self._forget_requests()
                await self._connection.wait_up()
                continue
            silence_s = 2.5 * self._heartbeat_s
            if await self._is_woken(silence_s if timeout_s is None else timeout_s):
                continue
            if timeout_s is not None:
                return []
            if not self._open:
                continue  # nothing was wanted, so nothing is expected
            if self._connection.is_up:
                silences += 1
                self._forget_requests()
                if silences > 1:
                    raise ConsumerLost(f"{self._name}: silent for {2 * silence_s:g} s")

    async def _is_woken(self, patience_s: float) -> bool:
        """Wait until something comes; whether it did within `patience_s`."""
        self._wake.clear()
        self._is_late = False
        # A bare timer: there is one wait for each message, and `asyncio.timeout` costs more than the message.
        timer = asyncio.get_running_loop().call_later(patience_s, self._give_up_waiting)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
        return not self._is_late

    def _give_up_waiting(self) -> None:
        self._is_late = True
        self._wake.set()

    async def _ask(self) -> None:
        if self._is_draining:
            return
        batch = min(self._want() - sum(self._open.values()) - len(self._came), self._largest_request)
        # Topping up by single messages would cost a request each: wait for half a window, unless nothing is asked for.
        if batch <= 0 or (self._open and batch < self._largest_request // 2):
            return
        self._requests += 1
        token = str(self._requests)
        request = {
            "batch": batch,
            "expires": int(self._expires_s * _NANO),
            "idle_heartbeat": int(self._heartbeat_s * _NANO),
        }
        self._open[token] = batch
        self._untouched.add(token)
        try:
            await self._connection.publish(self._subject, json.dumps(request).encode(), self._inbox + token, None)
        except BusUnavailable:
            self._open.pop(token, None)  # the reconnect wakes us
            self._untouched.discard(token)

    async def _take(self, message: Msg) -> None:
        if not message.subject.startswith(self._inbox):
            self._came.append(message)
            for token in self._open:  # the server serves the oldest request first
                self._open[token] -= 1
                self._untouched.discard(token)
                if self._open[token] <= 0:
                    del self._open[token]
                break
        else:
            self._status(message)
        self._wake.set()

    def _status(self, message: Msg) -> None:
        headers = message.headers or _EMPTY
        status, text = headers.get("Status", ""), headers.get("Description", "")
        token = message.subject[len(self._inbox) :]
        if status == "100":
            self._is_idle = True
            return
        if token not in self._open:
            return  # of a request from before a reconnect
        del self._open[token]
        if token in self._untouched:
            self._untouched.discard(token)
            self._connection.observer.count("fetch_empty", stream=self._stream)
        if status in {"404", "408"}:
            self._is_idle = True
        elif status == "503":
            self._lost = "nobody serves it"
        elif status == "409" and "Consumer" in text and "Batch" not in text:
            self._lost = text.lower()
        elif status.startswith("4") and status != "409":
            self._lost = f"{status} {text}"

    def _forget_requests(self) -> None:
        self._open.clear()
        self._untouched.clear()

    def _reconnected(self) -> None:
        self._forget_requests()
        self._wake.set()
