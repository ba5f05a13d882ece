"""`railweave fabric config` and `diff`: what a switch is to be configured to, and what differs from what it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from railweave.cli.arguments import Json, leave, target
from railweave.cli.exits import CommandFailed, Exit
from railweave.cli.logs import keep_services_quiet
from railweave.cli.output import print_json, show
from railweave.cli.session import connected, run
from railweave.cli.target import Target
from railweave.contracts.types import LeafName
from railweave.runtime.cluster import FABRIC, ClusterState
from railweave.topology.fabric_file import read_bytes
from railweave.topology.settings import TopologySettings
from railweave.topology.switch_config import (
    IntentRefused,
    SonicPatch,
    SwitchIntent,
    cumulus_commands,
    intent_of,
    linux_commands,
    patch_of,
    read_tables,
    tables_of,
)
from railweave.topology.yaml_tree import FileError

Switch = Annotated[str, typer.Argument(metavar="SWITCH", help="A leaf of the stored fabric.")]


def config_fabric(
    ctx: typer.Context,
    switch: Switch,
    system: Annotated[
        Literal["sonic", "cumulus", "frr"], typer.Option("--for", help="The system that the switch runs.")
    ] = "sonic",
    asn: Annotated[int, typer.Option("--asn", min=1, help="The switch's AS number, for FRR.")] = 65_000,
) -> None:
    """Print what a switch is to be configured to: VLANs, their members and gateways, and VRFs of segments.

    For SONiC a fragment of config_db.json; for Cumulus Linux `nv set` lines; for a Linux switch with FRR `ip`, `bridge`
    and `vtysh` lines. `fabric diff` makes it a patch of what the switch has.
    """
    intent = run(_intent(target(ctx), switch))
    try:
        if system == "sonic":
            print(json.dumps(tables_of(intent), indent=2))
        else:
            lines = cumulus_commands(intent) if system == "cumulus" else linux_commands(intent, asn=asn)
            print("\n".join(lines))
    except IntentRefused as error:
        raise CommandFailed(str(error), Exit.ANSWER_IS_NO, field="SWITCH") from None


def diff_fabric(
    ctx: typer.Context,
    switch: Switch,
    running: Annotated[
        Path, typer.Argument(metavar="RUNNING", help="Its running config_db.json (`show runningconfiguration all`).")
    ],
    as_patch: Annotated[
        bool, typer.Option("--patch", help="Print the JSON patch alone, as `config apply-patch` takes it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what would change on a SONiC switch, given its running configuration. Changes nothing.

    VLANs outside of topology.vlan_ranges, and what other features keep in Railweave's, are left alone. Exits with 1
    where something on the switch stands in the way.
    """
    where = target(ctx)
    owned = frozenset(int(vlan) for vlan in where.settings().section(TopologySettings).plan_config().vlan_ids)
    try:
        tables = read_tables(read_bytes(running), running.name)
    except FileError as error:
        raise CommandFailed(str(error), Exit.USAGE, field="RUNNING") from None
    patch = patch_of(tables, run(_intent(where, switch)), owned.__contains__)
    if as_patch:
        print(json.dumps(patch.operations, indent=2))
    elif as_json:
        print_json({"switch": switch, "operations": list(patch.operations), "conflicts": list(patch.conflicts)})
    else:
        _tell(switch, patch)
    leave(Exit.FAILED if patch.conflicts else Exit.DONE)


def _tell(switch: str, patch: SonicPatch) -> None:
    for line in patch.describe():
        print(line)
    for conflict in patch.conflicts:
        print(f"! {conflict}")
    if not patch.operations and not patch.conflicts:
        show(f"{switch} is as it should be")


async def _intent(where: Target, switch: str) -> SwitchIntent:
    keep_services_quiet()
    async with connected(where) as session:
        state = await session.cluster((FABRIC,))
    return _intent_in(state, switch)


def _intent_in(state: ClusterState, switch: str) -> SwitchIntent:
    leaf = state.leaves.get(LeafName(switch))
    if leaf is None:
        known = ", ".join(sorted(state.leaves)[:8]) or "none yet"
        raise CommandFailed(f"there is no leaf {switch!r}", Exit.NOT_FOUND, field="SWITCH", remedy=f"leaves: {known}")
    attachments = [at for node in state.nodes.values() if node.fabric is not None for at in node.fabric.attachments]
    try:
        return intent_of(leaf, attachments)
    except IntentRefused as error:
        raise CommandFailed(str(error), Exit.ANSWER_IS_NO, field="SWITCH") from None
