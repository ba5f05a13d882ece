"""`railweave fabric show`: the fabric as a tree, as JSON, as a picture or as a graph for Graphviz.

Only the reading of what is stored is here; what makes something of it (fabric_picture.py) is imported after that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from railweave.cli.arguments import Json, target
from railweave.cli.exits import CommandFailed, Exit
from railweave.cli.logs import keep_services_quiet
from railweave.cli.session import connected, run
from railweave.cli.target import Target
from railweave.runtime.cluster import DESIRED, FABRIC, PLACEMENTS, ClusterState


def show_fabric(
    ctx: typer.Context,
    nodes: Annotated[bool, typer.Option("--nodes", help="Also where each node hangs.")] = False,
    segments: Annotated[bool, typer.Option("--segments", help="Also the VLANs of each segment.")] = False,
    whole: Annotated[bool, typer.Option("--all", help="All leaves, however many.")] = False,
    svg: Annotated[bool, typer.Option("--svg", help="Print a picture instead (SVG).")] = False,
    dot: Annotated[bool, typer.Option("--dot", help="Print a graph for Graphviz instead.")] = False,
    files: Annotated[
        list[Path] | None,
        typer.Option("--file", metavar="FILE", help="Show what a file tells, not what is stored.", show_default=False),
    ] = None,
    format_name: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="The format of FILE; `fabric formats` lists them.")
    ] = "railweave",
    rails: Annotated[
        int | None,
        typer.Option(
            "--rails",
            min=1,
            max=256,
            metavar="N",
            help="Rails of every node, where the format knows no NICs. Default: 1.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The file to draw to.", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    as_json: Json = False,
) -> None:
    """Show the fabric as stored: a tree of pods, leaves and rails with VLANs, subnets and use; or a picture of it.

    SLOTS are those that nodes have, of all that the subnet has room for. VLANs of segments are counted, unless asked
    for. In a picture hosts are taken together by leaf above 128 nodes, and leaves by pod above 64 leaves.
    """
    if svg + dot + as_json > 1:
        raise CommandFailed("--svg, --dot and --json are one or the other", Exit.USAGE)
    if output is not None and not (svg or dot):
        raise CommandFailed("it is for --svg and --dot", Exit.USAGE, field="--output")
    state = run(_read(target(ctx))) if not files else None

    from railweave.cli.commands import fabric_picture as picture

    wanted = picture.Wanted(
        form="svg" if svg else "dot" if dot else "json" if as_json else "tree",
        nodes=nodes,
        segments=segments,
        whole=whole,
        output=output,
        force=force,
    )
    if state is not None:
        picture.show_stored(state, target(ctx), wanted)
    else:
        picture.show_files(files or [], format_name, rails, wanted)


async def _read(where: Target) -> ClusterState:
    keep_services_quiet()
    async with connected(where) as session:
        return await session.cluster((FABRIC, PLACEMENTS, DESIRED))
