"""The read model: one projector writes jobs into Redis, for the command line, the console and schedulers.

It may be lost at any time: it is written anew from the record's heads when Redis was emptied or restarted, and
nothing else ever depends on it. Every write carries the head's epoch and sequence, so that an older one changes
nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque

import structlog

from railweave.contracts.envelope import Event, decode_event
from railweave.contracts.errors import ContractError
from railweave.contracts.placement import Head, JobState
from railweave.contracts.wire import StoredMessage
from railweave.jobs.rows import ALL_JOBS, projected
from railweave.runtime.bus import Bus
from railweave.runtime.cluster import ClusterState
from railweave.runtime.redis_store import MemoryLoss, Projected, RedisUnavailable, WorkingMemory
from railweave.runtime.streams import PLACEMENTS, TOMBSTONE_TTL_S

_log = structlog.stdlib.get_logger(__name__)

PROJECTION = "jobs"
HISTORY = "history"
_SLICE = 500
_HISTORY_EVERY_S = 10.0
_HISTORY_KEPT = 8640
_PAUSE_S = 0.5


class Projector:
    """Run by the instance that holds the projector's lease."""

    def __init__(self, bus: Bus, memory: WorkingMemory, state: ClusterState) -> None:
        self._bus = bus
        self._memory = memory
        self._state = state
        self._queue: deque[Projected] = deque()
        self._wake = asyncio.Event()
        self._rebuild = True
        memory.on_loss(self._on_loss)

    def take(self, event: Event, message: StoredMessage) -> None:
        """Listener of the shared view."""
        if isinstance(event, Head):
            self._queue.append(projected(event, message.sequence, TOMBSTONE_TTL_S))
            self._wake.set()

    def _on_loss(self, loss: MemoryLoss) -> None:
        _log.warning("the read model is written anew", loss=str(loss))
        self._rebuild = True
        self._wake.set()

    async def run(self) -> None:
        """Project until cancelled."""
        self._state.listeners.append(self.take)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_history())
                while True:
                    try:
                        await self._work()
                    except RedisUnavailable as error:
                        _log.info("the read model waits for Redis", error=str(error))
                        await asyncio.sleep(_PAUSE_S)
        finally:
            self._state.listeners.remove(self.take)

    async def _work(self) -> None:
        if self._rebuild or await self._memory.needs_rebuild(PROJECTION):
            await self._write_anew()
        while not self._rebuild:
            if not self._queue:
                self._wake.clear()
                await self._wake.wait()
                continue
            documents = [self._queue[index] for index in range(min(len(self._queue), _SLICE))]
            await self._memory.apply(documents)
            for _ in documents:
                self._queue.popleft()

    async def _write_anew(self) -> None:
        self._rebuild = False
        found: list[StoredMessage] = []
        follower = self._bus.follow(PLACEMENTS, ("rw.head.>",), found.extend, on_reset=lambda _: found.clear())
        async with follower:
            await follower.wait_ready()
        documents = []
        for message in found:
            try:
                event = decode_event(message).data
            except ContractError:
                continue
            if isinstance(event, Head):
                documents.append(projected(event, message.sequence, TOMBSTONE_TTL_S))
        for start in range(0, len(documents), _SLICE):
            await self._memory.apply(documents[start : start + _SLICE])
        await self._memory.mark_rebuilt(PROJECTION)
        _log.info("the read model is complete", jobs=len(documents))

    async def _keep_history(self) -> None:
        """Jobs by state every ten seconds, for a day: what a console plots."""
        while True:
            await asyncio.sleep(_HISTORY_EVERY_S)
            counts = dict.fromkeys(JobState, 0)
            for head in self._state.heads.values():
                counts[head.state] += 1
            fields = {str(state): count for state, count in counts.items()}
            try:
                await self._memory.pipeline(
                    "history",
                    lambda pipe, fields=fields: pipe.xadd(  # type: ignore[misc]
                        self._memory.key(ALL_JOBS, HISTORY), fields, maxlen=_HISTORY_KEPT, approximate=True
                    ),
                )
            except RedisUnavailable:
                continue
