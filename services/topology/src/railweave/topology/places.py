"""Where leaves and nodes are as far as nearness goes: the island they can reach, and the pod in it. Pure.

Islands are what links and compute ports connect. A storage or management leaf connects nothing: it may be cabled to
fabrics that carry no job together. Pods are told by the file, or else they are what hangs together below the third
tier; an island of two tiers is one pod. A cable in the wrong place moves its own node or leaf at most, never all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from railweave.topology.disjoint import Sets

if TYPE_CHECKING:
    from railweave.topology.model import Graph

_Home = tuple[str, ...]
"""The leaves of a node's compute ports, in the order of the rails."""


class Place(NamedTuple):
    """Where something is in the fabric, as far as nearness goes."""

    island: str
    """What can reach each other has the same; named after its first leaf."""
    pod: str
    """Leaves and nodes of a pod are nearer to each other than to the rest of the island."""


def places_of(graph: Graph) -> dict[str, Place]:
    """Island and pod of every leaf and node."""
    homes: dict[str, _Home] = {node.name: () for node in graph.nodes}
    for name, port in graph.compute_ports:
        homes[name] = (*homes[name], port.leaf)
    counted = Counter(home for home in homes.values() if home)
    aside = {port.leaf for node in graph.nodes for port in node.ports}.difference(*counted)
    islands = _islands(graph, counted, aside)
    pods = _pods(graph, counted, aside, islands)
    places: dict[str, Place] = {leaf.name: Place(islands[leaf.name], pods[leaf.name]) for leaf in graph.leaves}
    at = {home: Place(islands[home[0]], _commonest(pods[leaf] for leaf in home)) for home in counted}
    places.update((name, at[home] if home else Place(name, name)) for name, home in homes.items())
    return places


def _islands(graph: Graph, homes: Iterable[_Home], aside: Collection[str]) -> dict[str, str]:
    """The island of each leaf.

    A node connects the leaves of its rails: where every rail is a network of its own, nodes still reach each other
    rail by rail. Leaves aside carry no jobs: each belongs to the first island that it leads to, and joins none.
    """
    groups = Sets()
    for home in homes:
        for leaf in home:
            groups.join(leaf, home[0])
    links_aside: list[tuple[str, str]] = []
    for link in graph.links:
        ends = (link.a.switch, link.b.switch)
        if ends[0] in aside or ends[1] in aside:
            links_aside.append(ends)
        else:
            groups.join(*ends)
    with_jobs = {groups.of(home[0]) for home in homes}
    for one, other in links_aside:
        mine, theirs = groups.of(one), groups.of(other)
        if not {mine, theirs} <= with_jobs:
            groups.join(*((mine, theirs) if theirs in with_jobs else (theirs, mine)))
    first: dict[str, str] = {}
    return {leaf.name: first.setdefault(groups.of(leaf.name), leaf.name) for leaf in graph.leaves}


def _pods(
    graph: Graph, homes: Mapping[_Home, int], aside: Collection[str], islands: Mapping[str, str]
) -> dict[str, str]:
    """The pod of each leaf: as told, else what hangs together below the third tier, else the island."""
    tiers = {spine.name: spine.tier for spine in graph.spines}
    above: dict[str, set[str]] = {}
    over: dict[str, set[str]] = {}
    for link in graph.links:
        one, other = sorted((link.a.switch, link.b.switch), key=lambda name: tiers.get(name, 1))
        if tiers.get(one, 1) < tiers.get(other, 1):
            (over if one in tiers else above).setdefault(one, set()).add(other)
    # Islands with a third tier: those of the leaves from which it is reached going up.
    tall = {islands[leaf] for leaf, up in above.items() if any(over.get(name) or tiers[name] > 2 for name in up)}
    nearest = {leaf: _lowest(up, tiers) for leaf, up in above.items() if islands[leaf] in tall and leaf not in aside}
    group_of = _grouped(Counter(frozenset(up) for up in nearest.values()))
    of_leaf = {leaf: _commonest(group_of[name] for name in sorted(up)) for leaf, up in nearest.items()}
    # Where each rail has spines of its own, it is the nodes that tell which of them are one pod.
    touched: Counter[frozenset[str]] = Counter()
    for home, count in homes.items():
        touched[frozenset(of_leaf[leaf] for leaf in home if leaf in of_leaf)] += count
    pod_of = _grouped(touched)
    inferred = {leaf: pod_of.get(group, group) for leaf, group in of_leaf.items()}
    return {leaf.name: leaf.pod or inferred.get(leaf.name, islands[leaf.name]) for leaf in graph.leaves}


def _lowest(switches: Iterable[str], tiers: Mapping[str, int]) -> set[str]:
    lowest = min(tiers[name] for name in switches)
    return {name for name in switches if tiers[name] == lowest}


def _grouped(sets: Mapping[frozenset[str], int]) -> dict[str, str]:
    """The group of each name, named after its first: names that more than half of one's sets have together.

    Args:
        sets: names that are seen together, and how often. More than half, so that a few wrong cables join nothing.
    """
    seen: Counter[str] = Counter()
    together: Counter[tuple[str, str]] = Counter()
    for names, count in sets.items():
        first = min(names, default="")
        for name in names:
            seen[name] += count
            if name != first:
                together[first, name] += count
    groups = Sets()
    for (one, other), count in together.items():
        if 2 * count > min(seen[one], seen[other]):
            groups.join(one, other)
    first_of: dict[str, str] = {}
    return {name: first_of.setdefault(groups.of(name), name) for name in sorted(seen)}


def _commonest(names: Iterable[str]) -> str:
    return Counter(names).most_common(1)[0][0]
