"""A job's life as schedulers tell it and as Railweave answers.

Subjects `rw.job.<event>.<cluster>.<job>` and `rw.snapshot.<cluster>`. The smallest job is five fields: cluster, job,
attempt, and one group of workers with count and gpus. What a job does not ask for (network, datasets) it does not get,
and that concern delays nothing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from railweave.contracts.codec import encode_id_part, encode_token
from railweave.contracts.envelope import Event, register_event
from railweave.contracts.identity import JobRun, RunDocument
from railweave.contracts.reasons import Reason
from railweave.contracts.types import (
    Attempt,
    ClusterName,
    Document,
    IpAddress,
    JobName,
    NodeName,
    Round,
    RunUid,
    UtcTime,
)
from railweave.contracts.wanted import (
    VFS_RULE,
    DatasetWanted,
    JobSpec,
    NetworkWanted,
    NodesWanted,
    TopologyWanted,
    User,
    WorkerGroup,
    WorkerPlace,
)

__all__ = [
    "VFS_RULE",
    "DatasetWanted",
    "JobAttached",
    "JobEnded",
    "JobEvent",
    "JobPending",
    "JobPlaced",
    "JobPrepared",
    "JobRejected",
    "JobReleased",
    "JobReleasing",
    "JobSpec",
    "JobStarted",
    "JobSubmitted",
    "JobUpdated",
    "LiveRun",
    "NetworkWanted",
    "NodesWanted",
    "Outcome",
    "PlacedWorker",
    "Rendezvous",
    "SchedulerSnapshot",
    "StartedWorker",
    "TopologyWanted",
    "User",
    "WorkerGroup",
    "WorkerPlace",
]


class JobEvent(Event, RunDocument):
    """Base of everything said of a job, by its scheduler or by Railweave."""

    EVENT: ClassVar[str]

    def subject(self) -> str:
        return f"rw.job.{self.EVENT}.{encode_token(self.cluster)}.{encode_token(self.job)}"

    def event_id(self) -> str:
        return f"job.{self.EVENT}/{self._run_id()}"


class _SchedulerEvent(JobEvent):
    def source(self) -> str:
        return f"/cluster/{encode_id_part(self.cluster)}"


class _AnswerEvent(JobEvent):
    SOURCE: ClassVar[str] = "/railweave/jobs"
    round: Round = Round(1)
    """The round of proposals it is about."""

    def event_id(self) -> str:
        return f"job.{self.EVENT}/{self._run_id()}/{int(self.round)}"


@register_event
class JobSubmitted(JobSpec, _SchedulerEvent):
    """The scheduler has a job (or starts it again: a new attempt)."""

    TYPE = "railweave.job.submitted.v1"
    EVENT = "submitted"

    @classmethod
    def of(cls, spec: JobSpec) -> JobSubmitted:
        """The event that submits a job; the way back is `spec`."""
        return cls.model_construct(_fields_set=spec.model_fields_set, **dict(spec))

    def spec(self) -> JobSpec:
        """The job alone, as asks and heads carry it."""
        return JobSpec.model_construct(_fields_set=self.model_fields_set, **dict(self))


@register_event
class JobUpdated(_SchedulerEvent):
    """The scheduler changed something; absent fields stay as they are."""

    TYPE = "railweave.job.updated.v1"
    EVENT = "updated"
    revision: Annotated[int, Field(ge=1)]
    """Counts the updates of this run, from 1; an older one changes nothing."""
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    nodes: NodesWanted | None = None
    time_limit_s: Annotated[int, Field(ge=1)] | None = None

    def event_id(self) -> str:
        return f"job.updated/{self._run_id()}/{self.revision}"


class StartedWorker(Document):
    """Where a worker's network namespace is."""

    worker: Annotated[int, Field(ge=0)]
    """Rank among workers."""
    netns: Annotated[str, Field(pattern=r"^/[^\x00]{1,1023}$")] | None = None
    """Path of the namespace on its node. One of netns and pid."""
    pid: Annotated[int, Field(ge=2)] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.netns is None) == (self.pid is None):
            raise ValueError("expected one of netns and pid")
        return self


@register_event
class JobStarted(_SchedulerEvent):
    """The scheduler let the workers start: their namespaces exist, attach into them."""

    TYPE = "railweave.job.started.v1"
    EVENT = "started"
    workers: tuple[StartedWorker, ...] = ()
    """Where each worker's namespace is. Default: none (no network, or attached by CNI, SPANK or in the host)."""


class Outcome(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"


@register_event
class JobEnded(_SchedulerEvent):
    """The job is over: undo everything."""

    TYPE = "railweave.job.ended.v1"
    EVENT = "ended"
    outcome: Outcome
    text: Annotated[str, Field(max_length=1024)] | None = None


@register_event
class JobPending(_AnswerEvent):
    """It waits, and why."""

    TYPE = "railweave.job.pending.v1"
    EVENT = "pending"
    reasons: tuple[Reason, ...]


@register_event
class JobRejected(_AnswerEvent):
    """It can never run as asked, and why."""

    TYPE = "railweave.job.rejected.v1"
    EVENT = "rejected"
    reasons: tuple[Reason, ...]


class PlacedWorker(Document):
    worker: int
    """Rank among workers."""
    node: NodeName
    addresses: tuple[IpAddress, ...] = ()
    """By rail."""
    gpus: tuple[str, ...] = ()
    """UUIDs."""


class Rendezvous(Document):
    address: IpAddress
    port: Annotated[int, Field(ge=1, le=65535)]


@register_event
class JobPlaced(_AnswerEvent):
    """It has everything it asked for; the whole answer in one event."""

    TYPE = "railweave.job.placed.v1"
    EVENT = "placed"
    nodes: tuple[NodeName, ...]
    """In rank order."""
    workers: tuple[PlacedWorker, ...]
    segment: int | None = None
    """What isolates it from other tenants; none in `rail` mode."""
    rendezvous: Rendezvous | None = None
    warnings: tuple[str, ...] = ()
    commit: str
    """The commit's id, which the head carries too."""


@register_event
class JobPrepared(_AnswerEvent):
    """Every node has set its VFs and holds the data: let the workers start."""

    TYPE = "railweave.job.prepared.v1"
    EVENT = "prepared"
    nodes: tuple[NodeName, ...]


@register_event
class JobAttached(_AnswerEvent):
    """Every worker has its devices, addresses and routes."""

    TYPE = "railweave.job.attached.v1"
    EVENT = "attached"
    nodes: tuple[NodeName, ...]


@register_event
class JobReleasing(_AnswerEvent):
    """It is being undone, and why."""

    TYPE = "railweave.job.releasing.v1"
    EVENT = "releasing"
    reasons: tuple[Reason, ...]


@register_event
class JobReleased(_AnswerEvent):
    """Nothing is held any more: every node reported so."""

    TYPE = "railweave.job.released.v1"
    EVENT = "released"
    reasons: tuple[Reason, ...] = ()
    requeued: bool = False
    """True where Railweave will propose it again (another round)."""


class LiveRun(Document):
    job: JobName
    attempt: Attempt
    uid: RunUid | None = None


@register_event
class SchedulerSnapshot(Event):
    """Everything that lives in a cluster now. What is not in it is released after a grace period."""

    TYPE = "railweave.snapshot.v1"
    cluster: ClusterName
    number: Annotated[int, Field(ge=1)]
    """Counts the cluster's snapshots; an older one changes nothing."""
    taken_at: UtcTime
    """When the list was read; runs submitted later are not judged by it."""
    live: tuple[LiveRun, ...]

    def subject(self) -> str:
        return f"rw.snapshot.{encode_token(self.cluster)}"

    def event_id(self) -> str:
        return f"snapshot/{encode_id_part(self.cluster)}/{self.number}"

    def source(self) -> str:
        return f"/cluster/{encode_id_part(self.cluster)}"

    def runs(self) -> frozenset[JobRun]:
        return frozenset(JobRun(self.cluster, run.job, run.attempt, run.uid) for run in self.live)
