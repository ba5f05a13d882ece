"""Why not: the closed enumeration of reasons, with numbers, and what would have to change.

A reason is read by people (`text`), by programs (`code`, `numbers`) and by the committer, which wakes a pending job
when what it `lacks` may have become available.
"""

from __future__ import annotations

from enum import StrEnum

from railweave.contracts.types import Document, NodeName


class ReasonCode(StrEnum):
    """Every "no" Railweave says. A code is never re-used for another meaning."""

    INSUFFICIENT_GPUS = "InsufficientGpus"
    """Not enough nodes with enough free GPUs or thousandths of one."""
    INSUFFICIENT_NODES = "InsufficientNodes"
    """Fewer schedulable nodes match than the job wants."""
    WAITING_FOR_QUOTA = "WaitingForQuota"
    """The tenant's limit holds it back, not the cluster's capacity."""
    VF_GROUPS_EXHAUSTED = "VfGroupsExhausted"
    """No free VF group on a node the job would run on."""
    SEGMENTS_EXHAUSTED = "SegmentsExhausted"
    """Every segment of the fabric is taken."""
    TOPOLOGY_FRAGMENTED = "TopologyFragmented"
    """Enough nodes are free, but not close enough to each other."""
    FABRIC_UNKNOWN = "FabricUnknown"
    """A node is not in the fabric inventory, or has no port on the rail asked for."""
    CACHE_SPACE_INSUFFICIENT = "CacheSpaceInsufficient"
    """No room for the datasets, even with everything evicted that may be."""
    SCRATCH_SPACE_INSUFFICIENT = "ScratchSpaceInsufficient"
    """No room for the job's private files."""
    DATASET_SIZE_UNKNOWN = "DatasetSizeUnknown"
    """A dataset's size is neither declared nor known; unknown is not zero."""
    DATASET_SOURCE_UNKNOWN = "DatasetSourceUnknown"
    """Nobody says where to fetch a dataset from, and too few nodes that fit have it."""
    EXCEEDS_CLUSTER_CAPACITY = "ExceedsClusterCapacity"
    """Could not run on this cluster even if it were empty."""
    NODE_NOT_SCHEDULABLE = "NodeNotSchedulable"
    """A node the scheduler chose is cordoned, draining, retired or unknown."""
    NODE_NOT_ATTACHED = "NodeNotAttached"
    """A node did not attach the job's network in time, or failed to."""
    NODE_NOT_PREPARED = "NodeNotPrepared"
    """A node did not prepare in time, or failed to."""
    NODE_REFUSED = "NodeRefused"
    """A node's agent says it cannot do what its placement says."""
    AGENT_UNREACHABLE = "AgentUnreachable"
    """A node's agent has not been heard of."""
    CLAIM_CONFLICT = "ClaimConflict"
    """Another job was stored first; this one is proposed again."""
    KEPT_FOR_GANG = "KeptForGang"
    """Free nodes are kept for an older large gang."""
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    """It was not ready when its deadline came."""
    SUPERSEDED = "Superseded"
    """A newer run under the same name ended it."""
    NOT_IN_SNAPSHOT = "NotInSnapshot"
    """The scheduler's list of live jobs does not have it."""
    ENDED_BY_SCHEDULER = "EndedByScheduler"
    """The scheduler said it ended."""
    RELEASED_BY_OPERATOR = "ReleasedByOperator"
    """An operator released it."""
    PROPOSAL_TIMEOUT = "ProposalTimeout"
    """A service did not answer with a proposal in time."""
    TOO_LARGE = "TooLarge"
    """The job is past what one atomic batch can store."""
    UNKNOWN = "Unknown"
    """A code that this reader is too old to know; the text says it. Never written."""

    @classmethod
    def _missing_(cls, value: object) -> ReasonCode | None:
        # A new reason is a minor change: an old reader must still read the event around it.
        return cls.UNKNOWN if isinstance(value, str) else None


class Lack(StrEnum):
    """What a waiting job lacks; a change of it wakes the job."""

    GPU = "gpu"
    NODE = "node"
    VF = "vf"
    SEGMENT = "segment"
    CACHE = "cache"
    SCRATCH = "scratch"
    DATASET = "dataset"
    QUOTA = "quota"
    FABRIC = "fabric"
    AGENT = "agent"


class Reason(Document):
    """One "no" and its numbers."""

    code: ReasonCode
    """What kind of no."""
    text: str
    """One line for people, with the numbers in it."""
    numbers: dict[str, int] = {}
    """The numbers, by name with their unit: `needed_gpus`, `largest_evictable_bytes`."""
    node: NodeName | None = None
    """The node it is about, where it is about one."""
    lacks: tuple[Lack, ...] = ()
    """What has to change before asking again makes sense."""
    remedy: str | None = None
    """What an operator or user can do about it, where there is something."""
