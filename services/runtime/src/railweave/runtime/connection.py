"""One connection to NATS that never gives up: nats-py with the defaults a control plane needs.

What differs from plain nats-py 2.16, and why:
- reconnects for ever, with exponential backoff and jitter (the default closes for ever after 60 attempts);
- nothing is buffered while disconnected: whoever wrote repeats it with the same id, so no ghost is stored later;
- a half-open TCP connection is aborted after a bounded silence, and closing one never waits (nats.py #671:
  `wait_closed` blocks as long as the kernel keeps the unsent bytes, up to 15 minutes);
- a cancelled `flush()` does not kill the read loop when its PONG comes (row 30 of the bug list).

Not here: requests and their replies (replies.py), JetStream (jsapi.py, bus.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import ParseResult

from nats import errors as nats_errors
from nats.aio.client import Client, Srv
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport

from railweave.runtime.errors import (
    BusClosed,
    BusUnavailable,
    NotStored,
    OutcomeUnknown,
    PublishRefused,
    StaleFence,
)

_log = logging.getLogger("railweave.bus")
_ASCII_SPACE = " \t\n\r\x0b\x0c"
"""What `bytes.strip` takes away."""

_OUTCOMES = ((StaleFence, "stale"), (PublishRefused, "refused"), (NotStored, "not_stored"), (OutcomeUnknown, "unknown"))


class BusObserver(Protocol):
    """Where the bus counts what happens to it. `name` is a counter of `metrics.Metrics`, with its labels."""

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add `amount` to the counter `name` (labels of low cardinality only)."""

    def took(self, name: str, seconds: float, **labels: str) -> None:
        """Observe how long something took in the histogram `name`, `publish` or `handler`."""


class SilentObserver:
    """Counts nothing."""

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Do nothing."""

    def took(self, name: str, seconds: float, **labels: str) -> None:
        """Do nothing."""


@contextlib.contextmanager
def timed_write(observer: BusObserver, stream: str) -> Iterator[None]:
    """Observe a write to a stream: how long it took, and what became of it."""
    begun, outcome = time.perf_counter(), "stored"
    try:
        yield
    except BaseException as failure:
        outcome = next((name for kind, name in _OUTCOMES if isinstance(failure, kind)), "cut_short")
        if outcome == "stale":
            observer.count("commit_conflicts", stream=stream)
        raise
    finally:
        observer.took("publish", time.perf_counter() - begun, stream=stream, outcome=outcome)


@dataclass(frozen=True, slots=True)
class BusSettings:
    """How to reach NATS, and how patient to be. All times are in seconds."""

    servers: tuple[str, ...] = ("nats://127.0.0.1:4222",)
    name: str = "railweave"
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    credentials_file: Path | None = None
    nkey_seed_file: Path | None = None
    tls: ssl.SSLContext | None = None
    inbox_prefix: str = "_INBOX"
    connect_patience_s: float | None = None
    """How long `connect` waits for a server that is not there; None waits for ever."""
    connect_timeout_s: float = 2.0
    reconnect_wait_s: float = 0.1
    reconnect_wait_max_s: float = 2.0
    ping_interval_s: float = 5.0
    max_outstanding_pings: int = 2
    request_timeout_s: float = 2.0
    """One try of one request; writes and reads are repeated within their own deadlines."""


class _Transport(TcpTransport):
    """TCP that knows when it last heard something, and that closes without waiting for a dead peer."""

    def __init__(self, user_timeout_s: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.last_heard = time.monotonic()
        self._user_timeout_s = user_timeout_s

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        self.abort()  # a try that got TCP but no INFO leaves its socket behind
        await super().connect(uri, buffer_size, connect_timeout)
        self.last_heard = time.monotonic()
        if self._io_writer is None:
            return
        raw: socket.socket | None = self._io_writer.get_extra_info("socket")
        if raw is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            # The kernel gives up on unacknowledged bytes after this long, not after 15 minutes.
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._user_timeout_s * 1000))

    async def read(self, buffer_size: int) -> bytes:
        chunk: bytes = await super().read(buffer_size)
        self.last_heard = time.monotonic()
        return chunk

    async def wait_closed(self) -> None:
        writer = self._io_writer
        if writer is None:
            return
        closing = asyncio.ensure_future(writer.wait_closed())
        _, waiting = await asyncio.wait([closing], timeout=0.5)
        if waiting:
            self.abort()
            await asyncio.wait([closing], timeout=0.5)
        if closing.done():
            closing.exception()  # how a dead connection ended is of no interest
        else:
            closing.cancel()

    def abort(self) -> None:
        """Drop the connection at once, unsent bytes included."""
        if self._io_writer is not None:
            self._io_writer.transport.abort()


class _Client(Client):
    """nats-py's client with our transport, our backoff, and no memory over a disconnect."""

    def __init__(self, settings: BusSettings) -> None:
        super().__init__()
        self._railweave = settings
        self.failures = 0

    async def _connect_to_server(self, s: Srv) -> None:
        if self.failures:
            ceiling = min(
                self._railweave.reconnect_wait_max_s, self._railweave.reconnect_wait_s * 2 ** min(self.failures, 10)
            )
            await asyncio.sleep(ceiling * random.uniform(0.5, 1.0))
        self.failures += 1
        if self._transport is None:
            self._transport = _Transport(self._railweave.ping_interval_s * (self._railweave.max_outstanding_pings + 1))
        s.last_attempt = time.monotonic()
        await self._transport.connect(
            s.uri,
            buffer_size=64 * 1024,
            connect_timeout=self.options["connect_timeout"],
        )

    async def _attempt_reconnect(self) -> None:
        self._pending.clear()
        self._pending_data_size = 0
        await super()._attempt_reconnect()

    async def _process_pong(self) -> None:
        if self._pongs and self._pongs[0].done():
            self._pongs.pop(0)
            self._pongs_received += 1
            self._pings_outstanding = 0
            return
        await super()._process_pong()

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        """As nats-py's, which looks at every character of every name: a tenth of what a message costs to receive."""
        headers: dict[str, str] = {}
        for line in raw.decode("utf-8", "replace").split("\r\n"):
            name, colon, value = line.partition(":")
            name = name.strip(_ASCII_SPACE)
            if colon and name.isascii() and len(name.split()) <= 1 and name == name.strip():
                headers[name] = value.strip(_ASCII_SPACE)
        return headers

    async def quiesce(self, subscription: Subscription) -> None:
        """Tell the server to send no more, and still take what it has sent: `Subscription.unsubscribe` drops that."""
        await self._send_unsubscribe(subscription._id)  # noqa: SLF001 - nats-py has no public way but a racy drain

    @property
    def transport(self) -> _Transport | None:
        return self._transport if isinstance(self._transport, _Transport) else None

    @property
    def server_id(self) -> str:
        return str(self._server_info.get("server_id", ""))


class Connection:
    """The client, its state as others may wait for it, and who wants to know when it comes and goes."""

    def __init__(self, settings: BusSettings, observer: BusObserver) -> None:
        self.settings = settings
        self.observer = observer
        self.client = _Client(settings)
        self.on_connected: set[Callable[[], None]] = set()
        self.on_disconnected: set[Callable[[], None]] = set()
        self.on_error: set[Callable[[Exception], None]] = set()
        self._up = asyncio.Event()
        self._closed = asyncio.Event()
        self._closed_by_us = False
        self._on_closed: Callable[[], Awaitable[None] | None] | None = None
        self._watchdog: asyncio.Task[None] | None = None
        self._last_logged: dict[str, float] = {}

    async def open(self, on_closed: Callable[[], Awaitable[None] | None] | None) -> None:
        """Connect, however long it takes (or `connect_patience_s`); raises BusUnavailable when patience ends."""
        self._on_closed = on_closed
        patience_s = self.settings.connect_patience_s
        try:
            async with asyncio.timeout(patience_s):
                await self.client.connect(**self._options())
        except TimeoutError:
            await self._abandon()
            raise BusUnavailable(
                f"no NATS server at {', '.join(self.settings.servers)} within {patience_s} s", was_sent=False
            ) from None
        except asyncio.CancelledError:
            await self._abandon()
            raise
        self.client.failures = 0
        self._up.set()
        self._watchdog = asyncio.get_running_loop().create_task(self._watch(), name="bus-watchdog")

    async def _abandon(self) -> None:
        """Leave nothing of a connect that did not come to its end."""
        self._closed_by_us = True
        if self.client.transport is not None:
            self.client.transport.abort()
        with contextlib.suppress(Exception):
            await self.client.close()

    def _options(self) -> dict[str, Any]:
        settings = self.settings
        options: dict[str, Any] = {
            "servers": list(settings.servers),
            "name": settings.name,
            "inbox_prefix": settings.inbox_prefix,
            "error_cb": self._error,
            "disconnected_cb": self._disconnected,
            "reconnected_cb": self._reconnected,
            "closed_cb": self._was_closed,
            "connect_timeout": settings.connect_timeout_s,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": 0,  # _Client waits, with jitter
            "ping_interval": settings.ping_interval_s,
            "max_outstanding_pings": settings.max_outstanding_pings,
            "pending_size": 0,  # publishing while disconnected fails at once
        }
        if settings.user is not None:
            options |= {"user": settings.user, "password": settings.password or ""}
        if settings.token is not None:
            options["token"] = settings.token
        if settings.credentials_file is not None:
            options["user_credentials"] = str(settings.credentials_file)
        if settings.nkey_seed_file is not None:
            options["nkeys_seed"] = str(settings.nkey_seed_file)
        if settings.tls is not None:
            options["tls"] = settings.tls
        return options

    async def close(self) -> None:
        """Close for good. What is in flight should have been finished before."""
        self._closed_by_us = True
        if self._watchdog is not None:
            self._watchdog.cancel()
            await asyncio.gather(self._watchdog, return_exceptions=True)
        if not self.client.is_closed:
            await self.client.close()
        self._closed.set()

    @property
    def is_up(self) -> bool:
        """Whether a server is connected right now."""
        return self._up.is_set() and self.client.is_connected

    @property
    def is_closed(self) -> bool:
        """Whether the connection is gone for good."""
        return self._closed.is_set()

    async def wait_up(self, timeout_s: float | None = None) -> None:
        """Wait until connected; raises BusUnavailable after `timeout_s`, BusClosed when it can never be."""
        if self.is_closed:
            raise BusClosed("the connection is closed")
        if self.is_up:
            return
        try:
            async with asyncio.timeout(timeout_s):
                while not self.is_up:
                    if self.is_closed:
                        raise BusClosed("the connection is closed")
                    await self._up.wait()
                    if not self.client.is_connected:
                        await asyncio.sleep(0.01)  # between losing the server and being told so
        except TimeoutError:
            raise BusUnavailable("not connected to NATS", was_sent=False) from None

    async def publish(self, subject: str, body: bytes, reply: str, headers: dict[str, str] | None) -> None:
        """Hand bytes to the socket; raises BusUnavailable (not sent) while disconnected, BusClosed, ValueError."""
        try:
            await self.client.publish(subject, body, reply=reply, headers=headers)
        except nats_errors.OutboundBufferLimitError:
            raise BusUnavailable("not connected to NATS", was_sent=False) from None
        except (nats_errors.ConnectionClosedError, nats_errors.ConnectionDrainingError):
            raise BusClosed("the connection is closed") from None

    async def take_no_more(self, subscriptions: Sequence[Subscription], barrier: Callable[[], Awaitable[None]]) -> None:
        """Have the server send no more on `subscriptions`, and wait until what it had sent has reached their callbacks.

        Does nothing while disconnected. Unsubscribe afterwards. Raises what `barrier` raises.
        """
        if not self.is_up:
            return
        for subscription in subscriptions:
            await self.client.quiesce(subscription)
        await barrier()
        # Behind the barrier everything is in the queues; each subscription has a task that empties its own.
        while any(subscription.pending_msgs for subscription in subscriptions):  # noqa: ASYNC110 - nats-py tells nobody
            await asyncio.sleep(0.001)

    async def _watch(self) -> None:
        interval_s = self.settings.ping_interval_s
        limit_s = interval_s * (self.settings.max_outstanding_pings + 1)
        while True:
            await asyncio.sleep(interval_s / 2)
            transport = self.client.transport
            if not self.is_up or transport is None:
                continue
            silent_s = time.monotonic() - transport.last_heard
            if silent_s > limit_s:
                _log.warning("nothing heard from NATS for %.1f s although it was pinged: dropping the link", silent_s)
                self.observer.count("nats_errors", kind="HalfOpen")
                transport.abort()
                transport.last_heard = time.monotonic()

    async def _error(self, error: Exception) -> None:
        kind = type(error).__name__
        self.observer.count("nats_errors", kind=kind)
        now = time.monotonic()
        if now - self._last_logged.get(kind, -60.0) >= 10.0:
            self._last_logged[kind] = now
            _log.warning("nats: %s: %s", kind, str(error) or "no further text")
        for listener in list(self.on_error):
            listener(error)

    async def _disconnected(self) -> None:
        self._up.clear()
        if not self._closed_by_us:
            _log.warning("disconnected from NATS")
            self.observer.count("nats_errors", kind="Disconnected")
        for listener in list(self.on_disconnected):
            listener()

    async def _reconnected(self) -> None:
        self.client.failures = 0
        _log.info("reconnected to NATS")
        self.observer.count("reconnects")
        self._up.set()
        for listener in list(self.on_connected):
            listener()

    async def _was_closed(self) -> None:
        self._closed.set()
        self._up.set()  # wakes those who wait, who then find it closed
        if self._closed_by_us or self._on_closed is None:
            return
        _log.error("NATS closed the connection for good: %s", self.client.last_error)
        outcome = self._on_closed()
        if isinstance(outcome, Coroutine):
            await outcome
