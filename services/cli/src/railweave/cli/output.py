"""How the command speaks: tables for people, JSON for programs, errors with their remedy.

Tables fit 80 columns and use more where the terminal has more. What `--json` prints is stable: documents of
`railweave.contracts.query` and of the events, with the same names.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from railweave.cli.exits import CommandFailed

NARROWEST = 80


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, and what becomes of it where room is short."""

    heading: str
    right: bool = False
    keep: bool = False
    """Never cut or wrapped: names that are typed again."""
    ratio: int | None = None
    """Takes what is left, in this share."""


def console(*, stderr: bool = False) -> Console:
    """The console; a pipe gets 80 columns at least and no colours."""
    made = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not made.is_terminal and made.width < NARROWEST:
        made = Console(stderr=stderr, highlight=False, width=NARROWEST)
    return made


def table(columns: Sequence[Column], rows: Iterable[Sequence[str | Text]], *, title: str | None = None) -> Table:
    """A table of text. Cells are taken literally: no markup, whatever a job is called."""
    made = Table(box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, show_edge=False, expand=False)
    for column in columns:
        made.add_column(
            column.heading,
            justify="right" if column.right else "left",
            no_wrap=column.keep or column.right,
            overflow="fold" if column.keep else "ellipsis",
            ratio=column.ratio,
        )
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return made


def show(*parts: RenderableType) -> None:
    """Print for people."""
    out = console()
    for part in parts:
        out.print(Text(part) if isinstance(part, str) else part)


def document_of(value: Any) -> Any:
    """What `--json` prints for a value: models as their wire form, times as RFC 3339."""
    match value:
        case BaseModel():
            return value.model_dump(mode="json", by_alias=True)
        case datetime():
            return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case dict():
            return {str(key): document_of(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [document_of(item) for item in value]
        case _:
            return value


def print_json(value: Any) -> None:
    """One document, indented."""
    sys.stdout.write(json.dumps(document_of(value), indent=2, ensure_ascii=False) + "\n")


def print_json_line(value: Any) -> None:
    """One document of many, on a line."""
    sys.stdout.write(json.dumps(document_of(value), ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_error(error: CommandFailed, *, as_json: bool) -> None:
    """Say what went wrong, on stderr."""
    if as_json:
        sys.stderr.write(json.dumps(error.document(), ensure_ascii=False) + "\n")
        return
    out = console(stderr=True)
    line = Text("error: ", style="bold red")
    if error.field:
        line.append(f"{error.field}: ", style="bold")
    line.append(error.message, style="not bold default")
    out.print(line)
    if error.remedy:
        out.print(Text.assemble(("next:  ", "bold"), error.remedy))
