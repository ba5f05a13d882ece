"""The `railweave` command. Each command lives with what it is about in `railweave.cli.commands`."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from railweave.cli.commands import bench, cluster, demo, doctor, events, jobs, nodes, stack
from railweave.cli.exits import CommandFailed
from railweave.cli.output import print_error
from railweave.cli.session import Target
from railweave.runtime.logs import configure_logging

app = typer.Typer(
    name="railweave",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="The event-driven resource plane of an AI training cluster.",
)


def _version(wanted: bool) -> None:
    if wanted:
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
    # Libraries warn about reconnects and the like; a command says what matters itself.
    configure_logging(level="critical", log_format="console")
    ctx.obj = Target(nats, config)


_WORK = "Jobs"
_CLUSTER = "Cluster"
_LOOK = "Operations"
_LOCAL = "Local stack"

app.command(rich_help_panel=_WORK)(jobs.submit)
app.command(rich_help_panel=_WORK)(jobs.started)
app.command(rich_help_panel=_WORK)(jobs.cancel)
app.command(rich_help_panel=_WORK)(jobs.release)
app.command(rich_help_panel=_WORK)(jobs.jobs)
app.command(rich_help_panel=_WORK)(jobs.job)
app.command(rich_help_panel=_WORK)(jobs.why)
app.command(rich_help_panel=_WORK)(events.watch)
app.command(rich_help_panel=_WORK)(events.publish)
app.command(rich_help_panel=_CLUSTER)(nodes.nodes)
app.add_typer(nodes.app, name="node", rich_help_panel=_CLUSTER)
app.command(rich_help_panel=_CLUSTER)(cluster.fabric)
app.command(rich_help_panel=_CLUSTER)(cluster.gpus)
app.command(rich_help_panel=_CLUSTER)(cluster.datasets)
app.command(rich_help_panel=_CLUSTER)(cluster.tenants)
app.add_typer(events.deadletters, name="deadletters", rich_help_panel=_LOOK)
app.command(rich_help_panel=_LOOK)(doctor.doctor)
app.command(rich_help_panel=_LOCAL)(stack.up)
app.command(rich_help_panel=_LOCAL)(stack.down)
app.command(rich_help_panel=_LOCAL)(demo.demo)
app.add_typer(bench.app, name="bench", rich_help_panel=_LOCAL)


def main() -> None:
    """The console script: every failure that has a name is said in a line with its remedy, and has an exit code."""
    try:
        app()
    except CommandFailed as error:
        print_error(error, as_json="--json" in sys.argv[1:])
        sys.exit(int(error.code))


if __name__ == "__main__":
    main()
