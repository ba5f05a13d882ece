"""The committer's book: every job it knows, the ledger, and the effects of the step at hand.

The book changes as if everything it emits were stored. The shell stores before anything else is seen of it; where it
cannot, the book is thrown away and folded anew from the record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from railweave.contracts.envelope import Event
from railweave.contracts.identity import JobKey, JobRun
from railweave.contracts.inventory import Report
from railweave.contracts.job import JobEnded, JobSpec, LiveRun
from railweave.contracts.placement import Head, JobState, Placement, PlacementState
from railweave.contracts.reasons import Lack, Reason
from railweave.contracts.types import ClusterName, NodeName, Round, build
from railweave.jobs.ledger import Ledger
from railweave.jobs.model import (
    Ack,
    CommitterConfig,
    Counts,
    Effect,
    Ending,
    Finished,
    Job,
    Publish,
    Refuse,
    Store,
    StoredPlacement,
    Submission,
    seconds,
)
from railweave.runtime.cluster import ClusterState
from railweave.runtime.outstanding import PATIENCE_S

PROPOSED = frozenset({Lack.NODE, Lack.GPU, Lack.VF, Lack.CACHE, Lack.SCRATCH})
"""What proposals are made of: it is free again for others when a proposal came to nothing."""

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_LAPSE_S = PATIENCE_S + 0.5
"""From the end of a round that came to nothing until all services have forgotten it."""


@dataclass(slots=True)
class SnapshotSeen:
    """The last list of live runs of a cluster."""

    number: int
    stored_at: datetime
    taken_at: datetime
    live: frozenset[LiveRun]


@dataclass(slots=True)
class Orphan:
    """What a node's journal holds and the record does not, until it is judged."""

    placement: Placement
    since: datetime


@dataclass(frozen=True, slots=True)
class Kept:
    """For which waiting gang which nodes are kept, and until when that holds without looking again."""

    gang: Job | None
    nodes: frozenset[NodeName]
    in_order: tuple[NodeName, ...]
    until: datetime


Kind = tuple[str, frozenset[NodeName], bool]
"""Of waiting jobs that get the same answer: what they want, nodes they may not use, whether they are behind a gang."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What jobs of a kind were told last."""

    asked_by: int
    """Number of the last change before they were asked for."""
    times: int
    """Changes in a row for which they were asked in vain."""
    rests_until: datetime


@dataclass(slots=True)
class Book:
    """State of one active committer."""

    state: ClusterState
    config: CommitterConfig
    instance: str
    epoch: int = 1
    last_sequence: int = 0
    """Of the record; every message emitted gets the next."""
    now: datetime = _LONG_AGO
    jobs: dict[JobKey, Job] = field(default_factory=dict)
    finished: dict[JobKey, Finished] = field(default_factory=dict)
    snapshots: dict[ClusterName, SnapshotSeen] = field(default_factory=dict)
    orphans: dict[tuple[JobRun, NodeName], Orphan] = field(default_factory=dict)
    strays: dict[tuple[JobRun, NodeName], StoredPlacement] = field(default_factory=dict)
    """Placements of runs that are over, being undone on a node whose journal still had them."""
    successors: list[Submission | Ending] = field(default_factory=list)
    """Runs whose predecessor under the same name has just ended."""
    settling_until: datetime | None = None
    """While set, nothing new is placed: the record may lack what nodes hold (recovery.settle)."""
    judge_from: datetime = _LONG_AGO
    """No deadline passes before: who has just become active, or had to settle, may not have heard of everything."""
    deferred: list[Report] = field(default_factory=list)
    """Reports that count only after settling."""
    deferred_ends: list[tuple[JobEnded, int, datetime]] = field(default_factory=list)
    """Ends of runs nobody knows, with their places in JOBS: nodes may still have to say that they hold them."""
    changes: int = 0
    """Counts what became free."""
    freed_by: dict[Lack, int] = field(default_factory=dict)
    """Number of the last change by which there was more of something."""
    refusals: dict[Kind, Refusal] = field(default_factory=dict)
    """By kind of job."""
    must_look: bool = False
    """Somebody who waits may be asked by now."""
    kept: Kept | None = None
    asking: dict[JobKey, Job] = field(default_factory=dict)
    """Jobs whose round is being answered, in the order of asking."""
    backlog: set[JobKey] = field(default_factory=set)
    """Jobs never asked for, which wait for room among those being asked."""
    lapsing: deque[datetime] = field(default_factory=deque)
    """When services will have forgotten what they proposed for rounds that came to nothing, earliest first."""
    counts: Counts = field(default_factory=Counts)
    effects: list[Effect] = field(default_factory=list)
    ledger: Ledger = field(init=False)
    commits: int = 0

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.state)

    # -- emitting ----------------------------------------------------------------------------------------------------

    def store(self, *events: Event, atomic: bool = False, ttl_s: int | None = None) -> int:
        """Emit a write; return the sequence of its first message."""
        first = self.last_sequence + 1
        self.last_sequence += len(events)
        self.effects.append(Store(events, atomic and len(events) > 1, ttl_s))
        return first

    def publish(self, event: Event, *, after_store: bool = True) -> None:
        self.effects.append(Publish(event, after_store))

    def free_what_lapsed(self) -> None:
        """Services have forgotten what they proposed in vain: who was told no for that may ask again."""
        if self.lapsing and self.lapsing[0] <= self.now:
            while self.lapsing and self.lapsing[0] <= self.now:
                self.lapsing.popleft()
            self.free(PROPOSED)

    def ack(self, sequence: int) -> None:
        self.effects.append(Ack(sequence))

    def ack_when_stored(self, job: Job, sequence: int) -> None:
        """The job has taken in a message: it need not come again once a head says so."""
        if job.stored:
            self.ack(sequence)
        elif sequence not in job.unacked:
            job.unacked.append(sequence)

    def ack_waiting(self, start: Submission | Ending) -> None:
        """Nothing will come of a run that waited for its predecessor."""
        self.ack(start.sequence)
        for _, sequence in start.later if isinstance(start, Submission) else ():
            self.ack(sequence)

    def ack_submitted(self, job: Job) -> None:
        """The job's head is stored: what was said of it so far need not come again."""
        for sequence in job.unacked:
            self.ack(sequence)
        job.unacked.clear()

    def refuse(self, sequence: int, field_path: str, reason: str) -> None:
        self.effects.append(Refuse(sequence, field_path, reason))

    def free(self, lacks: Iterable[Lack]) -> None:
        """Something became free that waiting jobs may lack."""
        self.changes += 1
        self.freed_by.update(dict.fromkeys(lacks, self.changes))
        self.must_look = True

    def next_commit(self) -> str:
        """A commit id: unique over instances, so that a head tells whose write it is."""
        self.commits += 1
        return f"{self.instance}-{self.epoch}-{self.commits}"

    # -- heads and placements ----------------------------------------------------------------------------------------

    def enter(self, job: Job, state: JobState) -> None:
        """Move a job to a state, now."""
        job.state = state
        job.times[state] = self.now

    def head_of(self, job: Job) -> Head:
        """The head as it would be stored now."""
        return build(
            Head,
            cluster=job.run.cluster,
            job=job.run.job,
            attempt=job.run.attempt,
            uid=job.run.uid,
            state=job.state,
            epoch=self.epoch,
            round=Round(max(job.round, 1)),
            commit=job.commit or self.next_commit(),
            spec=job.spec,
            submitted_at=job.submitted_at,
            times=dict(job.times),
            nodes=tuple(job.placements),
            reasons=job.reasons,
            lacks=tuple(sorted(job.lacks)),
            exclude=tuple(sorted(job.exclude)),
            updated_revision=job.updated_revision,
            requeue=job.requeue,
            outcome=job.outcome,
            started=job.started,
            namespaces=job.namespaces,
            adopted=job.is_adopted,
            claims=job.claims,
        )

    def store_head(self, job: Job, *, ttl_s: int | None = None) -> int:
        """Emit the head alone."""
        job.stored = True
        return self.store(self.head_of(job), ttl_s=ttl_s)

    def is_orphaned(self, job: Job) -> bool:
        """Whether nodes hold this run though the record does not say so, and it is not judged yet."""
        return any(run == job.run for run, _ in self.orphans)

    def start_asking(self, job: Job) -> None:
        """A round of the job is being answered."""
        job.asking = True
        job.asked_at = self.now
        job.asked_by = self.changes
        self.asking[job.key] = job
        self.backlog.discard(job.key)

    def stop_asking(self, job: Job, *, got_it: bool = False) -> None:
        """What is still said of its round changes nothing.

        Unless it `got_it`, services keep what they proposed from others for a while, and nobody tells when they stop.
        """
        if job.asking and not got_it and any(not made.reasons for made in job.proposals.values()):
            self.lapsing.append(self.now + seconds(_LAPSE_S))
        job.asking = False
        self.asking.pop(job.key, None)
        self.backlog.discard(job.key)
        self.must_look = True

    def rewrite_placements(self, job: Job, update: dict[str, object], nodes: Iterable[NodeName] | None = None) -> None:
        """Emit placements again with some fields changed; each is idempotent alone."""
        for node in tuple(job.placements) if nodes is None else nodes:
            held = job.placements[node]
            placement = held.placement.model_copy(update=update | {"epoch": self.epoch})
            sequence = self.store(placement)
            job.placements[node] = StoredPlacement(placement, sequence, held.round_sequence)
            self.ledger.take(job.run, placement, sequence)

    def tombstone(self, placement: Placement) -> None:
        """Emit the end of a placement: it stays as long as messages about it may come again."""
        released = Placement(
            cluster=placement.cluster,
            job=placement.job,
            attempt=placement.attempt,
            uid=placement.uid,
            node=placement.node,
            state=PlacementState.RELEASED,
            epoch=self.epoch,
            round=placement.round,
            commit=placement.commit,
        )
        self.store(released, ttl_s=self.config.tombstone_ttl_s)

    def spec_of(self, job: Job) -> JobSpec:
        """The job's spec; only for states that cannot be reached without one."""
        if job.spec is None:
            raise AssertionError(f"{job.run} has no spec in state {job.state}")
        return job.spec

    def reason_codes(self, reasons: tuple[Reason, ...]) -> tuple[str, ...]:
        return tuple(sorted({f"{reason.code}/{reason.node or ''}" for reason in reasons}))
