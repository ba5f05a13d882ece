"""Commands that are imported when they are run, so that `jobs` need not wait for what `up` stands on.

What the list of commands says of each stands in a table (main.py), and a test holds it to what the command says itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

_COMMANDS = "railweave.cli.commands"


@dataclass(frozen=True, slots=True)
class Entry:
    """A command of the list: its name, where it is, and what is said of it there."""

    name: str
    place: str
    """`module:attribute` below `railweave.cli.commands`; a function, or a group of commands."""
    panel: str
    help: str

    def load(self) -> Any:
        """The command itself."""
        module, _, attribute = self.place.partition(":")
        found = getattr(import_module(f"{_COMMANDS}.{module}"), attribute)
        if isinstance(found, typer.Typer):
            made: Any = get_group(found)
        else:
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
            alone.command(self.name)(found)
            made = get_command(alone)
        made.name, made.rich_help_panel = self.name, self.panel
        return made


class Later(TyperCommand):
    """Stands for a command in the list, and is it from the moment that its arguments are read."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry.name, help=entry.help, rich_help_panel=entry.panel, rich_markup_mode="rich")
        self.entry = entry

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """As `Command.make_context`: the context names the command itself, so all that follows is its own."""
        return self.entry.load().make_context(info_name, args, parent, **extra)


def group_of(entries: Sequence[Entry], *, alone: str | None = None) -> type[TyperGroup]:
    """The class of a group that consists of the entries, in their order.

    Args:
        entries: its commands.
        alone: the command that the group's name stands for where none is given, or options are.
    """

    class Group(TyperGroup):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.commands = {entry.name: Later(entry) for entry in entries}

        def parse_args(self, ctx: Any, args: list[str]) -> Any:
            is_alone = not args or (args[0].startswith("-") and args[0] not in self.get_help_option_names(ctx))
            return super().parse_args(ctx, [alone, *args] if alone is not None and is_alone else args)

    return Group
