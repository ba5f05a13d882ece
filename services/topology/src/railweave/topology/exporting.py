"""Formats that fabrics are written in, by name: the other way of providers/. What cannot be said is told in notes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from railweave.topology import fabric_writer, slurm_writer
from railweave.topology.model import Graph


class CannotExport(ValueError):
    """A graph that the format cannot hold; the message says what and why."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What a graph is in a format, and what of it the format cannot say, a line each."""

    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Exporter:
    """A format that fabrics are written in."""

    name: str
    about: str
    """One line for `--help`: whose format it is, and what of a fabric is lost in it."""
    write: Callable[[Graph], Exported]
    """Raises CannotExport. The same graph is the same text."""


def _slurm(graph: Graph) -> Exported:
    try:
        text, notes = slurm_writer.write_topology_conf(graph)
    except slurm_writer.NotATree as error:
        raise CannotExport(str(error)) from None
    return Exported(text, notes)


EXPORTERS: Final[Mapping[str, Exporter]] = {
    exporter.name: exporter
    for exporter in (
        Exporter(
            "railweave",
            "Railweave's own fabric file: everything.",
            lambda graph: Exported(fabric_writer.write_fabric_file(graph)),
        ),
        Exporter(
            "slurm",
            "Slurm topology.conf (topology/tree): who is near whom; no ports, no rails, one switch above each.",
            _slurm,
        ),
    )
}
