"""The client for scripts without asyncio: the same calls, on an event loop in a thread of its own.

with SyncRailweave("nats://127.0.0.1:4222") as railweave:
    railweave.submit_and_wait({"cluster": "lab", "job": "1234", "attempt": 1, "workers": [{"count": 1, "gpus": 1}]})
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Coroutine, Generator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from railweave.contracts.client.follow import JobFollower, JobUpdate, PlacementSubscriber, PlacementUpdate
from railweave.contracts.client.jobs import JobPublisher, wait_prepared
from railweave.contracts.client.link import Link
from railweave.contracts.client.reader import Start
from railweave.contracts.client.store import Stored
from railweave.contracts.client.waiting import Stage
from railweave.contracts.envelope import Event
from railweave.contracts.job import JobEnded, JobPrepared, JobSpec, JobStarted, JobUpdated, SchedulerSnapshot
from railweave.contracts.query import DryRunAnswer

T = TypeVar("T")


class SyncRailweave:
    """One connection for publishing, asking, waiting and following. Errors are those of `JobPublisher` and the others.

    Args:
        servers: NATS URL.
        deadline_s: how long one event is tried.
        options: further arguments of nats-py's `connect`.
    """

    def __init__(
        self,
        servers: str = "nats://127.0.0.1:4222",
        *,
        deadline_s: float = 10.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._link = Link(servers, patience_s=deadline_s, options=options)
        self._jobs = JobPublisher(self._link.client, deadline_s=deadline_s)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="railweave-client", daemon=True)
        self._thread.start()
        try:
            self._run(self._link.open())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._run(self._link.close())
        finally:
            self._stop()

    def submit(self, spec: JobSpec | Mapping[str, Any]) -> Stored:
        """Say that there is a job, or that it starts again."""
        return self._run(self._jobs.submit(spec))

    def update(self, event: JobUpdated | Mapping[str, Any]) -> Stored:
        """Say that something of it changed."""
        return self._run(self._jobs.update(event))

    def started(self, event: JobStarted | Mapping[str, Any]) -> Stored:
        """Say that its workers exist."""
        return self._run(self._jobs.started(event))

    def ended(self, event: JobEnded | Mapping[str, Any]) -> Stored:
        """Say that it is over."""
        return self._run(self._jobs.ended(event))

    def snapshot(self, event: SchedulerSnapshot | Mapping[str, Any]) -> Stored:
        """Say everything that lives."""
        return self._run(self._jobs.snapshot(event))

    def dry_run(self, spec: JobSpec | Mapping[str, Any], *, timeout: float = 10.0) -> DryRunAnswer:
        """Ask where it would run, or why not."""
        return self._run(self._jobs.dry_run(spec, timeout=timeout))

    def submit_and_wait(
        self, spec: JobSpec | Mapping[str, Any], until: Stage = "prepared", *, timeout: float = 900.0
    ) -> Event:
        """Submit a job and wait until it is placed, prepared, attached or released."""
        match until:
            case "placed":
                return self._run(self._jobs.submit_and_wait(spec, "placed", timeout=timeout))
            case "prepared":
                return self._run(self._jobs.submit_and_wait(spec, "prepared", timeout=timeout))
            case "attached":
                return self._run(self._jobs.submit_and_wait(spec, "attached", timeout=timeout))
            case "released":
                return self._run(self._jobs.submit_and_wait(spec, "released", timeout=timeout))

    def wait_prepared(
        self, cluster: str, job: str, attempt: int, timeout: float, *, uid: str | None = None
    ) -> JobPrepared:
        """Wait until a job's workers may start."""
        return self._run(wait_prepared(self._link.client, cluster, job, attempt, timeout, uid=uid))

    def placements(
        self,
        *,
        cluster: str | None = None,
        job: str | None = None,
        node: str | None = None,
        start_after: int | None = None,
    ) -> Generator[PlacementUpdate, None, None]:
        """What nodes owe jobs: first what is desired now, then every change."""
        subscriber = PlacementSubscriber(
            self._link.client, cluster=cluster, job=job, node=node, start_after=start_after
        )
        return self._iterate(subscriber)

    def job_events(
        self,
        *,
        cluster: str | None = None,
        job: str | None = None,
        start: Start = "all",
        start_after: int | None = None,
    ) -> Generator[JobUpdate, None, None]:
        """What is said of jobs, in the order it was stored."""
        return self._iterate(
            JobFollower(self._link.client, cluster=cluster, job=job, start=start, start_after=start_after)
        )

    def _iterate(self, subscriber: Any) -> Generator[Any, None, None]:
        self._run(subscriber.__aenter__())
        try:
            while True:
                yield self._run(subscriber.__anext__())
        finally:
            # An iterator that is kept beyond the `with` has lost its connection already.
            if self._loop is not None:
                self._run(subscriber.__aexit__(None, None, None))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise RuntimeError("it is not open: write `with SyncRailweave(...) as railweave:`")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C comes here, in the caller's thread: the work must not go on behind its back.
            if future.cancel():
                with contextlib.suppress(concurrent.futures.CancelledError):
                    future.result()
            raise

    def _stop(self) -> None:
        loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
