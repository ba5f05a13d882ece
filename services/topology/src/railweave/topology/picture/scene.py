"""What is drawn of a fabric, before it has places on paper: which things, how far taken together, and how cabled. Pure.

Every host up to 128 nodes; beyond that the hosts of a leaf are one card; beyond 64 leaves the leaves of a pod are one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from railweave.topology.disjoint import Sets
from railweave.topology.inferring import natural
from railweave.topology.model import Node, Role
from railweave.topology.picture.shown import Shown, VlanShown
from railweave.topology.picture.text import in_order

MOST_HOSTS: Final = 128
MOST_LEAVES: Final = 64
MOST_ISLANDS: Final = 24
MOST_PODS: Final = 100
MOST_SPINES: Final = 16
"""Of a tier of an island; beyond that those with the same neighbours are drawn as one, and then all of them."""
_MOST_CARDS: Final = 32
"""Of a unit; beyond that its hosts are in one."""


class Detail(IntEnum):
    """How far things are taken together."""

    HOSTS = 0
    LEAVES = 1
    PODS = 2


class Wire(NamedTuple):
    """A rail of the hosts of a card, and the leaf that it is on."""

    leaf: str
    role: Role
    rail: int


@dataclass(frozen=True, slots=True)
class Card:
    """Hosts that are cabled alike."""

    key: str
    nodes: tuple[Node, ...]
    wires: tuple[Wire, ...]


@dataclass(frozen=True, slots=True)
class LeafDrawn:
    """A leaf, what it carries, and how many nodes hang on it."""

    key: str
    name: str
    pod: str
    rails: tuple[int, ...]
    vlans: tuple[VlanShown, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """Leaves that nodes hold together, with their hosts: one leaf, or where each rail has its own, one for each."""

    key: str
    leaves: tuple[LeafDrawn, ...]
    cards: tuple[Card, ...] = ()

    @property
    def pod(self) -> str:
        """Where most of its leaves are."""
        return Counter(leaf.pod for leaf in self.leaves).most_common(1)[0][0]


@dataclass(frozen=True, slots=True)
class Pod:
    """The leaves of a pod with their nodes, and the spines that are its alone, as one thing."""

    key: str
    names: tuple[str, ...]
    leaves: tuple[LeafDrawn, ...]
    spines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SpineDrawn:
    """A switch above the leaves, or several alike."""

    key: str
    names: tuple[str, ...]
    tier: int


class Cable(NamedTuple):
    """Links between two things that are drawn."""

    a: str
    b: str
    links: int


@dataclass(frozen=True, slots=True)
class Island:
    """What can reach each other."""

    key: str
    name: str
    tiers: tuple[tuple[SpineDrawn, ...], ...]
    """From the top."""
    units: tuple[Unit, ...]
    pods: tuple[Pod, ...]
    cables: tuple[Cable, ...]
    loose: tuple[Node, ...] = ()
    """Nodes without a port."""


@dataclass(frozen=True, slots=True)
class Scene:
    """All that is drawn."""

    shown: Shown
    detail: Detail
    islands: tuple[Island, ...]
    left_out: tuple[str, ...]
    """Islands that are not drawn, by name."""


def scene_of(shown: Shown, detail: Detail | None = None) -> Scene:
    """Decide what is drawn; by default as far taken together as the size of the fabric wants."""
    wanted = detail if detail is not None else detail_of(shown)
    islands = _Islands(shown, wanted).made()
    return Scene(shown, wanted, islands[:MOST_ISLANDS], tuple(island.name for island in islands[MOST_ISLANDS:]))


def detail_of(shown: Shown) -> Detail:
    """How far things are taken together."""
    if len(shown.graph.leaves) > MOST_LEAVES:
        return Detail.PODS
    return Detail.LEAVES if len(shown.graph.nodes) > MOST_HOSTS else Detail.HOSTS


class _Islands:
    def __init__(self, shown: Shown, detail: Detail) -> None:
        self._shown, self._detail = shown, detail
        on: dict[str, set[int]] = defaultdict(set)
        hung: dict[str, list[str]] = defaultdict(list)
        for node in shown.graph.nodes:
            for port in node.ports:
                if port.role is Role.COMPUTE:
                    on[port.leaf].add(int(port.rail))
            for leaf in {str(port.leaf) for port in node.ports}:
                hung[leaf].append(node.name)
        self._leaves = {
            str(leaf.name): LeafDrawn(
                f"l{number}",
                leaf.name,
                shown.place(leaf.name).pod,
                tuple(sorted(on[leaf.name])),
                tuple(shown.vlans.get(leaf.name, ())),
                tuple(in_order(hung[leaf.name])),
            )
            for number, leaf in enumerate(sorted(shown.graph.leaves, key=lambda leaf: natural(leaf.name)))
        }
        self._spine_island = self._spines()

    def made(self) -> tuple[Island, ...]:
        graph = self._shown.graph
        leaves: dict[str, list[LeafDrawn]] = defaultdict(list)
        for leaf in self._leaves.values():
            leaves[self._shown.place(leaf.name).island].append(leaf)
        nodes: dict[str, list[Node]] = defaultdict(list)
        loose: list[Node] = []
        for node in sorted(graph.nodes, key=lambda node: natural(node.name)):
            homes = [port.leaf for port in node.ports if port.role is Role.COMPUTE] or [p.leaf for p in node.ports]
            if homes:
                nodes[self._shown.place(homes[0]).island].append(node)
            else:
                loose.append(node)
        names = in_order({*leaves, *self._spine_island.values()} - {""})
        islands = [self._island(f"i{number}", name, leaves[name], nodes[name]) for number, name in enumerate(names)]
        if "" in self._spine_island.values():
            islands.append(self._island("ix", "", [], []))
        if loose:
            islands.append(Island("iy", "", (), (), (), (), tuple(loose)))
        return tuple(islands)

    def _spines(self) -> dict[str, str]:
        """The island of each spine: of the leaves that it leads to; empty where it leads to none."""
        beside: dict[str, set[str]] = defaultdict(set)
        for link in self._shown.graph.links:
            beside[link.a.switch].add(link.b.switch)
            beside[link.b.switch].add(link.a.switch)
        spines = {spine.name for spine in self._shown.graph.spines}
        island: dict[str, str] = {}
        waiting = [name for name in self._leaves if self._leaves[name].rails] + [
            name for name in self._leaves if not self._leaves[name].rails
        ]
        for name in waiting:
            for other in beside[name] & (spines - island.keys()):
                island[other] = self._shown.place(name).island
        reached = list(island)
        for name in reached:
            for other in sorted(beside[name] & (spines - island.keys())):
                island[other] = island[name]
                reached.append(other)
        return {name: island.get(name, "") for name in spines}

    def _island(self, key: str, name: str, leaves: list[LeafDrawn], nodes: list[Node]) -> Island:
        spines = [spine for spine in self._shown.graph.spines if self._spine_island[spine.name] == name]
        units: tuple[Unit, ...] = ()
        pods: tuple[Pod, ...] = ()
        drawn: dict[str, str]
        if self._detail is Detail.PODS:
            pods, drawn = _pods(key, leaves, [spine.name for spine in spines], self._shown)
        else:
            units = _units(key, leaves, nodes)
            drawn = {leaf.name: leaf.key for leaf in leaves}
        rest = [spine for spine in spines if spine.name not in drawn]
        tiers: list[tuple[SpineDrawn, ...]] = []
        for tier in sorted({spine.tier for spine in rest}):
            row = in_order(spine.name for spine in rest if spine.tier == tier)
            made = _together(f"{key}t{tier}", row, tier, _neighbours(self._shown, drawn))
            tiers.append(made)
            drawn.update((member, spine.key) for spine in made for member in spine.names)
        return Island(key, name, tuple(reversed(tiers)), units, pods, _cables(self._shown, drawn))


def _cables(shown: Shown, drawn: Mapping[str, str]) -> tuple[Cable, ...]:
    """The links between different things of an island."""
    counted: Counter[tuple[str, str]] = Counter()
    for link in shown.graph.links:
        a, b = drawn.get(link.a.switch), drawn.get(link.b.switch)
        if a is not None and b is not None and a != b:
            counted[min(a, b), max(a, b)] += 1
    return tuple(Cable(a, b, count) for (a, b), count in sorted(counted.items()))


def _neighbours(shown: Shown, drawn: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """What is drawn already that each switch is cabled to."""
    found: dict[str, set[str]] = defaultdict(set)
    for link in shown.graph.links:
        for one, other in ((link.a.switch, link.b.switch), (link.b.switch, link.a.switch)):
            if other in drawn:
                found[one].add(drawn[other])
    return {name: frozenset(others) for name, others in found.items()}


def _together(
    key: str, names: Sequence[str], tier: int, neighbours: Mapping[str, frozenset[str]]
) -> tuple[SpineDrawn, ...]:
    """The spines of a tier: each, or those with the same neighbours, or all of them."""
    groups: list[list[str]] = [[name] for name in names]
    if len(groups) > MOST_SPINES:
        alike: dict[frozenset[str], list[str]] = defaultdict(list)
        for name in names:
            alike[neighbours.get(name, frozenset())].append(name)
        groups = list(alike.values())
    if len(groups) > MOST_SPINES:
        groups = [list(names)]
    return tuple(SpineDrawn(f"{key}s{number}", tuple(group), tier) for number, group in enumerate(groups))


def _units(key: str, leaves: Iterable[LeafDrawn], nodes: Iterable[Node]) -> tuple[Unit, ...]:
    """The leaves with their hosts, in the order of pods and names."""
    cards: dict[tuple[Wire, ...], list[Node]] = defaultdict(list)
    for node in nodes:
        cards[tuple(Wire(port.leaf, port.role, int(port.rail)) for port in node.ports)].append(node)
    groups = Sets()
    home: dict[tuple[Wire, ...], str] = {}
    for wires in cards:
        compute = [wire.leaf for wire in wires if wire.role is Role.COMPUTE] or [wires[0].leaf]
        home[wires] = compute[0]
        for leaf in compute:
            groups.join(leaf, compute[0])
    members: dict[str, list[LeafDrawn]] = defaultdict(list)
    for drawn in leaves:
        members[groups.of(drawn.name)].append(drawn)
    inside: dict[str, list[tuple[tuple[Wire, ...], list[Node]]]] = defaultdict(list)
    for wires, group in cards.items():
        inside[groups.of(home[wires])].append((wires, group))
    made = []
    for number, (name, group_leaves) in enumerate(members.items()):
        ordered = sorted(group_leaves, key=lambda leaf: (natural(leaf.pod), leaf.rails[:1], natural(leaf.name)))
        made.append(Unit(f"{key}u{number}", tuple(ordered), _cards(f"{key}u{number}", inside.get(name, []))))
    return tuple(sorted(made, key=lambda unit: (natural(unit.pod), natural(unit.leaves[0].name))))


def _cards(key: str, groups: Sequence[tuple[tuple[Wire, ...], list[Node]]]) -> tuple[Card, ...]:
    if len(groups) > _MOST_CARDS:
        wires = tuple(sorted({wire for group, _ in groups for wire in group}))
        nodes = sorted((node for _, group in groups for node in group), key=lambda node: natural(node.name))
        groups = [(wires, nodes)]
    return tuple(Card(f"{key}c{number}", tuple(nodes), wires) for number, (wires, nodes) in enumerate(groups))


def _pods(
    key: str, leaves: Iterable[LeafDrawn], spines: Iterable[str], shown: Shown
) -> tuple[tuple[Pod, ...], dict[str, str]]:
    """The pods, with the spines that lead down to one pod alone; and the key by which each switch in one is drawn."""
    members: dict[str, list[LeafDrawn]] = defaultdict(list)
    for leaf in leaves:
        members[leaf.pod].append(leaf)
    names = in_order(members)
    groups = [[name] for name in names]
    if len(groups) > MOST_PODS:
        groups = [*groups[: MOST_PODS - 1], names[MOST_PODS - 1 :]]
    drawn: dict[str, str] = {}
    for number, group in enumerate(groups):
        drawn.update((leaf.name, f"{key}p{number}") for name in group for leaf in members[name])
    own: dict[str, list[str]] = defaultdict(list)
    if len(groups) > 1:
        beside = _neighbours(shown, drawn)
        for spine in in_order(spines):
            if len(reached := beside.get(spine, frozenset())) == 1:
                own[next(iter(reached))].append(spine)
    pods = tuple(
        Pod(
            f"{key}p{number}",
            tuple(group),
            tuple(leaf for name in group for leaf in members[name]),
            tuple(own[f"{key}p{number}"]),
        )
        for number, group in enumerate(groups)
    )
    drawn.update((spine, pod.key) for pod in pods for spine in pod.spines)
    return pods, drawn
