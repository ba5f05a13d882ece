"""Builders of placements, and a node whose machine outlives its agent: `rig.start()` again is a restart after a
crash."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from railweave.contracts import WireMessage, decode_event
from railweave.contracts.identity import JobKey
from railweave.contracts.inventory import Report, ReportState
from railweave.contracts.job import StartedWorker
from railweave.contracts.placement import (
    Fence,
    Interface,
    PlacedDataset,
    PlacedGpu,
    Placement,
    PlacementState,
    Rule,
    Scratch,
    Worker,
    WorkerNetwork,
)
from railweave.contracts.types import BootId, NodeName
from railweave.node_agent.agent import NodeAgent
from railweave.node_agent.applier import Applier
from railweave.node_agent.building import Parts, assemble, simulated_gpus, simulated_pfs
from railweave.node_agent.carrying import Boundary
from railweave.node_agent.data import DataApplier, DataSpace, MemorySpace
from railweave.node_agent.gpu import GpuApplier, SimulatedGpus
from railweave.node_agent.inventory import FixedPfs
from railweave.node_agent.journal import MemoryStore, Store
from railweave.node_agent.model import EntryKey, EntryState, Record
from railweave.node_agent.network import MemoryKernel, NodePort, NodePorts, VethNetwork
from railweave.node_agent.network_applier import NetworkApplier
from railweave.node_agent.settings import GpusSettings
from railweave.node_agent.simulated_network import SimulatedNetwork, VfTable
from railweave.runtime.netlink import CreateBridge, Kernel, LinuxKernel, SetLink, settle_all

NODE = NodeName("n1")
RAILS = 2
GPUS = simulated_gpus(NODE, GpusSettings(count=4))
PFS = simulated_pfs(range(RAILS), 4, 9000, driver="simulated")


class Killed(BaseException):
    """The agent's process is dead as of this point."""


def interface(rail: int, vf: int = 0, *, mtu: int = 1500) -> Interface:
    address = f"10.{rail}.0.{10 + vf}"
    return Interface(
        name=f"rail{rail}",
        rail=rail,
        pf=PFS[rail].pci,
        vf=vf,
        mac=f"02:00:00:01:{rail:02x}:{vf:02x}",
        leaf="leaf1",
        port=f"p{rail}",
        vlan=100 + rail,
        mtu=mtu,
        addresses=(f"{address}/24",),
        gateways=(f"10.{rail}.0.1",),
        rules=(Rule(priority=1000 + rail, source=f"{address}/32", table=1000 + rail),),
    )


def dataset(
    name: str = "imagenet", size: int = 1000, *, action: str = "fetch", source: str = "file:/none"
) -> PlacedDataset:
    return PlacedDataset(name=name, version="1", action=action, bytes=size, source=source)


class Make:
    """Builders, each with a default for everything."""

    node = NODE
    gpus = GPUS
    pfs = PFS
    interface = staticmethod(interface)
    dataset = staticmethod(dataset)

    @staticmethod
    def worker(
        rank: int = 0, *, vf: int | None = 0, gpus: Sequence[tuple[int, int]] = ((0, 1000),), netns: str | None = None
    ) -> Worker:
        network = None
        if vf is not None:
            network = WorkerNetwork(vf_group=f"g{vf}", interfaces=tuple(interface(r, vf) for r in range(RAILS)))
        placed = tuple(
            PlacedGpu(index=i, uuid=GPUS[i].uuid, fraction_milli=milli, memory_mib=81_920 * milli // 1000)
            for i, milli in gpus
        )
        namespace = StartedWorker(worker=rank, netns=netns) if netns is not None else None
        return Worker(name="worker", worker=rank, gpus=placed, network=network, namespace=namespace)

    @classmethod
    def placement(
        cls,
        job: str = "j1",
        *,
        attempt: int = 1,
        round: int = 1,
        epoch: int = 1,
        uid: str | None = None,
        state: str = "desired",
        workers: Sequence[Worker] | None = None,
        netns: str | None = None,
        scratch: int = 0,
        **fields: Any,
    ) -> Placement:
        if workers is None:
            workers = (cls.worker(netns=netns),)
        return Placement(
            cluster="c",
            job=job,
            attempt=attempt,
            uid=uid,
            node=NODE,
            state=PlacementState(state),
            epoch=epoch,
            round=round,
            commit=f"commit-{job}-{round}",
            workers=tuple(workers),
            started=fields.pop("started", netns is not None),
            scratch=Scratch(bytes=scratch) if scratch else None,
            **fields,
        )

    @staticmethod
    def key(job: str = "j1", attempt: int = 1) -> EntryKey:
        return EntryKey.of(Make.placement(job, attempt=attempt))


@pytest.fixture(scope="session")
def make() -> Make:
    return Make()


@dataclass
class Rig:
    """One node: what is on it, and the agent that runs on it just now."""

    make: Make = field(default_factory=Make)
    store: Store = field(default_factory=MemoryStore)
    gpus: SimulatedGpus = field(default_factory=lambda: SimulatedGpus(GPUS))
    table: VfTable = field(default_factory=lambda: VfTable(PFS))
    space: DataSpace = field(default_factory=lambda: MemorySpace(10_000, 10_000))
    driver: VethNetwork | None = None
    """Instead of the table: a kernel, real or in memory."""
    boot: str = "boot-1"
    said: list[Any] = field(default_factory=list)
    """Bodies, in order."""
    wires: list[WireMessage] = field(default_factory=list)
    is_deaf: bool = False
    """Nothing that is said gets stored."""
    later: list[tuple[JobKey, float]] = field(default_factory=list)
    agent: NodeAgent = None  # type: ignore[assignment]  # until `start`
    sequence: int = 0

    async def start(self, boundary: Boundary | None = None, *, store: Store | None = None) -> NodeAgent:
        """A new process on the same machine."""
        if store is not None:
            self.store = store
        network: Applier = SimulatedNetwork(self.table) if self.driver is None else NetworkApplier(self.driver)
        data = DataApplier(self.space)
        appliers: list[Applier] = [network, GpuApplier(self.gpus), data]
        parts = Parts(appliers, data, self.gpus, FixedPfs(PFS), {}, BootId(self.boot))
        self.agent = await assemble(
            NODE,
            self.store,
            parts,
            voice=self._hear,
            version="test",
            later=lambda node, job, seconds: self.later.append((job, seconds)),
            boundary=boundary,
        )
        return self.agent

    async def _hear(self, message: WireMessage) -> bool:
        if self.is_deaf:
            return False
        self.wires.append(message)
        self.said.append(decode_event(message).data)
        return True

    async def tell(self, placement: Placement, *, sequence: int | None = None) -> None:
        """Store a placement and let the agent see it."""
        self.sequence = sequence if sequence is not None else self.sequence + 1
        job = self.agent.take(Record.of(placement, Fence(placement.epoch, self.sequence)))
        if job is not None:
            await self.agent.reconcile(job)

    def reports(self, job: str | None = None) -> list[ReportState]:
        """States of the reports so far."""
        return [r.state for r in self.said if isinstance(r, Report) and (job is None or r.job == job)]

    def last(self, job: str = "j1") -> Report:
        return next(r for r in reversed(self.said) if isinstance(r, Report) and r.job == job)

    def state(self, job: str = "j1", attempt: int = 1) -> EntryState | None:
        entry = self.agent.journal.entries.get(self.make.key(job, attempt))
        return None if entry is None else entry.state

    def leftovers(self) -> dict[str, Any]:
        """Everything on the node that some job still has; empty when nothing leaked."""
        found: dict[str, Any] = {}
        if self.table.uses:
            found["vfs"] = dict(self.table.uses)
        held = {gpu.uuid: dict(self.gpus.held(gpu.uuid)) for gpu in GPUS if self.gpus.held(gpu.uuid)}
        if held:
            found["gpus"] = held
        if isinstance(self.space, MemorySpace) and self.space.jobs:
            found["directories"] = self.space.jobs
        entries = dict(self.agent.journal.entries)
        if entries:
            found["entries"] = entries
        return found


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    await rig.start()
    return rig


_numbers = itertools.count()


@dataclass
class KernelWorld:
    """A node with its leaf on some kernel, and namespaces for workers."""

    kernel: Kernel
    prefix: str
    made: list[str] = field(default_factory=list)

    def netns(self, part: str) -> str:
        name = f"{self.prefix}-{part}"
        self.kernel.create_netns(name)
        self.made.append(name)
        return f"/run/netns/{name}"

    def driver(self) -> VethNetwork:
        leaf, node = f"/run/netns/{self.prefix}-leaf", f"/run/netns/{self.prefix}-node"
        ports = tuple(NodePort(rail, leaf, f"p{rail}") for rail in range(RAILS))
        return VethNetwork(self.kernel, NodePorts(str(NODE), node, ports))

    def build(self) -> None:
        leaf = self.netns("leaf")
        self.netns("node")
        with self.kernel.open(leaf) as inside:
            for rail in range(RAILS):
                settle_all(inside, [CreateBridge(f"br{100 + rail}"), SetLink(f"br{100 + rail}", up=True, mtu=1500)])

    def picture(self) -> dict[str, Any]:
        """Everything in all namespaces, without what changes of itself: a bridge has a port's MAC, a pair that ended
        with a worker's namespace is made anew, with another MAC on the leaf's side."""
        seen: dict[str, Any] = {}
        for name in self.made:
            with self.kernel.open(f"/run/netns/{name}") as inside:
                links = inside.links()
                names = {link.index: link.name for link in links}
                seen[name] = {
                    "links": sorted(
                        (
                            link.name,
                            link.mac if link.kind != "bridge" and not link.alias.endswith("/far") else "",
                            link.mtu,
                            link.up,
                            names.get(link.master, ""),
                            link.alias,
                        )
                        for link in links
                        if link.name != "lo"
                    ),
                    "addresses": sorted((names[a.index], a.cidr) for a in inside.addresses() if names[a.index] != "lo"),
                    "rules": sorted((r.priority, r.source, r.table) for r in inside.rules()),
                    "routes": sorted(
                        (r.to, r.table, r.kind) for r in inside.routes() if ":" not in r.to and r.table != 255
                    ),
                }
        return seen

    def remove(self) -> None:
        for name in self.made:
            self.kernel.delete_netns(name)


@pytest.fixture
def memory_world() -> KernelWorld:
    world = KernelWorld(MemoryKernel(), "t")
    world.build()
    return world


@pytest.fixture
def linux_world() -> Iterator[KernelWorld]:
    if os.geteuid() != 0:
        pytest.skip("needs root for network namespaces: run the tests with sudo")
    world = KernelWorld(LinuxKernel(), f"rwa{os.getpid()}x{next(_numbers)}")
    try:
        world.build()
        yield world
    finally:
        world.remove()


@pytest.fixture(scope="session")
def new_rig() -> type[Rig]:
    return Rig


@pytest.fixture(scope="session")
def killed() -> type[Killed]:
    return Killed
