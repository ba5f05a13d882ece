"""A provider turns files of one format into the canonical graph, and says what the format cannot tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from railweave.contracts.types import VlanId
from railweave.topology.cabling import Cabling
from railweave.topology.inferring import graph_of
from railweave.topology.model import Graph
from railweave.topology.yaml_tree import FileError


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What the one who imports knows and many formats do not tell."""

    rails: int = 1
    """Rails of every node, 1 to 256, where the format knows no NICs."""
    switch: str | None = None
    """The switch that a file is of, where it does not say so. None: the file's name up to its first dot."""

    def switch_of(self, file: str) -> str:
        """The switch that a file without a name of its own in it is of."""
        return self.switch if self.switch is not None else file.rpartition("/")[2].partition(".")[0]


@dataclass(frozen=True, slots=True)
class VlanMember:
    """A port in a VLAN."""

    port: str
    tagged: bool


@dataclass(frozen=True, slots=True)
class SwitchVlan:
    """A VLAN that a switch was found to carry. Of use to compare with; what Railweave gives is planned anew."""

    switch: str
    vlan: VlanId
    gateways: tuple[str, ...] = ()
    """Addresses of the switch in it, with prefix length: `10.0.0.1/24`."""
    members: tuple[VlanMember, ...] = ()


@dataclass(frozen=True, slots=True)
class Imported:
    """A graph, and what was left out of it or guessed: one line each, with file and line where the format has lines."""

    graph: Graph
    notes: tuple[str, ...] = ()
    vlans: tuple[SwitchVlan, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """What a file tells, not yet a graph: checks look at this too, since a graph has no faults."""

    cabling: Cabling
    vlans: tuple[SwitchVlan, ...] = ()

    def imported(self) -> Imported:
        """The graph of it; raises FileError where there is none."""
        graph, notes = graph_of(self.cabling)
        return Imported(graph, notes, self.vlans)


Files = Mapping[str, bytes]
"""Content by name, in order: one file, or for formats that have one a switch, all of them."""

Read = Callable[[Files, ImportOptions], Found]
"""Reads the files of a fabric. Raises FileError: not of the format; names file, line, key and reason."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A format that fabrics are imported from."""

    name: str
    about: str
    """One line for `--help`: whose format it is, what it tells, and what it does not."""
    read: Read
    takes_several: bool = False
    """Whether each switch has a file of its own, and several make one fabric."""


def single(read: Callable[[bytes, str, ImportOptions], Found]) -> Read:
    """The `read` of a format that has all in one file."""

    def read_one(files: Files, options: ImportOptions) -> Found:
        if len(files) != 1:
            raise FileError(", ".join(files) or "(no file)", None, "", "expected one file of this format")
        ((name, content),) = files.items()
        return read(content, name, options)

    return read_one
