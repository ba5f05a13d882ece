"""The fabric: the list of its commands, and the table of leaves that several of them print.

Each command is imported when it is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import typer
from rich.table import Table

from railweave.cli.later import Entry, group_of
from railweave.cli.output import Column, table
from railweave.contracts.fabric import FabricLeaf, FabricNode, LeafVlan

_PANEL = "Fabric"

COMMANDS = (
    Entry(
        "show",
        "fabric_show:show_fabric",
        _PANEL,
        "Show the fabric as stored: a tree of pods, leaves and rails with VLANs, subnets and use; or a picture of it.",
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
