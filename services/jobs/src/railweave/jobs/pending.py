"""Who waits, in which order they are asked for, and for whom freed nodes are kept. Pure questions over the book.

One queue, by priority and then age: of jobs that were never asked for, of those due by time, and of those whose lack
may be over. The last are asked only where a count says that they could fit beside those that are asked already; a
round that must fail costs everyone. Nothing that became free is forgotten while someone waits for it: a job is asked
for it when its turn comes. The first waiting gang gets nodes kept for it, so that small jobs which would always fit
earlier do not starve it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from railweave.contracts.desired import NodeMode
from railweave.contracts.job import JobSpec
from railweave.contracts.placement import JobState
from railweave.contracts.types import NodeName
from railweave.jobs.book import PROPOSED, Book, Kept, Kind, Refusal
from railweave.jobs.model import Job, Wants, seconds
from railweave.jobs.room import Room, demand_of
from railweave.runtime.cluster import NodeState

_PATIENT_REFUSALS = 2
_LONGEST_REST_S = 1.0
_MOST_REFUSALS = 4096
"""Kinds of jobs whose last refusal is remembered."""


def to_ask(book: Book) -> list[Job]:
    """The jobs to ask for now, in queue order, as many as there is room for among those being asked."""
    room = book.config.asks_at_once - len(book.asking)
    if room <= 0 or book.settling_until is not None:
        return []
    kept_now(book)
    waiting = [job for job in book.jobs.values() if job.state is JobState.PENDING and not job.asking]
    candidates = [job for job in waiting if _has_turn(book, job) or _is_woken(book, job)]
    if not candidates:
        return []
    if all(_has_turn(book, job) for job in candidates):
        # Nothing to count: nodes are walked over only where somebody's turn depends on it.
        chosen = sorted(candidates, key=Job.queue_order)[:room]
    else:
        chosen = _that_fit(book, candidates, room)
    for job in chosen:
        job.is_due_by_time = not _is_woken(book, job)
    return chosen


def _that_fit(book: Book, candidates: Sequence[Job], room: int) -> list[Job]:
    """The first candidates that have their turn or could fit."""
    count = _Count(book)
    chosen: list[Job] = []
    by_kind: Counter[Kind] = Counter()
    # Who is asked for already comes before those behind it, and not before those it was asked for ahead of.
    for job in sorted((*candidates, *book.asking.values()), key=Job.queue_order):
        if job.asking:
            count.set_aside(job)
            continue
        if not _has_turn(book, job):
            kind = _kind_of(book, job)
            if by_kind[kind] >= _most_of(book, kind) or not count.could_fit(job):
                continue
            by_kind[kind] += 1
        count.set_aside(job)
        chosen.append(job)
        if len(chosen) == room:
            break
    return chosen


def _has_turn(book: Book, job: Job) -> bool:
    """Whether a job is asked for whatever is free: for the first time, or again after a time."""
    return job.key in book.backlog or _is_due(book, job)


def _most_of(book: Book, kind: Kind) -> int:
    """How many jobs of a kind are asked for at once. Where the last of them were asked in vain, one tries for all."""
    refusal = book.refusals.get(kind)
    if refusal is None:
        return book.config.asks_at_once
    return book.config.wake_at_once if refusal.times == 1 else 1


def _is_due(book: Book, job: Job) -> bool:
    return job.retry_at is not None and job.retry_at <= book.now


def _is_woken(book: Book, job: Job) -> bool:
    """Whether something it lacks became free after it, or a job just like it, was told no."""
    freed = max(book.freed_by.get(lack, -1) for lack in job.lacks) if job.lacks else book.changes
    if freed <= job.asked_by or not (job.round or job.retry_at is not None):
        return False
    refusal = book.refusals.get(_kind_of(book, job)) if book.refusals else None
    if refusal is None:
        return True
    # The gang that nodes are kept for is asked as often as there is hope: they stand empty for it.
    is_rested = book.now >= refusal.rests_until or (book.kept is not None and book.kept.gang is job)
    return freed > refusal.asked_by and is_rested


def note_refusal(book: Book, job: Job) -> None:
    """A job was told no: another just like it need not ask for the same.

    Where the count says again and again that they fit and the services say that they do not, they rest in between,
    so that others get their turn.
    """
    kind = _kind_of(book, job)
    known = book.refusals.pop(kind, None)
    if known is not None and job.asked_by <= known.asked_by:
        book.refusals[kind] = known
        return
    times = known.times + 1 if known is not None else 1
    rest_s = 0.0 if times <= _PATIENT_REFUSALS else min(0.25 * 2 ** (times - _PATIENT_REFUSALS - 1), _LONGEST_REST_S)
    book.refusals[kind] = Refusal(job.asked_by, min(times, 16), book.now + seconds(rest_s))
    if len(book.refusals) > _MOST_REFUSALS:
        del book.refusals[next(iter(book.refusals))]


def forget_refusal(book: Book, job: Job) -> None:
    """A job got its place: there may be more for others like it."""
    if book.refusals:
        book.refusals.pop(_kind_of(book, job), None)


def _kind_of(book: Book, job: Job) -> Kind:
    """Jobs of a kind get the same answer: they want the same and are kept from the same nodes."""
    return (wants_of(book, job).kind, frozenset(job.exclude), _is_behind(book, job))


def wants_of(book: Book, job: Job) -> Wants:
    """What a job wants, worked out once."""
    spec = book.spec_of(job)
    if job.wants is None or job.wants.spec is not spec:
        kind = spec.model_dump_json(include={"workers", "nodes", "network", "datasets", "tenant"})
        job.wants = Wants(spec, demand_of(spec), kind)
    return job.wants


class _Count:
    """What is free for those before the gang for which nodes are kept, and for those behind it."""

    def __init__(self, book: Book) -> None:
        self._book = book
        kept = kept_now(book)
        nodes = book.state.nodes.values()
        self._all = Room(nodes, book.ledger)
        self._others = Room(nodes, book.ledger, kept.nodes) if kept.nodes else self._all
        self._is_known_not_to_fit: set[tuple[object, bool]] = set()

    def could_fit(self, job: Job) -> bool:
        is_behind = _is_behind(self._book, job)
        demand = wants_of(self._book, job).demand
        # What is set aside only grows: who did not fit before does not fit now.
        if (demand, is_behind) in self._is_known_not_to_fit:
            return False
        room = self._others if is_behind else self._all
        if room.could_fit(demand):
            return True
        self._is_known_not_to_fit.add((demand, is_behind))
        return False

    def set_aside(self, job: Job) -> None:
        """Count on it getting what it is asked for; one that does not fit will be told no and takes nothing."""
        if not self.could_fit(job):
            return
        demand = wants_of(self._book, job).demand
        self._all.set_aside(demand)
        if self._others is not self._all and _is_behind(self._book, job):
            self._others.set_aside(demand)


# -- keeping nodes for a gang --------------------------------------------------------------------------------------


def gang_to_keep_for(book: Book) -> Job | None:
    """The first waiting job of several nodes that has waited long enough for nodes to be kept for it."""
    threshold = book.now - seconds(book.config.keep_nodes_after_s)
    candidates = [
        job
        for job in book.jobs.values()
        if job.state is JobState.PENDING
        and job.submitted_at <= threshold
        and job.round
        and job.spec is not None
        and job.spec.nodes.node_list is None
        and job.spec.slot_count > 1
    ]
    return min(candidates, key=Job.queue_order, default=None)


def kept_nodes(book: Book, job: Job) -> frozenset[NodeName]:
    """The nodes to keep for a waiting gang: those that will be empty first, all of one domain where it needs that.

    Chosen by what is held now, with the name as tie-break: the same nodes are chosen again until they are free, since
    nothing new goes there.
    """
    spec = book.spec_of(job)
    domains: dict[tuple[str, ...], list[tuple[int, int, NodeName]]] = {}
    for node in book.state.nodes.values():
        if could_ever_hold(node, spec):
            use = book.ledger.use_of(node.name)
            domain = _domain_of(node, spec.nodes.topology.required)
            domains.setdefault(domain, []).append((use.gpu_milli, use.holds, node.name))
    best: tuple[tuple[int, int, int], list[tuple[int, int, NodeName]]] | None = None
    for nodes in domains.values():
        first = sorted(nodes)[: spec.slot_count]
        # A domain with too few nodes is the choice only where all have too few.
        busy = (spec.slot_count - len(first), sum(item[0] for item in first), sum(item[1] for item in first))
        if best is None or (busy, first) < best:
            best = (busy, first)
    return frozenset(name for _, _, name in best[1]) if best is not None else frozenset()


def _domain_of(node: NodeState, required: str) -> tuple[str, ...]:
    """Where a job's nodes must all be, as the cache service tells it."""
    fabric = node.fabric
    if fabric is None:
        return ()
    leaves = dict.fromkeys(str(item.leaf) for item in fabric.attachments)
    levels = (str(fabric.island), str(fabric.pod), "+".join(leaves))
    return levels[: {"island": 1, "pod": 2, "leaf": 3}[required]]


def avoid_for(book: Book, job: Job) -> tuple[NodeName, ...]:
    """Nodes a job's ask should avoid because they are kept for a gang before it in the queue."""
    kept = kept_now(book)
    return kept.in_order if _is_behind(book, job) else ()


def _is_behind(book: Book, job: Job) -> bool:
    """Whether a job comes after the gang for which nodes are kept."""
    gang = book.kept.gang if book.kept is not None else None
    return gang is not None and gang is not job and gang.queue_order() < job.queue_order()


def kept_now(book: Book) -> Kept:
    """For whom nodes are kept, looked up once a second: it walks over all jobs and nodes."""
    kept = book.kept
    still = kept is not None and (kept.gang is None or book.jobs.get(kept.gang.key) is kept.gang)
    if kept is None or not still or book.now >= kept.until or (kept.gang and kept.gang.state is not JobState.PENDING):
        gang = gang_to_keep_for(book)
        nodes = kept_nodes(book, gang) if gang is not None else frozenset()
        if kept is not None and not kept.nodes <= nodes:
            book.free(PROPOSED)
        kept = book.kept = Kept(gang, nodes, tuple(sorted(nodes)), book.now + seconds(1.0))
    return kept


def could_ever_hold(node: NodeState, spec: JobSpec) -> bool:
    """Whether a node, empty, could hold the largest slot of a job: a coarse screen, the services decide."""
    if node.hardware is None or node.mode is not NodeMode.SCHEDULABLE or node.name in spec.nodes.exclude:
        return False
    if any(node.labels.get(key) != value for key, value in spec.nodes.selector.items()):
        return False
    healthy = sum(1 for gpu in node.hardware.gpus if gpu.healthy)
    return healthy >= max(group.gpus for group in spec.workers)


def next_retry(book: Book, job: Job) -> datetime:
    """When a pending job is asked again at the latest: later each time, ten times the first wait at most."""
    wait = book.config.retry_pending_s * min(book.config.retry_growth**job.retries, 10.0)
    return book.now + seconds(wait)
