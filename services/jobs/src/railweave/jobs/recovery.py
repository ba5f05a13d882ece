"""Recovery: the book folded from the record, epochs, schedulers' snapshots, and orphans.

The record is the truth while it is there. When it was lost or put back, the agents' journals and the schedulers'
snapshots are: what runs is kept, what nobody lists is undone, and a raised epoch makes old fences old.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from railweave.contracts.inventory import NodeHardware, Report
from railweave.contracts.job import LiveRun, SchedulerSnapshot
from railweave.contracts.placement import (
    HOLDING_STATES,
    Epoch,
    EpochCause,
    Fence,
    Head,
    JobState,
    Placement,
    PlacementState,
)
from railweave.contracts.reasons import Reason, ReasonCode
from railweave.contracts.types import NodeName
from railweave.jobs.book import Book, Orphan, SnapshotSeen
from railweave.jobs.endings import finish_if_undone, release_stray, roll_release_forward
from railweave.jobs.events import event_of
from railweave.jobs.lifecycle import end, job_entered
from railweave.jobs.model import Finished, Job, StoredPlacement, seconds
from railweave.jobs.rounds import deliver_start

REPEAT_WINDOW_S = 600.0
"""The duplicate window of JOBS: within it an event published again is dropped by its id."""


def fold(book: Book, heads: Iterable[Head], placements: Iterable[tuple[Placement, int]]) -> None:
    """Build the book from the record: heads, and placements with their sequences. The book must be empty."""
    for head in heads:
        job = _job_of(head)
        if head.state in {JobState.RELEASED, JobState.REJECTED}:
            book.finished[job.key] = Finished(job.run, job.submitted_at, head.times.get(head.state, job.submitted_at))
            continue
        job_entered(book, job)
        book.ledger.take_claims(job.run, head.claims)
    found: dict[NodeName, StoredPlacement]
    by_run: dict[object, dict[NodeName, StoredPlacement]] = {}
    for placement, sequence in placements:
        if placement.state is PlacementState.RELEASED:
            continue
        owner = book.jobs.get(placement.key)
        # Where a round began is not stored; the placement's own sequence is later and only makes reports older than
        # it stale, which the agent's resync sends again.
        stored = StoredPlacement(placement, sequence, sequence)
        book.ledger.take(placement.run, placement, sequence)
        if owner is None or owner.run != placement.run or owner.state not in HOLDING_STATES:
            book.strays[placement.run, placement.node] = stored
        else:
            by_run.setdefault(owner.run, {})[placement.node] = stored
    for job in book.jobs.values():
        found = by_run.get(job.run, {})
        order = sorted(found, key=lambda node: found[node].placement.node_rank)
        job.placements = {node: found[node] for node in order}


def _job_of(head: Head) -> Job:
    return Job(
        run=head.run,
        spec=head.spec,
        submitted_at=head.submitted_at,
        state=head.state,
        round=int(head.round),
        commit=head.commit,
        exclude=set(head.exclude),
        reasons=head.reasons,
        lacks=frozenset(head.lacks),
        times=dict(head.times),
        started=head.started,
        namespaces=head.namespaces,
        requeue=head.requeue,
        outcome=head.outcome,
        updated_revision=head.updated_revision,
        claims=head.claims,
        stored=True,
    )


def resume(book: Book) -> None:
    """Take up what the last committer left: releases are rolled forward, waiting jobs are asked again when due."""
    for job in list(book.jobs.values()):
        if job.state is JobState.RELEASING:
            roll_release_forward(book, job)
        elif job.state in HOLDING_STATES and not job.placements:
            # A head without placements: the record was put back to a moment that a purge had thinned.
            end(book, job, (_lost(job),))
            finish_if_undone(book, job)
        elif job.state is JobState.PENDING:
            job.retry_at = book.now
            job.told = book.reason_codes(job.reasons)
        if job.started and job.state in HOLDING_STATES and job.state is not JobState.RELEASING:
            _redeliver_start(book, job)
    for (run, node), stray in list(book.strays.items()):
        if stray.placement.state is PlacementState.DESIRED and (run, node) in book.strays:
            release_stray(book, stray)


def _redeliver_start(book: Book, job: Job) -> None:

    if any(not held.placement.started for held in job.placements.values()):
        deliver_start(book, job)


def _lost(job: Job) -> Reason:
    return Reason(code=ReasonCode.SUPERSEDED, text=f"the record has no placements of {job.run}")


def announce_again(book: Book, heads: Iterable[tuple[Head, int, datetime]]) -> None:
    """Publish the last event of every job whose head is young: the last committer may have died before it did.

    Older ones need none: JOBS forgets ids after its duplicate window, and within it a committer was active.
    """
    oldest = book.now - seconds(REPEAT_WINDOW_S)
    for head, _, stored_at in heads:
        if stored_at < oldest:
            continue
        placements = [held.placement for held in job.placements.values()] if (job := book.jobs.get(head.key)) else []
        event = event_of(head, placements)
        if event is not None:
            book.publish(event)


def raise_epoch(book: Book, above: int, cause: EpochCause, text: str) -> None:
    """Start a new epoch: from now on every fence is younger than all before."""
    book.epoch = max(book.epoch, above) + 1
    book.store(Epoch(epoch=book.epoch, cause=cause, text=text))


def take_hardware(book: Book, hardware: NodeHardware) -> None:
    """An agent that has seen a fence beyond the record's end has seen another history: raise the epoch."""
    if hardware.fence_seen > Fence(book.epoch, book.last_sequence):
        seen = hardware.fence_seen
        raise_epoch(
            book,
            seen.epoch,
            EpochCause.AGENT_AHEAD,
            f"{hardware.node} has applied {seen.epoch}/{seen.sequence}, the record ends at {book.last_sequence}",
        )


def take_snapshot(book: Book, snapshot: SchedulerSnapshot, stored_at: datetime) -> None:
    """A scheduler's full list. What it lacks is released after a grace period."""
    seen = book.snapshots.get(snapshot.cluster)
    if seen is not None and snapshot.number < seen.number and stored_at <= seen.stored_at:
        return
    live = frozenset(snapshot.live)
    book.snapshots[snapshot.cluster] = SnapshotSeen(snapshot.number, stored_at, snapshot.taken_at, live)
    for job in book.jobs.values():
        if job.run.cluster != snapshot.cluster:
            continue
        if LiveRun(job=job.run.job, attempt=job.run.attempt, uid=job.run.uid) in live:
            job.missing_since = None
        elif job.submitted_at < snapshot.taken_at and job.missing_since is None:
            job.missing_since = stored_at


def forget_finished(book: Book) -> None:
    """Forget runs whose tombstones have expired: no message about them is kept any longer."""
    limit = book.now - seconds(book.config.tombstone_ttl_s)
    for key in [key for key, finished in book.finished.items() if finished.ended_at < limit]:
        del book.finished[key]


def release_missing(book: Book) -> None:
    """Release what no snapshot has listed for the grace period."""
    grace = seconds(book.config.snapshot_grace_s)
    for job in list(book.jobs.values()):
        if (
            job.missing_since is not None
            and book.now >= job.missing_since + grace
            and job.state is not JobState.RELEASING
        ):
            reason = Reason(
                code=ReasonCode.NOT_IN_SNAPSHOT,
                text=f"{job.run} has not been in its scheduler's list for {book.config.snapshot_grace_s:g} s",
            )
            end(book, job, (reason,))


def take_orphan(book: Book, report: Report) -> None:
    """An agent's journal holds what the record does not name. It is judged after a grace period."""
    held = report.held
    if held is None:
        return
    key = (report.run, report.node)
    job = book.jobs.get(report.key)
    if key in book.strays or (job is not None and job.run == report.run and report.node in job.placements):
        return
    if key not in book.orphans:
        book.orphans[key] = Orphan(held, book.now)
    else:
        book.orphans[key] = Orphan(held, book.orphans[key].since)


def judge_orphans(book: Book) -> None:
    """Adopt what runs; release what is over. What nobody knows is adopted: nothing is torn down on absence."""
    grace = seconds(book.config.orphan_grace_s)
    for (run, node), orphan in list(book.orphans.items()):
        if book.now < orphan.since + grace:
            continue
        del book.orphans[run, node]
        job = book.jobs.get(run.key)
        finished = book.finished.get(run.key)
        over = (
            (finished is not None and (finished.run == run or finished.run.attempt >= run.attempt))
            or (job is not None and job.run != run)
            or (job is not None and job.state not in HOLDING_STATES - {JobState.RELEASING})
            or _is_unlisted(book, orphan.placement)
        )
        if over:
            release_stray(book, StoredPlacement(orphan.placement, 0, 0))
        else:
            _adopt(book, job, orphan.placement)


def _is_unlisted(book: Book, placement: Placement) -> bool:
    seen = book.snapshots.get(placement.cluster)
    run = LiveRun(job=placement.job, attempt=placement.attempt, uid=placement.uid)
    return seen is not None and run not in seen.live


def _adopt(book: Book, job: Job | None, placement: Placement) -> None:
    others = book.ledger.conflicts(placement.run, (placement.model_copy(update={"datasets": (), "evict": ()}),))
    if others:
        # Somebody was given the same since. What runs is the truth of the kernel, but two cannot hold it: the agent
        # that has it refuses the newcomer, and the newcomer is proposed elsewhere. Judge this one again then.
        book.orphans[placement.run, placement.node] = Orphan(placement, book.now)
        return
    if job is None:
        job = job_entered(book, Job(placement.run, None, book.now, round=int(placement.round), commit=placement.commit))
        job.started = placement.started
        book.enter(job, JobState.STARTED if placement.started else JobState.PREPARED)
        book.finished.pop(job.key, None)
    adopted = placement.model_copy(update={"state": PlacementState.DESIRED, "epoch": book.epoch})
    sequence = book.store(adopted)
    job.placements[placement.node] = StoredPlacement(adopted, sequence, sequence)
    job.placements = dict(sorted(job.placements.items(), key=lambda item: item[1].placement.node_rank))
    book.ledger.take(placement.run, adopted, sequence)
    book.store_head(job)
    book.counts.adopted += 1
