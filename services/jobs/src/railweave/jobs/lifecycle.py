"""A job's life as events move it: submitted, reported, ended, overdue.

Whatever comes may come twice, late, or about a run that is over; what has no place in the job's state changes nothing.
"""

from __future__ import annotations

from datetime import datetime

from railweave.contracts.desired import NodeDesired, NodeMode
from railweave.contracts.identity import JobRun
from railweave.contracts.inventory import Report, ReportState
from railweave.contracts.job import (
    JobAttached,
    JobEnded,
    JobPrepared,
    JobReleased,
    JobSpec,
    Outcome,
)
from railweave.contracts.placement import HOLDING_STATES, Fence, JobState, Placement, PlacementState
from railweave.contracts.reasons import Lack, Reason, ReasonCode
from railweave.contracts.types import NodeName
from railweave.jobs.book import Book
from railweave.jobs.changes import take_in
from railweave.jobs.endings import finish, release, take_stray_undone, take_undone
from railweave.jobs.events import identity
from railweave.jobs.model import Ending, Finished, Job, StoredPlacement, Submission, seconds
from railweave.jobs.rounds import answer_overdue, ask_when_there_is_room, note

_MOST_NAMED = 8
"""Of the nodes that are late."""


def take_submitted(book: Book, spec: JobSpec, sequence: int, stored_at: datetime) -> None:
    """A scheduler has a job, or starts it again."""
    run = spec.run
    finished = book.finished.get(spec.key)
    if finished is not None and (
        finished.run == run or _is_before(run, stored_at, finished.run, finished.submitted_at)
    ):
        book.ack(sequence)
        return
    job = book.jobs.get(spec.key)
    if job is None:
        if finished is not None and finished.run.uid == run.uid and run.attempt < finished.run.attempt:
            book.refuse(sequence, "data.attempt", _attempt_back(int(run.attempt), int(finished.run.attempt)))
            return
        begin(book, Submission(spec, sequence, stored_at))
    elif job.run == run:
        _take_repeat(book, job, spec, sequence)
    elif _is_before(run, stored_at, job.run, job.submitted_at):
        book.ack(sequence)
    elif job.run.uid == run.uid and run.attempt < job.run.attempt:
        book.refuse(sequence, "data.attempt", _attempt_back(int(run.attempt), int(job.run.attempt)))
    else:
        succeed(book, job, Submission(spec, sequence, stored_at))


def _is_before(run: JobRun, stored_at: datetime, known: JobRun, known_at: datetime) -> bool:
    """Whether what was said of a run at `stored_at` was said before a known run was submitted.

    Times are cut to microseconds: of two within one, the later attempt is the later.
    """
    if stored_at != known_at:
        return stored_at < known_at
    return known.uid != run.uid or run.attempt <= known.attempt


def _attempt_back(found: int, known: int) -> str:
    return f"expected an attempt after {known}, found {found}: an attempt never goes back"


def _take_repeat(book: Book, job: Job, spec: JobSpec, sequence: int) -> None:
    if job.spec is None:
        # Adopted from journals after the record was lost: now its wishes are known again.
        job.spec = spec
        book.store_head(job)
    book.ack_when_stored(job, sequence)


def begin(book: Book, start: Submission | Ending) -> None:
    """Start a run that nothing stands in the way of."""
    if isinstance(start, Ending):
        job = Job(start.run, None, start.stored_at, outcome=start.outcome, unacked=[start.sequence])
        # Its scheduler waits for it, as after any end: all that it had may have been lost with the record.
        book.publish(JobReleased(**identity(job.run, job.round), reasons=(_ended(start.outcome, None),)))
        finish(book, job_entered(book, job), JobState.RELEASED)
        return
    job = job_entered(book, Job(start.spec.run, start.spec, start.stored_at, unacked=[start.sequence]))
    book.finished.pop(job.key, None)
    for event, sequence in start.later:
        take_in(book, job, event, sequence)
    ask_when_there_is_room(book, job)


def job_entered(book: Book, job: Job) -> Job:
    """Put a job into the book."""
    book.jobs[job.key] = job
    return job


def succeed(book: Book, job: Job, start: Submission | Ending) -> None:
    """A newer run under the same name: the old one ends first. Of several newer ones the last counts."""
    waiting = job.successor
    if waiting is not None:
        if _is_before(_run_of(start), start.stored_at, _run_of(waiting), waiting.stored_at):
            book.ack(start.sequence)
            return
        book.ack_waiting(waiting)
    job.successor = start
    newer = _run_of(start)
    reason = Reason(code=ReasonCode.SUPERSEDED, text=f"{newer} (uid {newer.uid}) was submitted under the same name")
    end(book, job, (reason,))


def _run_of(start: Submission | Ending) -> JobRun:
    return start.spec.run if isinstance(start, Submission) else start.run


def end(book: Book, job: Job, reasons: tuple[Reason, ...], *, requeue: bool = False) -> None:
    """End a run in whatever state it is."""
    if job.state in HOLDING_STATES:
        release(book, job, reasons, requeue=requeue)
        return
    job.reasons = reasons
    book.publish(
        JobReleased(
            **identity(job.run, job.round),
            reasons=reasons,
        )
    )
    finish(book, job, JobState.RELEASED)


def take_ended(book: Book, event: JobEnded, sequence: int, stored_at: datetime) -> None:
    """The scheduler says a run is over. Release wins: also over a run whose `submitted` has not come yet."""
    job = book.jobs.get(event.key)
    ending = Ending(event.run, event.outcome, sequence, stored_at)
    if job is None:
        finished = book.finished.get(event.key)
        if finished is not None and _is_over(finished, event.run, stored_at):
            book.ack(sequence)
        elif book.settling_until is not None:
            # Nodes may hold it and have not said so yet: "released" would not be true.
            book.deferred_ends.append((event, sequence, stored_at))
        else:
            begin(book, ending)
        return
    if job.run == event.run:
        job.outcome = event.outcome
        end(book, job, (_ended(event.outcome, event.text),))
        book.ack(sequence)
        return
    successor = job.successor
    if isinstance(successor, Submission) and successor.spec.run == event.run:
        # Its predecessor is still being undone; nothing of it ever began.
        book.ack_waiting(successor)
        job.successor = ending
    elif not _is_before(event.run, stored_at, job.run, job.submitted_at) and not _is_older(event, job):
        succeed(book, job, ending)
    else:
        book.ack(sequence)


def _is_over(finished: Finished, run: JobRun, stored_at: datetime) -> bool:
    """Whether a run is the finished one, or one before it."""
    is_same = finished.run == run or (finished.run.uid == run.uid and run.attempt < finished.run.attempt)
    return is_same or _is_before(run, stored_at, finished.run, finished.submitted_at)


def _is_older(event: JobEnded, job: Job) -> bool:
    """An end of an earlier attempt, or of a run this one replaced, comes late: it must not end this one.

    Uids have no order. An end with another uid is that of a predecessor unless its attempt is a later one.
    """
    return event.attempt <= job.run.attempt


def _ended(outcome: Outcome, text: str | None) -> Reason:
    return Reason(code=ReasonCode.ENDED_BY_SCHEDULER, text=text or f"the scheduler says it {_past(outcome)}")


def _past(outcome: Outcome) -> str:
    return {Outcome.CANCELLED: "was cancelled", Outcome.LOST: "was lost"}.get(outcome, str(outcome))


def take_report(book: Book, report: Report) -> None:
    """A node acted on a placement. A report about an older write than the one it would answer is stale."""
    stray = book.strays.get((report.run, report.node))
    if stray is not None:
        if report.state is ReportState.UNDONE and _answers(report, stray.placement, stray.sequence):
            take_stray_undone(book, stray)
        return
    job = book.jobs.get(report.key)
    if job is None or job.run != report.run or report.node not in job.placements:
        return
    held = job.placements[report.node]
    if not _answers(report, held.placement, held.round_sequence):
        book.counts.stale_reports += 1
        return
    match report.state:
        case ReportState.PREPARED | ReportState.ATTACHED if job.state is JobState.RELEASING:
            _insist(book, job, report, held)
        case ReportState.PREPARED:
            _take_prepared(book, job, report.node)
        case ReportState.ATTACHED:
            _take_attached(book, job, report.node)
        case ReportState.REFUSED | ReportState.FAILED:
            _take_failure(book, job, report)
        case ReportState.UNDONE:
            _take_undone(book, job, report, held)
        case ReportState.ORPHAN:
            pass


def _answers(report: Report, placement: Placement, sequence: int) -> bool:
    """Whether a report is about this write or a later one. Sequences may have started over: epochs go first."""
    return report.fence >= Fence(placement.epoch, sequence)


def _insist(book: Book, job: Job, report: Report, held: StoredPlacement) -> None:
    """A node holds on to something later than its release: the record was put back in between. Write the release again.

    Without it the node would refuse the older release for ever.
    """
    if report.fence > Fence(held.placement.epoch, held.sequence):
        book.rewrite_placements(job, {"state": PlacementState.RELEASING}, (report.node,))


def _take_prepared(book: Book, job: Job, node: NodeName) -> None:
    book.ledger.settle_evictions(job.run, node)
    if job.reports.get(node) is None:
        job.reports[node] = ReportState.PREPARED
    if job.state is JobState.PLACED and len(job.reports) == len(job.placements):
        book.enter(job, JobState.PREPARED)
        if job.started:
            book.enter(job, JobState.STARTED)
        book.store_head(job)
        book.publish(
            JobPrepared(
                **identity(job.run, job.round),
                nodes=tuple(job.placements),
            )
        )
    _attached_if_all(book, job)


def _take_attached(book: Book, job: Job, node: NodeName) -> None:
    job.reports[node] = ReportState.ATTACHED
    # Attached says prepared too: its report may have been replaced before it was read.
    if job.state is JobState.PLACED:
        _take_prepared(book, job, node)
    _attached_if_all(book, job)


def _attached_if_all(book: Book, job: Job) -> None:
    if job.state not in {JobState.PREPARED, JobState.STARTED}:
        return
    states = job.reports
    if any(states.get(node) is not ReportState.ATTACHED for node in job.placements):
        return
    book.enter(job, JobState.ATTACHED)
    book.store_head(job)
    book.publish(
        JobAttached(
            **identity(job.run, job.round),
            nodes=tuple(job.placements),
        )
    )


def _take_failure(book: Book, job: Job, report: Report) -> None:
    if job.state is JobState.RELEASING:
        return
    failure = report.failure
    text = (
        f"{report.node}: {failure.step}: {failure.error}: {failure.text}" if failure is not None else str(report.node)
    )
    if report.state is ReportState.REFUSED:
        code = ReasonCode.NODE_REFUSED
    elif job.state is JobState.PLACED:
        code = ReasonCode.NODE_NOT_PREPARED
    else:
        code = ReasonCode.NODE_NOT_ATTACHED
    job.exclude.add(report.node)
    reason = Reason(code=code, text=text, node=report.node, remedy=f"railweave node {report.node} --journal")
    # Until the workers run, another node will do; afterwards the scheduler has to start them again.
    release(book, job, (reason,), requeue=job.may_move)


def _take_undone(book: Book, job: Job, report: Report, held: StoredPlacement) -> None:
    if held.placement.state is PlacementState.RELEASING:
        if _answers(report, held.placement, held.sequence):
            take_undone(book, job, report.node)
        return
    if book.settling_until is not None:
        book.deferred.append(report)
        return
    # The node says it undid something we still want: the record was put back to before its release.
    reason = Reason(
        code=ReasonCode.NODE_NOT_ATTACHED, text=f"{report.node} holds nothing of it any more", node=report.node
    )
    release(book, job, (reason,), requeue=False)
    take_undone(book, job, report.node)


def take_node(book: Book, desired: NodeDesired) -> None:
    """An operator's wish for a node: freed nodes wake waiting jobs; a retired one gives back what it held."""
    if desired.mode is NodeMode.SCHEDULABLE:
        book.free(Lack)
    if desired.mode is NodeMode.RETIRED:
        reason = Reason(code=ReasonCode.RELEASED_BY_OPERATOR, text=f"{desired.node} was retired", node=desired.node)
        for stray in [held for (_, node), held in book.strays.items() if node == desired.node]:
            take_stray_undone(book, stray)
        for job in [job for job in book.jobs.values() if desired.node in job.placements]:
            job.exclude.add(desired.node)
            end(book, job, (reason,), requeue=job.may_move)
            take_undone(book, job, desired.node)


def take_time(book: Book) -> None:
    """Deadlines: of asks, of preparing, of attaching; and of being known to none but this book."""
    book.free_what_lapsed()
    note_before = book.now - seconds(book.config.note_after_s)
    for job in list(book.jobs.values()):
        if not job.stored and job.submitted_at <= note_before:
            note(book, job)
        if job.asking and job.asked_at is not None and book.now >= job.asked_at + seconds(book.config.ask_timeout_s):
            answer_overdue(book, job)
        elif job.state is JobState.PLACED:
            _check_deadline(book, job, JobState.PLACED, ReportState.PREPARED)
        elif job.state is JobState.STARTED:
            _check_deadline(book, job, JobState.STARTED, ReportState.ATTACHED)


def _check_deadline(book: Book, job: Job, since: JobState, wanted: ReportState) -> None:
    if job.spec is None or job.is_adopted or book.settling_until is not None or book.now < book.judge_from:
        return
    limit = job.spec.prepare_deadline_s if wanted is ReportState.PREPARED else job.spec.attach_deadline_s
    began = job.times.get(since, book.now)
    if book.now < began + seconds(limit):
        return
    late = [node for node in job.placements if job.reports.get(node) not in {wanted, ReportState.ATTACHED}]
    retry = job.spec.on_deadline == "retry" and job.may_move
    if retry:
        job.exclude.update(late)
    release(book, job, _late_reasons(job, wanted, limit, late), requeue=retry)


def _late_reasons(job: Job, wanted: ReportState, limit_s: int, late: list[NodeName]) -> tuple[Reason, ...]:
    """That a deadline has passed, and for which nodes it was waited."""
    is_preparing = wanted is ReportState.PREPARED
    code = ReasonCode.NODE_NOT_PREPARED if is_preparing else ReasonCode.NODE_NOT_ATTACHED
    setting = "prepare_deadline_s" if is_preparing else "attach_deadline_s"
    numbers = {"limit_s": limit_s, "late_nodes": len(late), "nodes": len(job.placements)}
    named = ", ".join(late[:_MOST_NAMED]) + (", ..." if len(late) > _MOST_NAMED else "")
    exceeded = Reason(
        code=ReasonCode.DEADLINE_EXCEEDED,
        text=f"not {wanted} within {limit_s} s: {len(late)} of {len(job.placements)} nodes are late: {named}",
        numbers=numbers,
        lacks=(Lack.AGENT,),
        remedy=f"see what its nodes do: railweave job {job.key}; or give it a longer {setting}",
    )
    by_node = (
        Reason(
            code=code,
            text=f"{node} has not reported {wanted} within {limit_s} s",
            node=node,
            numbers=numbers,
            lacks=(Lack.AGENT,),
        )
        for node in late[:_MOST_NAMED]
    )
    return (exceeded, *by_node)
