"""Clusters for tests: a folded state built event by event, in one place, in the words of the tests.

cluster = ClusterBuilder()
cluster.node("n1", gpus=8, datasets=[cached("c4", 300 * GIB)])
cluster.place("j1", "n1", gpus=[(0, 1000)])
propose(ask(workers=1, gpus=2), cluster.state, ...)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from railweave.contracts.desired import Dataset, GpuQuota, NodeDesired, NodeMode, Tenant, TenantQuota
from railweave.contracts.envelope import Event
from railweave.contracts.fabric import Attachment, FabricLeaf, FabricNode, LeafVlan
from railweave.contracts.identity import JobRun
from railweave.contracts.inventory import CachedDataset, DatasetState, Gpu, NodeHardware, NodeStorage, Pf, Space
from railweave.contracts.job import JobSpec
from railweave.contracts.placement import (
    Interface,
    PlacedDataset,
    PlacedGpu,
    Placement,
    PlacementState,
    Scratch,
    Worker,
    WorkerNetwork,
)
from railweave.contracts.proposal import Ask, Eviction, concerns_of
from railweave.contracts.types import Document, NodeName
from railweave.runtime.cluster import ClusterState

M = TypeVar("M", bound=Document)

GIB = 2**30
CLUSTER = "slurm-a"


def cached(name: str, size_bytes: int, **fields: Any) -> CachedDataset:
    """A dataset (`name@version`) on a node's disk: ready, re-fetchable and used once unless said otherwise."""
    bare, _, version = name.partition("@")
    document = {
        "name": bare,
        "version": version or "1",
        "bytes": size_bytes,
        "state": DatasetState.READY,
        "uses": 1,
        "source": f"file:/sources/{bare}",
    }
    return _make(CachedDataset, **(document | fields))


def spec(
    job: str = "j",
    *,
    workers: int | Sequence[Mapping[str, Any]] = 1,
    gpus: int = 0,
    datasets: Sequence[str] = (),
    **fields: Any,
) -> JobSpec:
    """A job.

    Args:
        job: its name.
        workers: how many, in one group; or the groups.
        gpus: of each.
        datasets: `name@version` or `name@version=bytes`; with a source unless a `!` stands in front.
        fields: of JobSpec, or of its one WorkerGroup, or of its `nodes`, as JSON values.
    """
    group: dict[str, Any] = {"count": workers, "gpus": gpus}
    nodes: dict[str, Any] = {}
    document: dict[str, Any] = {"cluster": CLUSTER, "job": job, "attempt": 1}
    for key, value in fields.items():
        if key in {"per_node", "gpu_model", "gpu_fraction_milli", "gpu_memory_mib", "mig_profile", "scratch_bytes"}:
            group[key] = value
        elif key in {"node_list", "gpu_indices", "exclusive", "selector", "exclude", "topology"}:
            nodes[key] = value
        else:
            document[key] = value
    wanted = []
    for text in datasets:
        identity, _, size = text.removeprefix("!").partition("=")
        name, _, version = identity.partition("@")
        source = None if text.startswith("!") else f"file:/sources/{name}"
        size_bytes = int(size) if size else None
        wanted.append({"name": name, "version": version or "1", "size_bytes": size_bytes, "source": source})
    groups = [group] if isinstance(workers, int) else list(workers)
    document = {"workers": groups, "nodes": nodes, "datasets": wanted} | document
    return JobSpec.model_validate(document, strict=False)


def ask(
    job: str = "j", *, round_number: int = 1, avoid: Collection[str] = (), failed: Collection[str] = (), **fields: Any
) -> Ask:
    """A round of proposals for `spec(job, ...)`; `failed` are nodes that refused it before."""
    wanted = spec(job, **fields)
    return ask_for(wanted, round_number=round_number, avoid=avoid, failed=failed)


def ask_for(
    wanted: JobSpec, *, round_number: int = 1, avoid: Collection[str] = (), failed: Collection[str] = ()
) -> Ask:
    """A round of proposals for a job."""
    return _make(
        Ask,
        cluster=wanted.cluster,
        job=wanted.job,
        attempt=wanted.attempt,
        uid=wanted.uid,
        round=round_number,
        spec=wanted,
        concerns=concerns_of(wanted),
        avoid=tuple(NodeName(name) for name in avoid),
        exclude=tuple(NodeName(name) for name in failed),
    )


def _make(model: type[M], /, **fields: Any) -> M:
    """An event or a part of one from plain values."""
    return model.model_validate(fields, strict=False)


class ClusterBuilder:
    """A `ClusterState` that is told events as the streams would tell them."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.touched: set[NodeName] = set()
        """Nodes that changed since the test last looked."""
        self.told: list[Event] = []
        """Everything told so far, to be published as it is."""
        self._sequence = 0
        self._ordinal = 0
        self._revision: dict[str, int] = {}
        self._rails: dict[str, int] = {}
        self._placed: dict[tuple[str, str], Placement] = {}

    def tell(self, event: Event, stream: str) -> int:
        """Store an event and fold it; its sequence."""
        self._sequence += 1
        self.told.append(event)
        self.touched |= self.state.apply_event(event, self._sequence, stream).nodes
        return self._sequence

    def node(
        self,
        name: str,
        *,
        gpus: int | Sequence[Mapping[str, Any]] = 8,
        model: str = "H100",
        memory_mib: int = 81_920,
        rails: int = 2,
        vfs: int = 8,
        leaf: str = "leaf-1",
        pod: str = "pod-1",
        island: str = "island-1",
        labels: Mapping[str, str] | None = None,
        cache_bytes: int = 1000 * GIB,
        scratch_bytes: int = 1000 * GIB,
        datasets: Sequence[CachedDataset] = (),
        in_fabric: bool = True,
        segments: int = 0,
    ) -> None:
        """A node with an agent. GPUs: a number, four to a NUMA node and two to a PCIe root; or fields of each."""
        if in_fabric:
            self.fabric(name, rails=rails, leaf=leaf, pod=pod, island=island, segments=segments)
        cards = [{} for _ in range(gpus)] if isinstance(gpus, int) else gpus
        defaults = {"model": model, "memory_mib": memory_mib}
        self.tell(
            _make(
                NodeHardware,
                node=NodeName(name),
                revision=self._next(name),
                boot_id="boot-1",
                agent_version="test",
                labels=dict(labels or {}),
                pfs=tuple(
                    _make(Pf, pci=f"0000:{0x10 + rail:02x}:00.0", rail=rail, netdev=f"r{rail}", vfs=vfs)
                    for rail in range(rails)
                ),
                gpus=tuple(
                    _make(
                        Gpu,
                        **(
                            defaults
                            | {
                                "index": index,
                                "uuid": f"GPU-{name}-{index}",
                                "numa_node": index // 4,
                                "pcie_root": f"root-{index // 2}",
                            }
                            | dict(card)
                        ),
                    )
                    for index, card in enumerate(cards)
                ),
            ),
            "NODES",
        )
        self.storage(name, cache_bytes=cache_bytes, scratch_bytes=scratch_bytes, datasets=datasets)

    def fabric(
        self,
        name: str,
        *,
        rails: int = 2,
        leaf: str = "leaf-1",
        pod: str = "pod-1",
        island: str = "island-1",
        segments: int = 0,
    ) -> None:
        """Where a node hangs, all its rails on one leaf, which carries a VLAN for each of them, and each segment."""
        self._ordinal += 1
        if rails > self._rails.get(leaf, 0):
            self._rails[leaf] = rails
            number = list(self._rails).index(leaf) % 256
            self.tell(
                _make(
                    FabricLeaf,
                    leaf=leaf,
                    revision=rails,
                    island=island,
                    pod=pod,
                    vlans=tuple(
                        _make(
                            LeafVlan,
                            rail=rail,
                            segment=segment if segment >= 0 else None,
                            vlan=100 + rail + rails * (segment + 1),
                            subnet=f"10.{number}.{rail + rails * (segment + 1)}.0/24",
                            gateway=f"10.{number}.{rail + rails * (segment + 1)}.1",
                        )
                        for segment in range(-1, segments)
                        for rail in range(rails)
                    ),
                ),
                "FABRIC",
            )
        self.tell(
            _make(
                FabricNode,
                node=NodeName(name),
                revision=1,
                ordinal=self._ordinal,
                island=island,
                pod=pod,
                attachments=tuple(
                    _make(Attachment, rail=rail, leaf=leaf, port=f"p{self._ordinal}r{rail}", slot=self._ordinal)
                    for rail in range(rails)
                ),
            ),
            "FABRIC",
        )

    def storage(
        self,
        name: str,
        *,
        cache_bytes: int = 1000 * GIB,
        scratch_bytes: int = 1000 * GIB,
        datasets: Sequence[CachedDataset] = (),
        used_bytes: int | None = None,
    ) -> None:
        """What a node's disk holds now."""
        used = sum(int(item.bytes) for item in datasets) if used_bytes is None else used_bytes
        self.tell(
            _make(
                NodeStorage,
                node=NodeName(name),
                revision=self._next(name),
                boot_id="boot-1",
                cache=_make(Space, total_bytes=cache_bytes, used_bytes=used),
                scratch=_make(Space, total_bytes=scratch_bytes, used_bytes=0),
                datasets=tuple(datasets),
            ),
            "NODES",
        )

    def mode(self, name: str, mode: NodeMode, *, cordoned_rails: Sequence[int] = ()) -> None:
        """An operator's wish."""
        self.tell(
            _make(NodeDesired, node=NodeName(name), generation=1, mode=mode, cordoned_rails=tuple(cordoned_rails)),
            "DESIRED",
        )

    def tenant(self, name: str, *, gpu_limit: int) -> None:
        """A tenant's quota of GPUs."""
        quota = _make(TenantQuota, gpus=_make(GpuQuota, limit=gpu_limit))
        self.tell(_make(Tenant, tenant=name, generation=1, quota=quota), "DESIRED")

    def dataset(self, name: str, **fields: Any) -> None:
        """A registered dataset, `name@version`."""
        bare, _, version = name.partition("@")
        self.tell(_make(Dataset, **({"name": bare, "version": version or "1", "generation": 1} | fields)), "DESIRED")

    def place(
        self,
        job: str,
        node: str,
        *,
        gpus: Sequence[tuple[int, int]] = (),
        vfs: Sequence[tuple[int, int]] = (),
        fetch: Mapping[str, int] | None = None,
        use: Sequence[str] = (),
        evict: Mapping[str, int] | None = None,
        scratch_bytes: int = 0,
        exclusive: bool = False,
        tenant: str = "default",
        segment: int | None = None,
    ) -> None:
        """A job holds something on a node: GPUs (index, thousandths), VFs (rail, index), datasets, scratch.

        `segment` is the one that the VFs are in: the tenant's.
        """
        own = {"mode": "tenant", "segment": segment, "owner": f"tenant/{tenant}"} if segment is not None else {}
        network = (
            _make(WorkerNetwork, vf_group="g", isolation=own, interfaces=tuple(_interface(*vf) for vf in vfs))
            if vfs
            else None
        )
        placement = _make(
            Placement,
            cluster=CLUSTER,
            job=job,
            attempt=1,
            node=NodeName(node),
            state=PlacementState.DESIRED,
            epoch=1,
            round=1,
            commit="c",
            tenant=tenant,
            exclusive=exclusive,
            workers=(
                _make(
                    Worker,
                    name="worker",
                    worker=0,
                    gpus=tuple(
                        _make(PlacedGpu, index=index, uuid=f"GPU-{node}-{index}", fraction_milli=milli, memory_mib=1)
                        for index, milli in gpus
                    ),
                    network=network,
                ),
            ),
            datasets=tuple(
                _make(
                    PlacedDataset,
                    name=name.partition("@")[0],
                    version=name.partition("@")[2],
                    action=action,
                    bytes=size,
                )
                for action, names in (("fetch", fetch or {}), ("use", dict.fromkeys(use, 0)))
                for name, size in names.items()
            ),
            evict=tuple(
                _make(Eviction, dataset=name, bytes=size, reason="test") for name, size in (evict or {}).items()
            ),
            scratch=_make(Scratch, bytes=scratch_bytes) if scratch_bytes else None,
        )
        self._placed[job, node] = placement
        self.tell(placement, "PLACEMENTS")

    def release(self, job: str, node: str) -> None:
        """The node has undone the job, and the record says so."""
        placement = self._placed.pop((job, node)).model_copy(update={"state": PlacementState.RELEASED})
        self.tell(placement, "PLACEMENTS")

    def jobs_on(self, node: str) -> frozenset[JobRun]:
        """Who holds anything there."""
        return frozenset(self.state.node(NodeName(node)).holds)

    def _next(self, name: str) -> int:
        self._revision[name] = self._revision.get(name, 0) + 1
        return self._revision[name]


def _interface(rail: int, vf: int) -> Interface:
    return _make(
        Interface,
        name=f"rail{rail}",
        rail=rail,
        pf=f"0000:{0x10 + rail:02x}:00.0",
        vf=vf,
        mac="02:00:00:00:00:01",
        leaf="leaf-1",
        port="p",
        vlan=100,
        mtu=1500,
        addresses=(),
        gateways=(),
        rules=(),
    )
