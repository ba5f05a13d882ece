"""After the record: events for schedulers, then acks, in the order of the commits they follow from.

It runs beside the next commit. What is not announced when the process dies is announced by the next committer: the
events' ids make that harmless.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import structlog

from railweave.contracts.wire import WireMessage
from railweave.runtime.bus import Bus
from railweave.runtime.delivery import Delivery
from railweave.runtime.errors import OutcomeUnknown, PublishRefused

_log = structlog.stdlib.get_logger(__name__)
_PAUSE_S = 0.5


class Announcer:
    """A queue of (events, deliveries to ack), worked off one after the other."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._queue: deque[tuple[Sequence[WireMessage], Sequence[Delivery]]] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def put(self, events: Sequence[WireMessage], done: Sequence[Delivery]) -> None:
        """Announce events, then ack what caused them."""
        if events or done:
            self._queue.append((events, done))
            self._idle.clear()
            self._wake.set()

    async def drain(self, timeout_s: float) -> bool:
        """Wait until everything put so far is out; whether it was in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            if not self._queue:
                self._idle.set()
                self._wake.clear()
                await self._wake.wait()
                continue
            events, done = self._queue[0]
            if events and not await self._published(events):
                await asyncio.sleep(_PAUSE_S)
                continue
            for delivery in done:
                await delivery.ack()
            self._queue.popleft()

    async def _published(self, events: Sequence[WireMessage]) -> bool:
        try:
            await self._bus.publish_many(events)
        except OutcomeUnknown as error:
            _log.warning("announcing again", error=str(error))
            return False
        except PublishRefused as error:
            # Refused for good (a subject no stream has, a payload too large): the record has the answer all the same.
            _log.error("an announcement was refused", error=str(error), events=[event.msg_id for event in events[:5]])
        return True
