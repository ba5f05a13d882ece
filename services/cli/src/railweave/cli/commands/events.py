"""Events: watch them, publish one, and look after those that nobody could handle."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from railweave.cli import words
from railweave.cli.arguments import Json, job_key, target
from railweave.cli.documents import parse_document, read_source
from railweave.cli.exits import CommandFailed, Exit
from railweave.cli.output import Column, console, print_json, print_json_line, show, table
from railweave.cli.session import Session, connected, run
from railweave.cli.target import Target
from railweave.contracts import ContractError, JobKey, WireMessage, decode_event
from railweave.contracts.client import JobFollower, JobUpdate, PlacementSubscriber, PlacementUpdate
from railweave.contracts.envelope import Event, registered_types
from railweave.contracts.job import JobEvent
from railweave.contracts.types import format_time
from railweave.contracts.wire import CONTENT_TYPE
from railweave.runtime.deadletters import DeadEntry, DeadLetterMissing, DeadLetters
from railweave.runtime.streams import DEAD, stream_of

_WRITTEN_BY_ONE = frozenset({"PLACEMENTS", "NODES", "PROPOSALS", "DEAD", "LEASES"})
"""Streams with one writer each: an event put there by hand would break what rests on that."""


def watch(
    ctx: typer.Context,
    job: Annotated[
        str | None, typer.Argument(metavar="[CLUSTER/JOB]", help="Only this job.", show_default=False)
    ] = None,
    placements: Annotated[bool, typer.Option("--placements", help="Also what each node owes.")] = False,
    history: Annotated[bool, typer.Option("--history", help="Begin with what is stored.")] = False,
    as_json: Json = False,
) -> None:
    """Watch what is said of jobs, as it is said. Ends with Ctrl-C."""
    key = job_key(job) if job is not None else None
    run(_watch(target(ctx), key, placements=placements, history=history, as_json=as_json))


async def _watch(where: Target, key: JobKey | None, *, placements: bool, history: bool, as_json: bool) -> None:
    cluster, name = (str(key.cluster), str(key.job)) if key is not None else (None, None)
    async with connected(where) as session, asyncio.TaskGroup() as group:
        client = session.bus.connection.client
        group.create_task(_events(client, cluster, name, history=history, as_json=as_json))
        if placements:
            group.create_task(_placements(client, cluster, name, as_json=as_json))


async def _events(client: Any, cluster: str | None, job: str | None, *, history: bool, as_json: bool) -> None:
    start: Literal["all", "new"] = "all" if history else "new"
    async with JobFollower(client, cluster=cluster, job=job, start=start) as updates:
        async for update in updates:
            if as_json:
                print_json_line(_event_document(update))
            else:
                console().print(event_line(update))


async def _placements(client: Any, cluster: str | None, job: str | None, *, as_json: bool) -> None:
    async with PlacementSubscriber(client, cluster=cluster, job=job) as updates:
        async for update in updates:
            if as_json:
                print_json_line(
                    {
                        "kind": "placement",
                        "sequence": update.fence.sequence,
                        "stored_at": update.stored_at,
                        "placement": update.placement,
                    }
                )
            else:
                console().print(placement_line(update))


def _event_document(update: JobUpdate) -> dict[str, Any]:
    event = update.event
    name = event.EVENT if isinstance(event, JobEvent) else event.TYPE
    return {
        "kind": "event",
        "sequence": update.sequence,
        "stored_at": update.stored_at,
        "event": name,
        "data": event,
    }


def event_line(update: JobUpdate) -> Text:
    """One event on a line."""
    event = update.event
    line = Text(f"{update.stored_at.astimezone():%H:%M:%S}.{update.stored_at.microsecond // 1000:03d}  ", style="dim")
    if not isinstance(event, JobEvent):
        return line.append(event.TYPE)
    line.append(f"{event.cluster}/{event.job}".ljust(20), style="bold not dim")
    line.append(f" {event.EVENT:<10}", style="not dim")
    line.append(_details(event), style="not dim")
    return line


def _details(event: Event) -> str:
    nodes = getattr(event, "nodes", None)
    reasons = getattr(event, "reasons", ())
    parts = []
    if isinstance(nodes, tuple) and nodes:
        parts.append(f"on {words.names([str(node) for node in nodes])}")
    if reasons:
        parts.append("; ".join(f"{reason.code}: {reason.text}" for reason in reasons[:2]))
    outcome = getattr(event, "outcome", None)
    if outcome is not None:
        parts.append(str(outcome))
    return "  ".join(parts)


def placement_line(update: PlacementUpdate) -> Text:
    """One placement on a line."""
    placement = update.placement
    line = Text(f"{update.stored_at.astimezone():%H:%M:%S}.{update.stored_at.microsecond // 1000:03d}  ", style="dim")
    line.append(f"{placement.cluster}/{placement.job}".ljust(20), style="bold not dim")
    vfs = sum(len(worker.network.interfaces) for worker in placement.workers if worker.network is not None)
    cards = sum(len(worker.gpus) for worker in placement.workers)
    line.append(
        f" {placement.state:<10} on {placement.node}: {words.plural(len(placement.workers), 'worker')}, "
        f"{words.plural(cards, 'GPU')}, {words.plural(vfs, 'VF')}",
        style="not dim",
    )
    return line


def publish(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="A CloudEvent in JSON or YAML.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Publish any event of a scheduler or platform, checked before it is sent."""
    text, name = read_source(file)
    document = parse_document(text, name)
    message = message_of(document, name)
    stored = run(_publish(target(ctx), message))
    if as_json:
        print_json({"id": message.msg_id, "subject": message.subject} | stored)
    else:
        again = "  (said before: counted once)" if stored["duplicate"] else ""
        show(f"{message.subject} stored in {stored['stream']} at {stored['sequence']}{again}")


def message_of(document: dict[str, Any], name: str) -> WireMessage:
    """The message of a CloudEvent, with subject and id as they must be.

    Raises:
        CommandFailed: the type is unknown, written by one service alone, or a field is wrong.
    """
    kind = document.get("type")
    event_type = registered_types().get(str(kind))
    if event_type is None:
        known = ", ".join(sorted(registered_types()))
        raise CommandFailed(f"{name}: unknown event type {kind!r}; there are {known}", Exit.USAGE, field="type")
    body = json.dumps(document, ensure_ascii=False).encode()
    # The subject follows from the body, so it is read before the whole is checked against it.
    try:
        data = event_type.model_validate_json(json.dumps(document.get("data"), ensure_ascii=False), extra="forbid")
    except ValueError as error:
        raise _first_problem(error) from error
    stream = stream_of(data.subject())
    if stream in _WRITTEN_BY_ONE:
        raise CommandFailed(f"{kind} is written by one service alone ({stream})", Exit.USAGE, field="type")
    if document.get("id") not in (None, data.event_id()):
        raise CommandFailed(f"expected {data.event_id()!r}: ids follow from the event", Exit.USAGE, field="id")
    headers = {"Content-Type": CONTENT_TYPE, "ce-id": data.event_id(), "ce-type": data.TYPE}
    message = WireMessage(data.subject(), body, headers, data.event_id())
    try:
        decode_event(message)
    except ContractError as error:
        raise CommandFailed(error.reason, Exit.USAGE, field=error.field) from error
    return message


def _first_problem(error: ValueError) -> CommandFailed:
    from pydantic import ValidationError

    from railweave.contracts.envelope import contract_error

    if isinstance(error, ValidationError):
        found = contract_error(error)
        return CommandFailed(found.reason, Exit.USAGE, field=f"data.{found.field}")
    return CommandFailed(str(error), Exit.USAGE, field="data")


async def _publish(where: Target, message: WireMessage) -> dict[str, Any]:
    async with connected(where) as session:
        stored = await session.bus.publish(message)
        return asdict(stored)


deadletters = typer.Typer(
    invoke_without_command=True, help="What nobody could handle: list, show, replay.", no_args_is_help=False
)


@deadletters.callback()
def list_letters(ctx: typer.Context, as_json: Json = False) -> None:
    """List what could not be handled, with its cause; `show` one, `replay` some."""
    if ctx.invoked_subcommand is not None:
        return
    entries = run(_entries(target(ctx)))
    if as_json:
        print_json({"deadletters": [asdict(entry) for entry in entries]})
        return
    if not entries:
        show("no dead letters")
        return
    show(
        table(
            [
                Column("NUMBER", right=True),
                Column("AGE", right=True),
                Column("SERVICE"),
                Column("FROM", keep=True),
                Column("FIELD"),
                Column("CAUSE", ratio=1),
            ],
            [
                (
                    str(entry.sequence),
                    words.age(entry.stored_at),
                    entry.service,
                    f"{entry.stream} {entry.original_sequence}",
                    entry.field or "-",
                    entry.cause,
                )
                for entry in entries
            ],
        )
    )


@deadletters.command("list")
def list_again(ctx: typer.Context, as_json: Json = False) -> None:
    """List them; `railweave deadletters` is the same."""
    ctx.invoked_subcommand = None
    list_letters(ctx, as_json)


Number = Annotated[int, typer.Argument(min=1, metavar="NUMBER", help="Its number in the list.", show_default=False)]


@deadletters.command("show")
def show_letter(ctx: typer.Context, number: Number, as_json: Json = False) -> None:
    """Show one with its original."""
    entry, original = run(_letter(target(ctx), number))
    if as_json:
        print_json(asdict(entry) | {"original": original})
        return
    show(
        Text.assemble(("cause     ", "bold"), entry.cause),
        Text.assemble(("field     ", "bold"), entry.field or "-"),
        Text.assemble(("from      ", "bold"), f"{entry.stream} {entry.original_sequence}, {entry.original_subject}"),
        Text.assemble(("stored    ", "bold"), format_time(entry.stored_at)),
        Text.assemble(("original  ", "bold"), original),
    )


@deadletters.command()
def replay(
    ctx: typer.Context,
    numbers: Annotated[list[int] | None, typer.Argument(metavar="NUMBER...", help="Their numbers.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    as_json: Json = False,
) -> None:
    """Publish the originals again, byte for byte, once what stood in their way is mended."""
    if bool(numbers) == everything:
        raise CommandFailed("say which: numbers of the list, or --all", Exit.USAGE, field="NUMBER")
    done = run(_replay(target(ctx), tuple(numbers or ())))
    if as_json:
        print_json({"replayed": done})
        return
    for item in done:
        again = "  (replayed before: counted once)" if item["duplicate"] else ""
        show(f"{item['number']} is again in {item['stream']}, at {item['sequence']}{again}")


async def _entries(where: Target) -> list[DeadEntry]:
    async with connected(where) as session:
        return await DeadLetters(session.bus, "").entries()


async def _letter(where: Target, number: int) -> tuple[DeadEntry, str]:
    async with connected(where) as session:
        entries = await DeadLetters(session.bus, "").entries(from_sequence=number, limit=1)
        found = next((entry for entry in entries if entry.sequence == number), None)
        if found is None:
            raise _no_letter(number)
        return found, await _original(session, found)


async def _original(session: Session, entry: DeadEntry) -> str:
    message = await session.bus.read(DEAD, entry.sequence)
    if message is not None:
        with contextlib.suppress(ContractError):
            letter = decode_event(message).data
            original = getattr(letter, "original", None)
            if isinstance(original, bytes):
                return original.decode(errors="backslashreplace")
    return "(only in its stream)"


async def _replay(where: Target, numbers: tuple[int, ...]) -> list[dict[str, Any]]:
    async with connected(where) as session:
        letters = DeadLetters(session.bus, "")
        chosen = numbers or tuple(entry.sequence for entry in await letters.entries())
        done: list[dict[str, Any]] = []
        for number in chosen:
            try:
                stored = await letters.replay(number)
            except DeadLetterMissing as error:
                raise CommandFailed(str(error), Exit.NOT_FOUND, remedy="`railweave deadletters` lists them") from error
            done.append({"number": number} | asdict(stored))
        return done


def _no_letter(number: int) -> CommandFailed:
    return CommandFailed(f"no dead letter {number}", Exit.NOT_FOUND, remedy="`railweave deadletters` lists them")
