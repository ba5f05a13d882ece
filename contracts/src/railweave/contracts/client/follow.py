"""Following placements and jobs: async iterators of typed updates, resumable by sequence.

    async with PlacementSubscriber("nats://127.0.0.1:4222", node="gpu-001") as placements:
        async for update in placements:
            print(update.placement.job, update.placement.state)

They go on over restarts of the broker. Messages are asked for as they are taken, so a slow taker costs no memory.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from railweave.contracts.client.jobs import JOBS_STREAM
from railweave.contracts.client.link import Link, Where
from railweave.contracts.client.reader import Start, StreamReader
from railweave.contracts.client.written import subject_filter
from railweave.contracts.envelope import Event, decode_event
from railweave.contracts.errors import ContractError
from railweave.contracts.placement import Fence, Placement, PlacementState
from railweave.contracts.types import ClusterName, JobName, NodeName
from railweave.contracts.wire import StoredMessage

_log = logging.getLogger("railweave.client")

PLACEMENTS_STREAM = "PLACEMENTS"


@dataclass(frozen=True, slots=True)
class PlacementUpdate:
    """A placement as it is desired now. `fence` orders all of them; `fence.sequence` is where to resume."""

    placement: Placement
    fence: Fence
    stored_at: datetime


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """Something that was said of a job, by its scheduler or by Railweave. `sequence` is where to resume."""

    event: Event
    sequence: int
    stored_at: datetime


U = TypeVar("U")


class _Subscriber(ABC, Generic[U]):
    """The common life of both iterators: opens its link and reader, skips what it cannot read."""

    def __init__(
        self,
        where: Where,
        stream: str,
        subject: str,
        *,
        start: Start,
        start_after: int | None,
        patience_s: float,
        options: Mapping[str, Any] | None,
    ) -> None:
        self._link = Link(where, patience_s=patience_s, options=options)
        self._reader = StreamReader(
            self._link, stream, subject, start=start, start_after=start_after, patience_s=patience_s
        )

    async def __aenter__(self) -> Self:
        await self._link.open()
        try:
            await self._reader.open()
        except BaseException:
            await self._link.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._reader.close()
        finally:
            await self._link.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> U:
        while True:
            message = await self._reader.next()
            try:
                update = self._read(message, decode_event(message).data)
            except ContractError as error:
                # Of a newer version, or not ours: it must not stop what we can read.
                _log.warning("%s %d is skipped: %s", message.stream, message.sequence, error)
                continue
            if update is not None:
                return update

    @property
    def is_caught_up(self) -> bool:
        """Whether everything stored so far was given."""
        return self._reader.is_caught_up

    @abstractmethod
    def _read(self, message: StoredMessage, event: Event) -> U | None:
        """The update that a message is, or None where it is not to be shown."""


class PlacementSubscriber(_Subscriber[PlacementUpdate]):
    """What nodes owe jobs: first what is desired now, then every change.

    A placement that was released before this subscriber showed it is left out. Of several changes within a moment the
    last one may be all that is seen: it says everything. The nodes of one job come one by one; the whole answer in one
    event is the job's `placed`.

    Args:
        where: NATS URL or URLs, or an open nats-py connection.
        cluster: only jobs of this cluster.
        job: only jobs of this name.
        node: only this node.
        start_after: a sequence seen before: begin behind it, with releases (`update.fence.sequence`).
        patience_s: how long entering waits for the server and the stream.
        options: further arguments of nats-py's `connect`.

    Raises (on entry):
        ContractError: a name is malformed.
        Unreachable, Refused: no server, no stream, or no right to read it.
    """

    def __init__(
        self,
        where: Where,
        *,
        cluster: str | None = None,
        job: str | None = None,
        node: str | None = None,
        start_after: int | None = None,
        patience_s: float = 10.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        subject = subject_filter(
            "rw.placement", _name(NodeName, node), _name(ClusterName, cluster), _name(JobName, job), None
        )
        super().__init__(
            where,
            PLACEMENTS_STREAM,
            subject,
            start="latest",
            start_after=start_after,
            patience_s=patience_s,
            options=options,
        )
        self._shows_all = start_after is not None
        self._shown: set[str] = set()

    def _read(self, message: StoredMessage, event: Event) -> PlacementUpdate | None:
        if not isinstance(event, Placement):
            return None
        if event.state is not PlacementState.RELEASED:
            self._shown.add(message.subject)
        elif message.subject in self._shown:
            self._shown.discard(message.subject)
        elif not self._shows_all:
            return None
        return PlacementUpdate(event, Fence(event.epoch, message.sequence), message.stored_at)


class JobFollower(_Subscriber[JobUpdate]):
    """What is said of jobs (`railweave.contracts.job`), in the order it was stored.

    Args:
        where: NATS URL or URLs, or an open nats-py connection.
        cluster: only jobs of this cluster.
        job: only jobs of this name.
        start: `all` begins with what is stored (seven days), `latest` with the last event of each kind of each job,
            `new` with what comes.
        start_after: a sequence seen before: begin behind it.
        patience_s: how long entering waits for the server and the stream.
        options: further arguments of nats-py's `connect`.

    Raises (on entry):
        ContractError: a name is malformed.
        Unreachable, Refused: no server, no stream, or no right to read it.
    """

    def __init__(
        self,
        where: Where,
        *,
        cluster: str | None = None,
        job: str | None = None,
        start: Start = "all",
        start_after: int | None = None,
        patience_s: float = 10.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        subject = subject_filter("rw.job.*", _name(ClusterName, cluster), _name(JobName, job))
        super().__init__(
            where, JOBS_STREAM, subject, start=start, start_after=start_after, patience_s=patience_s, options=options
        )

    def _read(self, message: StoredMessage, event: Event) -> JobUpdate | None:
        return JobUpdate(event, message.sequence, message.stored_at)


def _name(kind: type[ClusterName | JobName | NodeName], value: str | None) -> str | None:
    if value is None:
        return None
    try:
        return kind(value)
    except ValueError as error:
        raise ContractError(kind.__name__.removesuffix("Name").lower(), str(error)) from error
