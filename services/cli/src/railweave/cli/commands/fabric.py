"""The fabric: the list of its commands, and showing what is stored of it.

Each other command is imported when it is run: showing needs no reader of files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

import typer
from rich.table import Table

from railweave.cli.arguments import Json, target
from railweave.cli.later import Entry, group_of
from railweave.cli.logs import keep_services_quiet
from railweave.cli.output import Column, print_json, show, table
from railweave.cli.session import connected, run
from railweave.cli.target import Target
from railweave.contracts.fabric import FabricLeaf, FabricNode, LeafVlan
from railweave.runtime.cluster import FABRIC, ClusterState

_PANEL = "Fabric"

COMMANDS = (
    Entry(
        "show",
        "fabric:show_fabric",
        _PANEL,
        "Show the fabric as stored: leaves with their VLANs and subnets, and where nodes hang.",
    ),
    Entry("formats", "fabric_files:formats", _PANEL, "List the formats that are imported and exported."),
    Entry("import", "fabric_files:import_fabric", _PANEL, "Read a fabric from what a site has, as a fabric file."),
    Entry("check", "fabric_check:check_fabric", _PANEL, "Look for what is wrong with a fabric as it is cabled."),
    Entry(
        "plan",
        "fabric_change:plan_fabric",
        _PANEL,
        "Say what an apply of the fabric file would change: old and new of each leaf and node.",
    ),
    Entry("apply", "fabric_change:apply_fabric", _PANEL, "Make the stored fabric what the fabric file says."),
    Entry(
        "config",
        "fabric_config:config_fabric",
        _PANEL,
        "Print what a switch is to be configured to: VLANs, their members and gateways, and VRFs of segments.",
    ),
    Entry(
        "diff",
        "fabric_config:diff_fabric",
        _PANEL,
        "Show what would change on a SONiC switch, given its running configuration. Changes nothing.",
    ),
    Entry("export", "fabric_files:export_fabric", _PANEL, "Write a fabric in another format."),
)

app = typer.Typer(
    cls=group_of(COMMANDS, alone="show"),
    help="Show the fabric (`fabric`), import it from what a site has, check it, plan it and make it so.",
)


def show_fabric(
    ctx: typer.Context,
    nodes: Annotated[bool, typer.Option("--nodes", help="Also where each node hangs.")] = False,
    segments: Annotated[bool, typer.Option("--segments", help="Also the VLANs of each segment.")] = False,
    as_json: Json = False,
) -> None:
    """Show the fabric as stored: leaves with their VLANs and subnets, and where nodes hang.

    PORTS are the leaf's, of all rails. The VLANs of segments are counted, unless asked for.
    """
    state = run(_read(target(ctx)))
    leaves = sorted(state.leaves.values(), key=lambda leaf: leaf.leaf)
    hung = sorted((node.fabric for node in state.nodes.values() if node.fabric), key=lambda record: record.ordinal)
    if as_json:
        print_json({"leaves": leaves, "nodes": hung})
        return
    if not leaves:
        show("no fabric yet: the topology service publishes it from its fabric file")
        return
    show(leaf_table(leaves, ports_of(hung), with_segments=segments))
    if nodes:
        show(_node_table(hung))


async def _read(where: Target) -> ClusterState:
    keep_services_quiet()
    async with connected(where) as session:
        return await session.cluster((FABRIC,))


def ports_of(nodes: Iterable[FabricNode]) -> dict[str, int]:
    """How many ports of nodes each leaf has."""
    ports: dict[str, int] = {}
    for record in nodes:
        for attachment in record.attachments:
            ports[attachment.leaf] = ports.get(attachment.leaf, 0) + 1
    return ports


def leaf_table(leaves: Iterable[FabricLeaf], ports: Mapping[str, int], *, with_segments: bool) -> Table:
    """Leaves with their VLANs; those of segments in a line, or one each."""
    return table(
        [
            Column("LEAF", keep=True),
            Column("POD"),
            Column("PORTS", right=True),
            Column("RAIL", right=True),
            Column("VLAN", right=True),
            Column("SUBNET", keep=True),
            Column("GATEWAY", ratio=1),
        ],
        [
            (*((str(leaf.leaf), leaf.pod, str(ports.get(leaf.leaf, 0))) if number == 0 else ("", "", "")), *cells)
            for leaf in leaves
            for number, cells in enumerate(_vlan_rows(leaf.vlans, with_segments=with_segments))
        ],
    )


def _vlan_rows(vlans: Iterable[LeafVlan], *, with_segments: bool) -> list[tuple[str, ...]]:
    shown = [vlan for vlan in vlans if with_segments or vlan.segment is None]
    rows: list[tuple[str, ...]] = [
        (
            str(int(vlan.rail)) + (f"/{vlan.segment}" if vlan.segment is not None else ""),
            str(int(vlan.vlan)),
            vlan.subnet,
            vlan.gateway,
        )
        for vlan in shown
    ]
    rest = [vlan for vlan in vlans if vlan not in shown] if not with_segments else []
    if rest:
        ids = sorted(int(vlan.vlan) for vlan in rest)
        segments = len({vlan.segment for vlan in rest})
        rows.append(("", f"{ids[0]}-{ids[-1]}", f"{len(rest)} of {segments} segments", ""))
    return rows or [("", "", "", "")]


def _node_table(nodes: Iterable[FabricNode]) -> Table:
    return table(
        [Column("NODE", keep=True), Column("NUMBER", right=True), Column("LEAF:PORT BY RAIL", ratio=1)],
        [
            (
                str(record.node),
                str(record.ordinal),
                " ".join(f"{item.leaf}:{item.port}" for item in record.attachments),
            )
            for record in nodes
        ],
    )
