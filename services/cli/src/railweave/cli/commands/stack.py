"""The local stack: up, down, status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from railweave.cli import words
from railweave.cli.arguments import Json
from railweave.cli.exits import CommandFailed, Exit
from railweave.cli.output import print_json, show
from railweave.cli.stack.design import READY_S, Layout, Shape
from railweave.cli.stack.rights import may_make_namespaces
from railweave.cli.where import STATE_DIRECTORY, Context, find_context, read_context, start_ticks

_DOWN_S = 10.0

Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir", metavar="DIRECTORY", help=f"State directory. Default: {STATE_DIRECTORY} here.", show_default=False
    ),
]


def up(
    directory: Directory = None,
    nodes: Annotated[int, typer.Option("--nodes", help="How many nodes.")] = 4,
    leaves: Annotated[int, typer.Option("--leaves", help="How many leaves, under one spine.")] = 2,
    rails: Annotated[int, typer.Option("--rails", help="Physical NICs of each node.")] = 4,
    vfs: Annotated[int, typer.Option("--vfs", help="Virtual functions of each NIC.")] = 8,
    gpus: Annotated[int, typer.Option("--gpus", help="Simulated GPUs of each node.")] = 4,
    segments: Annotated[int, typer.Option("--segments", help="Isolated segments, for tenants' jobs.")] = 0,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="Nodes in memory, also as root: nothing is made in the kernel.")
    ] = False,
    fabric: Annotated[
        Path | None,
        typer.Option("--fabric", metavar="FILE", help="Simulated nodes of this fabric file.", show_default=False),
    ] = None,
    processes: Annotated[bool, typer.Option("--processes", help="One process for each service.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when it is ready; `railweave down` ends it.")
    ] = False,
) -> None:
    """Run everything on this machine: NATS, Valkey, all services and some nodes. Ends with Ctrl-C or `down`.

    As root the nodes are network namespaces on a software spine-leaf fabric, and jobs get real interfaces, addresses
    and routes. Without root they are simulated: everything but the kernel is real.
    """
    where = (directory or Path(STATE_DIRECTORY)).absolute()
    in_memory = simulated or not may_make_namespaces()
    shape = Shape(nodes, leaves, rails, vfs, gpus, segments=segments, simulated=in_memory, fabric=fabric)
    if detach:
        _detach(where, sys.argv[1:])
        return
    from railweave.cli.stack.serving import serve

    serve(where, shape, Layout.EACH if processes else Layout.ONE)


def _detach(directory: Path, arguments: list[str]) -> None:
    """Start the same command in the background, and wait until it is ready."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "log").mkdir(exist_ok=True)
    own = [argument for argument in arguments if argument != "--detach"]
    with (directory / "log" / "up.log").open("ab") as log:
        child = subprocess.Popen(  # noqa: S603 - our own command line
            [sys.executable, "-m", "railweave.cli.main", *own],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + READY_S + 5.0
    while time.monotonic() < deadline:
        context = read_context(directory)
        if context is not None and context.is_ready and context.is_running and context.supervisor.pid == child.pid:
            show(f"ready: {words.plural(len(context.nodes), 'node')}, NATS {context.nats}; `railweave down` ends it")
            return
        if child.poll() is not None:
            break
        time.sleep(0.05)
    child.terminate()
    tail = (directory / "log" / "up.log").read_text(errors="replace").strip().splitlines()[-4:]
    raise CommandFailed("the stack did not come up: " + " / ".join(tail), remedy=f"see {directory / 'log'}")


def down(directory: Directory = None, as_json: Json = False) -> None:
    """End the local stack above the working directory, and take away what it made. The record stays."""
    context = _context(directory)
    begun = time.monotonic()
    if context.is_running:
        _end(context)
    from railweave.cli.stack.namespaces import sweep

    gone = sweep(Path(context.directory))
    took_s = round(time.monotonic() - begun, 3)
    if as_json:
        print_json({"directory": context.directory, "took_s": took_s, "swept_namespaces": list(gone)})
        return
    rest = f", {words.plural(len(gone), 'namespace')} of a killed one swept" if gone else ""
    show(f"down after {took_s:.1f} s{rest}; the record is kept in {context.directory}")


def _context(directory: Path | None) -> Context:
    found = read_context(directory.absolute()) if directory is not None else find_context()
    if found is None and directory is None:
        found = read_context(Path(STATE_DIRECTORY).absolute())
    if found is None:
        raise CommandFailed(
            "no local stack here", Exit.NOT_FOUND, remedy="`railweave up` starts one; --dir names another"
        )
    return found


def _end(context: Context) -> None:
    supervisor = context.supervisor
    for number, patience_s in ((signal.SIGTERM, _DOWN_S), (signal.SIGKILL, 5.0)):
        os.kill(supervisor.pid, number)
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if start_ticks(supervisor.pid) != supervisor.started:
                return
            time.sleep(0.02)
    raise CommandFailed(f"process {supervisor.pid} does not end")
