"""Who waits, in which order they are asked again, and for whom freed nodes are kept. Pure questions over the book.

Waiting jobs are woken by what they lack, few at a time, by priority and then age, and only where a quick count says
that they could fit: a round that must fail costs everyone. The first waiting gang gets nodes kept for it, so that
small jobs which would always fit earlier do not starve it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from railweave.contracts.desired import NodeMode
from railweave.contracts.job import JobSpec
from railweave.contracts.placement import JobState
from railweave.contracts.types import NodeName
from railweave.jobs.book import Book, Kept
from railweave.jobs.model import Job, seconds
from railweave.runtime.cluster import WHOLE_GPU_MILLI, NodeState


def waiting(book: Book) -> list[Job]:
    """Pending jobs that are not being asked, in queue order."""
    return sorted(
        (
            job
            for job in book.jobs.values()
            if job.state is JobState.PENDING and not job.asking and (job.round or job.retry_at is not None)
        ),
        key=Job.queue_order,
    )


def gang_to_keep_for(book: Book) -> Job | None:
    """The first waiting job of several nodes that has waited long enough for nodes to be kept for it."""
    threshold = book.now - seconds(book.config.keep_nodes_after_s)
    candidates = [
        job
        for job in book.jobs.values()
        if job.state is JobState.PENDING
        and job.spec is not None
        and job.spec.slot_count > 1
        and job.spec.nodes.node_list is None
        and job.round
        and job.submitted_at <= threshold
    ]
    return min(candidates, key=Job.queue_order, default=None)


def kept_nodes(book: Book, job: Job) -> frozenset[NodeName]:
    """The nodes to keep for a waiting gang: those that will be empty first.

    Chosen by what is held now, with the name as tie-break: the same nodes are chosen again until they are free, since
    nothing new goes there.
    """
    spec = book.spec_of(job)
    fitting = [node for node in book.state.nodes.values() if could_ever_hold(node, spec)]
    fitting.sort(key=lambda node: (book.ledger.gpu_milli_on(node.name), book.ledger.hold_count(node.name), node.name))
    return frozenset(node.name for node in fitting[: spec.slot_count])


def avoid_for(book: Book, job: Job) -> tuple[NodeName, ...]:
    """Nodes a job's ask should avoid because they are kept for a gang before it in the queue."""
    kept = _kept(book)
    if kept.gang is None or kept.gang is job or kept.gang.queue_order() >= job.queue_order():
        return ()
    return tuple(sorted(kept.nodes))


def _kept(book: Book) -> Kept:
    """For whom nodes are kept, looked up once a second: it walks over all jobs and nodes."""
    kept = book.kept
    still = kept is not None and (kept.gang is None or book.jobs.get(kept.gang.key) is kept.gang)
    if kept is None or not still or book.now >= kept.until or (kept.gang and kept.gang.state is not JobState.PENDING):
        gang = gang_to_keep_for(book)
        nodes = kept_nodes(book, gang) if gang is not None else frozenset()
        kept = book.kept = Kept(gang, nodes, book.now + seconds(1.0))
    return kept


def could_ever_hold(node: NodeState, spec: JobSpec) -> bool:
    """Whether a node, empty, could hold the largest slot of a job: a coarse screen, the services decide."""
    if node.hardware is None or node.mode is not NodeMode.SCHEDULABLE or node.name in spec.nodes.exclude:
        return False
    if any(node.labels.get(key) != value for key, value in spec.nodes.selector.items()):
        return False
    healthy = sum(1 for gpu in node.hardware.gpus if gpu.healthy)
    return healthy >= max(group.gpus for group in spec.workers)


class FreeCount:
    """Free thousandths of GPUs by node, counted once for many questions. Says yes too often, never no wrongly."""

    def __init__(self, book: Book, avoid: frozenset[NodeName] = frozenset()) -> None:
        free = [
            len(node.hardware.gpus) * WHOLE_GPU_MILLI - book.ledger.gpu_milli_on(node.name)
            for node in book.state.nodes.values()
            if node.hardware is not None and node.mode is NodeMode.SCHEDULABLE and node.name not in avoid
        ]
        self._free = sorted(free, reverse=True)

    def could_fit(self, spec: JobSpec) -> bool:
        """Whether as many nodes as the job has slots have enough free for its largest slot."""
        slots = spec.slot_count
        largest = max(
            group.gpus * int(group.milli_per_gpu) * min(group.per_node, group.count) for group in spec.workers
        )
        smallest = min(group.gpus * int(group.milli_per_gpu) for group in spec.workers)
        return len(self._free) >= slots and self._free[0] >= largest and self._free[slots - 1] >= smallest


def to_wake(book: Book) -> Iterable[Job]:
    """The waiting jobs to ask again now: those due by time, and the first few that lack what has been freed."""
    due: list[Job] = []
    by_change = 0
    everyone = FreeCount(book)
    kept = _kept(book)
    others = FreeCount(book, kept.nodes) if kept.nodes else everyone
    room = book.config.asks_at_once - len(book.asking)
    for job in waiting(book):
        if len(due) >= room:
            break
        if job.retry_at is not None and job.retry_at <= book.now:
            due.append(job)
        elif by_change < book.config.wake_at_once and _is_waited_for(book, job):
            is_behind = kept.gang is not None and kept.gang.queue_order() < job.queue_order()
            count = others if is_behind else everyone
            if job.spec is not None and count.could_fit(job.spec):
                due.append(job)
                by_change += 1
    return due


def _is_waited_for(book: Book, job: Job) -> bool:
    """Whether what became free is what a job lacks, and it was not asked again for that already."""
    return bool(book.freed) and job.woken_by < book.changes and (not job.lacks or bool(job.lacks & book.freed))


def next_retry(book: Book, job: Job) -> datetime:
    """When a pending job is asked again at the latest: later each time, ten times the first wait at most."""
    wait = book.config.retry_pending_s * min(book.config.retry_growth**job.retries, 10.0)
    return book.now + seconds(wait)
