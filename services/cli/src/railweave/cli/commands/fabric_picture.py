"""What `fabric show` makes of a fabric: a tree, JSON, a picture, a graph for Graphviz."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from railweave.cli.commands.fabric_files import Source, configured, imported_of, write_whole
from railweave.cli.exits import CommandFailed
from railweave.cli.output import Column, print_json, show, table
from railweave.cli.target import Target
from railweave.contracts.fabric import FabricNode
from railweave.runtime.cluster import ClusterState
from railweave.topology.keeper import claimed_nodes
from railweave.topology.model import Graph
from railweave.topology.picture.dot import dot_of
from railweave.topology.picture.shown import Shown, shown_of_records
from railweave.topology.picture.svg import svg_of
from railweave.topology.picture.tree import Row, tree_of
from railweave.topology.view import describe

_NO_SPINES = "the switches above the leaves are not stored, and there is no fabric file here that tells them"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be printed."""

    form: Literal["tree", "json", "svg", "dot"]
    nodes: bool = False
    segments: bool = False
    whole: bool = False
    output: Path | None = None
    force: bool = False


def show_files(files: Sequence[Path], format_name: str, rails: int | None, wanted: Wanted) -> None:
    """Show what files tell."""
    graph = imported_of(Source.of(format_name, files, rails)).graph
    match wanted.form:
        case "json":
            print_json(_graph_document(graph))
        case "tree":
            show(_tree_table(tree_of(Shown(graph), whole=wanted.whole)))
            if wanted.nodes:
                show(_port_table(graph))
        case _:
            _draw(Shown(graph), wanted)


def show_stored(state: ClusterState, where: Target, wanted: Wanted) -> None:
    """Show what is stored."""
    match wanted.form:
        case "json":
            print_json({key: value for key, value in describe(state, None).items() if key != "error"})
        case "tree" if not state.leaves:
            show("no fabric yet: the topology service publishes it from its fabric file")
        case "tree":
            show(_tree_table(tree_of(shown_of(state), with_segments=wanted.segments, whole=wanted.whole)))
            if wanted.nodes:
                show(_node_table(sorted(_hung(state), key=lambda record: record.ordinal)))
        case _:
            shown = shown_of(state, _cabled(where))
            if not shown.graph.spines and state.leaves:
                sys.stderr.write(f"note: {_NO_SPINES}\n")
            _draw(shown, wanted)


def _cabled(where: Target) -> Graph | None:
    """Records tell nothing of spines: those come from the fabric file, where it can be read from here."""
    try:
        return imported_of(configured(where)).graph
    except CommandFailed:
        return None


def _draw(shown: Shown, wanted: Wanted) -> None:
    text = svg_of(shown) if wanted.form == "svg" else dot_of(shown)
    if wanted.output is None:
        sys.stdout.write(text)
        return
    write_whole(wanted.output, text, force=wanted.force)
    show(f"written to {wanted.output}")


def _hung(state: ClusterState) -> list[FabricNode]:
    return [node.fabric for node in state.nodes.values() if node.fabric is not None]


def shown_of(state: ClusterState, cabled: Graph | None = None) -> Shown:
    """What is stored, with what is in use of it."""
    return shown_of_records(
        state.leaves.values(),
        _hung(state),
        claimed=claimed_nodes(state),
        segments_held=[segment for segment, _ in state.segments_held()],
        members={leaf: report.segments_in_use for leaf, report in state.reports.items()},
        cabled=cabled,
    )


def _tree_table(rows: Iterable[Row]) -> Table:
    """Columns that say nothing are left out; what is too long is cut, so that the branches stay whole."""
    columns: list[tuple[Column, Callable[[Row], str]]] = [
        (Column("FABRIC", keep=True), lambda row: row.name),
        (Column("NODES", ratio=1), lambda row: row.nodes),
        (Column("VLAN", keep=True), lambda row: row.vlans),
        (Column("SUBNET", keep=True), lambda row: row.subnets),
        (Column("SLOTS", right=True), lambda row: row.slots),
        (Column("USE", keep=True), lambda row: row.use),
    ]
    rows = list(rows)
    kept = [(column, cell) for column, cell in columns if column.heading == "FABRIC" or any(map(cell, rows))]
    return table(
        [column for column, _ in kept],
        [[Text(cell(row), no_wrap=True, overflow="ellipsis") for _, cell in kept] for row in rows],
    )


def _node_table(nodes: Iterable[FabricNode]) -> Table:
    return table(
        [Column("NODE", keep=True), Column("NUMBER", right=True), Column("LEAF:PORT BY RAIL", ratio=1)],
        [
            (str(each.node), str(each.ordinal), " ".join(f"{item.leaf}:{item.port}" for item in each.attachments))
            for each in nodes
        ],
    )


def _port_table(graph: Graph) -> Table:
    return table(
        [Column("NODE", keep=True), Column("LEAF:PORT BY RAIL", ratio=1)],
        [(str(node.name), " ".join(f"{port.leaf}:{port.port}" for port in node.ports)) for node in graph.nodes],
    )


def _graph_document(graph: Graph) -> dict[str, Any]:
    """What a file tells, in the words of the fabric file."""
    return {
        "islands": sorted({graph.place(leaf.name).island for leaf in graph.leaves}),
        "spines": [{"name": spine.name, "tier": spine.tier} for spine in graph.spines],
        "leaves": [{"name": leaf.name, **graph.place(leaf.name)._asdict()} for leaf in graph.leaves],
        "links": [[{"switch": end.switch, "port": end.port} for end in (link.a, link.b)] for link in graph.links],
        "nodes": [
            {
                "name": node.name,
                "ports": [
                    {"role": port.role, "rail": int(port.rail), "leaf": port.leaf, "port": port.port}
                    for port in node.ports
                ],
            }
            for node in graph.nodes
        ],
    }
