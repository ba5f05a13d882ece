"""Telling Railweave of jobs, and following what becomes of them.

    async with JobPublisher("nats://127.0.0.1:4222") as jobs:
        await jobs.submit({"cluster": "lab", "job": "1234", "attempt": 1, "workers": [{"count": 1, "gpus": 1}]})

What is given is checked before anything is sent: a `ContractError` names the field, also one that is misspelt.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Self, overload

from railweave.contracts.client.link import Link, Where
from railweave.contracts.client.questions import dry_run
from railweave.contracts.client.reader import StreamReader
from railweave.contracts.client.store import Stored, store
from railweave.contracts.client.waiting import Stage, wait_until
from railweave.contracts.client.written import parsed, subject_filter, submitted
from railweave.contracts.envelope import Event, encode_event
from railweave.contracts.identity import RunDocument
from railweave.contracts.job import (
    JobAttached,
    JobEnded,
    JobPlaced,
    JobPrepared,
    JobReleased,
    JobSpec,
    JobStarted,
    JobUpdated,
    SchedulerSnapshot,
)
from railweave.contracts.query import DryRunAnswer

JOBS_STREAM = "JOBS"
SNAPSHOTS_STREAM = "SNAPSHOTS"


class JobPublisher:
    """Publishes the life of jobs as their scheduler sees it.

    Every method returns when the event is stored. One that was not confirmed is repeated with the same id until
    `deadline_s` seconds are over, so it counts once however often it was sent.

    Args:
        where: NATS URL or URLs, or an open nats-py connection.
        deadline_s: how long one event is tried.
        options: further arguments of nats-py's `connect`: user, password, token, user_credentials, tls, ...

    Raises (all methods that publish):
        ContractError: the event is malformed; nothing was sent.
        NotStored: not confirmed in time; say it again.
        Refused: the broker does not want it: a missing right, stream or limit.
    """

    def __init__(self, where: Where, *, deadline_s: float = 10.0, options: Mapping[str, Any] | None = None) -> None:
        self._link = Link(where, patience_s=deadline_s, options=options)
        self._deadline_s = deadline_s

    async def __aenter__(self) -> Self:
        await self._link.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._link.close()

    async def submit(self, spec: JobSpec | Mapping[str, Any], *, traceparent: str | None = None) -> Stored:
        """Say that there is a job, or that it starts again (a new attempt)."""
        return await self._store(JOBS_STREAM, submitted(spec), traceparent)

    async def update(self, event: JobUpdated | Mapping[str, Any], *, traceparent: str | None = None) -> Stored:
        """Say that priority, nodes or time limit changed; `revision` counts up."""
        return await self._store(JOBS_STREAM, parsed(JobUpdated, event), traceparent)

    async def started(self, event: JobStarted | Mapping[str, Any], *, traceparent: str | None = None) -> Stored:
        """Say that the workers exist, and where their network namespaces are."""
        return await self._store(JOBS_STREAM, parsed(JobStarted, event), traceparent)

    async def ended(self, event: JobEnded | Mapping[str, Any], *, traceparent: str | None = None) -> Stored:
        """Say that it is over, and how."""
        return await self._store(JOBS_STREAM, parsed(JobEnded, event), traceparent)

    async def snapshot(self, event: SchedulerSnapshot | Mapping[str, Any]) -> Stored:
        """Say everything that lives in a cluster: what is not in it is released after a grace period."""
        return await self._store(SNAPSHOTS_STREAM, parsed(SchedulerSnapshot, event), None)

    async def dry_run(self, spec: JobSpec | Mapping[str, Any], *, timeout: float = 10.0) -> DryRunAnswer:
        """Ask where a job would run, or why not. Changes nothing.

        Raises:
            ContractError: the job is malformed.
            NotAnswered: the jobs service did not answer within `timeout` seconds.
            QueryFailed: it could not say.
        """
        return await dry_run(self._link, spec, timeout=timeout)

    @overload
    async def submit_and_wait(
        self, spec: JobSpec | Mapping[str, Any], until: Literal["prepared"] = "prepared", *, timeout: float = 900.0
    ) -> JobPrepared: ...
    @overload
    async def submit_and_wait(
        self, spec: JobSpec | Mapping[str, Any], until: Literal["placed"], *, timeout: float = 900.0
    ) -> JobPlaced: ...
    @overload
    async def submit_and_wait(
        self, spec: JobSpec | Mapping[str, Any], until: Literal["attached"], *, timeout: float = 900.0
    ) -> JobAttached: ...
    @overload
    async def submit_and_wait(
        self, spec: JobSpec | Mapping[str, Any], until: Literal["released"], *, timeout: float = 900.0
    ) -> JobReleased: ...
    async def submit_and_wait(
        self, spec: JobSpec | Mapping[str, Any], until: Stage = "prepared", *, timeout: float = 900.0
    ) -> Event:
        """Submit a job and wait until it is placed, prepared, attached or released; returns that event.

        Raises:
            JobWasRejected, JobWasReleased: it will not get there.
            StillWaiting: a TimeoutError with the last state and reasons, after `timeout` seconds; the job goes on.
        """
        event = submitted(spec)
        stored = await self._store(JOBS_STREAM, event, None)
        subject = subject_filter("rw.job.*", event.cluster, event.job)
        # A duplicate's sequence is the first one's, so what became of it since is read too.
        reader = StreamReader(self._link, JOBS_STREAM, subject, start="all", start_after=stored.sequence - 1)
        return await wait_until(reader, event.run, until, timeout)

    async def _store(self, stream: str, event: Event, traceparent: str | None) -> Stored:
        message = encode_event(event, traceparent=traceparent)
        return await store(self._link, stream, message, deadline_s=self._deadline_s)


async def wait_prepared(
    connection: Where,
    cluster: str,
    job: str,
    attempt: int,
    timeout: float,
    *,
    uid: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> JobPrepared:
    """Wait until every node has set a job's devices and holds its data, so that its workers may start.

    Args:
        connection: NATS URL or URLs, or an open nats-py connection.
        cluster: the scheduler's domain.
        job: the scheduler's name of the job.
        attempt: which start of it.
        timeout: seconds; the job goes on when they are over.
        uid: the run's unique identity, where it was submitted with one.
        options: further arguments of nats-py's `connect`.

    Raises:
        JobWasRejected, JobWasReleased: it will not be prepared; with the reasons.
        StillWaiting: a TimeoutError with the last state and reasons.
        ContractError: a name is malformed.
    """
    run = parsed(RunDocument, {"cluster": cluster, "job": job, "attempt": attempt, "uid": uid}).run
    async with Link(connection, options=options) as link:
        reader = StreamReader(link, JOBS_STREAM, subject_filter("rw.job.*", cluster, job), start="all")
        answer = await wait_until(reader, run, "prepared", timeout)
    if not isinstance(answer, JobPrepared):
        raise TypeError(f"expected {JobPrepared.TYPE}, found {answer.TYPE}")
    return answer
