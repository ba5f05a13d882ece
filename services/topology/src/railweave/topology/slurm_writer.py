"""Slurm's topology.conf for topology/tree, written: each switch with what is below it.

A tree is less than a fabric. Spines that share what is below them stand as one switch under the name of the first; a
node with rails on several leaves stands under that of its first rail; ports and rails are lost. Notes say so.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from railweave.topology.hostlist import compress
from railweave.topology.inferring import natural
from railweave.topology.model import Graph, Role

_NAME: Final = re.compile(r"[A-Za-z0-9_.:@+-]{1,64}\Z", re.ASCII)
_MOST_NAMED: Final = 6


class NotATree(ValueError):
    """A fabric that topology.conf cannot hold; the message says why."""


def write_topology_conf(graph: Graph) -> tuple[str, tuple[str, ...]]:
    """The topology.conf of a graph, and what of the graph is not in it, a line each.

    Raises:
        NotATree: a name that Slurm cannot have, names that differ in case alone, or no node that hangs anywhere.
    """
    return _Writer(graph).write()


class _Writer:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._tiers = {leaf.name: 1 for leaf in graph.leaves} | {spine.name: spine.tier for spine in graph.spines}
        self._notes: list[str] = []

    def write(self) -> tuple[str, tuple[str, ...]]:
        nodes: dict[str, list[str]] = defaultdict(list)
        for node, leaf in self._homes().items():
            nodes[leaf].append(node)
        if not nodes:
            raise NotATree("no node has a compute port: there is nothing to write")
        parents = self._parents()
        children: dict[str, set[str]] = defaultdict(set)
        for leaf in nodes:
            name = leaf
            while (parent := parents.get(name)) is not None:
                children[parent].add(name)
                name = parent
        _check_names([*children, *nodes, *(node for under in nodes.values() for node in under)])
        self._say_what_is_missing({*children, *nodes}, parents)
        switches = sorted(children, key=lambda name: (-self._tiers[name], natural(name)))
        lines = [f"SwitchName={name} Switches={_hostlist(children[name])}" for name in switches]
        lines += [f"SwitchName={leaf} Nodes={_hostlist(nodes[leaf])}" for leaf in sorted(nodes, key=natural)]
        return "\n".join(lines) + "\n", tuple(self._notes)

    def _homes(self) -> dict[str, str]:
        """The leaf that each node is written under."""
        homes: dict[str, str] = {}
        bare: list[str] = []
        spread: list[str] = []
        for node in self._graph.nodes:
            leaves = [port.leaf for port in node.ports if port.role is Role.COMPUTE]
            if not leaves:
                bare.append(node.name)
                continue
            homes[node.name] = leaves[0]
            if len(set(leaves)) > 1:
                spread.append(node.name)
        self._say("nodes without a compute port, left out", bare)
        self._say("nodes on several leaves, written under that of their first rail", spread)
        return homes

    def _parents(self) -> dict[str, str]:
        """What each switch is written under, tier by tier: spines that share anything below them are one."""
        below = self._below()
        parents: dict[str, str] = {}

        def top(name: str) -> str:
            while (parent := parents.get(name)) is not None:
                name = parent
            return name

        for tier in sorted(set(self._tiers.values()) - {1}):
            spines = sorted((name for name, found in self._tiers.items() if found == tier), key=natural)
            under = {spine: {top(name) for name in below[spine]} for spine in spines}
            for spine, *others in _sharing(under):
                for name in {name for member in (spine, *others) for name in under[member]}:
                    parents[name] = spine
                parents.update(dict.fromkeys(others, spine))
                self._say(
                    f"written as {spine}, since they share what is below them", [spine, *others] if others else []
                )
        return parents

    def _below(self) -> dict[str, set[str]]:
        below: dict[str, set[str]] = defaultdict(set)
        aside: list[str] = []
        for link in self._graph.links:
            low, high = sorted((link.a.switch, link.b.switch), key=self._tiers.__getitem__)
            if self._tiers[low] == self._tiers[high]:
                aside.append(f"{low} - {high}")
            else:
                below[high].add(low)
        self._say("links between switches of a tier, left out", aside)
        return below

    def _say_what_is_missing(self, written: set[str], parents: Mapping[str, str]) -> None:
        merged = {name for name in parents if self._tiers[name] == self._tiers[parents[name]]}
        self._say("switches that no node is written under, left out", sorted(self._tiers.keys() - written - merged))
        trees = sum(parents.get(name) is None for name in written)
        if trees > self._graph.island_count:
            self._notes.append(
                f"{trees} trees, which Slurm lets no job span, for {self._graph.island_count} parts of the fabric: "
                "only nodes join some of them"
            )

    def _say(self, what: str, things: Sequence[str]) -> None:
        if things:
            rest = f" and {len(things) - _MOST_NAMED} more" if len(things) > _MOST_NAMED else ""
            self._notes.append(f"{what}: {', '.join(things[:_MOST_NAMED])}{rest}")


def _sharing(under: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of spines that share something below them, directly or by others. One with nothing below is in none."""
    first: dict[str, str] = {}
    leader = {spine: spine for spine in under}

    def lead(spine: str) -> str:
        while leader[spine] != spine:
            leader[spine] = leader[leader[spine]]
            spine = leader[spine]
        return spine

    for spine, names in under.items():
        for name in sorted(names):
            leader[lead(spine)] = lead(first.setdefault(name, spine))
    groups: dict[str, list[str]] = defaultdict(list)
    for spine, names in under.items():
        if names:
            groups[lead(spine)].append(spine)
    return list(groups.values())


def _check_names(names: Sequence[str]) -> None:
    folded: dict[str, str] = {}
    for name in names:
        if not _NAME.match(name):
            raise NotATree(f"{name!r} is no name for Slurm: expected up to 64 letters, digits and . _ - @ + :")
        other = folded.setdefault(name.lower(), name)
        if other != name:
            raise NotATree(f"{other!r} and {name!r} differ in case alone, which is the same name to Slurm")


def _hostlist(names: Iterable[str]) -> str:
    return ",".join(compress(sorted(names, key=natural), only_at_end=True))
