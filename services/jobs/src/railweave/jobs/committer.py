"""The committer as one pure machine: `handle` takes what happened and the time, and returns what is to be done.

The shell (`service.py`) stores first, then publishes, then acks. Where it cannot store, it drops this object and
folds a new one from the record. So the same machine runs in production, in the deterministic simulation, and from a
recorded stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from railweave.contracts.desired import NodeDesired
from railweave.contracts.identity import JobRun
from railweave.contracts.inventory import NodeHardware, NodeStorage, Report, ReportState
from railweave.contracts.job import JobEnded, JobStarted, JobSubmitted, JobUpdated, SchedulerSnapshot
from railweave.contracts.placement import EpochCause, Head, Placement
from railweave.contracts.proposal import Proposal
from railweave.contracts.reasons import Lack
from railweave.contracts.types import Round
from railweave.jobs import changes, lifecycle, pending, recovery, rounds
from railweave.jobs.book import Book
from railweave.jobs.model import CommitterConfig, Effect
from railweave.runtime.cluster import ClusterState


@dataclass(frozen=True, slots=True)
class JobInput:
    """A scheduler's event with its place in JOBS."""

    event: JobSubmitted | JobUpdated | JobStarted | JobEnded
    sequence: int
    stored_at: datetime


@dataclass(frozen=True, slots=True)
class SnapshotInput:
    snapshot: SchedulerSnapshot
    stored_at: datetime


@dataclass(frozen=True, slots=True)
class AskRepeated:
    """An ask was taken for one that is stored already: another committer's, of which the answers were given to it."""

    run: JobRun
    round: Round


@dataclass(frozen=True, slots=True)
class Freed:
    """Something became available (an inventory grew, a quota was raised)."""

    lacks: frozenset[Lack]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Input = (
    JobInput | SnapshotInput | Proposal | AskRepeated | Report | NodeDesired | NodeHardware | NodeStorage | Freed | Tick
)


class Committer:
    """One active committer. `state` is the shared view of nodes and fabric; claims are the ledger's own."""

    def __init__(self, state: ClusterState, config: CommitterConfig, instance: str) -> None:
        self.book = Book(state, config, instance)

    def start(
        self,
        heads: Iterable[tuple[Head, int, datetime]],
        placements: Iterable[tuple[Placement, int]],
        *,
        epoch: int,
        last_sequence: int,
        now: datetime,
        epoch_at: datetime | None = None,
        is_suspect: bool = False,
    ) -> list[Effect]:
        """Fold the record and take up what was left.

        `is_suspect`: the record was seen to be lost or put back; wait for the nodes' journals before placing anything.
        `epoch` 0: there is no epoch record; this is a cold start, and one is stored before anything else. `epoch_at`:
        when the epoch was raised; who was active then may have been waiting for the journals still.
        """
        book = self.book
        book.now, book.epoch, book.last_sequence = now, epoch, last_sequence
        book.judge_from = now + recovery.hearing_time(book)
        if epoch == 0:
            seen = max(
                (node.hardware.fence_seen.epoch for node in book.state.nodes.values() if node.hardware), default=0
            )
            cause = EpochCause.COLD_START if seen else EpochCause.BOOTSTRAP
            recovery.raise_epoch(book, seen, cause, "the record holds no epoch")
            recovery.settle(book)
        elif is_suspect:
            recovery.settle(book)
        elif epoch_at is not None:
            recovery.settle(book, since=epoch_at)
        known = list(heads)
        recovery.fold(book, [head for head, _, _ in known], placements)
        for node in list(book.state.nodes.values()):
            if node.hardware is not None:
                recovery.take_hardware(book, node.hardware)
        recovery.resume(book)
        recovery.announce_again(book, known)
        return self._finish_step()

    def handle(self, happened: Input, now: datetime) -> list[Effect]:
        """Take one input; return the effects in order."""
        book = self.book
        book.now = max(now, book.now)
        match happened:
            case JobInput():
                self._take_job_event(happened)
            case SnapshotInput():
                recovery.take_snapshot(book, happened.snapshot, happened.stored_at)
            case Report(state=ReportState.ORPHAN):
                recovery.take_orphan(book, happened)
            case Report():
                recovery.raise_above(book, happened.fence, happened.node)
                lifecycle.take_report(book, happened)
            case NodeDesired():
                lifecycle.take_node(book, happened)
            case NodeHardware():
                recovery.take_hardware(book, happened)
                book.free({Lack.NODE, Lack.GPU, Lack.VF, Lack.AGENT})
            case NodeStorage():
                book.free({Lack.CACHE, Lack.SCRATCH, Lack.DATASET})
            case AskRepeated():
                rounds.ask_unheard(book, happened.run, happened.round)
            case Freed():
                book.free(happened.lacks)
            case Tick():
                self._take_time()
            case Proposal():
                rounds.take_proposal(book, happened)
        return self._finish_step()

    def _take_job_event(self, happened: JobInput) -> None:
        book, event, sequence = self.book, happened.event, happened.sequence
        match event:
            case JobSubmitted():
                lifecycle.take_submitted(book, event.spec(), sequence, happened.stored_at)
            case JobUpdated():
                changes.take_updated(book, event, sequence)
            case JobStarted():
                changes.take_started(book, event, sequence)
            case JobEnded():
                lifecycle.take_ended(book, event, sequence, happened.stored_at)

    def _take_time(self) -> None:
        self.book.must_look = True
        lifecycle.take_time(self.book)
        recovery.release_missing(self.book)
        recovery.judge_orphans(self.book)
        recovery.end_settling(self.book)
        recovery.forget_finished(self.book)

    def wake(self, now: datetime) -> list[Effect]:
        """Ask for waiting jobs whose turn it is.

        Called after a batch of inputs, so that freed nodes count once.
        """
        book = self.book
        book.now = max(now, book.now)
        if book.must_look:
            book.must_look = False
            for job in pending.to_ask(book):
                rounds.ask(book, job)
        return self._finish_step()

    def _finish_step(self) -> list[Effect]:
        book = self.book
        while book.successors:
            lifecycle.begin(book, book.successors.pop(0))
        effects, book.effects = book.effects, []
        return effects
