"""Rounds of proposals: ask, join, commit or wait. Proposals of different rounds are never joined."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from railweave.contracts.desired import NodeMode
from railweave.contracts.identity import JobRun
from railweave.contracts.job import JobPending, JobRejected
from railweave.contracts.placement import Claim, ClaimKind, JobState, Placement
from railweave.contracts.proposal import Ask, Proposal, concerns_of
from railweave.contracts.reasons import Lack, Reason, ReasonCode
from railweave.contracts.types import NodeName, Round
from railweave.jobs import pending
from railweave.jobs.book import Book
from railweave.jobs.endings import finish
from railweave.jobs.events import identity, placed
from railweave.jobs.model import Job, StoredPlacement, seconds
from railweave.jobs.render import render
from railweave.jobs.render_network import RenderError
from railweave.runtime.held import segments_of

_MOST_REASONS = 64
"""Kept of a proposal's reasons: a head is one message."""
_MANY_PARTS = 400
"""Workers and interfaces of a placement that are surely less than a message."""
_MOST_BYTES = 1_000_000
"""Of a placement, in a message of 1 MiB."""


def ask(book: Book, job: Job) -> None:
    """Start the next round; while the book settles, or the job may turn out to run already, later."""
    spec = book.spec_of(job)
    if book.settling_until is not None:
        book.stop_asking(job)
        job.retry_at = book.settling_until
        return
    if book.is_orphaned(job):
        _wait_for_judgement(book, job)
        return
    job.round += 1
    book.start_asking(job)
    job.retry_at = None
    job.proposals = {}
    book.counts.asks += 1
    book.publish(
        Ask(
            cluster=spec.cluster,
            job=spec.job,
            attempt=spec.attempt,
            uid=spec.uid,
            round=Round(job.round),
            spec=spec,
            concerns=concerns_of(spec),
            exclude=tuple(sorted(job.exclude)),
            avoid=pending.avoid_for(book, job),
        ),
        after_store=False,
    )


def _wait_for_judgement(book: Book, job: Job) -> None:
    """Nodes say that they hold this very run. It is about to be adopted; placed anew it would be there twice."""
    book.stop_asking(job)
    job.retry_at = book.now + seconds(book.config.orphan_grace_s)


def ask_when_there_is_room(book: Book, job: Job) -> None:
    """Start a job's first round, or let it wait for its turn.

    As many rounds are open at a time as services answer without falling behind: asking for everything at once would
    only make every answer late, and late answers are asked for again. Nor is a job asked for before those that
    waited for what has just become free.
    """
    if len(book.asking) < book.config.asks_at_once and not book.must_look:
        ask(book, job)
        return
    book.backlog.add(job.key)
    book.must_look = True
    if len(book.backlog) > book.config.unstored_at_most:
        note(book, job)


def note(book: Book, job: Job) -> None:
    """Store that a job waits for its first answer: its messages are acked, and `why` knows it.

    What is not acked fills the consumer's window: past that, the end of another job would not come through.
    """
    if job.stored or job.state is not JobState.PENDING or book.settling_until is not None:
        return
    job.times.setdefault(JobState.PENDING, book.now)
    job.commit = book.next_commit()
    book.store_head(job)
    book.ack_submitted(job)


def ask_unheard(book: Book, run: JobRun, number: Round) -> None:
    """An ask went under as the repetition of an earlier committer's: nobody answers it again, the next round is heard.

    A round that has answers was heard: the repetition was our own, after an unknown outcome.
    """
    job = book.jobs.get(run.key)
    if job is not None and job.run == run and job.asking and job.round == number and not job.proposals:
        ask(book, job)


def take_proposal(book: Book, proposal: Proposal) -> None:
    """A service answered. Answers of other rounds or runs change nothing."""
    job = book.jobs.get(proposal.key)
    if job is None or job.run != proposal.run or not job.asking or proposal.round != job.round:
        return
    job.proposals[proposal.CONCERN] = proposal
    spec = book.spec_of(job)
    if proposal.reasons:
        job.unanswered = 0
        reasons = proposal.reasons[:_MOST_REASONS]
        # One no is enough: what the others would give is not waited for.
        if proposal.never:
            reject(book, job, reasons)
        else:
            wait(book, job, reasons)
            pending.note_refusal(book, job)
    elif all(concern in job.proposals for concern in concerns_of(spec)):
        job.unanswered = 0
        _commit(book, job)


def _commit(book: Book, job: Job) -> None:
    if book.is_orphaned(job):
        _wait_for_judgement(book, job)
        return
    spec = book.spec_of(job)
    book.counts.complete_rounds += 1
    commit = book.next_commit()
    try:
        placements = render(
            spec, job.round, commit, book.epoch, job.proposals, book.state, submitted_at=job.submitted_at
        )
    except RenderError as error:
        _lost_round(book, job, (error.reason,))
        return
    if len(placements) + 1 > book.config.max_batch:
        reject(book, job, (_too_large(book, len(placements)),))
        return
    long = next((item for item in placements if _is_too_long(item)), None)
    if long is not None:
        reject(book, job, (_too_long(long),))
        return
    gone = _not_usable(book, job, placements)
    if gone:
        _lost_round(book, job, gone)
        return
    claims = job_claims(placements)
    conflicts = book.ledger.conflicts(job.run, placements, claims)
    if conflicts:
        reasons = tuple(
            Reason(
                code=ReasonCode.CLAIM_CONFLICT,
                text=str(conflict),
                lacks=(conflict.lack,),
                numbers={"needed": conflict.needed, "free": conflict.free},
            )
            for conflict in conflicts[:8]
        )
        _lost_round(book, job, reasons)
        return
    _store_commit(book, job, commit, placements, claims)


def _store_commit(
    book: Book, job: Job, commit: str, placements: tuple[Placement, ...], claims: tuple[Claim, ...]
) -> None:
    book.stop_asking(job, got_it=True)
    job.commit = commit
    job.conflicts = job.retries = 0
    pending.forget_refusal(book, job)
    if job.lacks and job.is_due_by_time:
        # What it lacked is there, though nobody said so: others that wait for the same are asked too.
        book.free(job.lacks)
    job.reasons, job.lacks, job.told = (), frozenset(), ()
    job.claims = claims
    job.reports = {}
    job.placements = {item.node: StoredPlacement(item, 0, 0) for item in placements}
    book.enter(job, JobState.PLACED)
    # The head goes last: a reader that shows whole batches has every placement when it sees it.
    first = book.store(*placements, book.head_of(job), atomic=True)
    job.stored = True
    for offset, item in enumerate(placements):
        job.placements[item.node] = StoredPlacement(item, first + offset, first + offset)
        book.ledger.take(job.run, item, first + offset)
    book.ledger.take_claims(job.run, claims)
    book.counts.commits += 1
    book.publish(placed(job.run, job.round, placements))
    book.ack_submitted(job)
    if job.started:
        deliver_start(book, job)


def deliver_start(book: Book, job: Job) -> None:
    """Tell the nodes where the workers' namespaces are; they attach as soon as they are prepared."""
    by_worker = {item.worker: item for item in job.namespaces}
    for node, held in job.placements.items():
        workers = tuple(
            worker.model_copy(update={"namespace": by_worker.get(worker.worker)}) for worker in held.placement.workers
        )
        book.rewrite_placements(job, {"started": True, "workers": workers}, (node,))


def wait(book: Book, job: Job, reasons: tuple[Reason, ...], retry_at: datetime | None = None) -> None:
    """The job stays pending, with reasons; it is told and stored only where they are new."""
    book.stop_asking(job)
    job.reasons = reasons
    job.lacks = frozenset(lack for reason in reasons for lack in reason.lacks)
    job.retry_at = retry_at or pending.next_retry(book, job)
    job.retries += 1
    codes = book.reason_codes(reasons)
    if codes == job.told and job.stored:
        book.ack_submitted(job)
        return
    job.told = codes
    job.times.setdefault(JobState.PENDING, book.now)
    job.commit = book.next_commit()
    book.store_head(job)
    book.publish(
        JobPending(
            **identity(job.run, job.round),
            reasons=reasons,
        )
    )
    book.ack_submitted(job)


def reject(book: Book, job: Job, reasons: tuple[Reason, ...]) -> None:
    """The job can never run as asked."""
    book.stop_asking(job)
    job.reasons = reasons
    book.counts.rejected += 1
    book.publish(
        JobRejected(
            **identity(job.run, job.round),
            reasons=reasons,
        )
    )
    finish(book, job, JobState.REJECTED)


def answer_overdue(book: Book, job: Job) -> None:
    """A service has not answered in time: ask again, and say so when that goes on."""
    missing = [concern for concern in concerns_of(book.spec_of(job)) if concern not in job.proposals]
    job.unanswered += 1
    if job.unanswered < book.config.asks_before_pending:
        ask(book, job)
        return
    reason = Reason(
        code=ReasonCode.PROPOSAL_TIMEOUT,
        text=f"no proposal of {', '.join(missing)} within {book.config.ask_timeout_s:g} s, {job.unanswered} times",
        numbers={"asks": job.unanswered},
        lacks=(Lack.AGENT,),
        remedy="see that the services run: railweave doctor",
    )
    wait(book, job, (reason,), book.now + seconds(book.config.ask_timeout_s * 2))


def _lost_round(book: Book, job: Job, reasons: tuple[Reason, ...]) -> None:
    """The proposals do not fit what is stored by now: at once another round, unless that goes on."""
    job.conflicts += 1
    book.counts.conflicts += 1
    if job.conflicts < book.config.conflicts_before_pending:
        ask(book, job)
    else:
        job.conflicts = 0
        wait(book, job, reasons, book.now + seconds(1.0))


def _not_usable(book: Book, job: Job, placements: tuple[Placement, ...]) -> tuple[Reason, ...]:
    """Nodes that were taken out between proposal and commit."""
    return tuple(
        Reason(
            code=ReasonCode.NODE_NOT_SCHEDULABLE,
            text=f"{item.node} is {_mode(book, item.node)} or excluded for this job",
            node=item.node,
            lacks=(Lack.NODE,),
        )
        for item in placements
        if item.node in job.exclude or _mode(book, item.node) is not NodeMode.SCHEDULABLE
    )


def _mode(book: Book, name: NodeName) -> NodeMode:
    node = book.state.nodes.get(name)
    return node.mode if node is not None else NodeMode.SCHEDULABLE


def job_claims(placements: tuple[Placement, ...]) -> tuple[Claim, ...]:
    """Claims of the job as a whole: its tenant's quota, and the segment it is in."""
    milli = sum(int(gpu.fraction_milli) for item in placements for worker in item.workers for gpu in worker.gpus)
    segments = segment_claims(placements)
    if not milli:
        return segments
    return (Claim(kind=ClaimKind.TENANT_GPU_MILLI, key=str(placements[0].tenant), amount=milli), *segments)


def segment_claims(placements: Iterable[Placement]) -> tuple[Claim, ...]:
    """The claim on the segment that the workers are in."""
    found = dict.fromkeys(segment for item in placements for segment in segments_of(item))
    return tuple(Claim(kind=ClaimKind.SEGMENT, key=str(segment), owner=owner) for segment, owner in found)


def _is_too_long(placement: Placement) -> bool:
    """Whether a placement is more than one message holds. Looked at only where it has uncommonly many parts."""
    parts = sum(1 + len(worker.network.interfaces if worker.network else ()) for worker in placement.workers)
    return parts > _MANY_PARTS and len(placement.model_dump_json().encode()) > _MOST_BYTES


def _too_long(placement: Placement) -> Reason:
    return Reason(
        code=ReasonCode.TOO_LARGE,
        text=f"the placement on {placement.node}, of {len(placement.workers)} workers, is past {_MOST_BYTES} bytes",
        node=placement.node,
        numbers={"workers": len(placement.workers), "largest_bytes": _MOST_BYTES},
        remedy="use fewer workers a node",
    )


def _too_large(book: Book, nodes: int) -> Reason:
    return Reason(
        code=ReasonCode.TOO_LARGE,
        text=f"{nodes} nodes and a head are past the {book.config.max_batch} messages of one atomic batch",
        numbers={"nodes": nodes, "largest_nodes": book.config.max_batch - 1},
        remedy="split the job, or use more workers a node",
    )
