"""`railweave demo`."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from railweave.cli.arguments import leave
from railweave.cli.exits import Exit
from railweave.cli.logs import keep_services_quiet
from railweave.cli.output import show
from railweave.cli.session import failures_named
from railweave.cli.stack.rights import may_make_namespaces

_NO_ROOT = (
    "NOTE: not root, so the nodes are simulated and the network part (namespaces, VFs, routes, pings) is skipped. "
    "To see it: `sudo make demo`, or as root `railweave demo`."
)


def demo(
    simulated: Annotated[bool, typer.Option("--simulated", help="Skip the network part, also as root.")] = False,
    keep: Annotated[
        Path | None,
        typer.Option("--dir", help="State directory to use and keep. Default: a temporary one.", show_default=False),
    ] = None,
) -> None:
    """Show the main job from nothing: a cluster on this machine, three jobs, every claim checked, nothing left.

    As root, hosts and workers are network namespaces: real interfaces, routes and pings. Takes less than a minute.
    """
    from railweave.cli.demo.network import missing_programs
    from railweave.cli.demo.script import run_demo

    keep_services_quiet()
    in_memory = simulated or not may_make_namespaces()
    if not in_memory and (missing := missing_programs()):
        show(
            f"NOTE: not installed: {' '.join(missing)}; the network part is skipped "
            "(apt-get install iproute2 iputils-ping)"
        )
        in_memory = True
    elif in_memory and not simulated:
        show(_NO_ROOT)
    with tempfile.TemporaryDirectory(prefix="railweave-demo-") as temporary, failures_named():
        tale = asyncio.run(run_demo(keep if keep is not None else Path(temporary), simulated=in_memory))
    tale.say("")
    if tale.failures:
        tale.say(
            f"{len(tale.failures)} of {tale.passed + len(tale.failures)} checks FAILED after {tale.elapsed_s:.0f} s"
        )
        leave(Exit.FAILED)
    tale.say(f"{tale.passed} checks passed in {tale.elapsed_s:.0f} s")
    if in_memory and not simulated:
        show(_NO_ROOT)
