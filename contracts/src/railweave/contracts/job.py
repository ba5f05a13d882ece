"""A job's life as schedulers tell it and as Railweave answers.

Subjects `rw.job.<event>.<cluster>.<job>` and `rw.snapshot.<cluster>`. The smallest job is five fields: cluster, job,
attempt, and one group of workers with count and gpus. What a job does not ask for (network, datasets) it does not get,
and that concern delays nothing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, model_validator

from railweave.contracts.codec import encode_id_part, encode_token
from railweave.contracts.envelope import Event, register_event
from railweave.contracts.identity import JobRun, RunDocument
from railweave.contracts.reasons import Reason
from railweave.contracts.types import (
    Attempt,
    Bytes,
    ClusterName,
    DatasetName,
    DatasetVersion,
    Document,
    IpAddress,
    JobName,
    Label,
    Mib,
    Milli,
    NodeName,
    Round,
    RunUid,
    SourceUri,
    TenantName,
    UtcTime,
)

VFS_RULE = r"(none|one-per-pf|near-gpus|numa|count=[1-9][0-9]{0,2})"


class WorkerGroup(Document):
    """Workers that are alike."""

    name: Label = Label("worker")
    """Default `worker`."""
    count: Annotated[int, Field(ge=1, le=100_000)]
    """How many workers."""
    per_node: Annotated[int, Field(ge=1, le=1024)] = 1
    """How many of them share a node. Default 1."""
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    """GPUs of each worker. Default 0."""
    gpu_model: Label | None = None
    """Model the GPUs must be of. Default: any."""
    gpu_fraction_milli: Milli | None = None
    """Thousandths taken of each of `gpus`. Default: whole GPUs."""
    gpu_memory_mib: Mib | None = None
    """Memory each GPU must have, or of which a share is taken where a fraction is asked. Default: any."""
    mig_profile: Label | None = None
    """MIG profile, such as `3g.40gb`. Default: none."""
    scratch_bytes: Bytes = Bytes(0)
    """Private space of each worker. Default 0."""

    @model_validator(mode="after")
    def _fraction_needs_a_gpu(self) -> Self:
        if self.gpu_fraction_milli is not None and self.gpus == 0:
            raise ValueError("gpu_fraction_milli is a share of each of `gpus`: set gpus to 1 or more")
        return self

    @property
    def milli_per_gpu(self) -> Milli:
        return self.gpu_fraction_milli or Milli(1000)


class TopologyWanted(Document):
    """How close the job's nodes must be."""

    required: Literal["leaf", "pod", "island"] = "island"
    """All nodes within one. Default `island`: they must reach each other."""
    preferred: Literal["leaf", "pod", "island"] = "leaf"
    """Within one where possible. Default `leaf`."""


class NodesWanted(Document):
    """Which nodes: chosen by the scheduler (`node_list`) or by Railweave."""

    node_list: tuple[NodeName, ...] | None = None
    """The scheduler's own choice, one per node slot in rank order. Default: Railweave chooses."""
    gpu_indices: dict[NodeName, tuple[Annotated[int, Field(ge=0, le=1023)], ...]] | None = None
    """The scheduler's own choice of GPUs by node. Default: Railweave chooses."""
    exclusive: bool = False
    """No other job on these nodes. Default false."""
    selector: dict[str, Label] = {}
    """Labels a node must have. Default: none."""
    exclude: tuple[NodeName, ...] = ()
    """Nodes not to use. Default: none."""
    topology: TopologyWanted = TopologyWanted()


class NetworkWanted(Document):
    """VFs for every worker. `{}` asks for all defaults."""

    profile: Label = Label("default")
    """Site profile (MTU, priority, variables). Default `default`."""
    isolation: Literal["rail", "tenant"] = "rail"
    """`rail`: rail k of a leaf is one VLAN for all. `tenant`: a segment of its own. Default `rail`."""
    vfs: Annotated[str, Field(pattern=f"^{VFS_RULE}$")] = "one-per-pf"
    """Which VFs make a worker's group: one-per-pf, near-gpus, numa, count=N, or none. Default one-per-pf."""
    rdma: bool = False
    """Move the VF's RDMA device with it. Default false."""
    mtu: Annotated[int, Field(ge=1280, le=9216)] | None = None
    """Default: the fabric's."""
    attach: Literal["started", "cni", "spank", "pyxis", "host"] = "started"
    """Who attaches the VFs into the worker's namespace. Default: the `started` event says where it is."""


class DatasetWanted(Document):
    """A dataset to have on every node before the job starts."""

    name: DatasetName
    version: DatasetVersion = DatasetVersion("latest")
    """Default `latest`."""
    size_bytes: Bytes | None = None
    """Declared size. Default: as registered or measured at the source; unknown is not zero."""
    source: SourceUri | None = None
    """Where to fetch it from. Default: as registered."""
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    """Digest of the content, where known. Default: not checked beyond size."""
    access: Literal["read"] = "read"

    @property
    def dataset(self) -> str:
        """`name@version`: what caches and ledgers count it under."""
        return f"{self.name}@{self.version}"


class User(Document):
    name: Label | None = None
    uid: Annotated[int, Field(ge=0, le=2**32 - 1)] | None = None
    gid: Annotated[int, Field(ge=0, le=2**32 - 1)] | None = None


class WorkerPlace(NamedTuple):
    """One worker and the node slot it runs in. `worker` counts over all groups: it is its rank among workers."""

    worker: int
    slot: int
    group: WorkerGroup


def _utf8_keys(labels: dict[str, Label]) -> dict[str, Label]:
    for key in labels:
        Label(key)
    return labels


class JobSpec(RunDocument):
    """What a job wants."""

    name: Label | None = None
    """Readable name. Default: none."""
    user: User | None = None
    """Who runs it. Default: unknown."""
    tenant: TenantName = TenantName("default")
    """Who pays and is isolated. Default `default`."""
    account: Label | None = None
    qos: Label | None = None
    partition: Label | None = None
    namespace: Label | None = None
    owner: Label | None = None
    queue: Label | None = None
    labels: Annotated[dict[str, Label], AfterValidator(_utf8_keys)] = {}
    """Free labels. Default: none."""
    array: Label | None = None
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] = 0
    """Higher goes first among waiting jobs. Default 0."""
    preemptible: bool = False
    requeue: bool = False
    time_limit_s: Annotated[int, Field(ge=1)] | None = None
    workers: Annotated[tuple[WorkerGroup, ...], Field(min_length=1, max_length=64)]
    """What runs. At least one group."""
    nodes: NodesWanted = NodesWanted()
    """Default: Railweave chooses any schedulable nodes."""
    network: NetworkWanted | None = None
    """Default: no VFs. `{}` asks for one VF of every PF in rail mode."""
    datasets: Annotated[tuple[DatasetWanted, ...], Field(max_length=64)] = ()
    """Default: none."""
    prepare_deadline_s: Annotated[int, Field(ge=1, le=86_400)] = 900
    """Seconds from placed to prepared. Default 900."""
    attach_deadline_s: Annotated[int, Field(ge=1, le=86_400)] = 120
    """Seconds from started to attached. Default 120."""
    on_deadline: Literal["give_back", "retry"] = "give_back"
    """When a deadline passes: release and say so, or release and propose again. Default give_back."""

    @model_validator(mode="after")
    def _node_list_fits_the_workers(self) -> Self:
        listed = self.nodes.node_list
        if listed is not None:
            if len(listed) != self.slot_count:
                raise ValueError(f"nodes.node_list has {len(listed)} nodes, the workers need {self.slot_count}")
            if len(set(listed)) != len(listed):
                raise ValueError("nodes.node_list names a node twice")
        names = [want.dataset for want in self.datasets]
        if len(set(names)) != len(names):
            raise ValueError("datasets names the same name and version twice")
        return self

    @property
    def slot_count(self) -> int:
        """Node slots: how many nodes the workers fill."""
        return sum(-(-group.count // group.per_node) for group in self.workers)

    def places(self) -> tuple[WorkerPlace, ...]:
        """All workers with their node slots, in rank order."""
        places: list[WorkerPlace] = []
        slot = 0
        for group in self.workers:
            for index in range(group.count):
                places.append(WorkerPlace(len(places), slot + index // group.per_node, group))
            slot += -(-group.count // group.per_node)
        return tuple(places)

    @property
    def wants_network(self) -> bool:
        return self.network is not None and self.network.vfs != "none"

    @property
    def wants_gpus(self) -> bool:
        return any(group.gpus for group in self.workers)


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
