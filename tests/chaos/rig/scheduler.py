"""A scheduler: submits jobs, starts what is prepared, ends what has run, and says again what was not answered.

It hears from the stream alone, keeps its own books, and reconciles as a real one would: what it has heard nothing of
for a while it asks about, and says what it has said of it again. Ids make that harmless.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from rig.plan import CLUSTER, Job, Life

from railweave.contracts import StoredMessage, decode_event, encode_event
from railweave.contracts.client import ClientError, Link, QueryFailed, ask
from railweave.contracts.envelope import Event
from railweave.contracts.identity import JobRun
from railweave.contracts.job import (
    JobAttached,
    JobEnded,
    JobEvent,
    JobPending,
    JobPlaced,
    JobPrepared,
    JobRejected,
    JobReleased,
    JobReleasing,
    JobStarted,
    JobSubmitted,
    LiveRun,
    Outcome,
    SchedulerSnapshot,
    StartedWorker,
)
from railweave.contracts.placement import JobState
from railweave.contracts.query import JOB_SUBJECT, JobDetail, JobQuery
from railweave.runtime.bus import Bus
from railweave.runtime.errors import BusError
from railweave.runtime.streams import JOBS

_TICK_S = 0.1
_SILENCE_S = 4.0
"""After so long without a word of a run it is asked about."""
_SNAPSHOT_EVERY_S = 3.0


class Stage(StrEnum):
    SUBMITTED = "submitted"
    PREPARED = "prepared"
    ATTACHED = "attached"
    ENDED = "ended"
    """Its end was said; not yet released."""
    OVER = "over"


@dataclass(slots=True)
class Run:
    """One run as its scheduler knows it."""

    life: Life
    said_at: float
    stage: Stage = Stage.SUBMITTED
    heard_at: float = 0.0
    ends_at: float | None = None
    was_started: bool = False
    was_attached: bool = False
    state: str = ""
    nodes: tuple[str, ...] = ()

    @property
    def id(self) -> JobRun:
        return self.life.spec.run


class Answer(StrEnum):
    """What asking about a run gave, where it was not how it stands."""

    NONE = "nobody answered"
    UNKNOWN = "no such job"
    ANOTHER = "another run has the name"


@dataclass(slots=True)
class Tally:
    """What became of the runs."""

    submitted: int = 0
    attached: int = 0
    released: int = 0
    rejected: int = 0
    given_back: int = 0
    """Released without its scheduler having asked for it."""
    said_again: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """Why runs were given back or rejected."""


class Namespaces:
    """Workers' network namespaces, as a container runtime makes them. This one makes none: simulated nodes."""

    def paths(self, run: JobRun, workers: int) -> list[str]:
        return [f"/run/netns/{run.job}-{int(run.attempt)}-{rank}" for rank in range(workers)]

    def make(self, run: JobRun, workers: int) -> None: ...

    def remove(self, run: JobRun, *, is_over: bool = False) -> None: ...


class Scheduler:
    """One scheduler with its plan. `async with` it; `finished` when every run is over."""

    def __init__(self, bus: Bus, plan: Sequence[Job], *, namespaces: Namespaces | None = None) -> None:
        self._bus = bus
        self._link = Link(bus.connection.client)
        self._waiting = sorted(plan, key=lambda job: job.at_s)
        self._following: dict[JobRun, list[Life]] = {}
        self._namespaces = namespaces or Namespaces()
        self._out: asyncio.Queue[Event] = asyncio.Queue()
        self._begun = time.monotonic()
        self._snapshots = int(time.time())
        self._snapshot_at = 0.0
        self._asked: set[JobRun] = set()
        self._changed = asyncio.Event()
        self.runs: dict[JobRun, Run] = {}
        self.tally = Tally()
        self._group: asyncio.TaskGroup | None = None

    # -- the outside -------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[Scheduler]:
        """Be the scheduler in a `with`."""
        follower = self._bus.follow(
            JOBS, [f"rw.job.*.{CLUSTER}.*"], self._heard, on_reset=self._lost, start="new", whole_batches=False
        )
        async with follower, asyncio.TaskGroup() as group:
            self._group = group
            await follower.wait_ready(30.0)
            self._begun = time.monotonic()
            tasks = [group.create_task(self._publish()), group.create_task(self._tick())]
            try:
                yield self
            finally:
                for task in tasks:
                    task.cancel()

    @property
    def is_finished(self) -> bool:
        """Whether everything planned was submitted and is over."""
        return not self._waiting and not self._following and all(run.stage is Stage.OVER for run in self.runs.values())

    async def wait_finished(self, timeout_s: float) -> bool:
        """Wait until it is finished; whether it is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self.is_finished:
                    self._changed.clear()
                    await self._changed.wait()
        return self.is_finished

    @property
    def unfinished(self) -> list[str]:
        return [
            f"{run.id} (uid {run.id.uid}) is {run.stage}, last heard {run.state or 'nothing'}"
            for run in self.runs.values()
            if run.stage is not Stage.OVER
        ]

    def attached(self) -> dict[JobRun, Run]:
        """Runs that are attached, and that nothing has been said against."""
        return {run.id: run for run in self.runs.values() if run.stage is Stage.ATTACHED}

    def add(self, jobs: Sequence[Job]) -> None:
        """Submit more, now."""
        for job in jobs:
            self._submit(job.lives[0])

    def end_all(self) -> None:
        """End whatever is not over, and submit nothing more."""
        self._waiting.clear()
        self._following.clear()
        for run in self._live():
            self._end(run, Outcome.CANCELLED)

    # -- what is said ------------------------------------------------------------------------------------------------

    def _say(self, event: Event) -> None:
        self._out.put_nowait(event)

    async def _publish(self) -> None:
        while True:
            event = await self._out.get()
            while True:
                try:
                    await self._bus.publish(encode_event(event), deadline_s=30.0)
                    break
                except BusError:
                    await asyncio.sleep(0.2)

    def _submit(self, life: Life) -> None:
        run = Run(life, time.monotonic(), heard_at=time.monotonic())
        self.runs[run.id] = run
        self.tally.submitted += 1
        self._say(JobSubmitted.of(life.spec))

    def _start(self, run: Run) -> None:
        spec = run.life.spec
        workers = len(spec.places()) if spec.wants_network else 0
        paths = self._namespaces.paths(run.id, workers)
        if not run.was_started:
            self._namespaces.make(run.id, workers)
        run.was_started = True
        started = tuple(StartedWorker(worker=rank, netns=path) for rank, path in enumerate(paths))
        self._say(JobStarted(**_identity(run.id), workers=started))

    def _end(self, run: Run, outcome: Outcome | None = None) -> None:
        run.stage = Stage.ENDED
        if run.life.takes_namespaces:
            self._namespaces.remove(run.id)
        self._say(JobEnded(**_identity(run.id), outcome=outcome or run.life.outcome))

    # -- what is heard -----------------------------------------------------------------------------------------------

    def _heard(self, messages: Sequence[StoredMessage]) -> None:
        for message in messages:
            event = decode_event(message).data
            if not isinstance(event, JobEvent):
                continue
            run = self.runs.get(event.run)
            if run is None or run.stage is Stage.OVER:
                continue
            match event:
                case JobPending():
                    self._is(run, JobState.PENDING)
                case JobPlaced():
                    run.nodes = tuple(str(node) for node in event.nodes)
                    self._is(run, JobState.PLACED)
                case JobPrepared():
                    self._is(run, JobState.PREPARED)
                case JobAttached():
                    run.nodes = tuple(str(node) for node in event.nodes)
                    self._is(run, JobState.ATTACHED)
                case JobReleasing():
                    self._is(run, JobState.RELEASING)
                case JobReleased(requeued=True):
                    run.was_started = False
                    self._is(run, JobState.PENDING)
                case JobReleased():
                    self._is(run, JobState.RELEASED, [str(reason.code) for reason in event.reasons])
                case JobRejected():
                    self._is(run, JobState.REJECTED, [str(reason.code) for reason in event.reasons])
                case _:
                    pass

    def _is(self, run: Run, state: JobState, reasons: Sequence[str] = ()) -> None:
        """A run has come into a state, or is said to be in it once more."""
        run.heard_at = time.monotonic()
        run.state = str(state)
        match state:
            case JobState.PREPARED if run.stage is Stage.SUBMITTED:
                run.stage = Stage.PREPARED
                self._start(run)
            case JobState.ATTACHED if run.stage in {Stage.SUBMITTED, Stage.PREPARED}:
                run.stage = Stage.ATTACHED
                run.ends_at = run.heard_at + run.life.runs_s
                self.tally.attached += not run.was_attached
                run.was_attached = True
            case JobState.RELEASED | JobState.REJECTED:
                self._over(run, state, reasons)
            case _:
                pass

    def _over(self, run: Run, state: JobState, reasons: Sequence[str]) -> None:
        if state is JobState.REJECTED:
            self.tally.rejected += 1
            self.tally.reasons.update(reasons[:1])
        else:
            self.tally.released += 1
            if run.stage is not Stage.ENDED:
                self.tally.given_back += 1
                self.tally.reasons.update(reasons[:1])
        run.stage = Stage.OVER
        self._changed.set()
        self._namespaces.remove(run.id, is_over=True)
        self._submit_next(run)

    def _submit_next(self, run: Run) -> bool:
        """Submit the next run under the name, if there is one to come."""
        lives = self._following.pop(run.id, [])
        if not lives:
            return False
        if lives[1:]:
            self._following[lives[0].spec.run] = lives[1:]
        self._submit(lives[0])
        return True

    def _lost(self, _cause: object) -> None:
        """The stream was lost or put back: nothing that was heard of a run need be true any more."""
        for run in self._live():
            run.heard_at = 0.0

    # -- what time brings ---------------------------------------------------------------------------------------------

    def _live(self) -> list[Run]:
        return [run for run in self.runs.values() if run.stage is not Stage.OVER]

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            while self._waiting and self._waiting[0].at_s <= now - self._begun:
                first, *rest = self._waiting.pop(0).lives
                if rest:
                    self._following[first.spec.run] = rest
                self._submit(first)
            for run in self._live():
                self._look_at(run, now)
            if now >= self._snapshot_at:
                self._snapshot_at = now + _SNAPSHOT_EVERY_S
                self._say(self._snapshot())

    def _look_at(self, run: Run, now: float) -> None:
        life = run.life
        if run.stage is not Stage.ENDED:
            cancel = life.cancel_after_s is not None and now >= run.said_at + life.cancel_after_s
            done = run.stage is Stage.ATTACHED and run.ends_at is not None and now >= run.ends_at
            if cancel or done:
                if life.is_replaced and self._submit_next(run):
                    run.stage = Stage.ENDED
                else:
                    self._end(run, Outcome.CANCELLED if cancel else None)
        if now - run.heard_at > _SILENCE_S and run.id not in self._asked and run.stage is not Stage.ATTACHED:
            assert self._group is not None
            self._asked.add(run.id)
            self._group.create_task(self._ask_about(run))

    async def _ask_about(self, run: Run) -> None:
        try:
            found = await self._state_of(run.id)
        finally:
            self._asked.discard(run.id)
        if run.stage is Stage.OVER or found is Answer.NONE:
            return
        run.heard_at = time.monotonic()
        self.tally.said_again += 1
        if found is Answer.ANOTHER and run.stage is Stage.ENDED:
            # The name belongs to a later run by now: nobody will speak of this one again.
            self._over(run, JobState.RELEASED, ())
            return
        state = found.row.state if isinstance(found, JobDetail) else None
        if isinstance(found, JobDetail):
            self._is(run, found.row.state, [str(reason.code) for reason in found.reasons])
        if run.stage is Stage.PREPARED and state is JobState.PREPARED:
            self._start(run)
        elif run.stage is Stage.ENDED and state is not JobState.RELEASING:
            self._say(JobEnded(**_identity(run.id), outcome=run.life.outcome))
        elif isinstance(found, Answer) and run.stage is not Stage.OVER:
            # Not known, or an earlier run still has the name: what was said of this one may have been lost.
            self._say(JobSubmitted.of(run.life.spec))

    async def _state_of(self, run: JobRun) -> JobDetail | Answer:
        try:
            detail = await ask(self._link, JOB_SUBJECT, JobQuery(cluster=run.cluster, job=run.job), JobDetail)
        except QueryFailed as failed:
            return Answer.UNKNOWN if failed.code == 404 else Answer.NONE
        except ClientError:
            return Answer.NONE
        row = detail.row
        return detail if JobRun(row.cluster, row.job, row.attempt, row.uid) == run else Answer.ANOTHER

    def _snapshot(self) -> SchedulerSnapshot:
        self._snapshots += 1
        live = tuple(
            LiveRun(job=run.id.job, attempt=run.id.attempt, uid=run.id.uid)
            for run in self._live()
            if run.stage is not Stage.ENDED
        )
        # A second back: what is on its way into the stream meanwhile is not to be judged by this list.
        taken_at = datetime.now(UTC) - timedelta(seconds=1)
        return SchedulerSnapshot(cluster=CLUSTER, number=self._snapshots, taken_at=taken_at, live=live)


def _identity(run: JobRun) -> dict[str, object]:
    return {"cluster": run.cluster, "job": run.job, "attempt": run.attempt, "uid": run.uid}
