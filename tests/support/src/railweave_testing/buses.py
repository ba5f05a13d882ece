"""Builders for tests on the bus: connections, streams of one's own, and what a follower heard."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from railweave.contracts.wire import StoredMessage, WireMessage
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus, BusSettings
from railweave.runtime.history import ResetCause
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.streams import ConsumerSpec, StreamSpec

_number = itertools.count(1)


class CountingObserver:
    """Counts what the bus counts: `counts["redeliveries"]`."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def count(self, name: str, amount: int = 1, **labels: str) -> None:
        """Add to the counter, and to the one with its first label (`nats_errors:Disconnected`)."""
        self.counts[name] += amount
        for label in labels.values():
            self.counts[f"{name}:{label}"] += amount

    def took(self, name: str, seconds: float, **labels: str) -> None:
        """Count an observation as if it were an event (`publish`, `publish:stored`)."""
        self.count(name, 1, **labels)


@contextlib.asynccontextmanager
async def connected(
    server: LocalNatsServer, *, observer: CountingObserver | None = None, **settings: object
) -> AsyncIterator[Bus]:
    """A bus on `server`, closed at the end. `settings` are fields of BusSettings."""
    wanted = replace(BusSettings(servers=(server.url,), name="test", connect_patience_s=10.0), **settings)  # type: ignore[arg-type]
    bus = await Bus.connect(wanted, observer=observer)
    async with bus:
        yield bus


@dataclass(frozen=True, slots=True)
class OwnStream:
    """A stream of one test: its name, and subjects under a token of its own."""

    name: str
    token: str

    def subject(self, tail: str) -> str:
        """`t.<token>.<tail>`."""
        return f"t.{self.token}.{tail}"

    def message(self, tail: str, body: str | bytes = b"x", msg_id: str | None = None, **headers: str) -> WireMessage:
        """A message on a subject of this stream; header names are written with _ for -."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return WireMessage(self.subject(tail), body.encode() if isinstance(body, str) else body, named, msg_id)

    def messages(self, count: int, prefix: str = "k") -> list[WireMessage]:
        """`count` messages on as many subjects."""
        return [self.message(f"{prefix}.{number}", f"{prefix}{number}") for number in range(count)]


async def own_stream(bus: Bus, *consumers: ConsumerSpec, storage: str = "file", **spec: object) -> OwnStream:
    """Make a stream that no other test has; `spec` are fields of StreamSpec, consumers get its name and filters."""
    own = OwnStream(f"T{next(_number)}_{uuid.uuid4().hex[:8]}", uuid.uuid4().hex[:8])
    wanted = StreamSpec(own.name, (own.subject(">"),), "of a test", **spec)  # type: ignore[arg-type]
    made = await bootstrap(
        bus,
        storage="memory" if storage == "memory" else "file",
        streams=[wanted],
        consumers=[replace(consumer, stream=own.name) for consumer in consumers],
    )
    assert all(drift.action == "created" for drift in made), made
    return own


@dataclass(slots=True)
class Heard:
    """What a follower told, slice by slice; pass its methods to `Bus.follow`."""

    slices: list[list[StoredMessage]] = field(default_factory=list)
    resets: list[ResetCause] = field(default_factory=list)
    slices_before_reset: int = 0

    def on_messages(self, messages: Sequence[StoredMessage]) -> None:
        """Take a slice."""
        self.slices.append(list(messages))

    def on_reset(self, cause: ResetCause) -> None:
        """Take a reset: what was heard is void."""
        self.resets.append(cause)
        self.slices_before_reset = len(self.slices)

    @property
    def messages(self) -> list[StoredMessage]:
        """What was told since the last reset, in order."""
        return [message for part in self.slices[self.slices_before_reset :] for message in part]

    @property
    def sequences(self) -> list[int]:
        """The sequences of `messages`."""
        return [message.sequence for message in self.messages]

    @property
    def latest(self) -> dict[str, str]:
        """The last body of each subject."""
        return {message.subject: message.body.decode() for message in self.messages}


@contextlib.asynccontextmanager
async def frozen(server: LocalNatsServer) -> AsyncIterator[None]:
    """The broker frozen (SIGSTOP), every thread of it, until the end of the block."""
    server.pause()
    try:
        # The signal returns before the threads have stopped: on a busy machine one may still answer.
        await eventually(lambda: all(_state(path) == "T" for path in Path(f"/proc/{server.pid}/task").iterdir()))
        yield
    finally:
        server.resume()


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


async def eventually(holds: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait until `holds()`; raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110 - what is waited for is anything a test can see
            await asyncio.sleep(0.005)
