"""The fabric as a tree in text: island, pod, leaf, rail, each with its VLANs, subnets and use. Pure.

A line for every rail of a leaf while those are at most 128, else for every leaf while those are at most 64; beyond that
for the first leaves of each pod, and in one more how many are left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from railweave.topology.model import Role
from railweave.topology.picture.shown import Shown, VlanShown
from railweave.topology.picture.text import clean, counted, in_order, listed, rails_in_words

MOST_RAILS: Final = 128
"""Of all leaves together."""
MOST_LEAVES: Final = 64
MOST_PODS: Final = 32
_WIDEST_IDS: Final = 24
FEW: Final = 3
"""Leaves of a pod, where not all are said."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the tree."""

    name: str
    """With the branches in front of it."""
    nodes: str = ""
    vlans: str = ""
    subnets: str = ""
    slots: str = ""
    """Those that nodes have, of all."""
    use: str = ""


@dataclass(slots=True)
class _Branch:
    row: Row
    below: list[_Branch] = field(default_factory=list)


def tree_of(shown: Shown, *, with_segments: bool = False, whole: bool = False) -> list[Row]:
    """The lines of the tree.

    Args:
        shown: the fabric.
        with_segments: the VLANs of segments too, a line each; else they are counted.
        whole: leave nothing out.
    """
    made = _Tree(shown, with_segments=with_segments, whole=whole)
    return [row for branch in made.islands() for row in _drawn(branch, "", "")]


def _drawn(branch: _Branch, before: str, below: str) -> Iterable[Row]:
    """The branch's own line and those below it."""
    row = branch.row
    yield replace(row, name=before + row.name)
    for number, part in enumerate(branch.below):
        is_last = number == len(branch.below) - 1
        yield from _drawn(part, below + ("└─ " if is_last else "├─ "), below + ("   " if is_last else "│  "))


class _Tree:
    def __init__(self, shown: Shown, *, with_segments: bool, whole: bool) -> None:
        self._shown = shown
        self._with_segments, self._whole = with_segments, whole
        self._hung: dict[str, list[str]] = defaultdict(list)
        self._rails: dict[str, set[int]] = defaultdict(set)
        for node in shown.graph.nodes:
            for leaf in {port.leaf for port in node.ports}:
                self._hung[leaf].append(node.name)
            for port in node.ports:
                if port.role is Role.COMPUTE:
                    self._rails[port.leaf].add(int(port.rail))
        leaves = len(shown.graph.leaves)
        self._has_rails = whole or sum(map(len, self._rails.values())) <= MOST_RAILS
        self._has_all = whole or leaves <= MOST_LEAVES

    def islands(self) -> list[_Branch]:
        pods: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for leaf in self._shown.graph.leaves:
            place = self._shown.place(leaf.name)
            pods[place.island][place.pod].append(leaf.name)
        found = [self._island(name, pods[name]) for name in in_order(pods)]
        loose = [node.name for node in self._shown.graph.nodes if not node.ports]
        if loose:
            found.append(_Branch(Row("no link", _nodes(loose))))
        return found

    def _island(self, name: str, pods: dict[str, list[str]]) -> _Branch:
        leaves = [leaf for members in pods.values() for leaf in members]
        branch = _Branch(self._summary(f"island {clean(name)}{_of(leaves)}", leaves))
        if list(pods) == [name]:
            branch.below = self._leaves(pods[name])
            return branch
        names = in_order(pods)
        shown = names if self._whole else names[:MOST_PODS]
        for pod in shown:
            branch.below.append(
                _Branch(self._summary(f"pod {clean(pod)}{_of(pods[pod])}", pods[pod]), self._leaves(pods[pod]))
            )
        if rest := names[len(shown) :]:
            leaves = [leaf for pod in rest for leaf in pods[pod]]
            branch.below.append(_Branch(self._summary(f"… {counted(len(rest), 'more pod')}{_of(leaves)}", leaves)))
        return branch

    def _leaves(self, names: Sequence[str]) -> list[_Branch]:
        ordered = in_order(names)
        # One more line for one more leaf is no longer than the leaf itself.
        shown = ordered if self._has_all or len(ordered) <= FEW + 1 else ordered[:FEW]
        branches = [self._leaf(name) for name in shown]
        if rest := ordered[len(shown) :]:
            branches.append(_Branch(self._summary(f"… {counted(len(rest), 'more leaf', 'more leaves')}", rest)))
        return branches

    def _leaf(self, name: str) -> _Branch:
        vlans = self._shown.vlans.get(name, ())
        if not self._has_rails or not vlans:
            rails = f", {rails_in_words(self._rails[name])}" if self._rails[name] else ""
            return _Branch(self._line(f"leaf {clean(name)}{rails}", vlans, self._hung[name]))
        row = Row(f"leaf {clean(name)}", _nodes(self._hung[name]), use=self._use(self._hung[name]))
        shared = [vlan for vlan in vlans if vlan.segment is None]
        others = [vlan for vlan in vlans if vlan.segment is not None]
        below = [_Branch(_vlan_row(f"rail {vlan.rail}", vlan)) for vlan in shared]
        if self._with_segments:
            below += [_Branch(_vlan_row(f"segment {vlan.segment} rail {vlan.rail}", vlan)) for vlan in others]
        elif others:
            segments = len({vlan.segment for vlan in others})
            below.append(_Branch(_vlans_row(counted(segments, "segment"), others)))
        return _Branch(row, below)

    def _summary(self, name: str, leaves: Sequence[str]) -> Row:
        vlans = [vlan for leaf in leaves for vlan in self._shown.vlans.get(leaf, ())]
        nodes = list(dict.fromkeys(node for leaf in leaves for node in self._hung[leaf]))
        return self._line(name, vlans, nodes)

    def _line(self, name: str, vlans: Sequence[VlanShown], nodes: Sequence[str]) -> Row:
        row = _vlans_row(name, vlans)
        return replace(row, nodes=_nodes(nodes), use=self._use(nodes) or row.use)

    def _use(self, nodes: Iterable[str]) -> str:
        busy = sum(name in self._shown.in_use for name in nodes)
        return f"{counted(busy, 'node')} in use" if busy else ""


def _of(leaves: Sequence[str]) -> str:
    return f": {counted(len(leaves), 'leaf', 'leaves')}"


def _nodes(names: Sequence[str]) -> str:
    if not names:
        return ""
    text = clean(listed(in_order(names)), 60)
    return text if len(names) == 1 else f"{len(names):,}: {text}"


def _vlan_row(name: str, vlan: VlanShown) -> Row:
    slots = f"{vlan.used:,}/{vlan.slots:,}"
    return Row(name, "", str(vlan.vlan), vlan.subnet, slots, "in use" if vlan.is_occupied else "")


def _vlans_row(name: str, vlans: Sequence[VlanShown]) -> Row:
    """Several VLANs in a line. Slots are those of what all share: a node has the same ones in every segment."""
    if not vlans:
        return Row(name)
    ids = listed(in_order({str(vlan.vlan) for vlan in vlans})).strip("[]")
    spans = ids if len(ids) <= _WIDEST_IDS else f"{ids[: ids.rindex(',', 0, _WIDEST_IDS)]},…"
    shared = [vlan for vlan in vlans if vlan.segment is None]
    slots = f"{sum(vlan.used for vlan in shared):,}/{sum(vlan.slots for vlan in shared):,}" if shared else ""
    busy = sum(vlan.is_occupied for vlan in vlans)
    subnets = vlans[0].subnet if len(vlans) == 1 else f"{len(vlans):,} subnets"
    return Row(name, "", spans, subnets, slots, f"{counted(busy, 'VLAN')} in use" if busy else "")
