"""What nodes say of themselves, in stream NODES: hardware, storage, and a report for every placement."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from railweave.contracts.codec import encode_id_part, encode_token
from railweave.contracts.envelope import Event, register_event
from railweave.contracts.identity import RunDocument
from railweave.contracts.placement import Fence, Placement
from railweave.contracts.types import (
    BootId,
    Bytes,
    DatasetName,
    DatasetVersion,
    Document,
    GpuUuid,
    InterfaceName,
    Label,
    MacAddress,
    Mib,
    NodeName,
    PciAddress,
    Rail,
)


class Pf(Document):
    """A physical function (or what stands for one: the `veth` driver)."""

    pci: PciAddress
    rail: Rail
    netdev: InterfaceName
    vfs: Annotated[int, Field(ge=0, le=256)]
    """VFs that may be given away."""
    numa_node: int | None = None
    pcie_root: str | None = None
    link_up: bool = True
    mtu: Annotated[int, Field(ge=68, le=65535)] = 1500
    mac: MacAddress | None = None
    rdma: str | None = None
    """Its RDMA device, where it has one."""
    driver: str = "unknown"


class Gpu(Document):
    index: Annotated[int, Field(ge=0, le=1023)]
    uuid: GpuUuid
    pci: PciAddress | None = None
    model: Label
    memory_mib: Mib
    numa_node: int | None = None
    pcie_root: str | None = None
    healthy: bool = True
    fault: str | None = None
    """Why it is not healthy."""


class Space(Document):
    total_bytes: Bytes
    used_bytes: Bytes
    """As the filesystem says, of this space."""
    total_inodes: int | None = None
    free_inodes: int | None = None


class DatasetState(StrEnum):
    FETCHING = "fetching"
    VERIFYING = "verifying"
    READY = "ready"
    EVICTING = "evicting"
    FAILED = "failed"


class CachedDataset(Document):
    name: DatasetName
    version: DatasetVersion
    bytes: Bytes
    files: Annotated[int, Field(ge=0)] = 0
    state: DatasetState
    uses: Annotated[int, Field(ge=0)] = 0
    """Jobs that used it on this node, all in all."""
    last_used: Annotated[int, Field(ge=0)] = 0
    """Sequence of the last placement that used it: an order, not a time."""
    pinned: bool = False
    source: str | None = None
    digest: str | None = None

    @property
    def dataset(self) -> str:
        return f"{self.name}@{self.version}"


@register_event
class NodeHardware(Event):
    """A node's devices, as its agent found them."""

    TYPE = "railweave.inventory.hardware.v1"
    node: NodeName
    revision: Annotated[int, Field(ge=1)]
    """Counts this node's inventories over restarts of its agent."""
    boot_id: BootId
    agent_version: str
    features: tuple[str, ...] = ()
    """What this agent can do; a placement that requires another is refused."""
    labels: dict[str, Label] = {}
    fence_seen: Fence = Fence(0, 0)
    """The highest fence this agent has applied. One beyond the stream's last: the record was lost or put back."""
    pfs: tuple[Pf, ...] = ()
    gpus: tuple[Gpu, ...] = ()

    def subject(self) -> str:
        return f"rw.inventory.{encode_token(self.node)}.hardware"

    def event_id(self) -> str:
        return f"inventory.hardware/{encode_id_part(self.node)}/{encode_id_part(self.boot_id)}/{self.revision}"

    def source(self) -> str:
        return f"/node/{encode_id_part(self.node)}"


@register_event
class NodeStorage(Event):
    """A node's spaces and the datasets in its cache."""

    TYPE = "railweave.inventory.storage.v1"
    node: NodeName
    revision: Annotated[int, Field(ge=1)]
    boot_id: BootId
    cache: Space
    scratch: Space
    datasets: tuple[CachedDataset, ...] = ()

    def subject(self) -> str:
        return f"rw.inventory.{encode_token(self.node)}.storage"

    def event_id(self) -> str:
        return f"inventory.storage/{encode_id_part(self.node)}/{encode_id_part(self.boot_id)}/{self.revision}"

    def source(self) -> str:
        return f"/node/{encode_id_part(self.node)}"


class ReportState(StrEnum):
    PREPARED = "prepared"
    """VFs set, data there."""
    ATTACHED = "attached"
    """Inside the workers' namespaces."""
    REFUSED = "refused"
    """This node cannot do what its placement says; nothing was changed or all was undone."""
    FAILED = "failed"
    """A step failed; what was done is kept until the placement is released."""
    UNDONE = "undone"
    """Nothing of it is left on this node."""
    ORPHAN = "orphan"
    """The journal holds it, the record does not: adopt or release it."""


class Step(Document):
    name: str
    milliseconds: Annotated[int, Field(ge=0)]


class Failure(Document):
    step: str
    """Which step, `attach rail3: move into namespace`."""
    error: str
    """errno or error name."""
    text: str
    """What it means and what to do."""


@register_event
class Report(Event, RunDocument):
    """What a node's agent found after acting on a placement."""

    TYPE = "railweave.report.v1"
    node: NodeName
    revision: Annotated[int, Field(ge=1)]
    """From the journal: counts this node's reports over restarts."""
    boot_id: BootId
    fence: Fence
    """Of the placement it is about."""
    state: ReportState
    steps: tuple[Step, ...] = ()
    failure: Failure | None = None
    held: Placement | None = None
    """With `orphan`: what the journal holds."""

    def subject(self) -> str:
        node, cluster, job = encode_token(self.node), encode_token(self.cluster), encode_token(self.job)
        return f"rw.report.{node}.{cluster}.{job}.{int(self.attempt)}"

    def event_id(self) -> str:
        return f"report/{encode_id_part(self.node)}/{encode_id_part(self.boot_id)}/{self.revision}"

    def source(self) -> str:
        return f"/node/{encode_id_part(self.node)}"
