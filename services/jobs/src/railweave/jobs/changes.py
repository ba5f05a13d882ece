"""What a scheduler says later of a run it submitted: that something changed, that its workers started."""

from __future__ import annotations

from dataclasses import replace

from pydantic import ValidationError

from railweave.contracts.envelope import contract_error
from railweave.contracts.job import JobSpec, JobStarted, JobUpdated
from railweave.contracts.placement import JobState
from railweave.jobs.book import Book
from railweave.jobs.endings import release
from railweave.jobs.model import Job, Submission
from railweave.jobs.rounds import ask, ask_when_there_is_room, deliver_start


def take_updated(book: Book, event: JobUpdated, sequence: int) -> None:
    """The scheduler changed something of a run."""
    job = _live_run(book, event, sequence)
    if job is None or not take_in(book, job, event, sequence):
        return
    if job.state is JobState.PENDING and (job.round or job.asking):
        ask(book, job)
    elif job.state is JobState.PENDING:
        # It waits for its turn to be asked for: by its new priority.
        ask_when_there_is_room(book, job)
    if job.stored:
        book.store_head(job)


def take_started(book: Book, event: JobStarted, sequence: int) -> None:
    """The scheduler let the workers start. It may say so before they are prepared: they attach when they are."""
    job = _live_run(book, event, sequence)
    if job is None:
        return
    if job.state is JobState.RELEASING:
        # Its workers run on nodes it is losing, and its scheduler cannot say so of this attempt again.
        release(book, job, job.reasons, requeue=False)
        book.ack(sequence)
    elif take_in(book, job, event, sequence):
        if job.state is JobState.PREPARED:
            book.enter(job, JobState.STARTED)
        if job.stored:
            book.store_head(job)
        if job.placements:
            deliver_start(book, job)


def take_in(book: Book, job: Job, event: JobUpdated | JobStarted, sequence: int) -> bool:
    """Note on a job what was said of it; whether it was news. What cannot be is refused and changes nothing."""
    if isinstance(event, JobUpdated):
        is_news = job.spec is not None and event.revision > job.updated_revision
        if is_news and not _update(book, job, event, sequence):
            return False
    else:
        is_news = not job.started
        if is_news:
            job.started = True
            job.namespaces = event.workers
    book.ack_when_stored(job, sequence)
    return is_news


def _update(book: Book, job: Job, event: JobUpdated, sequence: int) -> bool:
    changes: dict[str, object] = {
        name: value for name in ("priority", "nodes", "time_limit_s") if (value := getattr(event, name)) is not None
    }
    try:
        job.spec = JobSpec.model_validate(book.spec_of(job).model_copy(update=changes))
    except ValidationError as error:
        # The event is well-formed, but its nodes do not fit the workers it says nothing of.
        book.refuse(sequence, "data.nodes.node_list", contract_error(error).reason)
        return False
    job.updated_revision = event.revision
    return True


def _live_run(book: Book, event: JobUpdated | JobStarted, sequence: int) -> Job | None:
    """The live job that an event is about. Else it is kept for the run that waits for that job's release, or over."""
    job = book.jobs.get(event.key)
    if job is None or job.run == event.run:
        if job is None:
            book.ack(sequence)
        return job
    waiting = job.successor
    if not isinstance(waiting, Submission) or waiting.spec.run != event.run:
        book.ack(sequence)
    elif all(sequence != known for _, known in waiting.later):
        job.successor = replace(waiting, later=(*waiting.later, (event, sequence)))
    return None
