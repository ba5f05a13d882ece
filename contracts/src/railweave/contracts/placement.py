"""The record: what is held, by whom. Written by the active committer alone, in stream PLACEMENTS.

A head (`rw.head.<cluster>.<job>`) says how a job stands; a placement (`rw.placement.<node>.<cluster>.<job>.<attempt>`)
says what one node owes one attempt. Both are stored in one atomic batch. What a placement claims follows from its
content by `claims_of`, so that the two cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field

from railweave.contracts.codec import encode_id_part, encode_token
from railweave.contracts.envelope import Event, register_event
from railweave.contracts.identity import RunDocument
from railweave.contracts.job import JobSpec, Outcome, Rendezvous, StartedWorker, User
from railweave.contracts.proposal import Eviction
from railweave.contracts.reasons import Lack, Reason
from railweave.contracts.types import (
    Bytes,
    ClusterName,
    DatasetName,
    DatasetVersion,
    Document,
    GpuUuid,
    InterfaceName,
    IpAddress,
    IpInterface,
    LeafName,
    MacAddress,
    Mib,
    Milli,
    NodeName,
    PciAddress,
    Rail,
    Round,
    TenantName,
    UtcTime,
    VfIndex,
    VlanId,
)

ROUTE_TABLE_BASE = 1000
"""Rail k's routes are in table 1000 + k, and its rule has that priority: explicit, never a hash of a name."""
UNREACHABLE_METRIC = 4278198272
"""Metric of the guard route: worse than any other, so that it only answers when the rail is lost."""


class Fence(NamedTuple):
    """Orders everything applied: epoch first, then sequence. Who applies one refuses an older."""

    epoch: int
    sequence: int


class Rule(Document):
    """`from <address> lookup <table>` with an explicit priority: without one the kernel takes duplicates for ever."""

    priority: Annotated[int, Field(ge=1, le=32765)]
    source: Annotated[IpInterface, Field(alias="from", serialization_alias="from")]
    """The VF's address as /32 or /128."""
    table: Annotated[int, Field(ge=1, le=2**32 - 1)]

    model_config = {"validate_by_name": True, "validate_by_alias": True, "serialize_by_alias": True}


class RdmaDevice(Document):
    device: str
    char_devices: tuple[str, ...] = ()


class Interface(Document):
    """One VF of a worker, resolved.

    Every table also gets `unreachable default` with `UNREACHABLE_METRIC`: a lost rail never leaks to another NIC.
    """

    name: InterfaceName
    """Its name in the worker's namespace, `rail0`."""
    rail: Rail
    pf: PciAddress
    vf: VfIndex
    pci: PciAddress | None = None
    """The VF's own PCI function, where it has one."""
    mac: MacAddress
    numa_node: int | None = None
    rdma: RdmaDevice | None = None
    leaf: LeafName
    port: str
    vlan: VlanId
    vlan_qos: Annotated[int, Field(ge=0, le=7)] = 0
    mtu: Annotated[int, Field(ge=1280, le=9216)]
    addresses: tuple[IpInterface, ...]
    gateways: tuple[IpAddress, ...]
    """One for each address."""
    rules: tuple[Rule, ...]
    """One for each address."""
    spoof_check: bool = True
    trust: bool = False
    max_tx_mbps: int | None = None


class PlacedGpu(Document):
    index: int
    uuid: GpuUuid
    pci: PciAddress | None = None
    numa_node: int | None = None
    fraction_milli: Milli
    memory_mib: Mib


class Isolation(Document):
    mode: Literal["rail", "tenant"] = "rail"
    segment: int | None = None
    vrf: str | None = None
    owner: str | None = None
    """Whose the segment is: `tenant/nlp`, or `job/slurm-a/88121/1`."""


class WorkerNetwork(Document):
    vf_group: str
    isolation: Isolation = Isolation()
    interfaces: tuple[Interface, ...]


class Worker(Document):
    name: str
    worker: Annotated[int, Field(ge=0)]
    """Rank among workers."""
    gpus: tuple[PlacedGpu, ...] = ()
    network: WorkerNetwork | None = None
    env: dict[str, str] = {}
    """What a training library needs to be told."""
    namespace: StartedWorker | None = None
    """Where to attach, once the scheduler started the worker."""


class PlacedDataset(Document):
    name: DatasetName
    version: DatasetVersion
    action: Literal["use", "fetch"]
    bytes: Bytes
    source: str | None = None
    digest: str | None = None
    peers: tuple[NodeName, ...] = ()

    @property
    def dataset(self) -> str:
        return f"{self.name}@{self.version}"


class Scratch(Document):
    bytes: Bytes


class Claim(Document):
    """What a commit takes. `amount` absent: exclusive. A claim of an unknown kind is exclusive."""

    kind: str
    key: str
    """Names the thing; node-scoped kinds start with the node."""
    amount: Annotated[int, Field(ge=1)] | None = None
    owner: str | None = None
    """Of an exclusive claim: all claims of one owner share it (a tenant's jobs its segment). Absent: the job alone."""


class ClaimKind(StrEnum):
    VF = "vf"
    ADDRESS = "address"
    MAC = "mac"
    GPU_MILLI = "gpu_milli"
    CACHE_BYTES = "cache_bytes"
    SCRATCH_BYTES = "scratch_bytes"
    NODE_SHARE = "node_share"
    SEGMENT = "segment"
    TENANT_GPU_MILLI = "tenant_gpu_milli"


NODE_SHARE_WHOLE = 1_000_000
"""A job that wants nodes of its own claims the whole share; every other job on a node claims 1 of it."""


class PlacementState(StrEnum):
    DESIRED = "desired"
    RELEASING = "releasing"
    RELEASED = "released"


@register_event
class Placement(Event, RunDocument):
    """What one node owes one attempt."""

    TYPE = "railweave.placement.v1"
    SOURCE: ClassVar[str] = "/railweave/jobs"
    node: NodeName
    state: PlacementState
    epoch: Annotated[int, Field(ge=1)]
    """With the message's stream sequence this is the fence."""
    round: Round
    commit: str
    submitted_at: UtcTime | None = None
    """The stream's time of `submitted`: orders runs under one name, also after the record was lost."""
    requires: tuple[str, ...] = ()
    """Features an agent must have; one without refuses the placement."""
    tenant: TenantName = TenantName("default")
    user: User | None = None
    attach: str = "started"
    node_rank: int = 0
    node_count: int = 1
    rendezvous: Rendezvous | None = None
    started: bool = False
    """The scheduler started the workers: attach now."""
    exclusive: bool = False
    workers: tuple[Worker, ...] = ()
    datasets: tuple[PlacedDataset, ...] = ()
    evict: tuple[Eviction, ...] = ()
    scratch: Scratch | None = None
    claims: tuple[Claim, ...] = ()
    """Claims beyond those that follow from the content."""

    def subject(self) -> str:
        return placement_subject(self)

    def event_id(self) -> str:
        stage = "started" if self.started and self.state is PlacementState.DESIRED else str(self.state)
        return f"placement/{self._run_id()}/{encode_id_part(self.node)}/{int(self.round)}/{stage}"


def placement_subject(placement: Placement) -> str:
    """`rw.placement.<node>.<cluster>.<job>.<attempt>`."""
    node, cluster, job = encode_token(placement.node), encode_token(placement.cluster), encode_token(placement.job)
    return f"rw.placement.{node}.{cluster}.{job}.{int(placement.attempt)}"


def claims_of(placement: Placement) -> Iterator[Claim]:
    """Everything a placement takes.

    A released placement takes nothing; a releasing one still takes everything, until its node reports it undone.
    """
    for kind, key, amount in claim_terms(placement):
        yield Claim.model_construct(kind=kind, key=key, amount=amount)


def claim_terms(placement: Placement) -> Iterator[tuple[str, str, int | None]]:
    """As `claims_of`, as bare (kind, key, amount): a ledger goes through them for every commit."""
    if placement.state is PlacementState.RELEASED:
        return
    node = placement.node
    yield ClaimKind.NODE_SHARE, node, NODE_SHARE_WHOLE if placement.exclusive else 1
    for worker in placement.workers:
        for gpu in worker.gpus:
            yield ClaimKind.GPU_MILLI, f"{node}/{gpu.uuid}", int(gpu.fraction_milli)
        for interface in worker.network.interfaces if worker.network is not None else ():
            yield ClaimKind.VF, f"{node}/{interface.pf}/{int(interface.vf)}", None
            yield ClaimKind.MAC, interface.mac, None
            for address in interface.addresses:
                yield ClaimKind.ADDRESS, address.partition("/")[0], None
    for dataset in placement.datasets:
        if dataset.action == "fetch" and dataset.bytes:
            yield ClaimKind.CACHE_BYTES, f"{node}/{dataset.dataset}", int(dataset.bytes)
    if placement.scratch is not None and placement.scratch.bytes:
        yield ClaimKind.SCRATCH_BYTES, node, int(placement.scratch.bytes)
    for claim in placement.claims:
        yield claim.kind, claim.key, claim.amount


class JobState(StrEnum):
    """The states of a job attempt, in order; rejected and released are ends."""

    PENDING = "pending"
    PLACED = "placed"
    PREPARED = "prepared"
    STARTED = "started"
    ATTACHED = "attached"
    RELEASING = "releasing"
    RELEASED = "released"
    REJECTED = "rejected"


HOLDING_STATES = frozenset(
    {JobState.PLACED, JobState.PREPARED, JobState.STARTED, JobState.ATTACHED, JobState.RELEASING}
)


@register_event
class Head(Event, RunDocument):
    """How a job stands. `why` reads it."""

    TYPE = "railweave.head.v1"
    SOURCE: ClassVar[str] = "/railweave/jobs"
    state: JobState
    epoch: Annotated[int, Field(ge=1)]
    round: Round
    commit: str
    """Id of the commit that stored this; after an unknown outcome it tells whose write this is."""
    spec: JobSpec | None = None
    """None for a run that ended before it was submitted, or was adopted from agents' journals after a loss."""
    submitted_at: UtcTime
    """The stream's time of `submitted`."""
    times: dict[JobState, UtcTime] = {}
    """When each state was reached."""
    nodes: tuple[NodeName, ...] = ()
    """In rank order; those with a placement."""
    reasons: tuple[Reason, ...] = ()
    """Why it waits, was rejected or is being released."""
    lacks: tuple[Lack, ...] = ()
    exclude: tuple[NodeName, ...] = ()
    """Nodes that refused or failed this attempt."""
    updated_revision: int = 0
    """Of the last `updated` taken in."""
    requeue: bool = False
    """While releasing: propose it again when it is released."""
    outcome: Outcome | None = None
    started: bool = False
    """The scheduler said so, maybe before every node was prepared."""
    namespaces: tuple[StartedWorker, ...] = ()
    """Of the workers, as `started` gave them."""
    adopted: bool = False
    """Taken over from agents' journals after a loss: it ran already, and no deadline of a start applies to it."""
    claims: tuple[Claim, ...] = ()
    """Claims of the whole job: segment, quota."""

    def subject(self) -> str:
        return f"rw.head.{encode_token(self.cluster)}.{encode_token(self.job)}"

    def event_id(self) -> str:
        return f"head/{self._run_id()}/{int(self.round)}/{self.state}/{self.commit}"


class EpochCause(StrEnum):
    BOOTSTRAP = "bootstrap"
    RESTORE = "restore"
    COLD_START = "cold_start"
    AGENT_AHEAD = "agent_ahead"


@register_event
class Epoch(Event):
    """Raised when sequences may start over, so that fences still order."""

    TYPE = "railweave.epoch.v1"
    SOURCE: ClassVar[str] = "/railweave/jobs"
    epoch: Annotated[int, Field(ge=1)]
    cause: EpochCause
    text: str

    def subject(self) -> str:
        return "rw.epoch"

    def event_id(self) -> str:
        return f"epoch/{self.epoch}"


@register_event
class Grant(Event):
    """GPUs or fractions given to a process of an environment (the broker's issue deepens it)."""

    TYPE = "railweave.grant.v1"
    SOURCE: ClassVar[str] = "/railweave/jobs"
    cluster: ClusterName
    environment: str
    node: NodeName
    lease: str
    epoch: Annotated[int, Field(ge=1)]
    state: Literal["granted", "releasing", "released"]
    tenant: TenantName = TenantName("default")
    gpus: tuple[PlacedGpu, ...] = ()
    expires_at: UtcTime | None = None
    reasons: tuple[Reason, ...] = ()

    def subject(self) -> str:
        return f"rw.grant.{encode_token(self.node)}.{encode_token(self.lease)}"

    def event_id(self) -> str:
        return f"grant/{encode_id_part(self.node)}/{encode_id_part(self.lease)}/{self.state}"


@register_event
class DataRecord(Event):
    """A dataset wanted or unwanted on a node apart from any job: prefetch, pin, evict."""

    TYPE = "railweave.data.v1"
    SOURCE: ClassVar[str] = "/railweave/jobs"
    node: NodeName
    name: DatasetName
    version: DatasetVersion
    epoch: Annotated[int, Field(ge=1)]
    generation: Annotated[int, Field(ge=1)]
    state: Literal["present", "evicting", "absent"]
    bytes: Bytes
    pinned: bool = False
    source_uri: str | None = None
    reason: str | None = None

    @property
    def dataset(self) -> str:
        return f"{self.name}@{self.version}"

    def subject(self) -> str:
        return f"rw.data.{encode_token(self.node)}.{encode_token(self.dataset)}"

    def event_id(self) -> str:
        return f"data/{encode_id_part(self.node)}/{encode_id_part(self.dataset)}/{self.generation}/{self.state}"
