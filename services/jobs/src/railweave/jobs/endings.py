"""Endings: giving back, undoing, and what is remembered of a run that is over.

Release is a head write and then plain writes to the nodes; whoever is active rolls it forward. Something is free when
its node reports it undone, and not before.
"""

from __future__ import annotations

from railweave.contracts.job import JobReleased, JobReleasing
from railweave.contracts.placement import JobState, PlacementState
from railweave.contracts.reasons import Lack, Reason
from railweave.contracts.types import NodeName
from railweave.jobs.book import Book
from railweave.jobs.events import identity
from railweave.jobs.model import Finished, Job, StoredPlacement

_FREED_BY_RELEASE = frozenset({Lack.GPU, Lack.NODE, Lack.VF, Lack.SCRATCH, Lack.CACHE, Lack.QUOTA, Lack.SEGMENT})


def release(book: Book, job: Job, reasons: tuple[Reason, ...], *, requeue: bool = False) -> None:
    """Give back everything a placed job holds. Releasing again changes nothing but that a requeue may be called off."""
    if job.state is JobState.RELEASING:
        if job.requeue and not requeue:
            job.requeue = False
            job.reasons = reasons
            book.store_head(job)
        return
    job.requeue = requeue
    job.reasons = reasons
    job.commit = book.next_commit()
    book.enter(job, JobState.RELEASING)
    book.store_head(job)
    book.publish(
        JobReleasing(
            **identity(job.run, job.round),
            reasons=reasons,
        )
    )
    roll_release_forward(book, job)


def roll_release_forward(book: Book, job: Job) -> None:
    """Tell every node that has not been told."""
    open_nodes = [node for node, held in job.placements.items() if held.placement.state is PlacementState.DESIRED]
    book.rewrite_placements(job, {"state": PlacementState.RELEASING}, open_nodes)
    finish_if_undone(book, job)


def take_undone(book: Book, job: Job, node: NodeName) -> None:
    """A node holds nothing of the job any more."""
    held = job.placements.pop(node, None)
    if held is None:
        return
    book.ledger.free(job.run, node)
    book.tombstone(held.placement)
    book.free(_FREED_BY_RELEASE)
    finish_if_undone(book, job)


def finish_if_undone(book: Book, job: Job) -> None:
    """When the last node is done, the job is released, or proposed again."""
    if job.state is not JobState.RELEASING or job.placements:
        return
    book.ledger.free(job.run, None)
    job.claims = ()
    requeue = job.requeue and job.successor is None
    book.publish(
        JobReleased(
            **identity(job.run, job.round),
            reasons=job.reasons,
            requeued=requeue,
        )
    )
    if requeue:
        job.requeue = job.is_adopted = False
        job.reports = {}
        job.started, job.namespaces = False, ()
        job.retry_at = book.now
        job.commit = book.next_commit()
        book.enter(job, JobState.PENDING)
        book.store_head(job)
        return
    finish(book, job, JobState.RELEASED)


def finish(book: Book, job: Job, state: JobState) -> None:
    """The end of a run: a tombstone that outlives every message about it."""
    book.stop_asking(job)
    job.commit = book.next_commit()
    book.enter(job, state)
    book.ledger.free(job.run, None)
    book.store_head(job, ttl_s=book.config.tombstone_ttl_s)
    book.ack_submitted(job)
    book.counts.released += state is JobState.RELEASED
    book.finished[job.key] = Finished(job.run, job.submitted_at, book.now)
    del book.jobs[job.key]
    if job.successor is not None:
        book.successors.append(job.successor)


def release_stray(book: Book, held: StoredPlacement) -> None:
    """Undo on one node what belongs to a run that is over; its journal still had it."""
    placement = held.placement.model_copy(update={"state": PlacementState.RELEASING, "epoch": book.epoch})
    sequence = book.store(placement)
    stray = StoredPlacement(placement, sequence, sequence)
    book.strays[placement.run, placement.node] = stray
    book.ledger.take(placement.run, placement, sequence)


def take_stray_undone(book: Book, stray: StoredPlacement) -> None:
    """The node undid it."""
    placement = stray.placement
    del book.strays[placement.run, placement.node]
    book.ledger.free(placement.run, placement.node)
    book.tombstone(placement)
    book.free(_FREED_BY_RELEASE)
