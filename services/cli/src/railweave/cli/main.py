"""The `railweave` command. Each command lives with what it is about in `railweave.cli.commands`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from railweave.cli.exits import CommandFailed
from railweave.cli.later import Entry, group_of
from railweave.cli.logs import keep_quiet
from railweave.cli.target import Target

_WORK = "Jobs"
_CLUSTER = "Cluster"
_LOOK = "Operations"
_LOCAL = "Local stack"

COMMANDS = (
    Entry("submit", "jobs:submit", _WORK, "Submit a job: say on the bus that its scheduler has it."),
    Entry("started", "jobs:started", _WORK, "Say that a job's workers exist, so that devices are moved into them."),
    Entry(
        "cancel",
        "jobs:cancel",
        _WORK,
        "Cancel a job: say that it ended (cancelled), so that everything it holds is undone.",
    ),
    Entry(
        "release",
        "jobs:release",
        _WORK,
        "Release a job without its scheduler: says that it is lost, in its scheduler's place.",
    ),
    Entry("jobs", "jobs:jobs", _WORK, "List jobs, oldest first: where they run, or why they do not."),
    Entry("job", "jobs:job", _WORK, "Show everything about one job: times, nodes, addresses, reports."),
    Entry(
        "why",
        "jobs:why",
        _WORK,
        "Say why a job is where it is: what it wants, what stands in the way, what will change it.",
    ),
    Entry("watch", "events:watch", _WORK, "Watch what is said of jobs, as it is said. Ends with Ctrl-C."),
    Entry(
        "publish", "events:publish", _WORK, "Publish any event of a scheduler or platform, checked before it is sent."
    ),
    Entry("nodes", "nodes:nodes", _CLUSTER, "List nodes: what is free on them, and what is wrong with them."),
    Entry("node", "nodes:app", _CLUSTER, "Look at a node (`node NAME`), or say what you want of it."),
    Entry(
        "fabric",
        "fabric:app",
        _CLUSTER,
        "Show the fabric (`fabric`), import it from what a site has, check it, plan it and make it so.",
    ),
    Entry(
        "gpus",
        "cluster:gpus",
        _CLUSTER,
        "List GPUs by node: free, shared, unhealthy, and of no use because their node is out.",
    ),
    Entry("datasets", "cluster:datasets", _CLUSTER, "List datasets: how large, on which nodes, in use by how many."),
    Entry("tenants", "cluster:tenants", _CLUSTER, "List tenants: GPUs in use, guaranteed and at most."),
    Entry(
        "doctor",
        "doctor:doctor",
        _LOOK,
        "Check NATS, streams, Redis, services, agents, clocks and this machine; say what to do about what is wrong.",
    ),
    Entry("deadletters", "events:deadletters", _LOOK, "What nobody could handle: list, show, replay."),
    Entry(
        "up",
        "stack:up",
        _LOCAL,
        "Run everything on this machine: NATS, Valkey, all services and some nodes. Ends with Ctrl-C or `down`.",
    ),
    Entry(
        "down",
        "stack:down",
        _LOCAL,
        "End the local stack above the working directory, and take away what it made. The record stays.",
    ),
    Entry(
        "demo",
        "demo:demo",
        _LOCAL,
        "Show the main job from nothing: a cluster on this machine, three jobs, every claim checked, nothing left.",
    ),
    Entry("bench", "bench:app", _LOCAL, "Measure: replay the jobs of a real cluster."),
)

app = typer.Typer(
    name="railweave",
    cls=group_of(COMMANDS),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="The event-driven resource plane of an AI training cluster.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        try:
            print(f"railweave {metadata.version('railweave-cli')}")
        except metadata.PackageNotFoundError:
            print("railweave (from the tree)")
        raise typer.Exit


@app.callback()
def _global(
    ctx: typer.Context,
    nats: Annotated[
        str | None,
        typer.Option(
            "--nats",
            metavar="URL",
            help="NATS to talk to. Default: RAILWEAVE_NATS__SERVERS, else the settings file, else the local stack "
            "above the working directory, else nats://127.0.0.1:4222.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="Settings in YAML. Default: RAILWEAVE_CONFIG.", show_default=False
        ),
    ] = None,
    _show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    keep_quiet()
    ctx.obj = Target(nats, config)


def main() -> None:
    """The console script: every failure that has a name is said in a line with its remedy, and has an exit code."""
    try:
        app()
    except CommandFailed as error:
        from railweave.cli.output import print_error

        print_error(error, as_json="--json" in sys.argv[1:])
        sys.exit(int(error.code))


if __name__ == "__main__":
    main()
