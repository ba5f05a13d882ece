"""The fabric file, YAML (docs/operate/fabric-file.md), read into the canonical graph."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Final

from railweave.contracts.types import LeafName, NodeName, Rail
from railweave.topology.cabling import Cable, Cabling, CablingBuilder, Device, End, Kind, Where
from railweave.topology.collecting import collector_paused
from railweave.topology.hostlist import HostlistError, Hostlists
from railweave.topology.inferring import graph_of
from railweave.topology.model import Graph, Role
from railweave.topology.yaml_tree import MOST_BYTES, FileError, Items, Reader, Value, read_yaml, scalar_text

VERSION: Final = 1
_RAILS: Final = re.compile(r"(\d{1,3})(?:-(\d{1,3}))?\Z", re.ASCII)
_MOST_RAILS: Final = 256
_HIGHEST_TIER: Final = 10_000
"""Five is much; but switches in a row, told by a format that knows no tiers, stand each above the one before."""

_Row = Sequence[tuple[Rail, LeafName, str | None]]
"""Rail, leaf, and the leaf's port where it is named, of one node."""


def load_fabric_file(path: Path) -> Graph:
    """Read a fabric file from disk.

    Raises:
        FileError: unreadable, too large, or not a fabric file; names file, line, key and reason.
    """
    return read_fabric_file(read_bytes(path), path.name)


def read_bytes(path: Path) -> bytes:
    """The content of a file that is not too large; raises FileError."""
    try:
        # A bounded read, not the size that is said: a pipe has none, and /dev/zero has no end.
        with path.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise FileError(str(path), None, "", f"cannot be read: {error.strerror}") from error
    if len(content) > MOST_BYTES:
        raise FileError(str(path), None, "", f"expected at most {MOST_BYTES} bytes, found more")
    return content


def read_fabric_file(text: bytes | str, file: str) -> Graph:
    """Read the text of a fabric file.

    Args:
        text: the content.
        file: its name, for errors.

    Raises:
        FileError: not a fabric file; names line, key and reason.
    """
    return graph_of(read_cabling(text, file))[0]


def read_cabling(text: bytes | str, file: str) -> Cabling:
    """Read what a fabric file tells, with whatever is wrong in it as a whole: names twice, links to nowhere.

    Raises:
        FileError: not a fabric file; names line, key and reason.
    """
    with collector_paused():
        return _FabricFile(Reader(read_yaml(text, file), file)).cabling()


class _FabricFile:
    """Collects the parts, remembering where each was written for errors that only the whole graph shows."""

    def __init__(self, top: Reader) -> None:
        self._top = top
        self._file = top.file
        self._found = CablingBuilder()
        self._hostlists = Hostlists()

    def cabling(self) -> Cabling:
        top = self._top
        top.integer("version", low=VERSION, high=VERSION)
        for reader in top.readers("spines"):
            self._read_spines(reader)
        for reader in top.readers("leaves"):
            self._read_leaves(reader)
        self._read_links(top.items("links"))
        for reader in top.readers("nodes"):
            self._read_nodes(reader)
        top.finish()
        return self._found.built()

    def _read_spines(self, reader: Reader) -> None:
        tier = reader.integer("tier", 2, low=2, high=_HIGHEST_TIER)
        names = self._names(reader, "name")
        uplinks = self._expanded(reader, "uplinks")
        reader.finish()
        self._switches(names, uplinks, tier, None, reader)

    def _read_leaves(self, reader: Reader) -> None:
        names = self._names(reader, "name")
        pod = reader.optional_text("pod")
        uplinks = self._expanded(reader, "uplinks")
        reader.finish()
        self._switches(names, uplinks, 1, pod, reader)

    def _switches(self, names: list[str], uplinks: list[str], tier: int, pod: str | None, reader: Reader) -> None:
        where = Where(self._file, reader.mapping.line)
        for name in names:
            self._found.declare(Device(name, Kind.SWITCH, where, tier, pod))
            for uplink in uplinks:
                self._found.cable(Cable(End(name), End(uplink), where))

    def _read_links(self, items: Sequence[Value]) -> None:
        for index, item in enumerate(items):
            path = f"links[{index}]"
            if not isinstance(item, Items) or len(item.items) != 2:
                reason = "expected two ends such as [leaf1:Ethernet48, spine1:Ethernet0]"
                raise FileError(self._file, item.line, path, reason)
            one, other = (self._ends(end, path) for end in item.items)
            if len(one) != len(other):
                reason = f"expected as many ends on both sides, found {len(one)} and {len(other)}"
                raise FileError(self._file, item.line, path, reason)
            for a, b in zip(one, other, strict=True):
                self._found.cable(Cable(a, b, Where(self._file, item.line)))

    def _ends(self, value: Value, path: str) -> list[End]:
        try:
            ends = self._hostlists.expand_ends(scalar_text(value, self._file, path))
        except HostlistError as error:
            raise FileError(self._file, value.line, path, str(error)) from None
        return [End(switch, port) for switch, port in ends]

    def _read_nodes(self, reader: Reader) -> None:
        names = self._names(reader, "name")
        role = self._role(reader)
        rows = self._explicit(reader) if reader.has("ports") else self._compact(reader, len(names))
        reader.finish()
        where = Where(self._file, reader.mapping.line)
        placed = iter(rows)
        for name in names:
            device = Device(name, Kind.HOST, where)
            known = self._found.known.get(name)
            if known is not None and known.kind is Kind.SWITCH:
                self._found.declare(device)
                continue
            # A node may stand in several entries: its storage ports apart from its compute ports.
            self._found.mention(device)
            for rail, leaf, port in next(placed):
                self._found.cable(Cable(End(name), End(leaf, port), where, rail=int(rail), role=role))

    def _explicit(self, reader: Reader) -> Iterator[_Row]:
        """`ports`: one entry a rail, the same for every node named (so only the port's name has to be left out)."""
        row: list[tuple[Rail, LeafName, str | None]] = []
        for entry in reader.readers("ports"):
            rail = Rail(entry.integer("rail", high=_MOST_RAILS - 1))
            leaf = self._leaf_name(entry, "leaf", entry.text("leaf"))
            row.append((rail, leaf, entry.optional_text("port")))
            entry.finish()
        return repeat(row)

    def _compact(self, reader: Reader, nodes: int) -> Iterator[_Row]:
        """`rails` with `leaf` (all on one) or `leaves` (rail i on leaf i), and maybe the leaf ports in order."""
        rails = self._rails(reader)
        if reader.has("leaf") == reader.has("leaves"):
            raise reader.error("leaf", "expected one of leaf, leaves and ports")
        if reader.has("leaf"):
            one = self._leaf_name(reader, "leaf", reader.text("leaf"))
            leaves = [one] * len(rails)
        else:
            leaves = [self._leaf_name(reader, "leaves", name) for name in self._expanded(reader, "leaves")]
            if len(leaves) != len(rails):
                raise reader.error("leaves", f"expected one leaf a rail: {len(rails)}, found {len(leaves)}")
        ports = self._expanded(reader, "leaf_ports")
        if not ports:
            return repeat([(rail, leaf, None) for rail, leaf in zip(rails, leaves, strict=True)])
        # On one leaf every NIC takes the next port; with a leaf a rail, every node takes the same port on each of them.
        shared = reader.has("leaves")
        needed = nodes if shared else nodes * len(rails)
        if len(ports) != needed:
            raise reader.error("leaf_ports", f"expected {needed} ports for {nodes} nodes, found {len(ports)}")
        return iter(
            [
                (rail, leaf, ports[node if shared else node * len(rails) + place])
                for place, (rail, leaf) in enumerate(zip(rails, leaves, strict=True))
            ]
            for node in range(nodes)
        )

    def _rails(self, reader: Reader) -> list[Rail]:
        rails: list[Rail] = []
        for text, line in reader.texts("rails"):
            found = _RAILS.match(text)
            low, high = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
            if not low <= high < _MOST_RAILS:
                raise FileError(self._file, line, "rails", f"expected rails such as 0-7, found {text!r}")
            rails += [Rail(number) for number in range(low, high + 1)]
        if not rails:
            raise reader.error("rails", "missing: which rails, such as 0-7")
        if len(set(rails)) != len(rails):
            raise reader.error("rails", "names a rail twice")
        return rails

    def _role(self, reader: Reader) -> Role:
        text = reader.text("role", Role.COMPUTE)
        try:
            return Role(text)
        except ValueError:
            raise reader.error("role", f"expected one of {', '.join(Role)}, found {text!r}") from None

    def _names(self, reader: Reader, key: str) -> list[str]:
        names = self._expanded(reader, key)
        if not names:
            raise reader.error(key, "missing")
        for name in names:
            try:
                NodeName(name)
            except ValueError as error:
                raise reader.error(key, str(error)) from None
        return names

    def _expanded(self, reader: Reader, key: str) -> list[str]:
        names: list[str] = []
        for text, line in reader.texts(key):
            try:
                names += self._hostlists.expand(text)
            except HostlistError as error:
                raise FileError(self._file, line, f"{reader.path}.{key}", str(error)) from None
        return names

    def _leaf_name(self, reader: Reader, key: str, name: str) -> LeafName:
        try:
            return LeafName(name)
        except ValueError as error:
            raise reader.error(key, str(error)) from None
