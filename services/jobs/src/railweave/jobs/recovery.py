"""Recovery: the book folded from the record, epochs, schedulers' snapshots, and orphans.

The record is the truth while it is there. When it was lost or put back, the agents' journals and the schedulers'
snapshots are: what runs is kept, what nobody lists is undone, and a raised epoch makes old fences old.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

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
from railweave.jobs.lifecycle import end, job_entered, take_ended, take_report
from railweave.jobs.model import Finished, Job, StoredPlacement, seconds
from railweave.jobs.rounds import deliver_start, job_claims, segment_claims

_SETTLING_GRACES = 10
"""Graces of an orphan that a cluster waits for orphans nobody can judge."""
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
        is_adopted=head.adopted,
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
    raise_above(book, hardware.fence_seen, hardware.node)


def raise_above(book: Book, seen: Fence, node: NodeName) -> None:
    """Raise the epoch where a node has applied what this record has never held, and wait for what else nodes know."""
    if seen <= Fence(book.epoch, book.last_sequence):
        return
    text = f"{node} has applied {seen.epoch}/{seen.sequence}, the record ends at {book.epoch}/{book.last_sequence}"
    raise_epoch(book, seen.epoch, EpochCause.AGENT_AHEAD, text)
    settle(book)


def hearing_time(book: Book) -> timedelta:
    """How long nodes have to say what they hold."""
    return seconds(book.config.orphan_grace_s + 1.0)


def settle(book: Book, since: datetime | None = None) -> None:
    """The record may lack what nodes hold: place nothing new until their journals have had time to speak.

    `since` an earlier moment, it may be over already.
    """
    until = (since or book.now) + hearing_time(book)
    if until > book.now:
        book.settling_until = until


def end_settling(book: Book) -> None:
    """After the wait: what nodes said meanwhile of placements they undid counts now.

    Orphans that cannot be judged (two journals hold the same) do not keep the cluster waiting: their agents refuse
    whoever is placed where they are.
    """
    if book.settling_until is None or book.now < book.settling_until:
        return
    if book.orphans and book.now < book.settling_until + seconds(book.config.orphan_grace_s * _SETTLING_GRACES):
        return
    book.settling_until = None
    book.judge_from = book.now + hearing_time(book)
    reports, book.deferred = book.deferred, []
    for report in reports:
        take_report(book, report)
    ends, book.deferred_ends = book.deferred_ends, []
    for event, sequence, stored_at in ends:
        take_ended(book, event, sequence, stored_at)


def take_snapshot(book: Book, snapshot: SchedulerSnapshot, stored_at: datetime) -> None:
    """A scheduler's full list. What it lacks is released after a grace period."""
    seen = book.snapshots.get(snapshot.cluster)
    # A scheduler may begin to count anew: an older number counts where the list itself is younger.
    if seen is not None and snapshot.number < seen.number and snapshot.taken_at <= seen.taken_at:
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
    """An agent's journal holds what the record does not name, or not so. It is judged after a grace period."""
    raise_above(book, report.fence, report.node)
    held = report.held
    key = (report.run, report.node)
    if held is None or key in book.strays:
        return
    job = book.jobs.get(report.key)
    known = job.placements.get(report.node) if job is not None and job.run == report.run else None
    if known is not None and report.fence <= Fence(known.placement.epoch, known.sequence):
        return
    since = book.orphans[key].since if key in book.orphans else book.now
    book.orphans[key] = Orphan(held, since)


def judge_orphans(book: Book) -> None:
    """Adopt what runs; release what is over. What nobody knows is adopted: nothing is torn down on absence."""
    grace = seconds(book.config.orphan_grace_s)
    due = [key for key, orphan in book.orphans.items() if book.now >= orphan.since + grace]
    # Later rounds first: what is left of an earlier round is then known to be a leftover.
    due.sort(key=lambda key: -int(book.orphans[key].placement.round))
    for key in due:
        orphan = book.orphans.pop(key)
        run, node = key
        job = book.jobs.get(run.key)
        if job is not None and job.run != run and _is_later(orphan.placement, job):
            # A `submitted` of an earlier run came again after the record was lost: what runs is the later one.
            if job.state is not JobState.PENDING:
                book.orphans[key] = Orphan(orphan.placement, book.now)
                end(book, job, (Reason(code=ReasonCode.SUPERSEDED, text=f"{run} runs under the same name"),))
                continue
            book.ack_submitted(job)
            book.stop_asking(job)
            del book.jobs[job.key]
            job = None
        if _is_over(book, job, orphan.placement):
            if job is None or job.run != run or node not in job.placements:
                release_stray(book, StoredPlacement(orphan.placement, 0, 0))
            elif job.state is JobState.RELEASING:
                # Its node went on to a later round before the record was put back: it would refuse the old release.
                book.rewrite_placements(job, {"state": PlacementState.RELEASING}, (node,))
        else:
            _adopt(book, job, orphan.placement)


def _is_over(book: Book, job: Job | None, placement: Placement) -> bool:
    run = placement.run
    if job is None:
        finished = book.finished.get(run.key)
        # Of another uid no order is known: it may be the earlier job of the name whose end was said again.
        is_ended = finished is not None and finished.run.uid == run.uid and finished.run.attempt >= run.attempt
        return is_ended or _is_unlisted(book, placement)
    if job.run != run or job.state is JobState.RELEASING:
        return True
    return job.state is not JobState.PENDING and placement.round < job.round


def _is_later(placement: Placement, job: Job) -> bool:
    return placement.submitted_at is not None and placement.submitted_at > job.submitted_at


def _is_unlisted(book: Book, placement: Placement) -> bool:
    """Whether its scheduler's list leaves it out. A list that was read before it was submitted says nothing of it: with
    the record, that too may have been put back.
    """
    seen = book.snapshots.get(placement.cluster)
    if seen is None or placement.submitted_at is None or placement.submitted_at >= seen.taken_at:
        return False
    return LiveRun(job=placement.job, attempt=placement.attempt, uid=placement.uid) not in seen.live


def _adopt(book: Book, job: Job | None, placement: Placement) -> None:
    """Take into the record what a node holds, as it holds it."""
    run, node = placement.run, placement.node
    # Data and scratch space are on its disk, however much the disk has: only what another holds is in the way.
    bare = placement.model_copy(update={"datasets": (), "evict": (), "scratch": None})
    if book.ledger.conflicts(run, (bare,), segment_claims((bare,)), but_on=node):
        # Somebody was given the same since. What runs is the truth of the kernel, but two cannot hold it: the agent
        # that has it refuses the newcomer, and the newcomer is proposed elsewhere. Judge this one again then.
        book.orphans[run, node] = Orphan(placement, book.now)
        return
    if job is None:
        submitted_at = placement.submitted_at or book.now
        job = job_entered(book, Job(run, None, submitted_at, round=int(placement.round), commit=placement.commit))
        book.finished.pop(job.key, None)
    job.is_adopted = True
    _take_round(book, job, placement)
    adopted = placement.model_copy(update={"state": PlacementState.DESIRED, "epoch": book.epoch})
    job.placements[node] = StoredPlacement(adopted, 0, 0)
    job.placements = dict(sorted(job.placements.items(), key=lambda item: item[1].placement.node_rank))
    job.claims = job_claims(tuple(held.placement for held in job.placements.values()))
    book.ledger.take_claims(run, job.claims)
    sequence = book.store(adopted, book.head_of(job), atomic=True)
    job.stored = True
    job.placements[node] = StoredPlacement(adopted, sequence, sequence)
    job.reports.pop(node, None)
    book.ledger.take(run, adopted, sequence)
    book.ack_submitted(job)
    book.counts.adopted += 1


def _take_round(book: Book, job: Job, placement: Placement) -> None:
    """Bring a job to the round that its nodes are in: what the record had of an earlier one is gone from the nodes."""
    is_new = job.state is JobState.PENDING or int(placement.round) > job.round
    job.started = job.started or placement.started
    if not is_new:
        return
    book.stop_asking(job)
    job.round = int(placement.round)
    job.commit = placement.commit
    job.reasons, job.lacks, job.told = (), frozenset(), ()
    job.reports = {}
    for held in job.placements.values():
        book.ledger.free(job.run, held.placement.node)
        book.tombstone(held.placement)
    job.placements = {}
    book.enter(job, JobState.PREPARED)
    if job.started:
        book.enter(job, JobState.STARTED)
