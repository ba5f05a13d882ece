"""What a job wants of every concern: workers, nodes, network, datasets, and the defaults.

Published under `railweave.contracts.job`, which has the events that carry it.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, model_validator

from railweave.contracts.identity import RunDocument
from railweave.contracts.types import (
    Bytes,
    DatasetName,
    DatasetVersion,
    Document,
    Label,
    Mib,
    Milli,
    NodeName,
    SourceUri,
    TenantName,
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
