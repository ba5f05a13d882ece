"""The fabric file, YAML (docs/operate/fabric-file.md), read into the canonical graph."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Final

from railweave.contracts.types import LeafName, NodeName, Rail
from railweave.topology.hostlist import HostlistError, expand
from railweave.topology.model import Graph, GraphError, Leaf, Link, LinkEnd, Node, NodePort, Role, Spine
from railweave.topology.yaml_tree import MOST_BYTES, FileError, Items, Reader, Value, read_yaml, scalar_text

VERSION: Final = 1
_RAILS: Final = re.compile(r"(\d{1,3})(?:-(\d{1,3}))?\Z", re.ASCII)
_MOST_RAILS: Final = 256

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
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise FileError(str(path), None, "", f"expected at most {MOST_BYTES} bytes, found {size}")
        return path.read_bytes()
    except OSError as error:
        raise FileError(str(path), None, "", f"cannot be read: {error.strerror}") from error


def read_fabric_file(text: bytes | str, file: str) -> Graph:
    """Read the text of a fabric file.

    Args:
        text: the content.
        file: its name, for errors.

    Raises:
        FileError: not a fabric file; names line, key and reason.
    """
    return _FabricFile(Reader(read_yaml(text, file), file)).graph()


class _FabricFile:
    """Collects the parts, remembering where each was written for errors that only the whole graph shows."""

    def __init__(self, top: Reader) -> None:
        self._top = top
        self._file = top.file
        self._lines: dict[str, int] = {}
        self._leaves: list[Leaf] = []
        self._spines: list[Spine] = []
        self._links: list[Link] = []
        self._ports: dict[NodeName, list[NodePort]] = {}

    def graph(self) -> Graph:
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
        nodes = tuple(Node(name, tuple(ports)) for name, ports in self._ports.items())
        try:
            return Graph(tuple(self._leaves), tuple(self._spines), tuple(self._links), nodes)
        except GraphError as error:
            raise FileError(self._file, self._line_of(error.thing), error.thing, error.reason) from None

    def _read_spines(self, reader: Reader) -> None:
        tier = reader.integer("tier", 2, low=2, high=9)
        names = self._names(reader, "name", "spine")
        uplinks = self._expanded(reader, "uplinks")
        reader.finish()
        for name in names:
            self._spines.append(Spine(name, tier))
            self._links += [Link(LinkEnd(name), LinkEnd(uplink)) for uplink in uplinks]
            self._remember_links(name, uplinks, reader.mapping.line)

    def _read_leaves(self, reader: Reader) -> None:
        names = self._names(reader, "name", "leaf")
        pod = reader.optional_text("pod")
        uplinks = self._expanded(reader, "uplinks")
        reader.finish()
        for name in names:
            self._leaves.append(Leaf(self._leaf_name(reader, "name", name), pod))
            self._links += [Link(LinkEnd(name), LinkEnd(uplink)) for uplink in uplinks]
            self._remember_links(name, uplinks, reader.mapping.line)

    def _remember_links(self, name: str, others: list[str], line: int) -> None:
        for other in others:
            for thing in (f"link {name} - {other}", f"link {other} - {name}"):
                self._lines.setdefault(thing, line)

    def _read_links(self, items: Sequence[Value]) -> None:
        for index, item in enumerate(items):
            path = f"links[{index}]"
            if not isinstance(item, Items) or len(item.items) != 2:
                reason = "expected two ends such as [leaf1:Ethernet48, spine1:Ethernet0]"
                raise FileError(self._file, item.line, path, reason)
            ends = [_link_end(scalar_text(end, self._file, path)) for end in item.items]
            self._links.append(Link(ends[0], ends[1]))
            self._remember_links(ends[0].switch, [ends[1].switch], item.line)

    def _read_nodes(self, reader: Reader) -> None:
        names = [self._node_name(reader, name) for name in self._names(reader, "name", "node")]
        role = self._role(reader)
        rows = self._explicit(reader) if reader.has("ports") else self._compact(reader, len(names))
        reader.finish()
        placed = iter(rows)
        for name in names:
            ports = self._ports.setdefault(name, [])
            for rail, leaf, port in next(placed):
                ports.append(NodePort(rail, leaf, port if port is not None else f"{name}:{int(rail)}", role))
                self._lines[f"node {name} rail {int(rail)}"] = reader.mapping.line

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

    def _names(self, reader: Reader, key: str, kind: str) -> list[str]:
        names = self._expanded(reader, key)
        if not names:
            raise reader.error(key, "missing")
        for name in names:
            try:
                NodeName(name)
            except ValueError as error:
                raise reader.error(key, str(error)) from None
            self._lines[f"{kind} {name}"] = reader.mapping.line
        return names

    def _expanded(self, reader: Reader, key: str) -> list[str]:
        names: list[str] = []
        for text, line in reader.texts(key):
            try:
                names += expand(text)
            except HostlistError as error:
                raise FileError(self._file, line, f"{reader.path}.{key}", str(error)) from None
        return names

    def _leaf_name(self, reader: Reader, key: str, name: str) -> LeafName:
        try:
            return LeafName(name)
        except ValueError as error:
            raise reader.error(key, str(error)) from None

    def _node_name(self, reader: Reader, name: str) -> NodeName:
        try:
            return NodeName(name)
        except ValueError as error:
            raise reader.error("name", str(error)) from None

    def _line_of(self, thing: str) -> int | None:
        return self._lines.get(thing)


def _link_end(text: str) -> LinkEnd:
    switch, colon, port = text.partition(":")
    return LinkEnd(switch, port if colon and port else None)
