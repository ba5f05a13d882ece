"""Jobs: submit, started, cancel, release, jobs, job, why."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.text import Text

from railweave.cli import render, words
from railweave.cli.arguments import JobId, Json, Timeout, job_key, leave, target
from railweave.cli.documents import read_job
from railweave.cli.exits import CommandFailed, Exit
from railweave.cli.output import console, print_json, show
from railweave.cli.session import Session, connected, run
from railweave.cli.target import Target
from railweave.contracts import JobKey
from railweave.contracts.client import QueryFailed
from railweave.contracts.client.store import Stored
from railweave.contracts.job import JobEnded, JobStarted, Outcome, StartedWorker
from railweave.contracts.placement import HOLDING_STATES, JobState
from railweave.contracts.query import (
    JOB_SUBJECT,
    JOBS_SUBJECT,
    WHY_SUBJECT,
    DryRunAnswer,
    JobDetail,
    JobQuery,
    JobRow,
    JobsAnswer,
    JobsQuery,
    Why,
)
from railweave.contracts.reasons import ReasonCode
from railweave.contracts.types import ClusterName, NodeName, TenantName
from railweave.contracts.types import Text as ContractText

_FINISHED = frozenset({JobState.RELEASED, JobState.REJECTED})


class Stage(StrEnum):
    """What `submit --wait` waits for."""

    PLACED = "placed"
    PREPARED = "prepared"
    ATTACHED = "attached"
    RELEASED = "released"


def submit(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="The job in YAML or JSON, bare or as a CloudEvent.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say where it would run or why not; submit nothing.")
    ] = False,
    wait: Annotated[Stage | None, typer.Option("--wait", help="Wait until it is so far.", show_default=False)] = None,
    timeout: Timeout = 900.0,
    as_json: Json = False,
) -> None:
    """Submit a job: say on the bus that its scheduler has it.

    Said twice it counts once: the event's id follows from cluster, job and attempt.
    """
    job = read_job(file)
    if dry_run:
        answer = run(_dry_run(target(ctx), job))
        name = f"{job.get('cluster')}/{job.get('job')}"
        print_json(answer) if as_json else show(render.dry_run_text(answer, name))
        leave(Exit.DONE if answer.would_place is not None else Exit.ANSWER_IS_NO)
    document = run(_submit(target(ctx), job, wait, timeout))
    if as_json:
        print_json(document)
        return
    again = "  (it had been submitted before: counted once)" if document["duplicate"] else ""
    show(f"submitted {document['cluster']}/{document['job']}, attempt {document['attempt']}{again}")
    if wait is not None:
        show(f"{wait} after {words.duration(float(document['waited_s']))}" + _on(document.get("event", {})))


def _on(event: dict[str, Any]) -> str:
    nodes = event.get("nodes")
    return f" on {words.names([str(node) for node in nodes])}" if nodes else ""


async def _dry_run(where: Target, job: dict[str, Any]) -> DryRunAnswer:
    async with connected(where) as session:
        return await session.jobs.dry_run(job)


async def _submit(where: Target, job: dict[str, Any], wait: Stage | None, timeout_s: float) -> dict[str, Any]:
    async with connected(where) as session:
        named = {key: job.get(key) for key in ("cluster", "job", "attempt")}
        if wait is None:
            stored = await session.jobs.submit(job)
            return named | {"sequence": stored.sequence, "duplicate": stored.duplicate}
        begun = asyncio.get_running_loop().time()
        event = await _submit_and_wait(session, job, wait, timeout_s)
        waited_s = round(asyncio.get_running_loop().time() - begun, 3)
        return named | {
            "duplicate": False,
            "waited_s": waited_s,
            "reached": str(wait),
            "event": event.model_dump(mode="json"),
        }


async def _submit_and_wait(session: Session, job: dict[str, Any], wait: Stage, timeout_s: float) -> Any:
    match wait:
        case Stage.PLACED:
            return await session.jobs.submit_and_wait(job, "placed", timeout=timeout_s)
        case Stage.PREPARED:
            return await session.jobs.submit_and_wait(job, "prepared", timeout=timeout_s)
        case Stage.ATTACHED:
            return await session.jobs.submit_and_wait(job, "attached", timeout=timeout_s)
        case Stage.RELEASED:
            return await session.jobs.submit_and_wait(job, "released", timeout=timeout_s)


def started(
    ctx: typer.Context,
    job: JobId,
    netns: Annotated[
        list[str] | None,
        typer.Option("--netns", metavar="WORKER=PATH", help="A worker's network namespace; repeatable."),
    ] = None,
    pid: Annotated[
        list[str] | None, typer.Option("--pid", metavar="WORKER=PID", help="A worker's process; repeatable.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say that a job's workers exist, so that devices are moved into them."""
    key = job_key(job)
    workers = [_worker(text, "netns") for text in netns or ()] + [_worker(text, "pid") for text in pid or ()]
    stored = run(_started(target(ctx), key, workers))
    _say(stored, f"{key} started", as_json=as_json)


def _worker(text: str, kind: str) -> dict[str, Any]:
    number, equals, where = text.partition("=")
    if not equals or not number.isdigit() or not where or (kind == "pid" and not where.isdigit()):
        example = "0=/run/netns/worker-0" if kind == "netns" else "0=4711"
        raise CommandFailed(
            f"expected WORKER={kind.upper()} such as {example}, found {text!r}", Exit.USAGE, field=f"--{kind}"
        )
    return {"worker": int(number), kind: int(where) if kind == "pid" else where}


async def _started(where: Target, key: JobKey, workers: list[dict[str, Any]]) -> Stored:
    async with connected(where) as session:
        row = await _row(session, key)
        placed = tuple(StartedWorker.model_validate(worker) for worker in workers)
        event = JobStarted(cluster=row.cluster, job=row.job, attempt=row.attempt, uid=row.uid, workers=placed)
        return await session.jobs.started(event)


def cancel(
    ctx: typer.Context,
    job: JobId,
    reason: Annotated[str | None, typer.Option("--reason", help="Said in the event.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Cancel a job: say that it ended (cancelled), so that everything it holds is undone."""
    stored = run(_end(target(ctx), job_key(job), Outcome.CANCELLED, reason))
    _say(stored, f"{job} is cancelled; what it holds is released as its nodes report it undone", as_json=as_json)


def release(
    ctx: typer.Context,
    job: JobId,
    force: Annotated[bool, typer.Option("--force", help="Needed: its workers lose their network at once.")] = False,
    reason: Annotated[str | None, typer.Option("--reason", help="Said in the event.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Release a job without its scheduler: says that it is lost, in its scheduler's place.

    For jobs whose scheduler will never say that they ended. A node that cannot report keeps what it holds: see
    `railweave node forget`.
    """
    key = job_key(job)
    if not force:
        raise CommandFailed(
            f"{key} may be running: its workers would lose network and GPUs",
            Exit.USAGE,
            field="--force",
            remedy=f"ask its scheduler to end it, `railweave cancel {key}`, or repeat with --force",
        )
    text = "released by an operator" + (f": {reason}" if reason else "")
    stored = run(_end(target(ctx), key, Outcome.LOST, text))
    _say(stored, f"{key} is being released", as_json=as_json)


async def _end(where: Target, key: JobKey, outcome: Outcome, text: str | None) -> Stored:
    async with connected(where) as session:
        row = await _row(session, key)
        if row.state in _FINISHED:
            raise CommandFailed(f"{key} is {row.state} already: it holds nothing", Exit.NOT_FOUND)
        event = JobEnded(cluster=row.cluster, job=row.job, attempt=row.attempt, uid=row.uid, outcome=outcome, text=text)
        return await session.jobs.ended(event)


async def _row(session: Session, key: JobKey) -> JobRow:
    detail = await _detail(session, key)
    return detail.row


async def _detail(session: Session, key: JobKey) -> JobDetail:
    try:
        return await session.ask(JOB_SUBJECT, JobQuery(cluster=key.cluster, job=key.job), JobDetail)
    except QueryFailed as error:
        raise _unknown(error, key) from error


def _unknown(error: QueryFailed, key: JobKey) -> Exception:
    if error.code != 404:
        return error
    return CommandFailed(
        f"no job {key}", Exit.NOT_FOUND, remedy="`railweave jobs` lists them; a released job is forgotten after a while"
    )


def _say(stored: Stored, text: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"stream": stored.stream, "sequence": stored.sequence, "duplicate": stored.duplicate})
    else:
        show(text + ("  (said before: counted once)" if stored.duplicate else ""))


def jobs(
    ctx: typer.Context,
    cluster: Annotated[str | None, typer.Option("--cluster", help="Only of this cluster.", show_default=False)] = None,
    state: Annotated[
        list[JobState] | None, typer.Option("--state", help="Only in this state; repeatable.", show_default=False)
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only of this tenant.", show_default=False)] = None,
    node: Annotated[str | None, typer.Option("--node", help="Only with a placement there.", show_default=False)] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", help="Only waiting or ended for this.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also released and rejected ones.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="At most so many.")] = 100,
    watch: Annotated[bool, typer.Option("--watch", help="Show again every two seconds.")] = False,
    as_json: Json = False,
) -> None:
    """List jobs, oldest first: where they run, or why they do not."""
    states = tuple(state or ()) or (() if everything or reason else (JobState.PENDING, *sorted(HOLDING_STATES)))
    question = JobsQuery(
        cluster=_name(ClusterName, cluster, "--cluster"),
        states=states,
        tenant=_name(TenantName, tenant, "--tenant"),
        node=_name(NodeName, node, "--node"),
        reason=_reason(reason),
        limit=limit,
    )
    if watch and not as_json:
        run(_watch(target(ctx), question))
        return
    answer = run(_jobs(target(ctx), question))
    if as_json:
        print_json(answer)
    else:
        show(*_listed(answer))


def _listed(answer: JobsAnswer) -> list[Any]:
    if not answer.jobs:
        return [Text("no such jobs", style="dim")]
    parts: list[Any] = [render.jobs_table(answer.jobs, datetime.now(UTC))]
    if answer.total > len(answer.jobs):
        parts.append(Text(f"{len(answer.jobs)} of {answer.total} shown: --limit shows more", style="dim"))
    return parts


async def _jobs(where: Target, question: JobsQuery) -> JobsAnswer:
    async with connected(where) as session:
        return await session.ask(JOBS_SUBJECT, question, JobsAnswer)


async def _watch(where: Target, question: JobsQuery) -> None:
    out = console()
    async with connected(where) as session:
        while True:
            answer = await session.ask(JOBS_SUBJECT, question, JobsAnswer)
            out.clear()
            out.print(*_listed(answer), sep="\n")
            await asyncio.sleep(2)


def _name(kind: type[ContractText], value: str | None, option: str) -> Any:
    if value is None:
        return None
    try:
        return kind(value)
    except ValueError as error:
        raise CommandFailed(str(error), Exit.USAGE, field=option) from error


def _reason(value: str | None) -> ReasonCode | None:
    if value is None:
        return None
    code = ReasonCode(value)
    if code is ReasonCode.UNKNOWN:
        known = ", ".join(str(item) for item in ReasonCode if item is not ReasonCode.UNKNOWN)
        raise CommandFailed(f"no reason {value!r}; there are {known}", Exit.USAGE, field="--reason")
    return code


def job(ctx: typer.Context, job: JobId, as_json: Json = False) -> None:
    """Show everything about one job: times, nodes, addresses, reports."""
    detail = run(_show(target(ctx), job_key(job)))
    print_json(detail) if as_json else show(render.job_text(detail, datetime.now(UTC)))


async def _show(where: Target, key: JobKey) -> JobDetail:
    async with connected(where) as session:
        return await _detail(session, key)


def why(ctx: typer.Context, job: JobId, as_json: Json = False) -> None:
    """Say why a job is where it is: what it wants, what stands in the way, what will change it."""
    answer = run(_why(target(ctx), job_key(job)))
    print_json(answer) if as_json else show(render.why_text(answer))


async def _why(where: Target, key: JobKey) -> Why:
    async with connected(where) as session:
        try:
            return await session.ask(WHY_SUBJECT, JobQuery(cluster=key.cluster, job=key.job), Why)
        except QueryFailed as error:
            raise _unknown(error, key) from error
