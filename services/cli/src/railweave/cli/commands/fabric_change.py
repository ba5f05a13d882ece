"""`railweave fabric plan` and `apply`: what the fabric file would change of what is stored, and making it so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from railweave.cli.arguments import Json, leave, target
from railweave.cli.commands.fabric import leaf_table, ports_of
from railweave.cli.exits import CommandFailed, Exit
from railweave.cli.output import Column, print_json, show, table
from railweave.cli.session import Session, connected, run
from railweave.cli.target import Target
from railweave.contracts.fabric import Attachment, FabricLeaf, LeafVlan
from railweave.contracts.query import (
    FABRIC_APPLY_SUBJECT,
    FABRIC_PLAN_SUBJECT,
    FabricPlanAnswer,
    FabricPlanQuery,
    LeafChange,
    NodeChange,
)

_MOST_SHOWN = 60
_PATIENCE_S = 120.0

_STYLES = {"+": "green", "~": "yellow", "-": "red"}


def plan_fabric(
    ctx: typer.Context,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Plan this fabric from nothing, without any service.", show_default=False),
    ] = None,
    format_name: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="The format of FILE; `fabric formats` lists them.")
    ] = "railweave",
    rails: Annotated[
        int | None,
        typer.Option("--rails", min=1, max=256, metavar="N", help="Rails of every node of FILE.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what an apply of the fabric file would change: old and new of each leaf and node.

    Asks the topology service, and changes nothing. With FILE no service is asked: what its leaves would get of the
    pools and VLAN ranges of the settings, were it the first fabric. Exits with 5 where it is refused.
    """
    if file is not None:
        from railweave.cli.commands.fabric_offline import planned

        found = planned(target(ctx), file, format_name, rails)
    else:
        found = run(_plan(target(ctx)))
    _say(found, as_json=as_json, applied=False, is_from_nothing=file is not None)
    leave(Exit.ANSWER_IS_NO if found.refused is not None else Exit.DONE)


def apply_fabric(
    ctx: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Make the stored fabric what the fabric file says.

    Shows the plan and asks; then that plan is applied, or nothing where the fabric has changed meanwhile (exit 7).
    Exits with 5 where it is refused.
    """
    if as_json and not yes:
        raise CommandFailed("with --json nobody is asked", Exit.USAGE, field="--json", remedy="give --yes too")
    where = target(ctx)
    found = run(_plan(where))
    if found.refused is not None or not found.total:
        _say(found, as_json=as_json, applied=False)
        leave(Exit.ANSWER_IS_NO if found.refused is not None else Exit.DONE)
    if not as_json:
        _say(found, as_json=False, applied=False)
    if not yes and not typer.confirm("Apply this?", err=True):
        raise CommandFailed("nothing was changed", Exit.FAILED)
    done = run(_apply(where, found.plan))
    if done.refused is not None:
        _say(done, as_json=as_json, applied=False)
        leave(Exit.ANSWER_IS_NO)
    if as_json:
        _say(found, as_json=True, applied=True)
    else:
        show(f"applied: {found.total} records, revision {done.revision}")


async def _plan(where: Target) -> FabricPlanAnswer:
    """The whole plan, however many answers it takes."""
    async with connected(where) as session:
        whole = await _ask(session, FABRIC_PLAN_SUBJECT, FabricPlanQuery())
        while (start := len(whole.leaves) + len(whole.nodes)) < whole.total:
            part = await _ask(session, FABRIC_PLAN_SUBJECT, FabricPlanQuery(plan=whole.plan, start=start))
            more = {"leaves": (*whole.leaves, *part.leaves), "nodes": (*whole.nodes, *part.nodes)}
            whole = whole.model_copy(update=more)
            if not part.leaves and not part.nodes:
                raise CommandFailed("the topology service gives no more of its plan", remedy="try again")
        return whole


async def _apply(where: Target, plan: str) -> FabricPlanAnswer:
    async with connected(where) as session:
        return await _ask(session, FABRIC_APPLY_SUBJECT, FabricPlanQuery(plan=plan))


async def _ask(session: Session, subject: str, question: FabricPlanQuery) -> FabricPlanAnswer:
    return await session.ask(subject, question, FabricPlanAnswer, timeout_s=_PATIENCE_S)


def _say(found: FabricPlanAnswer, *, as_json: bool, applied: bool, is_from_nothing: bool = False) -> None:
    if as_json:
        print_json(
            {
                "plan": found.plan,
                "applied": applied,
                "revision": found.revision,
                "islands": found.islands,
                "counts": found.counts,
                "leaves": found.leaves,
                "nodes": found.nodes,
                "refused": found.refused,
            }
        )
        return
    if found.refused is not None:
        show(Text.assemble(("refused: ", "bold red"), found.refused.text))
        show(*(f"  {name.replace('_', ' ')}: {number}" for name, number in found.refused.numbers.items()))
        show("nothing is changed")
        return
    if is_from_nothing:
        ports = ports_of(change.new for change in found.nodes)
        show(leaf_table([change.new for change in found.leaves], ports, with_segments=False))
    elif found.total:
        rows = [*_leaf_rows(found.leaves), *_node_rows(found.nodes)]
        columns = [Column("", keep=True), Column("WHAT", keep=True), Column("OLD", ratio=1), Column("NEW", ratio=1)]
        show(table(columns, [(Text(row[0], style=_STYLES[row[0]]), *row[1:]) for row in rows[:_MOST_SHOWN]]))
        if len(rows) > _MOST_SHOWN:
            show(f"and {len(rows) - _MOST_SHOWN} more: --json has them all")
    show(_in_words(found.counts) if found.total else "nothing to change: what is stored is what the fabric file says")


def _in_words(counts: dict[str, int]) -> str:
    parts = []
    for what in ("leaves", "nodes", "VLANs"):
        told = [
            f"{counts.get(f'{what.lower()}_{how}', 0)} {how}"
            for how in ("new", "changed", "gone")
            if counts.get(f"{what.lower()}_{how}", 0)
        ]
        if told:
            parts.append(f"{what}: {', '.join(told)}")
    return "; ".join(parts) or "records change, no VLAN and no port does"


_Row = tuple[str, str, str, str]


def _leaf_rows(changes: Iterable[LeafChange]) -> Iterator[_Row]:
    """A row a VLAN that comes, changes or goes."""
    for change in changes:
        old, new = _vlans(change.old), _vlans(change.new)
        for key in sorted(old.keys() | new.keys(), key=lambda key: (key[0], -1 if key[1] is None else key[1])):
            before, after = old.get(key), new.get(key)
            if before != after:
                sign = "+" if before is None else "-" if after is None else "~"
                rail = f"{key[0]}" if key[1] is None else f"{key[0]}/{key[1]}"
                yield sign, f"{change.leaf} rail {rail}", _vlan(before), _vlan(after)
        if not old and not new:
            yield "~" if change.old is not None else "+", str(change.leaf), "", "no VLAN"


def _vlans(leaf: FabricLeaf | None) -> dict[tuple[int, int | None], LeafVlan]:
    return {(int(vlan.rail), vlan.segment): vlan for vlan in leaf.vlans} if leaf is not None else {}


def _vlan(vlan: LeafVlan | None) -> str:
    return "" if vlan is None else " ".join(filter(None, (f"VLAN {int(vlan.vlan)}", vlan.subnet, vlan.subnet6)))


def _node_rows(changes: Iterable[NodeChange]) -> Iterator[_Row]:
    for change in changes:
        old = change.old.attachments if change.old is not None else ()
        sign = "+" if change.old is None else "-" if old and not change.new.attachments else "~"
        yield sign, str(change.node), _ports(old), _ports(change.new.attachments)


def _ports(attachments: Sequence[Attachment]) -> str:
    """`leaf1 rails 0-7 slot 3`, one such a leaf."""
    found: dict[tuple[str, int], list[int]] = {}
    for port in attachments:
        found.setdefault((port.leaf, int(port.slot)), []).append(int(port.rail))
    return ", ".join(f"{leaf} {_rails(rails)} slot {slot}" for (leaf, slot), rails in found.items())


def _rails(rails: Sequence[int]) -> str:
    if len(rails) == 1:
        return f"rail {rails[0]}"
    is_run = rails[-1] - rails[0] + 1 == len(rails)
    return f"rails {rails[0]}-{rails[-1]}" if is_run else f"rails {','.join(map(str, rails))}"
