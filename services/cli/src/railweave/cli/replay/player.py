"""Plays a trace as its scheduler would: submits at its times, starts what is prepared, ends what has run long enough.

It hears of its jobs from the stream and nothing else, so what it measures is what any scheduler would see.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from railweave.cli.replay import jobs as events
from railweave.cli.replay.ledger import Ledger, Stage
from railweave.cli.replay.traces import Trace, TraceJob
from railweave.contracts import StoredMessage, encode_event
from railweave.contracts.codec import decode_token
from railweave.contracts.envelope import Event
from railweave.contracts.job import Outcome
from railweave.runtime.bus import Bus
from railweave.runtime.streams import JOBS

_PUBLISHING = 64
_TICK_S = 0.002
_RELEASE_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a trace is played, in its seconds a second, and when patience ends (seconds of ours)."""

    speed: float
    limit_s: float
    per_node: int = 1


@dataclass(slots=True)
class Progress:
    """Where a replay stands."""

    ledger: Ledger = field(default_factory=Ledger)
    to_submit: int = 0
    submitted: int = 0
    behind_s: float = 0.0
    """How late the last submission was: the load generator's own honesty."""
    was_cut_short: bool = False


class Player:
    """One replay. `play` returns when every job has ended, or patience has."""

    def __init__(self, bus: Bus, trace: Trace, pace: Pace) -> None:
        self._bus = bus
        self._trace = trace
        self._pace = pace
        self._by_name = {job.name: job for job in trace.jobs}
        self.progress = Progress(to_submit=len(trace.jobs))
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self._ending: set[str] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._changed = asyncio.Event()

    async def play(self, every_second: Callable[[Progress], None]) -> None:
        """Play it, telling of the progress once a second.

        Raises:
            TimeoutError: jobs that were ended are not released in time; the ledger says which.
        """
        async with self._following(), asyncio.TaskGroup() as group:
            helpers = [group.create_task(self._publish()) for _ in range(_PUBLISHING)]
            helpers.append(group.create_task(self._tell(every_second)))
            try:
                async with asyncio.timeout(self._pace.limit_s):
                    await self._submit_all()
                    await self._all_ended()
            except TimeoutError:
                self.progress.was_cut_short = True
                await self._end_the_rest()
            finally:
                for timer in self._timers:
                    timer.cancel()
                for helper in helpers:
                    helper.cancel()

    @contextlib.asynccontextmanager
    async def _following(self) -> AsyncIterator[None]:
        filters = [f"rw.job.*.{events.CLUSTER}.*"]
        follower = self._bus.follow(
            JOBS, filters, self._heard, on_reset=lambda _cause: None, start="new", whole_batches=False
        )
        async with follower:
            await follower.wait_ready(10.0)
            yield

    async def _submit_all(self) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        origin = self._trace.jobs[0].arrival_s if self._trace.jobs else 0.0
        for job in self._trace.jobs:
            due = begun + (job.arrival_s - origin) / self._pace.speed
            if (wait_s := due - loop.time()) > _TICK_S:
                await asyncio.sleep(wait_s)
            self._queue.put_nowait(events.submitted(job, per_node=self._pace.per_node))
            self.progress.submitted += 1
            self.progress.behind_s = max(0.0, loop.time() - due)
            if self.progress.submitted % 32 == 0:
                await asyncio.sleep(0)

    async def _all_ended(self) -> None:
        while self.progress.ledger.ended < self.progress.submitted:
            self._changed.clear()
            await self._changed.wait()

    async def _end_the_rest(self) -> None:
        """Patience is over: whatever has not ended is ended, and must be released."""
        records = self.progress.ledger.records
        for name, job in self._by_name.items():
            record = records.get(name)
            if record is not None and record.stage not in {Stage.RELEASED, Stage.REJECTED}:
                self._end(job, Outcome.CANCELLED)
        async with asyncio.timeout(_RELEASE_PATIENCE_S):
            await self._all_ended()

    def _heard(self, messages: Sequence[StoredMessage]) -> None:
        for message in messages:
            _, _, event, _, token = message.subject.split(".")
            name = decode_token(token)
            job = self._by_name.get(name)
            if job is None:
                continue
            needs_body = event in {"pending", "rejected", "released"}
            data = json.loads(message.body)["data"] if needs_body else {}
            stage = self.progress.ledger.take(event, name, data, message.stored_at)
            if stage is Stage.PREPARED:
                self._queue.put_nowait(events.started(job))
            elif stage is Stage.ATTACHED:
                self._end_later(job)
            elif stage in {Stage.RELEASED, Stage.REJECTED}:
                self._changed.set()

    def _end_later(self, job: TraceJob) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(job.duration_s / self._pace.speed, self._end, job)
        self._timers.add(timer)

    def _end(self, job: TraceJob, outcome: Outcome = Outcome.SUCCEEDED) -> None:
        if job.name not in self._ending:
            self._ending.add(job.name)
            self._queue.put_nowait(events.ended(job, outcome))

    async def _publish(self) -> None:
        while True:
            event = await self._queue.get()
            await self._bus.publish(encode_event(event), deadline_s=30.0)

    async def _tell(self, every_second: Callable[[Progress], None]) -> None:
        while True:
            await asyncio.sleep(1.0)
            every_second(self.progress)
