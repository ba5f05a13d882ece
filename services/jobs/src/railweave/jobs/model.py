"""Data of the committer: a job as it stands, what comes in, and what is to be done.

Not here: decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from railweave.contracts.envelope import Event
from railweave.contracts.identity import JobKey, JobRun
from railweave.contracts.inventory import ReportState
from railweave.contracts.job import JobSpec, JobStarted, JobUpdated, Outcome, StartedWorker
from railweave.contracts.placement import Claim, JobState, Placement
from railweave.contracts.proposal import Concern, Proposal
from railweave.contracts.reasons import Lack, Reason
from railweave.contracts.types import NodeName


@dataclass(frozen=True, slots=True)
class CommitterConfig:
    """What a site may set; times in seconds."""

    asks_at_once: int = 48
    """Rounds that are answered at a time; further jobs wait for their turn, by priority and age."""
    ask_timeout_s: float = 10.0
    """How long services may take to answer an ask before it is asked again."""
    asks_before_pending: int = 3
    """Unanswered asks in a row before the job is said to be pending."""
    conflicts_before_pending: int = 8
    """Rounds lost to other jobs in a row before this one waits."""
    retry_pending_s: float = 30.0
    """A pending job is asked again at the latest after this, grown by `retry_growth` each time up to ten times of
    it.
    """
    retry_growth: float = 1.5
    wake_at_once: int = 8
    """Pending jobs that want the same, woken by one change after one of them was told no."""
    note_after_s: float = 2.0
    """A job without an answer is stored as pending after this: who asks for it finds it, and it need not be sent again.
    """
    unstored_at_most: int = 256
    """Of the jobs that wait for their turn to be asked for: the broker delivers only so much unacknowledged."""
    keep_nodes_after_s: float = 20.0
    """The first waiting gang gets freed nodes kept for it after this."""
    snapshot_grace_s: float = 60.0
    orphan_grace_s: float = 2.0
    """How long an orphan waits for its job's record or snapshot before it is judged."""
    tombstone_ttl_s: int = 8 * 86_400
    """Longer than JOBS keeps messages: a redelivered `submitted` must find its end."""
    max_batch: int = 1000
    """Messages of one atomic batch (ADR-50)."""


@dataclass(frozen=True, slots=True)
class StoredPlacement:
    """A placement with the sequence it has in the record, and where this round's began."""

    placement: Placement
    sequence: int
    round_sequence: int
    """Sequence of this round's first write: a report about an older one is stale."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a job wants, as far as it can be counted (room.py)."""

    slots: tuple[tuple[int, int], ...]
    """(thousandths of GPUs on a node, nodes that must have them), largest first."""
    nodes: int
    milli: int
    tenant: str
    wants_empty_nodes: bool


@dataclass(frozen=True, slots=True)
class Wants:
    """What a waiting job wants, worked out once."""

    spec: JobSpec
    demand: Demand
    kind: str
    """Equal for jobs that want the same."""


@dataclass(slots=True)
class Job:
    """One run of a job, from submitted to released."""

    run: JobRun
    spec: JobSpec | None
    submitted_at: datetime
    state: JobState = JobState.PENDING
    round: int = 0
    commit: str = ""
    asking: bool = False
    asked_at: datetime | None = None
    unanswered: int = 0
    conflicts: int = 0
    proposals: dict[Concern, Proposal] = field(default_factory=dict)
    placements: dict[NodeName, StoredPlacement] = field(default_factory=dict)
    """In rank order."""
    reports: dict[NodeName, ReportState] = field(default_factory=dict)
    exclude: set[NodeName] = field(default_factory=set)
    reasons: tuple[Reason, ...] = ()
    lacks: frozenset[Lack] = frozenset()
    times: dict[JobState, datetime] = field(default_factory=dict)
    started: bool = False
    namespaces: tuple[StartedWorker, ...] = ()
    requeue: bool = False
    outcome: Outcome | None = None
    updated_revision: int = 0
    claims: tuple[Claim, ...] = ()
    stored: bool = False
    """A head of this run is in the record."""
    told: tuple[str, ...] = ()
    """Reason codes the stored head and the last `pending` carry."""
    unacked: list[int] = field(default_factory=list)
    """JOBS sequences of what was said of it so far, acked when the head is stored."""
    successor: Submission | Ending | None = None
    """A newer run under the same name, which waits for this one to be released."""
    retry_at: datetime | None = None
    retries: int = 0
    asked_by: int = -1
    """Number of the last change (`Book.changes`) before it was asked for: its answer knows of that."""
    is_due_by_time: bool = False
    """It was asked for because it had waited long enough, though nothing it lacked was known to be free."""
    wants: Wants | None = None
    is_adopted: bool = False
    """Taken over from journals: it runs already, and no deadline of a start applies to it."""
    missing_since: datetime | None = None
    """When a snapshot first lacked it."""

    @property
    def key(self) -> JobKey:
        return self.run.key

    @property
    def priority(self) -> int:
        return self.spec.priority if self.spec is not None else 0

    @property
    def slot_count(self) -> int:
        return self.spec.slot_count if self.spec is not None else len(self.placements)

    @property
    def may_move(self) -> bool:
        """Whether other nodes would do: its workers do not run yet, and Railweave chose the nodes."""
        return not self.started and self.spec is not None and self.spec.nodes.node_list is None

    def queue_order(self) -> tuple[int, datetime, JobKey]:
        """Higher priority first, then the older."""
        return (-self.priority, self.submitted_at, self.key)


@dataclass(frozen=True, slots=True)
class Submission:
    """A `submitted` event with its place in JOBS."""

    spec: JobSpec
    sequence: int
    stored_at: datetime
    later: tuple[tuple[JobUpdated | JobStarted, int], ...] = ()
    """What was said of this run, with sequences, while it waited for its predecessor to be released."""


@dataclass(frozen=True, slots=True)
class Ending:
    """An `ended` for a run whose `submitted` has not come."""

    run: JobRun
    outcome: Outcome
    sequence: int
    stored_at: datetime


@dataclass(frozen=True, slots=True)
class Finished:
    """What is remembered of a run that is over, as long as its tombstone lives."""

    run: JobRun
    submitted_at: datetime
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class Store:
    """Write to the record, in this order. `atomic`: all or nothing. Later effects wait until it is stored."""

    events: tuple[Event, ...]
    atomic: bool
    ttl_s: int | None = None


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish an event outside the record."""

    event: Event
    after_store: bool = True
    """False: it does not depend on what is being stored (an ask)."""


@dataclass(frozen=True, slots=True)
class Ack:
    """Everything a JOBS message causes is stored."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """A JOBS message that cannot be right: to the dead letters, with the field."""

    sequence: int
    field: str
    reason: str


Effect = Store | Publish | Ack | Refuse


@dataclass(slots=True)
class Counts:
    """What the committer counted since it became active."""

    asks: int = 0
    complete_rounds: int = 0
    """Rounds in which every concern gave something, brought to commit."""
    commits: int = 0
    conflicts: int = 0
    released: int = 0
    rejected: int = 0
    adopted: int = 0
    stale_reports: int = 0


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)
