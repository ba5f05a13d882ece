"""Nodes: list them, look at one, and say what an operator wants of one."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from railweave.cli import render
from railweave.cli.arguments import Json, target
from railweave.cli.exits import CommandFailed, Exit
from railweave.cli.output import print_json, show
from railweave.cli.session import Session, connected, run
from railweave.cli.target import Target
from railweave.contracts import decode_as, encode_event
from railweave.contracts.codec import encode_token
from railweave.contracts.desired import NodeDesired, NodeMode
from railweave.contracts.query import NODES_SUBJECT, NodeRow, NodesAnswer, NodesQuery
from railweave.contracts.types import Label, LeafName, NodeName, Rail
from railweave.runtime.streams import DESIRED


class _NodeGroup(TyperGroup):
    """`railweave node NAME` is `railweave node show NAME`."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        words = [word for word in args if not word.startswith("-")]
        if words and words[0] not in self.commands:
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_NodeGroup,
    no_args_is_help=True,
    help="Look at a node (`node NAME`), or say what you want of it.",
    subcommand_metavar="NAME | COMMAND NAME",
)

Node = Annotated[str, typer.Argument(metavar="NODE", help="The node's name.", show_default=False)]
Reason = Annotated[str | None, typer.Option("--reason", help="Why: shown in lists and in `why`.", show_default=False)]


def nodes(
    ctx: typer.Context,
    mode: Annotated[list[NodeMode] | None, typer.Option("--mode", help="Only in this mode; repeatable.")] = None,
    leaf: Annotated[str | None, typer.Option("--leaf", help="Only on this leaf.", show_default=False)] = None,
    problems: Annotated[bool, typer.Option("--problems", help="Only those with something wrong.")] = False,
    as_json: Json = False,
) -> None:
    """List nodes: what is free on them, and what is wrong with them.

    GPUS and VFS (VF groups) are free/all, CACHE is used/all.
    """
    question = NodesQuery(modes=tuple(mode or ()), leaf=None if leaf is None else _named(LeafName, leaf, "--leaf"))
    answer = run(_nodes(target(ctx), question))
    if problems:
        bad = tuple(row for row in answer.nodes if row.problems)
        answer = answer.model_copy(update={"nodes": bad, "total": len(bad)})
    if as_json:
        print_json(answer)
    else:
        show(render.nodes_table(answer.nodes, datetime.now(UTC)) if answer.nodes else "no such nodes")


async def _nodes(where: Target, question: NodesQuery) -> NodesAnswer:
    async with connected(where) as session:
        return await session.ask(NODES_SUBJECT, question, NodesAnswer, timeout_s=10.0)


@app.command("show")
def show_node(ctx: typer.Context, node: Node, as_json: Json = False) -> None:
    """Show one node; `railweave node NAME` is the same."""
    row = run(_one(target(ctx), _named(NodeName, node, "NODE")))
    print_json(row) if as_json else show(render.node_text(row, datetime.now(UTC)))


async def _one(where: Target, node: NodeName) -> NodeRow:
    async with connected(where) as session:
        return await _known(session, node)


async def _known(session: Session, node: NodeName) -> NodeRow:
    answer = await session.ask(NODES_SUBJECT, NodesQuery(node=node), NodesAnswer)
    if not answer.nodes:
        raise CommandFailed(f"no node {node}", Exit.NOT_FOUND, remedy="`railweave nodes` lists them")
    return answer.nodes[0]


@app.command()
def drain(ctx: typer.Context, node: Node, reason: Reason = None, as_json: Json = False) -> None:
    """Nothing new on a node; what runs there goes on to its end."""
    _want(ctx, node, NodeMode.DRAINING, reason, as_json=as_json)


@app.command()
def cordon(
    ctx: typer.Context,
    node: Node,
    rail: Annotated[
        list[int] | None,
        typer.Option("--rail", min=0, max=255, help="Only these rails; repeatable.", show_default=False),
    ] = None,
    reason: Reason = None,
    as_json: Json = False,
) -> None:
    """Nothing new on a node, or on some of its rails."""
    rails = tuple(Rail(number) for number in sorted(set(rail or ())))
    _want(ctx, node, NodeMode.SCHEDULABLE if rails else NodeMode.CORDONED, reason, rails=rails, as_json=as_json)


@app.command()
def resume(ctx: typer.Context, node: Node, reason: Reason = None, as_json: Json = False) -> None:
    """Take a node back into use, all rails of it."""
    _want(ctx, node, NodeMode.SCHEDULABLE, reason, as_json=as_json)


@app.command()
def forget(
    ctx: typer.Context,
    node: Node,
    reason: Reason = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Give a node up for good: what it holds is taken from it and its jobs are given back.

    For a node that is dead and will not report again. While it may still be running its addresses would be double.
    """
    if not yes:
        question = f"Give up {node} for good? Its jobs are released although it has not undone them."
        if not typer.confirm(question, err=True):
            raise CommandFailed("nothing was changed", Exit.FAILED)
    _want(ctx, node, NodeMode.RETIRED, reason, as_json=as_json)


def _want(
    ctx: typer.Context,
    node: str,
    mode: NodeMode,
    reason: str | None,
    *,
    rails: tuple[Rail, ...] = (),
    as_json: bool,
) -> None:
    name = _named(NodeName, node, "NODE")
    said = None if reason is None else _named(Label, reason, "--reason")
    desired, jobs = run(_write(target(ctx), name, mode, said, rails))
    if as_json:
        print_json(desired)
        return
    rest = f", not rail {', '.join(str(int(rail)) for rail in rails)}" if rails else ""
    show(f"{node} is to be {mode}{rest} (generation {desired.generation})")
    if jobs and mode in {NodeMode.DRAINING, NodeMode.CORDONED}:
        show(f"still there: {' '.join(jobs)}; `railweave node {node}` shows when it is empty")


async def _write(
    where: Target, node: NodeName, mode: NodeMode, reason: Label | None, rails: tuple[Rail, ...]
) -> tuple[NodeDesired, tuple[str, ...]]:
    async with connected(where) as session:
        row = await _known(session, node)
        last = await session.bus.read_last(DESIRED, f"rw.node.{encode_token(node)}")
        before = decode_as(NodeDesired, last).data if last is not None else None
        desired = NodeDesired(
            node=node,
            generation=(before.generation if before is not None else 0) + 1,
            mode=mode,
            reason=reason,
            user=_user(),
            cordoned_rails=rails,
        )
        # Guarded by what was read: of two operators at the same moment one is told.
        await session.bus.put(
            DESIRED, encode_event(desired), expected_subject_last=last.sequence if last is not None else 0
        )
        return desired, row.jobs


def _user() -> Label | None:
    try:
        return Label(getpass.getuser())
    except (KeyError, OSError, ValueError):
        return None


def _named(kind: Any, value: str, what: str) -> Any:
    try:
        return kind(value)
    except ValueError as error:
        raise CommandFailed(str(error), Exit.USAGE, field=what) from error
