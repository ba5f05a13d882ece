"""The canonical graph of a fabric: leaves, spines, links, and which port of which leaf each NIC of each node is on.

Providers (fabric_file.py, topograph.py) turn a format into this graph, and it is the only thing that the rest sees. A
graph that exists is consistent: names are unique, links and ports name switches that are there, no port is used twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Final, NamedTuple

from railweave.contracts.types import LeafName, NodeName, Rail
from railweave.topology.places import Place, places_of


class GraphError(ValueError):
    """A graph that cannot be. Names the thing (`leaf leaf1`, `node n1 rail 0`) and what is wrong with it."""

    def __init__(self, thing: str, reason: str) -> None:
        super().__init__(f"{thing}: {reason}")
        self.thing = thing
        self.reason = reason


class Role(StrEnum):
    """What a port is for. Only compute ports carry jobs' traffic, and only they tell which nodes are near."""

    COMPUTE = "compute"
    STORAGE = "storage"
    MANAGEMENT = "management"


@dataclass(frozen=True, slots=True)
class NodePort:
    """The NIC of a node on a rail, and the leaf's port it is plugged into."""

    rail: Rail
    leaf: LeafName
    port: str
    role: Role = Role.COMPUTE


@dataclass(frozen=True, slots=True)
class Node:
    """A host; its ports by role and rail."""

    name: NodeName
    ports: tuple[NodePort, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A switch that nodes hang on."""

    name: LeafName
    pod: str | None = None
    """Leaves of a pod are near each other. None: it follows from the links."""


@dataclass(frozen=True, slots=True)
class Spine:
    """A switch that switches hang on."""

    name: str
    tier: int = 2
    """2 above the leaves, 3 above those, and so on."""


class LinkEnd(NamedTuple):
    """One end of a link; the port's name where it is known."""

    switch: str
    port: str | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """A cable between two switches."""

    a: LinkEnd
    b: LinkEnd


class LeafRail(NamedTuple):
    """The NICs of one rail on one leaf: they share a VLAN."""

    leaf: LeafName
    rail: Rail


class VlanPlace(NamedTuple):
    """Where a VLAN is: of a rail of a leaf, the one that all share or a segment's."""

    leaf: LeafName
    rail: Rail
    segment: int = -1
    """`SHARED` for the one that all share in rail mode."""

    @property
    def ports(self) -> LeafRail:
        """The NICs that it is trunked to."""
        return LeafRail(self.leaf, self.rail)

    def __str__(self) -> str:
        segment = f"segment {self.segment}, " if self.segment != SHARED else ""
        return f"{segment}rail {int(self.rail)} of leaf {self.leaf}"


SHARED: Final = -1


@dataclass(frozen=True)
class Graph:
    """A fabric. Everything is in a canonical order, so that equal fabrics are equal graphs however they were written.

    Raises:
        GraphError: on construction, when it is not consistent.
    """

    leaves: tuple[Leaf, ...] = ()
    spines: tuple[Spine, ...] = ()
    links: tuple[Link, ...] = ()
    nodes: tuple[Node, ...] = ()
    _places: Mapping[str, Place] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        leaves = tuple(sorted(self.leaves, key=lambda leaf: leaf.name))
        spines = tuple(sorted(self.spines, key=lambda spine: (spine.tier, spine.name)))
        links = tuple(sorted((_ordered(link) for link in self.links), key=_link_key))
        nodes = tuple(
            Node(node.name, tuple(sorted(node.ports, key=lambda port: (port.role, port.rail))))
            for node in sorted(self.nodes, key=lambda node: node.name)
        )
        for name, value in (("leaves", leaves), ("spines", spines), ("links", links), ("nodes", nodes)):
            object.__setattr__(self, name, value)
        _check(self)
        object.__setattr__(self, "_places", places_of(self))

    @cached_property
    def compute_ports(self) -> tuple[tuple[NodeName, NodePort], ...]:
        """Every port that carries jobs' traffic, by node and rail."""
        return tuple((node.name, port) for node in self.nodes for port in node.ports if port.role is Role.COMPUTE)

    def place(self, name: str) -> Place:
        """Island and pod of a leaf or node."""
        return self._places[name]

    def find_place(self, name: str) -> Place | None:
        """Island and pod of a leaf or node, None where it is not in the graph."""
        return self._places.get(name)

    @property
    def island_count(self) -> int:
        """How many parts of the fabric cannot reach each other; storage and management networks are none."""
        carrying = {port.leaf for _, port in self.compute_ports}
        aside = {port.leaf for node in self.nodes for port in node.ports} - carrying
        return len({self._places[leaf.name].island for leaf in self.leaves if leaf.name not in aside})


def _ordered(link: Link) -> Link:
    return link if _end_key(link.a) <= _end_key(link.b) else Link(link.b, link.a)


def _end_key(end: LinkEnd) -> tuple[str, str]:
    return end.switch, end.port or ""


def _link_key(link: Link) -> tuple[tuple[str, str], tuple[str, str]]:
    return _end_key(link.a), _end_key(link.b)


def _check(graph: Graph) -> None:
    switches: set[str] = set()
    for kind, names in (("leaf", (x.name for x in graph.leaves)), ("spine", (x.name for x in graph.spines))):
        for name in names:
            if name in switches:
                raise GraphError(f"{kind} {name}", "the name is used twice among leaves and spines")
            switches.add(name)
    leaves = {leaf.name for leaf in graph.leaves}
    used: dict[tuple[str, str], str] = {}
    for link in graph.links:
        if link.a.switch == link.b.switch:
            raise GraphError(f"link {link.a.switch}", "both ends are on the same switch")
        for end, other in ((link.a, link.b), (link.b, link.a)):
            if end.switch not in switches:
                raise GraphError(f"link {link.a.switch} - {link.b.switch}", f"there is no switch {end.switch!r}")
            if end.port is not None:
                _use(used, (end.switch, end.port), f"the link to {other.switch}")
    known: set[str] = set()
    for node in graph.nodes:
        if node.name in known:
            raise GraphError(f"node {node.name}", "the name is used twice")
        known.add(node.name)
        if node.name in switches:
            raise GraphError(f"node {node.name}", "a switch has the same name")
        rails: set[tuple[Role, Rail]] = set()
        for port in node.ports:
            thing = f"node {node.name} rail {int(port.rail)}"
            if port.leaf not in leaves:
                raise GraphError(thing, f"there is no leaf {port.leaf!r}")
            if (port.role, port.rail) in rails:
                raise GraphError(thing, f"it has two {port.role} ports")
            rails.add((port.role, port.rail))
            _use(used, (port.leaf, port.port), thing)


def _use(used: dict[tuple[str, str], str], port: tuple[str, str], user: str) -> None:
    other = used.setdefault(port, user)
    if other is not user:
        raise GraphError(f"port {port[1]} of {port[0]}", f"used twice: by {other} and by {user}")


def ports_by_leaf_rail(graph: Graph) -> dict[LeafRail, list[NodeName]]:
    """The nodes with a compute port on each (leaf, rail), in the order of their names."""
    found: dict[LeafRail, list[NodeName]] = {}
    for name, port in graph.compute_ports:
        found.setdefault(LeafRail(port.leaf, port.rail), []).append(name)
    return found
