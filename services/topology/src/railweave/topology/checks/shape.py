"""The shape of the switches: loops in a tree, links that fit no tier, parts apart. A spine-leaf mesh is no loop."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from railweave.topology.cabling import Cable
from railweave.topology.checks.finding import Finding, FindingKind
from railweave.topology.checks.wiring import Wiring, listed
from railweave.topology.disjoint import Sets


class _Link(NamedTuple):
    """A link seen from one of its switches; cables side by side are one."""

    other: str
    port: str | None
    cable: Cable


class _Tiers:
    """The links of each switch up and sideways, and what part of the fabric it is in."""

    def __init__(self, wiring: Wiring) -> None:
        self.tiers = wiring.tiers
        self.up: dict[str, dict[str, _Link]] = defaultdict(dict)
        self.beside: dict[str, dict[str, _Link]] = defaultdict(dict)
        self.parts = Sets()
        pairs: set[frozenset[str]] = set()
        for cable in wiring.switch_cables:
            for end, far in ((cable.a, cable.b), (cable.b, cable.a)):
                mine, theirs = self.tiers[end.device], self.tiers[far.device]
                if mine <= theirs:
                    links = (self.up if mine < theirs else self.beside)[end.device]
                    links.setdefault(far.device, _Link(far.device, end.port, cable))
            self.parts.join(cable.a.device, cable.b.device)
            pairs.add(frozenset((cable.a.device, cable.b.device)))
        switches = Counter(self.parts.of(name) for name in {name for pair in pairs for name in pair})
        links_in = Counter(self.parts.of(min(pair)) for pair in pairs)
        self.with_loops = {part for part, count in links_in.items() if count >= switches[part]}
        """Parts of the fabric with more links than a tree has."""
        # A switch whose own view was not read may have more uplinks than those below the spines that were.
        reporters = wiring.cabling.reporters
        self.known = [name for name in self.tiers if not reporters or name in reporters]
        self.single: Counter[tuple[str, int]] = Counter()
        self.several: Counter[tuple[str, int]] = Counter()
        for name in self.known:
            if self.up.get(name):
                (self.single if len(self.up[name]) == 1 else self.several)[self.rank(name)] += 1
        self.meshes = {rank[0] for rank, count in self.several.items() if count >= self.single[rank]}
        """Parts of the fabric that are no trees: in some tier most switches have several above them."""

    def rank(self, name: str) -> tuple[str, int]:
        """Switches of one rank are peers: one part of the fabric, one tier."""
        return self.parts.of(name), self.tiers[name]


def loops(wiring: Wiring) -> Iterator[Finding]:
    """What closes a loop: uplinks too many in a tree, and links that fit no tier."""
    tiers = _Tiers(wiring)
    yield from _several_uplinks(tiers)
    yield from _odd_links(tiers)


def _several_uplinks(tiers: _Tiers) -> Iterator[Finding]:
    """Switches with several switches above them where most of their peers have one."""
    for name in tiers.known:
        rank, uplinks = tiers.rank(name), tiers.up.get(name, {})
        single, several = tiers.single[rank], tiers.several[rank]
        if len(uplinks) > 1 and single > several and rank[0] in tiers.with_loops:
            peers = f"as {single} of {single + several} switches of its tier"
            above = listed(sorted(uplinks))
            last = list(uplinks.values())[-1]
            text = f"{name}: has {len(uplinks)} switches above it ({above}), expected one, {peers}: that closes a loop"
            expected, is_error = f"one switch above it, {peers}", rank[0] not in tiers.meshes
            yield Finding(FindingKind.LOOP, name, last.port, expected, text, last.cable.where, is_error)


def _odd_links(tiers: _Tiers) -> Iterator[Finding]:
    """Links within a tier or past one that close a loop.

    In a tree that is an error. In a mesh it is odd where most switches of the tier have none such.
    """
    odd = {name: links for name in tiers.known if (links := _odd_links_of(name, tiers))}
    peers = Counter(tiers.rank(name) for name in tiers.known)
    with_odd = Counter(tiers.rank(name) for name in odd)
    for name, links in odd.items():
        rank = tiers.rank(name)
        is_mesh = rank[0] in tiers.meshes
        if rank[0] not in tiers.with_loops or (is_mesh and 2 * with_odd[rank] > peers[rank]):
            continue
        for link in links:
            theirs = tiers.tiers[link.other]
            if theirs == rank[1] and link.other < name and link.other in odd:
                continue  # told of the other switch already
            what = "a switch of its own tier" if theirs == rank[1] else f"past tier {rank[1] + 1}"
            expected = f"links to tier {rank[1] + 1} only"
            text = f"{name}: its link to {link.other} leads to {what}, which closes a loop"
            yield Finding(FindingKind.LOOP, name, link.port, expected, text, link.cable.where, not is_mesh)


def _odd_links_of(name: str, tiers: _Tiers) -> list[_Link]:
    uplinks = tiers.up.get(name, {})
    nearest = min((tiers.tiers[other] for other in uplinks), default=0)
    past = [link for link in uplinks.values() if tiers.tiers[link.other] > nearest]
    return [*tiers.beside.get(name, {}).values(), *past]


def islands(wiring: Wiring) -> Iterator[Finding]:
    """Parts of the fabric with nodes that cannot reach each other, where there are several. Legal."""
    homes = Counter(wiring.homes.values())
    carrying = {leaf for home in homes for leaf in home}
    # Leaves of storage and management join no fabrics.
    aside = {item.leaf.device for item in wiring.host_cables} - carrying
    parts = Sets()
    for home in homes:
        for leaf in home:
            parts.join(leaf, home[0])
    for cable in wiring.switch_cables:
        if aside.isdisjoint((cable.a.device, cable.b.device)):
            parts.join(cable.a.device, cable.b.device)
    counts: Counter[str] = Counter()
    for home, count in homes.items():
        counts[parts.of(home[0])] += count
    if len(counts) < 2:
        return
    first: dict[str, str] = {}
    for leaf in sorted(carrying):
        first.setdefault(parts.of(leaf), leaf)
    for part, leaf in first.items():
        others = len(counts) - 1
        text = (
            f"island of {leaf}: {counts[part]} of {counts.total()} nodes, out of reach of "
            f"{others} other island{'s' if others > 1 else ''}"
        )
        where = wiring.devices[leaf].where
        yield Finding(FindingKind.ISLAND, leaf, None, "meant to be apart", text, where, is_error=False)
