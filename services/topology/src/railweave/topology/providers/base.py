"""A provider turns the text of one format into the canonical graph, and says what the format cannot tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from railweave.topology.model import Graph


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What the one who imports knows and many formats do not tell."""

    rails: int = 1
    """Rails of every node, 1 to 256, where the format knows no NICs."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A graph, and what was left out of it or guessed: one line each, with file and line where the format has lines."""

    graph: Graph
    notes: tuple[str, ...] = ()


Read = Callable[[bytes, str, ImportOptions], Imported]
"""Reads the content of a file of this name. Raises FileError: not of the format; names line, key and reason."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A format that fabrics are imported from."""

    name: str
    about: str
    """One line for `--help`: whose format it is, and what it tells."""
    read: Read
