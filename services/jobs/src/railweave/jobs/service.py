"""The jobs service: one active committer by lease, hot standbys, the projector, and the answers to questions."""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import timedelta

import structlog

from railweave.contracts.codec import encode_token
from railweave.contracts.wire import StoredMessage
from railweave.jobs.active import ActiveCommitter, StreamClock
from railweave.jobs.book import Book
from railweave.jobs.measures import Measures, nodes_behind
from railweave.jobs.projector import Projector
from railweave.jobs.queries import Queries
from railweave.jobs.recorder import Fenced
from railweave.jobs.settings import JobsSettings
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus, ResetCause
from railweave.runtime.deadletters import DeadLetters
from railweave.runtime.errors import ApiError, BusError, BusUnavailable, StreamMissing
from railweave.runtime.lag import watch_lag
from railweave.runtime.lease import LeaderLease
from railweave.runtime.service import ServiceContext
from railweave.runtime.settings import Settings
from railweave.runtime.streams import JOBS, LEASES, PLACEMENTS, STREAMS
from railweave.runtime.view import ClusterView

_log = structlog.stdlib.get_logger(__name__)

VERSION = "0.1.0"
_PAUSE_S = 0.5
_LOOK_FOR_STREAMS_S = 1.0
_CONCURRENCY = 64


class JobsService:
    """See the module."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings.section(JobsSettings)
        self._instance = settings.service.instance
        self._active: ActiveCommitter | None = None
        self._lease: LeaderLease | None = None
        """Tried for once the view is full."""
        self._is_suspect = False
        """The record was lost or put back since the last spell began."""
        self._queries: Queries | None = None
        self.name = "jobs"

    @property
    def ready(self) -> bool:
        """Active and placing jobs, or standing by with a full view for another instance that is active."""
        if self._active is not None:
            return self._active.is_ready and self._active.committer.book.settling_until is None
        return self._lease is not None and not self._lease.is_held and self._lease.current_holder is not None

    async def run(self, ctx: ServiceContext) -> None:
        """Serve until `ctx.stop`."""
        view = ctx.cluster.start()
        view.on_reset(self._on_reset)
        Measures(ctx.metrics, self._book)
        ctx.metrics.generation_behind.labels("jobs", "placement").set_function(self._behind)
        api = ctx.bus.service("jobs", VERSION, description="the life of a job")
        self._queries = Queries(ctx.bus, view.state, ctx.memory, self._instance, ctx.clock.now, self._book)
        self._queries.register(api)
        async with asyncio.TaskGroup() as group:
            stopping = group.create_task(ctx.stop.wait())
            tasks = [
                group.create_task(self._lead(ctx, view)),
                group.create_task(self._keep_streams(ctx.bus)),
                group.create_task(watch_lag(ctx.bus, ctx.metrics)),
            ]
            if ctx.memory is not None:
                tasks.append(group.create_task(self._project(ctx, view)))
            async with api:
                await stopping
                if self._active is not None:
                    self._active.step_down()
                # The active committer ends its step, announces and acks by itself; the others have nothing to finish.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(3.0):
                        await asyncio.shield(tasks[0])
            for task in tasks:
                task.cancel()

    def _book(self) -> Book | None:
        return self._active.committer.book if self._active is not None else None

    def _behind(self) -> float:
        book = self._book()
        return float(nodes_behind(book)) if book is not None else 0.0

    def _on_reset(self, stream: str, cause: ResetCause) -> None:
        if stream != PLACEMENTS:
            return
        _log.warning("the record was lost or put back", cause=str(cause))
        self._is_suspect = True
        if self._active is not None:
            self._active.step_down()

    async def _lead(self, ctx: ServiceContext, view: ClusterView) -> None:
        """Stand by, lead, stand by again, until the service stops."""
        while True:
            try:
                await self._ensure_streams(ctx.bus)
                break
            except (BusUnavailable, ApiError) as error:
                _log.warning("the streams cannot be made yet", error=str(error))
                await asyncio.sleep(_PAUSE_S)
        await view.wait_ready()
        while not ctx.stop.is_set():
            lease = self._lease = LeaderLease(
                ctx.bus, "jobs", self._instance, self._settings.lease_ttl_s, on_lost=self._on_lease_lost
            )
            async with lease:
                acquired = asyncio.ensure_future(lease.wait_acquired())
                stopped = asyncio.ensure_future(ctx.stop.wait())
                await asyncio.wait((acquired, stopped), return_when=asyncio.FIRST_COMPLETED)
                acquired.cancel()
                stopped.cancel()
                while lease.is_held and not ctx.stop.is_set():
                    await self._spell(ctx, view)
                    if not ctx.stop.is_set():
                        await asyncio.sleep(_PAUSE_S)

    def _on_lease_lost(self) -> None:
        if self._active is not None:
            self._active.step_down()

    async def _spell(self, ctx: ServiceContext, view: ClusterView) -> None:
        """Be active once: from folding the record until the lease, the fence or the service ends it."""
        bus = ctx.bus
        try:
            await self._ensure_streams(bus)
            await view.wait_ready()
            clock = await self._stream_clock(ctx)
            active = ActiveCommitter(
                bus, view.state, self._settings.committer(), self._instance, clock, is_suspect=self._is_suspect
            )
            self._is_suspect = False
            self._active = active
            consumer = bus.consume(
                JOBS,
                "jobs",
                active.take_job_message,
                key=_subject_key,
                concurrency=_CONCURRENCY,
                dead_letter=DeadLetters(bus, "jobs"),
            )
            counts = bus.service("jobs-active", VERSION, description="the active committer")
            if self._queries is not None:
                self._queries.register_active(counts)
            async with consumer, counts:
                await active.run()
        except Fenced as fenced:
            _log.warning("stepping down: the record has another writer", error=str(fenced))
        except StreamMissing as missing:
            _log.warning("a stream is missing, making it", stream=str(missing))
        except BusError as error:
            _log.warning("the spell ended", error=str(error))
        finally:
            self._active = None

    async def _ensure_streams(self, bus: Bus) -> None:
        if not self._settings.bootstrap:
            return
        for drift in await bootstrap(bus, replicas=self._settings.replicas):
            _log.warning("stream drift", drift=str(drift))

    async def _keep_streams(self, bus: Bus) -> None:
        """Make streams anew when the store was emptied: without LEASES nobody would ever be active to do it."""
        while self._settings.bootstrap:
            await asyncio.sleep(_LOOK_FOR_STREAMS_S)
            try:
                names = (await bus.api.call("STREAM.NAMES"))["streams"] or ()
                if not {spec.name for spec in STREAMS} <= set(names):
                    await self._ensure_streams(bus)
            except BusError as error:
                _log.info("the streams could not be looked for", error=str(error))

    async def _stream_clock(self, ctx: ServiceContext) -> StreamClock:
        """The stream's time, from the lease that was just renewed: off by the renewal's age, at most a third of
        the TTL.
        """
        found: StoredMessage | None = await ctx.bus.read_last(LEASES, f"rw.lease.{encode_token('jobs')}")
        now = ctx.clock.now()
        anchor = found.stored_at if found is not None else now
        # Where the clocks agree within the renewal's age, ours is the better estimate.
        if abs((now - anchor).total_seconds()) <= self._settings.lease_ttl_s:
            anchor = now
        return StreamClock(anchor + timedelta(0), time.monotonic())

    async def _project(self, ctx: ServiceContext, view: ClusterView) -> None:
        if ctx.memory is None:
            return
        await view.wait_ready()
        lease = LeaderLease(ctx.bus, "projector", self._instance, self._settings.lease_ttl_s)
        while True:
            async with lease.held():
                projector = Projector(ctx.bus, ctx.memory, view.state)
                working = asyncio.ensure_future(projector.run())
                lost = asyncio.ensure_future(lease.wait_lost())
                try:
                    await asyncio.wait((working, lost), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    lost.cancel()
                    working.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await working
            await asyncio.sleep(_PAUSE_S)


def _subject_key(message: StoredMessage) -> str:
    """Events of one job are taken in order: cluster and job, the last two tokens."""
    return ".".join(message.subject.rsplit(".", 2)[1:])


def create(settings: Settings) -> JobsService:
    """Entry point."""
    return JobsService(settings)
