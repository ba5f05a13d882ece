"""A leader lease: who of several instances is active now. A hint that saves work; the stream's fence is the guard.

The lease is a record in LEASES, written by compare-and-set on its subject's last sequence and polled from the leader
once a second (watches were blind for seconds after a broker restart). No clocks are compared: a standby takes over when
it has seen the same sequence for longer than the holder's TTL on its own monotonic clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from nats.nuid import NUID

from railweave.contracts.codec import encode_token
from railweave.contracts.wire import StoredMessage, WireMessage
from railweave.runtime.bus import Bus
from railweave.runtime.errors import ApiError, BusUnavailable, OutcomeUnknown, PublishRefused, StaleFence, StreamMissing
from railweave.runtime.streams import LEASES

_log = logging.getLogger("railweave.lease")
_NUID = NUID()


class _Role(enum.Enum):
    STANDBY = "standby"
    HOLDER = "holder"


@dataclass(frozen=True, slots=True)
class _Record:
    """What the lease's record says, and its sequence (0: there is none)."""

    sequence: int
    holder: str
    tenure: str
    ttl_s: float
    is_released: bool


_NOBODY = _Record(0, "", "", 0.0, is_released=True)


class LeaderLease:
    """One instance's claim to be the active one of `name`. `async with` it, or `run()` in a task group.

    States: standby -> (nobody, released, or silent for a TTL) -> holder -> (renewal refused or overdue) -> standby.
    """

    def __init__(
        self,
        bus: Bus,
        name: str,
        holder: str,
        ttl_s: float = 5.0,
        *,
        on_acquired: Callable[[], None] | None = None,
        on_lost: Callable[[], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is written before `run`.

        Args:
            bus: where LEASES is.
            name: what is led.
            holder: who we are, for people; instances need not differ in it.
            ttl_s: how long silence of the holder is borne. It renews at a third of it.
            on_acquired: called from the loop when we become the holder.
            on_lost: called from the loop when we are the holder no more: stop acting at once.
            monotonic: a clock in seconds that only goes forward.
        """
        self.name = name
        self.holder = holder
        self.ttl_s = ttl_s
        self._bus = bus
        self._on_acquired = on_acquired
        self._on_lost = on_lost
        self._monotonic = monotonic
        self._subject = f"rw.lease.{encode_token(name)}"
        self._poll_s = min(1.0, ttl_s / 5)
        self._tenure = _NUID.next().decode()  # tells our records from those of an instance of the same name
        self._role = _Role.STANDBY
        self._sequence = 0
        self._renewed_at = 0.0  # when the last renewal that succeeded was begun
        self._seen = _NOBODY
        self._seen_at = monotonic()
        self._acquired = asyncio.Event()
        self._lost = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_held(self) -> bool:
        """Whether we are the holder, as far as we know: past the TTL without a renewal we are not."""
        return self._role is _Role.HOLDER and self._monotonic() - self._renewed_at < self.ttl_s

    @property
    def current_holder(self) -> str | None:
        """Who holds it, as last seen; None when nobody does."""
        return None if self._seen.is_released else self._seen.holder

    async def wait_acquired(self) -> None:
        """Wait until we are the holder."""
        await self._acquired.wait()

    async def wait_lost(self) -> None:
        """Wait until we are the holder no more (at once when we are not)."""
        if self._role is _Role.HOLDER:
            await self._lost.wait()

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[LeaderLease]:
        """Run until the lease is ours, and release it at the end. Look at `is_held` or `wait_lost` meanwhile."""
        async with self:
            await self.wait_acquired()
            yield self

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self.run(), name=f"lease-{self.name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.release()

    async def run(self) -> None:
        """Try to become and stay the holder until cancelled. Does not release: see `release`.

        Raises:
            BusClosed: the connection is closed for good.
        """
        while True:
            try:
                if self._role is _Role.HOLDER:
                    await self._renew()
                else:
                    await self._watch()
            except (BusUnavailable, OutcomeUnknown, StreamMissing, ApiError, PublishRefused) as error:
                _log.info("lease %s: %s", self.name, error)
            self._give_up_when_overdue()
            pause_s = self.ttl_s / 3 if self._role is _Role.HOLDER else self._poll_s
            if self._role is _Role.HOLDER and self._monotonic() - self._renewed_at > pause_s:
                pause_s = min(0.1, self.ttl_s / 20)  # a renewal failed: be quick
            await asyncio.sleep(pause_s * random.uniform(0.9, 1.0))

    async def release(self) -> None:
        """Give the lease back, so that a standby takes over at its next poll; does nothing when it is not ours."""
        if self._role is not _Role.HOLDER:
            return
        try:
            await self._write(self._sequence, is_released=True, deadline_s=1.0)
        except (BusUnavailable, OutcomeUnknown, PublishRefused) as error:
            _log.info("lease %s is left to expire: %s", self.name, error)
        self._lose("released")

    async def _watch(self) -> None:
        record = await self._read()
        now = self._monotonic()
        if record.sequence != self._seen.sequence or record.tenure != self._seen.tenure:
            self._seen, self._seen_at = record, now
        # A holder may have been started with a longer TTL than ours: it counts on its own.
        is_silent = now - self._seen_at > max(record.ttl_s, self.ttl_s)
        if record.is_released or is_silent or record.tenure == self._tenure:
            await self._take(record)

    async def _take(self, record: _Record) -> None:
        begun = self._monotonic()
        try:
            sequence = await self._write(record.sequence, is_released=False, deadline_s=self.ttl_s / 3)
        except StaleFence:
            return  # another one was quicker
        self._sequence, self._renewed_at, self._role = sequence, begun, _Role.HOLDER
        self._seen = _Record(sequence, self.holder, self._tenure, self.ttl_s, is_released=False)
        self._lost.clear()
        self._acquired.set()
        _log.info("lease %s acquired by %s", self.name, self.holder)
        if self._on_acquired is not None:
            self._on_acquired()

    async def _renew(self) -> None:
        begun = self._monotonic()
        try:
            self._sequence = await self._write(self._sequence, is_released=False, deadline_s=self.ttl_s / 6)
        except StaleFence:
            # Either someone took it, or a renewal whose answer was lost was stored after all.
            record = await self._read()
            if record.tenure != self._tenure or record.is_released:
                self._seen, self._seen_at = record, self._monotonic()
                self._lose(f"held by {record.holder or 'nobody'}")
                return
            self._sequence = record.sequence
            return
        self._renewed_at = begun

    def _give_up_when_overdue(self) -> None:
        if self._role is _Role.HOLDER and self._monotonic() - self._renewed_at >= self.ttl_s:
            self._lose("could not be renewed in time")

    def _lose(self, why: str) -> None:
        _log.info("lease %s lost by %s: %s", self.name, self.holder, why)
        self._role = _Role.STANDBY
        self._seen_at = self._monotonic()
        self._acquired.clear()
        self._lost.set()
        if self._on_lost is not None:
            self._on_lost()

    async def _read(self) -> _Record:
        message = await self._bus.read_last(LEASES, self._subject, deadline_s=max(self._poll_s, 0.5))
        return _NOBODY if message is None else _record(message)

    async def _write(self, expected: int, *, is_released: bool, deadline_s: float) -> int:
        said: dict[str, Any] = {
            "holder": self.holder,
            "tenure": self._tenure,
            "ttl_s": self.ttl_s,
            "released": is_released,
        }
        message = WireMessage(self._subject, json.dumps(said).encode(), {"Content-Type": "application/json"})
        return await self._bus.put(LEASES, message, expected_subject_last=expected, deadline_s=deadline_s)


def _record(message: StoredMessage) -> _Record:
    try:
        said = json.loads(message.body)
        return _Record(
            sequence=message.sequence,
            holder=str(said["holder"]),
            tenure=str(said["tenure"]),
            ttl_s=min(float(said["ttl_s"]), 300.0),
            is_released=said["released"] is True,
        )
    except (ValueError, KeyError, TypeError):
        # Not a record of ours: whoever wrote it gets our TTL to write a better one.
        return _Record(message.sequence, "?", "", 0.0, is_released=False)
