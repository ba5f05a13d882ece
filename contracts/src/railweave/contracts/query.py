"""Questions that services answer by request and reply: plain documents, no envelope, because nothing is stored.

Subject `rw.query.<service>.<what>`; the body of question and answer is JSON. A question that cannot be answered is
answered with the headers `Nats-Service-Error` and `Nats-Service-Error-Code` of the NATS service API and an empty body.
"""

from __future__ import annotations

from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from railweave.contracts.desired import NodeMode
from railweave.contracts.fabric import FabricLeaf, FabricNode
from railweave.contracts.inventory import Failure, ReportState, Step
from railweave.contracts.job import JobSpec, PlacedWorker
from railweave.contracts.placement import JobState
from railweave.contracts.reasons import Lack, Reason, ReasonCode
from railweave.contracts.types import (
    Attempt,
    Bytes,
    ClusterName,
    Document,
    JobName,
    Label,
    LeafName,
    NodeName,
    Rail,
    Round,
    RunUid,
    TenantName,
    UtcTime,
)

DRY_RUN_SUBJECT: Final = "rw.query.jobs.dryrun"
JOBS_SUBJECT: Final = "rw.query.jobs.list"
JOB_SUBJECT: Final = "rw.query.jobs.job"
WHY_SUBJECT: Final = "rw.query.jobs.why"
NODES_SUBJECT: Final = "rw.query.jobs.nodes"
COUNTS_SUBJECT: Final = "rw.query.jobs.counts"
FABRIC_PLAN_SUBJECT: Final = "rw.query.topology.plan"
FABRIC_APPLY_SUBJECT: Final = "rw.query.topology.apply"

Count = Annotated[int, Field(ge=0)]


class DryRunRequest(Document):
    """Where would this job run? Changes nothing."""

    spec: JobSpec


class DryRunAnswer(Document):
    """Where it would run now, or why it would not."""

    would_place: tuple[NodeName, ...] | None = None
    """The nodes in rank order, where it would be placed now."""
    reasons: tuple[Reason, ...] = ()
    """Why not, where it would not."""
    never: bool = False
    """With reasons: not even an empty cluster could run it."""
    fetch_bytes: Bytes = Bytes(0)
    """What its nodes would have to fetch, all together."""
    evict_bytes: Bytes = Bytes(0)
    """What its nodes would have to evict, all together."""
    warnings: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.would_place is None) == (not self.reasons):
            raise ValueError("expected one of would_place and reasons")
        return self


class JobsQuery(Document):
    """Which jobs? What is absent matches any."""

    cluster: ClusterName | None = None
    states: tuple[JobState, ...] = ()
    """Any of these. Default: all."""
    tenant: TenantName | None = None
    node: NodeName | None = None
    """Jobs with a placement there."""
    reason: ReasonCode | None = None
    """Jobs that wait or ended for this reason."""
    limit: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Default 100."""
    after: str | None = None
    """`next` of the answer before."""


class JobRow(Document):
    """A job in a list."""

    cluster: ClusterName
    job: JobName
    attempt: Attempt
    uid: RunUid | None = None
    name: Label | None = None
    tenant: TenantName = TenantName("default")
    queue: Label | None = None
    state: JobState
    round: Round
    priority: int = 0
    workers: Count = 0
    node_slots: Count = 0
    """Nodes it wants or has."""
    gpus: Count = 0
    """GPUs it wants or has, whole or shared."""
    nodes: tuple[NodeName, ...] = ()
    """Nodes it has."""
    reasons: tuple[ReasonCode, ...] = ()
    """Why it waits or ended."""
    submitted_at: UtcTime
    since: UtcTime
    """When it came into this state."""


class JobsAnswer(Document):
    """The jobs that match, oldest first."""

    jobs: tuple[JobRow, ...]
    total: Count
    """All that match."""
    next: str | None = None
    """Ask again with it as `after` for more."""
    as_of: UtcTime | None = None
    """The time of the last event that is in it."""


class JobQuery(Document):
    """How does one job stand?"""

    cluster: ClusterName
    job: JobName


class NodeProgress(Document):
    """How far a node has come with a job."""

    node: NodeName
    state: ReportState | None = None
    """What it last reported. None: nothing yet."""
    steps: tuple[Step, ...] = ()
    failure: Failure | None = None
    reported_at: UtcTime | None = None


class JobDetail(Document):
    """Everything about one job."""

    row: JobRow
    spec: JobSpec | None = None
    """None: it was adopted from agents after a loss, or ended before it was submitted."""
    times: dict[JobState, UtcTime] = {}
    """When each state was reached."""
    placed: tuple[PlacedWorker, ...] = ()
    segment: int | None = None
    """What isolates it from other tenants; none in `rail` mode."""
    progress: tuple[NodeProgress, ...] = ()
    reasons: tuple[Reason, ...] = ()
    lacks: tuple[Lack, ...] = ()
    exclude: tuple[NodeName, ...] = ()
    """Nodes that refused or failed it."""
    commit: str | None = None


class Why(Document):
    """Why a job is where it is, in the order an expert would tell it. Asked for with a `JobQuery`."""

    row: JobRow
    headline: str
    """State, leading reason, how long: `PENDING TopologyFragmented, 14 min, 2nd of 7 in h100`."""
    position: Annotated[int, Field(ge=1)] | None = None
    """Its place in the queue, where it waits."""
    queue_length: Count = 0
    wants: str
    """What it asks for, in a line."""
    blocked: tuple[str, ...] = ()
    """What stands in the way, with numbers."""
    next: tuple[str, ...] = ()
    """What will change it, or what can be done."""
    reasons: tuple[Reason, ...] = ()


class NodesQuery(Document):
    """Which nodes? What is absent matches any."""

    node: NodeName | None = None
    modes: tuple[NodeMode, ...] = ()
    """Any of these. Default: all."""
    leaf: LeafName | None = None
    limit: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    """Default 10,000."""


class NodeRow(Document):
    """A node in a list."""

    node: NodeName
    mode: NodeMode
    mode_reason: Label | None = None
    agent_version: str | None = None
    heard_at: UtcTime | None = None
    """When its agent was last heard of: a hint."""
    leaves: tuple[LeafName, ...] = ()
    """By rail, without repeats."""
    gpus: Count = 0
    free_gpus: Count = 0
    """Healthy GPUs of which nothing is used."""
    free_milli: Count = 0
    """Thousandths of GPUs that are free, all together."""
    vf_groups: Count = 0
    free_vf_groups: Count = 0
    rails_down: tuple[Rail, ...] = ()
    cache_total_bytes: Bytes = Bytes(0)
    cache_used_bytes: Bytes = Bytes(0)
    scratch_total_bytes: Bytes = Bytes(0)
    scratch_free_bytes: Bytes = Bytes(0)
    datasets: Count = 0
    jobs: tuple[str, ...] = ()
    """`cluster/job` of what it holds."""
    problems: tuple[str, ...] = ()
    """What is wrong with it, a line each."""


class NodesAnswer(Document):
    """The nodes that match, by name."""

    nodes: tuple[NodeRow, ...]
    total: Count


class CountsQuery(Document):
    """What has the active committer counted?"""


class CountsAnswer(Document):
    """Counted since the active committer took over."""

    instance: str
    epoch: Count
    asks: Count
    """Rounds asked for."""
    complete_rounds: Count
    """Rounds in which every concern gave something, brought to commit."""
    commits: Count
    conflicts: Count
    """Rounds lost to other jobs between proposal and commit."""
    released: Count
    rejected: Count
    adopted: Count
    """Placements taken over from agents' journals after a loss of the record."""
    orphans: Count
    """Placements that a journal holds and the record does not, not judged yet."""
    live: dict[JobState, int] = {}
    """Live jobs by state."""


class FabricPlanQuery(Document):
    """What would an apply of the fabric file change? Or, to apply: change it."""

    plan: str | None = None
    """The plan that was seen: its next part is asked for, or it alone is to be applied. It is refused (409) where the
    plan would be another one by now."""
    start: Count = 0
    """How many of its changes are not wanted again: those of the parts before."""


class LeafChange(Document):
    """A leaf's record before and after; without old it is new."""

    leaf: LeafName
    old: FabricLeaf | None = None
    new: FabricLeaf


class NodeChange(Document):
    """A node's record before and after; without old it is new."""

    node: NodeName
    old: FabricNode | None = None
    new: FabricNode


class FabricRefused(Document):
    """Why the fabric cannot be made what the file says; nothing is changed."""

    text: str
    numbers: dict[str, int] = {}


class FabricPlanAnswer(Document):
    """What changes, leaves first; as many of it as an answer takes."""

    plan: str
    """Names the plan: the same changes of the same records have the same name."""
    revision: Count
    islands: Count
    counts: dict[str, Count]
    """`leaves_new`, `leaves_changed`, `nodes_new`, `nodes_changed`, `nodes_gone`, `vlans_new`, `vlans_changed`,
    `vlans_gone`, over all of it."""
    total: Count
    """Changes there are."""
    start: Count
    """Changes before this part."""
    leaves: tuple[LeafChange, ...] = ()
    nodes: tuple[NodeChange, ...] = ()
    refused: FabricRefused | None = None
    """With nothing else: it cannot be done."""
