"""Which Railweave a command talks to: `--nats`, the environment, or the local stack above the working directory.

The local stack (`railweave up`) writes `.railweave/context.json`; every other command finds it by looking upward.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from railweave.cli.exits import CommandFailed, Exit
from railweave.runtime.settings import Settings, SettingsError, load_settings

STATE_DIRECTORY = ".railweave"
CONTEXT_FILE = "context.json"


class ProcessEntry(BaseModel):
    """One process of the local stack."""

    model_config = ConfigDict(frozen=True)
    name: str
    pid: int
    started: int
    """Start time in the kernel's ticks: a pid alone may be somebody else's by now."""
    health: str | None = None


class Context(BaseModel):
    """What a local stack says of itself to the other commands."""

    model_config = ConfigDict(frozen=True)
    version: Literal[1] = 1
    run: str
    """Short name of this stack; its namespaces begin with `rw<run>-`."""
    directory: str
    nats: str
    redis: str
    is_ready: bool = False
    is_simulated: bool = True
    nodes: tuple[str, ...] = ()
    processes: tuple[ProcessEntry, ...] = ()
    """The supervisor first."""

    @property
    def supervisor(self) -> ProcessEntry:
        return self.processes[0]

    @property
    def is_running(self) -> bool:
        """Whether the supervisor is the process it was."""
        return bool(self.processes) and start_ticks(self.supervisor.pid) == self.supervisor.started

    def write(self, directory: Path) -> None:
        """Put it in place at once, so that a reader never sees half of it."""
        path = directory / CONTEXT_FILE
        fresh = path.with_suffix(".new")
        fresh.write_text(self.model_dump_json(indent=2) + "\n")
        fresh.replace(path)


def start_ticks(pid: int) -> int | None:
    """When a process started, in the kernel's ticks since boot; None where there is none (or only its zombie)."""
    try:
        # The command's name, in brackets, may hold spaces and brackets of its own.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in {"Z", "X"} else int(fields[19])


def read_context(directory: Path) -> Context | None:
    """The context of a state directory; None where there is none that can be read."""
    try:
        return Context.model_validate_json((directory / CONTEXT_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None


def find_context(start: Path | None = None) -> Context | None:
    """The running local stack whose state directory is nearest above `start` (the working directory)."""
    here = (start or Path.cwd()).absolute()
    for directory in (here, *here.parents):
        context = read_context(directory / STATE_DIRECTORY)
        if context is not None and context.is_running:
            return context
    return None


def settings_for(
    nats: str | None, config: Path | None, *, environ: Mapping[str, str] | None = None, start: Path | None = None
) -> Settings:
    """The settings of a command: flags, then environment, then file, then the local stack, then the defaults.

    Raises:
        CommandFailed: a setting that cannot be used.
    """
    context = find_context(start)
    defaults: dict[str, dict[str, object]] = {"service": {"name": "railweave-cli"}}
    if context is not None:
        defaults |= {"nats": {"servers": (context.nats,)}, "redis": {"url": context.redis}}
    try:
        return load_settings(
            config=config,
            flags=[f"nats.servers={nats}"] if nats else [],
            environ=os.environ if environ is None else environ,
            defaults=defaults,
        )
    except SettingsError as error:
        raise CommandFailed(
            "; ".join(error.problems), Exit.USAGE, remedy="see docs/reference/settings.md for keys and defaults"
        ) from error
