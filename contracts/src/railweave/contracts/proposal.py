"""Many propose: the ask and what each concern answers.

Subjects `rw.propose.<cluster>.<job>` and `rw.proposal.<concern>.<cluster>.<job>`. A proposal holds nothing and carries
ids only; what follows from ids (addresses, interfaces) is rendered at commit. Proposals of different rounds are never
joined.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field

from railweave.contracts.codec import encode_token
from railweave.contracts.envelope import Event, register_event
from railweave.contracts.identity import JobRun, RunDocument
from railweave.contracts.job import JobSpec
from railweave.contracts.reasons import Reason
from railweave.contracts.types import Bytes, Document, Milli, NodeName, Round, VfIndex


class Concern(StrEnum):
    """Who proposes what: cache gives `nodes` and `data`, topology `fabric`, then `gpu` and `nic`."""

    NODES = "nodes"
    FABRIC = "fabric"
    NIC = "nic"
    GPU = "gpu"
    DATA = "data"


class RoundKey(NamedTuple):
    """What proposals are joined by."""

    run: JobRun
    round: int


@register_event
class Ask(Event, RunDocument):
    """The committer asks for proposals."""

    TYPE = "railweave.propose.v1"
    SOURCE: ClassVar[str] = "/railweave/jobs"
    round: Round
    spec: JobSpec
    concerns: tuple[Concern, ...]
    """Who is asked; the others take no part."""
    exclude: tuple[NodeName, ...] = ()
    """Nodes that refused or failed this job before."""
    avoid: tuple[NodeName, ...] = ()
    """Nodes kept for an older gang."""
    dry_run: bool = False
    """Only a question: nothing will come of it, so what is proposed need not be kept for it."""

    def subject(self) -> str:
        return f"rw.propose.{encode_token(self.cluster)}.{encode_token(self.job)}"

    def event_id(self) -> str:
        return f"propose/{self._run_id()}/{int(self.round)}"

    @property
    def round_key(self) -> RoundKey:
        return RoundKey(self.run, int(self.round))


class Proposal(Event, RunDocument):
    """Base of all answers: either what would be given, or reasons why not."""

    CONCERN: ClassVar[Concern]
    round: Round
    based_on: dict[str, int] = {}
    """Last sequence seen of each stream the view was folded from."""
    reasons: tuple[Reason, ...] = ()
    """Not empty: nothing can be given, and why."""
    never: bool = False
    """With reasons: it could not be given even by an empty cluster."""

    def subject(self) -> str:
        return f"rw.proposal.{self.CONCERN}.{encode_token(self.cluster)}.{encode_token(self.job)}"

    def event_id(self) -> str:
        return f"proposal.{self.CONCERN}/{self._run_id()}/{int(self.round)}"

    def source(self) -> str:
        return f"/railweave/{self.CONCERN}"

    @property
    def round_key(self) -> RoundKey:
        return RoundKey(self.run, int(self.round))


@register_event
class NodesProposal(Proposal):
    """Which nodes, in rank order: entry i is node slot i."""

    TYPE = "railweave.proposal.nodes.v1"
    CONCERN = Concern.NODES
    nodes: tuple[NodeName, ...] = ()


class Eviction(Document):
    dataset: str
    """`name@version`."""
    bytes: Bytes
    reason: str
    """Why this one: `LeastValue`, `Obsolete`, ..."""


class NodeData(Document):
    node: NodeName
    use: tuple[str, ...] = ()
    """Datasets already there, `name@version`."""
    fetch: dict[str, Bytes] = {}
    """Datasets to fetch and their bytes."""
    evict: tuple[Eviction, ...] = ()


@register_event
class DataProposal(Proposal):
    """What each node uses, fetches and evicts."""

    TYPE = "railweave.proposal.data.v1"
    CONCERN = Concern.DATA
    nodes: tuple[NodeData, ...] = ()


@register_event
class FabricProposal(Proposal):
    """How the job is isolated. Leaf, port, VLAN and subnet of each VF follow at rendering."""

    TYPE = "railweave.proposal.fabric.v1"
    CONCERN = Concern.FABRIC
    mode: Literal["rail", "tenant"] = "rail"
    segment: Annotated[int, Field(ge=0, le=4094)] | None = None
    """The segment, in tenant mode."""
    owner: str | None = None
    """Whose the segment is to be, in tenant mode: jobs of one owner share it."""


class GpuShare(NamedTuple):
    """A GPU by its index on the node, and the thousandths of it."""

    gpu: int
    milli: Milli


class WorkerGpus(Document):
    worker: Annotated[int, Field(ge=0)]
    gpus: tuple[GpuShare, ...]


@register_event
class GpuProposal(Proposal):
    """Which GPUs each worker gets."""

    TYPE = "railweave.proposal.gpu.v1"
    CONCERN = Concern.GPU
    workers: tuple[WorkerGpus, ...] = ()


class VfRef(NamedTuple):
    """A VF: index of its PF in the node's hardware inventory, and its index on that PF."""

    pf: int
    vf: VfIndex


class WorkerVfs(Document):
    worker: Annotated[int, Field(ge=0)]
    group: str
    """Name of the VF group on its node, `g3`."""
    vfs: tuple[VfRef, ...]


@register_event
class NicProposal(Proposal):
    """Which VF group each worker gets."""

    TYPE = "railweave.proposal.nic.v1"
    CONCERN = Concern.NIC
    workers: tuple[WorkerVfs, ...] = ()


PROPOSAL_TYPES: dict[Concern, type[Proposal]] = {
    Concern.NODES: NodesProposal,
    Concern.DATA: DataProposal,
    Concern.FABRIC: FabricProposal,
    Concern.GPU: GpuProposal,
    Concern.NIC: NicProposal,
}


def concerns_of(spec: JobSpec) -> tuple[Concern, ...]:
    """Which concerns a job wants: nodes always, each other one only where it asks for it."""
    wanted = [Concern.NODES]
    if spec.datasets:
        wanted.append(Concern.DATA)
    if spec.wants_gpus:
        wanted.append(Concern.GPU)
    if spec.wants_network:
        wanted += [Concern.FABRIC, Concern.NIC]
    return tuple(wanted)
