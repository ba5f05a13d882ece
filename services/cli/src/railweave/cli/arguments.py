"""Arguments and options that several commands take."""

from __future__ import annotations

from typing import Annotated, NoReturn

import typer

from railweave.cli.exits import CommandFailed, Exit
from railweave.cli.target import Target
from railweave.contracts import JobKey

Json = Annotated[bool, typer.Option("--json", help="Print JSON; its form is stable.", show_default=False)]
JobId = Annotated[
    str, typer.Argument(metavar="CLUSTER/JOB", help="The job, such as slurm-a/88121.", show_default=False)
]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="How long to wait.")]


def target(ctx: typer.Context) -> Target:
    """Where the global options say to go."""
    found = ctx.find_object(Target)
    return found if found is not None else Target()


def job_key(text: str) -> JobKey:
    """`CLUSTER/JOB`; raises CommandFailed."""
    try:
        return JobKey.parse(text)
    except ValueError as error:
        raise CommandFailed(str(error), Exit.USAGE, field="CLUSTER/JOB") from error


def leave(code: Exit) -> NoReturn:
    """End the command with a code, everything having been said."""
    raise typer.Exit(int(code))
