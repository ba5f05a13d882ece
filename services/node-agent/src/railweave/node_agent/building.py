"""Puts agents together: a real node from its settings, or simulated nodes by the hundred in one process."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from railweave.contracts.codec import encode_token
from railweave.contracts.identity import JobKey
from railweave.contracts.inventory import Gpu, Pf
from railweave.contracts.types import BootId, GpuUuid, InterfaceName, Label, Mib, NodeName, PciAddress, Rail
from railweave.node_agent.agent import NodeAgent
from railweave.node_agent.applier import Applier
from railweave.node_agent.carrying import Boundary
from railweave.node_agent.data import DataApplier, DataSpace, DiskSpace, MemorySpace
from railweave.node_agent.data.fetching import FetchOptions
from railweave.node_agent.gpu import GpuApplier, SimulatedGpus
from railweave.node_agent.inventory import FixedPfs, NodeInventory, PfSource, kernel_boot_id
from railweave.node_agent.journal import Journal, MemoryStore, Store
from railweave.node_agent.journal_sqlite import SqliteStore
from railweave.node_agent.network import NodePort, NodePorts, VethNetwork
from railweave.node_agent.network_applier import NetworkApplier
from railweave.node_agent.settings import AgentSettings, GpusSettings, NodeSettings, SimulatedSettings
from railweave.node_agent.simulated_network import SimulatedNetwork, VfTable
from railweave.node_agent.speaking import Speaker, Voice
from railweave.node_agent.veth_inventory import VethPfs
from railweave.runtime.netlink import LinuxKernel

FEATURES = frozenset({"network", "gpu", "data", "scratch"})
"""What placements may require of this agent."""

_GPU_NAMESPACE = uuid.UUID("6a0c8d8e-3d55-4d8a-9a52-5f2f0d1f9c11")

Later = Callable[[NodeName, JobKey, float], None]
"""Asks that a node's job be reconciled again in so many seconds."""


@dataclass(slots=True)
class Built:
    """An agent and the parts that its process closes, shows or looks into."""

    agent: NodeAgent
    journal: Journal
    space: DataSpace
    gpus: SimulatedGpus
    network: NetworkApplier | None = None
    table: VfTable | None = None
    is_simulated: bool = False

    async def close(self) -> None:
        """End what it owns; nothing is undone."""
        await self.space.close()
        if self.network is not None:
            await self.network.driver.close()
        await self.journal.close()


@dataclass(frozen=True, slots=True)
class Parts:
    """What an agent is made of, beside its journal."""

    appliers: Sequence[Applier]
    data: DataApplier
    gpus: SimulatedGpus
    pfs: PfSource
    labels: Mapping[str, str]
    boot_id: BootId


async def assemble(
    node: NodeName,
    store: Store,
    parts: Parts,
    *,
    voice: Voice,
    version: str,
    later: Later = lambda node, job, seconds: None,
    boundary: Boundary | None = None,
) -> NodeAgent:
    """An agent over an opened journal and data space.

    Raises:
        JournalBroken: the journal cannot be read.
    """
    journal = Journal(store)
    lost = [applier.concern for applier in parts.appliers if not applier.survives_boot]
    await journal.open(parts.boot_id, lost_by_boot=lost)
    await parts.data.space.open()
    labels = {key: Label(value) for key, value in parts.labels.items()}
    source = NodeInventory(parts.pfs, parts.gpus.gpus, labels, parts.data.space, journal)
    speaker = Speaker(node, journal, source, voice, boot_id=parts.boot_id, version=version, features=FEATURES)
    agent = NodeAgent(
        journal,
        parts.appliers,
        speaker,
        features=FEATURES,
        later=lambda job, seconds: later(node, job, seconds),
        boundary=boundary,
    )
    parts.data.in_use = agent.in_use
    return agent


async def build_node(node: NodeSettings, settings: AgentSettings, *, voice: Voice, version: str, later: Later) -> Built:
    """The agent of a node on this machine.

    Raises:
        JournalBroken: its journal cannot be read.
        OSError: its directory cannot be made.
    """
    directory = node_directory(node, settings)
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    options = FetchOptions(
        file_roots=settings.file_roots, timeout_s=settings.fetch.timeout_s, tries=settings.fetch.tries
    )
    space = DiskSpace(
        directory / "data",
        cache_bytes=node.cache_bytes,
        scratch_bytes=node.scratch_bytes,
        options=options,
        concurrency=settings.fetch.concurrency,
    )
    gpus = SimulatedGpus(simulated_gpus(node.name, node.gpus))
    appliers: list[Applier] = []
    network: NetworkApplier | None = None
    pfs: PfSource = FixedPfs()
    if node.network == "veth":
        ports = tuple(NodePort(port.rail, port.leaf_netns, str(port.port)) for port in node.ports)
        driver = VethNetwork(LinuxKernel(), NodePorts(str(node.name), node.netns, ports))
        network = NetworkApplier(driver)
        pfs = VethPfs(driver, simulated_pfs([port.rail for port in ports], node.vfs, node.mtu, driver="veth"), ports)
        appliers.append(network)
    data = DataApplier(space)
    appliers += [GpuApplier(gpus), data]
    store = SqliteStore(directory / "journal.sqlite", {a.concern: a.body_from_json for a in appliers})
    parts = Parts(appliers, data, gpus, pfs, node.labels, kernel_boot_id())
    agent = await assemble(node.name, store, parts, voice=voice, version=version, later=later)
    return Built(agent, agent.journal, space, gpus, network)


def node_directory(node: NodeSettings, settings: AgentSettings) -> Path:
    """Where a node has its journal and data."""
    return node.directory or settings.directory / encode_token(str(node.name))


async def build_simulated(
    name: NodeName, settings: SimulatedSettings, *, voice: Voice, version: str, later: Later
) -> Built:
    """The agent of a node in memory."""
    speed = settings.fetch_bytes_per_s
    space = MemorySpace(
        settings.cache_bytes, settings.scratch_bytes, fetch_s=(lambda size: size / speed) if speed else lambda size: 0.0
    )
    gpus = SimulatedGpus(simulated_gpus(name, settings.gpus))
    pfs = simulated_pfs(range(settings.rails), settings.vfs, 9000, driver="simulated")
    table = VfTable(pfs)
    data = DataApplier(space)
    appliers: list[Applier] = [SimulatedNetwork(table), GpuApplier(gpus), data]
    # What such a node holds ends with the process, and so does its boot.
    parts = Parts(appliers, data, gpus, FixedPfs(pfs), settings.labels, BootId(str(uuid.uuid4())))
    agent = await assemble(name, MemoryStore(), parts, voice=voice, version=version, later=later)
    return Built(agent, agent.journal, space, gpus, table=table, is_simulated=True)


def simulated_gpus(node: NodeName, settings: GpusSettings) -> tuple[Gpu, ...]:
    """The GPUs of a node: two NUMA nodes, four PCIe roots, UUIDs that follow from the node's name."""
    return tuple(
        Gpu(
            index=index,
            uuid=GpuUuid(f"GPU-{uuid.uuid5(_GPU_NAMESPACE, f'{node}/{index}')}"),
            pci=PciAddress(f"0000:{0x80 + index:02x}:00.0"),
            model=Label(settings.model),
            memory_mib=Mib(settings.memory_mib),
            numa_node=index * 2 // settings.count,
            pcie_root=f"pci0000:{index * 4 // settings.count:02x}",
        )
        for index in range(settings.count)
    )


def simulated_pfs(rails: Sequence[int], vfs: int, mtu: int, *, driver: str) -> tuple[Pf, ...]:
    """A PF on each rail, spread over two NUMA nodes and four PCIe roots as the GPUs are."""
    return tuple(
        Pf(
            pci=PciAddress(f"0000:{0x10 + rail:02x}:00.0"),
            rail=Rail(rail),
            netdev=InterfaceName(f"rail{rail}"),
            vfs=vfs,
            numa_node=place * 2 // len(rails),
            pcie_root=f"pci0000:{place * 4 // len(rails):02x}",
            mtu=mtu,
            driver=driver,
        )
        for place, rail in enumerate(rails)
    )
