"""The settings section `agent`: which nodes this process is the agent of, and how it works."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from railweave.contracts.types import InterfaceName, NodeName
from railweave.runtime.settings import Seconds, Section, register_section


class GpusSettings(Section):
    """Simulated GPUs of a node."""

    count: int = Field(default=0, ge=0, le=64, description="how many")
    model: str = Field(default="SIM-80G", min_length=1, max_length=256, description="model, as jobs ask for it")
    memory_mib: int = Field(default=81_920, ge=1, description="memory of each, MiB")


class PortSettings(Section):
    """A PF of the veth driver: a rail of the node, on a port of a software leaf."""

    rail: int = Field(default=0, ge=0, le=255, description="which NIC position of the host")
    leaf_netns: str = Field(default="", description="path of the leaf's network namespace, /run/netns/...")
    port: InterfaceName = Field(default=InterfaceName("port"), description="name of the leaf port")


class NodeSettings(Section):
    """A node with a journal and a data directory of its own on this machine."""

    name: NodeName = Field(default=NodeName("node"), description="its name in the cluster")
    network: Literal["veth", "none"] = Field(default="none", description="veth: on a software fabric; none: no VFs")
    netns: str = Field(default="/proc/self/ns/net", description="path of the node's own network namespace")
    ports: tuple[PortSettings, ...] = Field(default=(), description="its PFs, for veth")
    vfs: int = Field(default=8, ge=0, le=256, description="VFs of each PF")
    mtu: int = Field(default=9000, ge=1280, le=9216, description="largest MTU of its PFs")
    gpus: GpusSettings = Field(default=GpusSettings(), description="simulated GPUs")
    labels: dict[str, str] = Field(default={}, description="labels that jobs select nodes by")
    directory: Path | None = Field(default=None, description="journal and data; else below agent.directory")
    cache_bytes: int | None = Field(default=None, ge=0, description="size of the cache space; else the filesystem's")
    scratch_bytes: int | None = Field(
        default=None, ge=0, description="size of the scratch space; else the filesystem's"
    )

    @model_validator(mode="after")
    def _veth_needs_ports(self) -> NodeSettings:
        if self.network == "veth" and not self.ports:
            msg = f"node {self.name}: network veth needs ports"
            raise ValueError(msg)
        return self


class SimulatedSettings(Section):
    """Nodes in memory, all alike: the agent's own code over memory drivers."""

    names: tuple[NodeName, ...] = Field(default=(), description="their names; else prefix and number")
    count: int = Field(default=0, ge=0, le=100_000, description="how many, where names are not given")
    prefix: str = Field(default="node-", min_length=1, max_length=200, description="start of numbered names")
    rails: int = Field(default=8, ge=0, le=64, description="PFs of each, one on each rail")
    vfs: int = Field(default=8, ge=0, le=256, description="VFs of each PF")
    gpus: GpusSettings = Field(default=GpusSettings(count=8), description="GPUs of each")
    labels: dict[str, str] = Field(default={}, description="labels of each")
    cache_bytes: int = Field(default=4 * 2**40, ge=0, description="cache space of each, bytes")
    scratch_bytes: int = Field(default=2 * 2**40, ge=0, description="scratch space of each, bytes")
    fetch_bytes_per_s: int = Field(default=0, ge=0, description="speed of a fetch; 0: no time")

    def node_names(self) -> tuple[NodeName, ...]:
        """The names of all simulated nodes."""
        if self.names:
            return self.names
        width = len(str(self.count))
        return tuple(NodeName(f"{self.prefix}{number:0{width}}") for number in range(1, self.count + 1))


class FetchSettings(Section):
    """How datasets are fetched."""

    concurrency: int = Field(default=4, ge=1, le=256, description="fetches at a time")
    timeout_s: Seconds = Field(default=20.0, description="seconds a source may be silent")
    tries: int = Field(default=6, ge=1, le=100, description="tries in a row without a new byte")


class AgentSettings(Section):
    """Of the node agent."""

    nodes: tuple[NodeSettings, ...] = Field(default=(), description="nodes on this machine; else one of its host name")
    simulated: SimulatedSettings = Field(default=SimulatedSettings(), description="nodes in memory")
    directory: Path = Field(default=Path("/var/lib/railweave"), description="where nodes have their directories")
    socket: Path | None = Field(default=None, description="local socket; else agent.sock in the agent's directory")
    file_roots: tuple[Path, ...] = Field(
        default=(), description="directories that file: datasets may come from; none: they are refused"
    )
    fetch: FetchSettings = Field(default=FetchSettings(), description="how datasets are fetched")
    resync_s: Seconds = Field(default=60.0, description="seconds between full comparisons of what is and must be")
    inventory_s: Seconds = Field(default=5.0, description="seconds between looks at the devices of real nodes")
    heartbeat_s: Seconds = Field(default=5.0, description="seconds between heartbeats in Redis")
    concurrency: int = Field(
        default=4096, ge=1, description="jobs worked on at a time; one that fetches waits in its place"
    )


register_section("agent", AgentSettings)
