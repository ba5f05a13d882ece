"""What the record, the nodes, the operators and the fabric say, folded into one state that every proposer reads.

One process folds each stream once, for all its services. The state holds claims, not documents: 10,000 nodes with a few
jobs each fit in memory. Deciding functions read it and never change it.

Not here: how messages come (view.py), and what is stored (the jobs service's own ledger is the authority; this view may be
milliseconds old, which costs a round and never a double claim).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from railweave.contracts.desired import Dataset, Environment, NodeDesired, NodeMode, Tenant
from railweave.contracts.fabric import FabricLeaf, FabricNode, LeafVlan
from railweave.contracts.identity import JobKey, JobRun
from railweave.contracts.inventory import CachedDataset, DatasetState, NodeHardware, NodeStorage, Report, ReportState
from railweave.contracts.placement import Epoch, Head, JobState, Placement, PlacementState
from railweave.contracts.types import LeafName, NodeName, PciAddress, Rail

WHOLE_GPU_MILLI = 1000


@dataclass(frozen=True, slots=True)
class Hold:
    """What one job holds on one node, as far as choosing needs to know."""

    gpus: tuple[tuple[int, int], ...] = ()
    """(GPU index, thousandths)."""
    vfs: tuple[tuple[PciAddress, int], ...] = ()
    """(PF, VF index)."""
    fetch: Mapping[str, int] = field(default_factory=dict)
    """Datasets this job fetches, and their bytes."""
    use: frozenset[str] = frozenset()
    """Datasets it uses, fetched ones included."""
    evict: Mapping[str, int] = field(default_factory=dict)
    scratch_bytes: int = 0
    exclusive: bool = False
    tenant: str = "default"
    sequence: int = 0
    """Of its placement."""
    releasing: bool = False


def hold_of(placement: Placement, sequence: int) -> Hold:
    """What a placement holds on its node."""
    return Hold(
        gpus=tuple((gpu.index, int(gpu.fraction_milli)) for worker in placement.workers for gpu in worker.gpus),
        vfs=tuple(
            (interface.pf, int(interface.vf))
            for worker in placement.workers
            if worker.network is not None
            for interface in worker.network.interfaces
        ),
        fetch={item.dataset: int(item.bytes) for item in placement.datasets if item.action == "fetch"},
        use=frozenset(item.dataset for item in placement.datasets),
        evict={item.dataset: int(item.bytes) for item in placement.evict},
        scratch_bytes=int(placement.scratch.bytes) if placement.scratch is not None else 0,
        exclusive=placement.exclusive,
        tenant=str(placement.tenant),
        sequence=sequence,
        releasing=placement.state is PlacementState.RELEASING,
    )


@dataclass(slots=True)
class NodeState:
    """One node: what it has, what is held on it, what may be done with it."""

    name: NodeName
    hardware: NodeHardware | None = None
    storage: NodeStorage | None = None
    desired: NodeDesired | None = None
    fabric: FabricNode | None = None
    holds: dict[JobRun, Hold] = field(default_factory=dict)
    gpu_used: dict[int, int] = field(default_factory=dict)
    """Thousandths in use, by GPU index; absent is 0."""
    vfs_used: set[tuple[PciAddress, int]] = field(default_factory=set)
    free_whole_gpus: int = 0
    """Healthy GPUs of which nothing is used."""
    _datasets: dict[str, CachedDataset] = field(default_factory=dict)

    @property
    def mode(self) -> NodeMode:
        return self.desired.mode if self.desired is not None else NodeMode.SCHEDULABLE

    @property
    def is_schedulable(self) -> bool:
        """An agent spoke for it and no operator took it out."""
        return self.hardware is not None and self.mode is NodeMode.SCHEDULABLE

    @property
    def labels(self) -> Mapping[str, str]:
        return self.hardware.labels if self.hardware is not None else {}

    @property
    def is_exclusively_held(self) -> bool:
        return any(hold.exclusive for hold in self.holds.values())

    def free_gpu_milli(self, index: int) -> int:
        """Thousandths of a GPU not held by any job."""
        return WHOLE_GPU_MILLI - self.gpu_used.get(index, 0)

    def cached(self, dataset: str) -> CachedDataset | None:
        """The dataset as the node's disk has it (`name@version`), whatever its state."""
        return self._datasets.get(dataset)

    def has_ready(self, dataset: str) -> bool:
        """Ready on disk and nobody evicts it."""
        cached = self._datasets.get(dataset)
        return cached is not None and cached.state is DatasetState.READY and not self.is_evicting(dataset)

    def is_fetching(self, dataset: str) -> bool:
        """A live job's placement fetches it here, and it is not on disk yet."""
        return not self.has_ready(dataset) and any(dataset in hold.fetch for hold in self.holds.values())

    def is_used(self, dataset: str) -> bool:
        return any(dataset in hold.use for hold in self.holds.values())

    def is_evicting(self, dataset: str) -> bool:
        """A live placement evicts it, and it is still on disk."""
        return dataset in self._datasets and any(dataset in hold.evict for hold in self.holds.values())

    def cache_used_bytes(self) -> int:
        """Bytes of the cache space spoken for: on disk, or being fetched by a live placement. Derived, never counted."""
        on_disk = sum(int(item.bytes) for item in self._datasets.values())
        coming: dict[str, int] = {}
        for hold in self.holds.values():
            for dataset, size in hold.fetch.items():
                if dataset not in self._datasets:
                    coming[dataset] = max(size, coming.get(dataset, 0))
        return on_disk + sum(coming.values())

    def cache_free_bytes(self) -> int:
        total = int(self.storage.cache.total_bytes) if self.storage is not None else 0
        return max(0, total - self.cache_used_bytes())

    def scratch_free_bytes(self) -> int:
        total = int(self.storage.scratch.total_bytes) if self.storage is not None else 0
        return max(0, total - sum(hold.scratch_bytes for hold in self.holds.values()))

    def datasets(self) -> Iterable[CachedDataset]:
        return self._datasets.values()

    def leaf_on(self, rail: Rail) -> LeafName | None:
        """The leaf its port on a rail is on."""
        for attachment in self.fabric.attachments if self.fabric is not None else ():
            if attachment.rail == rail:
                return attachment.leaf
        return None

    def recount(self) -> None:
        """Derive the use of devices anew from what is held."""
        self.gpu_used = {}
        self.vfs_used = set()
        for hold in self.holds.values():
            for index, milli in hold.gpus:
                self.gpu_used[index] = self.gpu_used.get(index, 0) + milli
            self.vfs_used.update(hold.vfs)
        gpus = self.hardware.gpus if self.hardware is not None else ()
        self.free_whole_gpus = sum(1 for gpu in gpus if gpu.healthy and not self.gpu_used.get(gpu.index))

    def take_storage(self, storage: NodeStorage | None) -> None:
        self.storage = storage
        self._datasets = {item.dataset: item for item in storage.datasets} if storage is not None else {}


@dataclass(frozen=True, slots=True)
class HeadSummary:
    """How a job stands, without its spec."""

    run: JobRun
    state: JobState
    round: int
    nodes: tuple[NodeName, ...]
    sequence: int


class ClusterState:
    """The folded state. `apply` is idempotent and takes messages of one subject in any order: the highest sequence wins."""

    def __init__(self) -> None:
        self.nodes: dict[NodeName, NodeState] = {}
        self.leaves: dict[LeafName, FabricLeaf] = {}
        self.heads: dict[JobKey, HeadSummary] = {}
        self.tenants: dict[str, Tenant] = {}
        self.datasets: dict[str, Dataset] = {}
        self.environments: dict[tuple[str, str], Environment] = {}
        self.epoch = 0
        self.sequences: dict[str, int] = {}
        """Last sequence applied of each stream."""
        self._seen: dict[str, int] = {}

    def node(self, name: NodeName) -> NodeState:
        """The node's state, made when first heard of."""
        state = self.nodes.get(name)
        if state is None:
            state = self.nodes[name] = NodeState(name)
        return state

    def vlan_of(self, leaf: LeafName, rail: Rail, segment: int | None = None) -> LeafVlan | None:
        """The VLAN of a leaf for a rail: the shared one, or a segment's."""
        record = self.leaves.get(leaf)
        for vlan in record.vlans if record is not None else ():
            if vlan.rail == rail and vlan.segment == segment:
                return vlan
        return None
