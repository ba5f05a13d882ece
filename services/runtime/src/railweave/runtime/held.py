"""What is held on a node, and the questions a proposer asks about a node.

Free space is never counted up and down: it is derived from what is held and what the node says it has, so that
nothing drifts. A `Hold` is what choosing needs of a placement; the placement itself is not kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from railweave.contracts.desired import NodeDesired, NodeMode
from railweave.contracts.fabric import FabricNode
from railweave.contracts.identity import JobRun
from railweave.contracts.inventory import CachedDataset, DatasetState, NodeHardware, NodeStorage, Report, ReportState
from railweave.contracts.placement import DataRecord, Fence, Grant, Placement, PlacementState
from railweave.contracts.types import LeafName, NodeName, PciAddress, Rail
from railweave.runtime.sharing import shared

WHOLE_GPU_MILLI = 1000


_NO_FENCE = Fence(0, 0)


class RunSlot(NamedTuple):
    """What a placement's subject tells apart: a new uid under an old name and attempt takes the old one's place."""

    cluster: str
    job: str
    attempt: int


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
    segments: tuple[tuple[int, str], ...] = ()
    """(segment, whose it is)."""
    tenant: str = "default"
    sequence: int = 0
    """Of its placement."""
    releasing: bool = False


def hold_of(placement: Placement, sequence: int) -> Hold:
    """What a placement holds on its node."""
    return Hold(
        gpus=tuple(shared((gpu.index, int(gpu.fraction_milli))) for worker in placement.workers for gpu in worker.gpus),
        vfs=tuple(
            shared((interface.pf, int(interface.vf)))
            for worker in placement.workers
            if worker.network is not None
            for interface in worker.network.interfaces
        ),
        fetch={shared(item.dataset): int(item.bytes) for item in placement.datasets if item.action == "fetch"},
        use=frozenset(shared(item.dataset) for item in placement.datasets),
        evict={shared(item.dataset): int(item.bytes) for item in placement.evict},
        scratch_bytes=int(placement.scratch.bytes) if placement.scratch is not None else 0,
        exclusive=placement.exclusive,
        segments=segments_of(placement),
        tenant=shared(str(placement.tenant)),
        sequence=sequence,
        releasing=placement.state is PlacementState.RELEASING,
    )


def segments_of(placement: Placement) -> tuple[tuple[int, str], ...]:
    """The segments that a placement's workers are in, and whose each is; one or none."""
    found = dict.fromkeys(
        (worker.network.isolation.segment, worker.network.isolation.owner)
        for worker in placement.workers
        if worker.network is not None
    )
    return tuple(shared((segment, owner or f"job/{placement.run}")) for segment, owner in found if segment is not None)


_EVICTED = frozenset({ReportState.PREPARED, ReportState.ATTACHED})


@dataclass(frozen=True, slots=True)
class DataWish:
    """What is wanted of a dataset on a node apart from any job."""

    present: bool
    pinned: bool
    size_bytes: int


@dataclass(slots=True)
class NodeTask:
    """What the record and the node say of one attempt there. The two come from different streams, in any order."""

    run: JobRun | None = None
    fence: Fence = _NO_FENCE
    hold: Hold | None = None
    report_run: JobRun | None = None
    report: ReportState | None = None
    report_fence: Fence = _NO_FENCE
    orphan: Hold | None = None

    def live(self) -> tuple[JobRun, Hold] | None:
        """Who holds what by it; None when all is free.

        Free is what is recorded as released, or reported undone at that fence or a later one. What the node still
        holds without a record of it is in use, whoever it belongs to.
        """
        undone = self.report is ReportState.UNDONE and self.report_fence >= self.fence
        if self.run is not None and self.hold is not None and not undone:
            if self.hold.evict and self.report in _EVICTED and self.report_run == self.run:
                # What it evicted is gone; the dataset may have come back for another job since.
                return self.run, replace(self.hold, evict={})
            return self.run, self.hold
        if self.report_run is not None and self.orphan is not None:
            return self.report_run, self.orphan
        return None


def _slot(run: JobRun) -> RunSlot:
    return RunSlot(run.cluster, run.job, int(run.attempt))


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
    grants: dict[str, Hold] = field(default_factory=dict)
    """What leases of environments hold, by lease."""
    data: dict[str, DataWish] = field(default_factory=dict)
    """Datasets wanted or unwanted here apart from any job, by `name@version`."""
    _datasets: dict[str, CachedDataset] = field(default_factory=dict)
    _tasks: dict[RunSlot, NodeTask] = field(default_factory=dict)
    _live: dict[RunSlot, tuple[JobRun, Hold]] = field(default_factory=dict)
    """Of `_tasks` what holds something: most are over, and remembered as long as their tombstones live."""
    _changed: set[RunSlot] = field(default_factory=set)
    _all_changed: bool = False
    """`_live` is to be derived from all tasks, not only from those that changed."""

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
        return max(0, WHOLE_GPU_MILLI - self.gpu_used.get(index, 0))

    def cached(self, dataset: str) -> CachedDataset | None:
        """The dataset as the node's disk has it (`name@version`), whatever its state."""
        return self._datasets.get(dataset)

    def has_ready(self, dataset: str) -> bool:
        """Ready on disk and nobody evicts it."""
        cached = self._datasets.get(dataset)
        return cached is not None and cached.state is DatasetState.READY and not self.is_evicting(dataset)

    def is_fetching(self, dataset: str) -> bool:
        """A live job's placement or a wish fetches it here, and it is not on disk yet."""
        return not self.has_ready(dataset) and (
            any(dataset in hold.fetch for hold in self.holds.values()) or self._is_wished(dataset)
        )

    def is_used(self, dataset: str) -> bool:
        return any(dataset in hold.use for hold in self.holds.values())

    def is_evicting(self, dataset: str) -> bool:
        """A live placement or the record evicts it, and it is still on disk."""
        if dataset not in self._datasets:
            return False
        wish = self.data.get(dataset)
        return (wish is not None and not wish.present) or any(dataset in hold.evict for hold in self.holds.values())

    def is_pinned(self, dataset: str) -> bool:
        """Somebody wants it kept here whatever its use."""
        wish, cached = self.data.get(dataset), self._datasets.get(dataset)
        return (wish is not None and wish.pinned) or (cached is not None and cached.pinned)

    def cache_used_bytes(self) -> int:
        """Bytes of the cache space spoken for: on disk, or being fetched. Derived, never counted."""
        on_disk = sum(int(item.bytes) for item in self._datasets.values())
        coming = {
            dataset: wish.size_bytes
            for dataset, wish in self.data.items()
            if wish.present and dataset not in self._datasets
        }
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
        for hold in (*self.holds.values(), *self.grants.values()):
            for index, milli in hold.gpus:
                self.gpu_used[index] = self.gpu_used.get(index, 0) + milli
            self.vfs_used.update(hold.vfs)
        gpus = self.hardware.gpus if self.hardware is not None else ()
        self.free_whole_gpus = sum(1 for gpu in gpus if gpu.healthy and not self.gpu_used.get(gpu.index))

    def take_storage(self, storage: NodeStorage | None) -> None:
        self.storage = storage
        self._datasets = {item.dataset: item for item in storage.datasets} if storage is not None else {}

    def _is_wished(self, dataset: str) -> bool:
        wish = self.data.get(dataset)
        return wish is not None and wish.present and dataset not in self._datasets

    # -- folding: called by ClusterState alone ------------------------------------------------------------------

    def take_placement(self, placement: Placement, sequence: int) -> None:
        """Take in the latest placement of one attempt."""
        task = self._changed_task(placement.run)
        task.run = placement.run
        task.fence = Fence(int(placement.epoch), sequence)
        task.hold = None if placement.state is PlacementState.RELEASED else hold_of(placement, sequence)

    def take_report(self, report: Report) -> None:
        """Take in the latest report of one attempt."""
        task = self._changed_task(report.run)
        task.report_run, task.report, task.report_fence = report.run, report.state, report.fence
        held = report.held if report.state is ReportState.ORPHAN else None
        task.orphan = hold_of(held, int(report.fence.sequence)) if held is not None else None

    def take_grant(self, grant: Grant, sequence: int) -> None:
        """Take in the latest state of one lease."""
        if grant.state == "released":
            self.grants.pop(grant.lease, None)
            return
        self.grants[grant.lease] = Hold(
            gpus=tuple((gpu.index, int(gpu.fraction_milli)) for gpu in grant.gpus),
            tenant=str(grant.tenant),
            sequence=sequence,
            releasing=grant.state == "releasing",
        )

    def take_data(self, record: DataRecord) -> None:
        """Take in what is wanted of one dataset here."""
        if record.state == "absent":
            self.data.pop(record.dataset, None)
        else:
            self.data[record.dataset] = DataWish(record.state == "present", record.pinned, int(record.bytes))

    def forget_record(self) -> None:
        """Forget what the record said: it will be told anew."""
        for task in self._tasks.values():
            task.run, task.hold, task.fence = None, None, _NO_FENCE
        self._all_changed = True
        self.grants.clear()
        self.data.clear()

    def forget_reports(self) -> None:
        """Forget what the node said: it will be told anew."""
        self.hardware = None
        self.take_storage(None)
        for task in self._tasks.values():
            task.report_run, task.report, task.report_fence, task.orphan = None, None, _NO_FENCE, None
        self._all_changed = True

    def _changed_task(self, run: JobRun) -> NodeTask:
        slot = _slot(run)
        self._changed.add(slot)
        return self._tasks.setdefault(slot, NodeTask())

    def forget_task(self, slot: RunSlot) -> None:
        """Forget an attempt that holds nothing here any more."""
        task = self._tasks.get(slot)
        if task is not None and task.live() is None:
            del self._tasks[slot]

    def derive(self) -> None:
        """Derive what is held from records and reports, and the use of devices from that."""
        is_retired = self.mode is NodeMode.RETIRED
        if is_retired:
            self._live.clear()
        else:
            for slot in self._tasks if self._all_changed else self._changed:
                task = self._tasks.get(slot)
                found = task.live() if task is not None else None
                if found is None:
                    self._live.pop(slot, None)
                else:
                    self._live[slot] = found
        self._changed.clear()
        # A node that comes back from retirement has everything again that its tasks hold.
        self._all_changed = is_retired
        self.holds = dict(self._live.values())
        self.recount()

    def report_of(self, run: JobRun) -> ReportState | None:
        """What the node last said about a run; None when it said nothing yet."""
        task = self._tasks.get(_slot(run))
        return task.report if task is not None and task.report_run == run else None

    @property
    def is_empty(self) -> bool:
        """Nothing is known of it."""
        facts = (self.hardware, self.storage, self.desired, self.fabric)
        known = any(task.run is not None or task.report is not None for task in self._tasks.values())
        return not known and not self.grants and not self.data and all(fact is None for fact in facts)
