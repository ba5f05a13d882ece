"""Roles: a storage network that counts as compute makes every node a neighbour of every other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from railweave.topology.checks.finding import Finding, FindingKind
from railweave.topology.checks.wiring import HostCable, Wiring
from railweave.topology.disjoint import Sets

_FEWEST_NODES: Final = 4
_NEARLY_ALL: Final = 0.9
_AT_MOST: Final = 0.5


def storage_leaves(wiring: Wiring) -> Iterator[Finding]:
    """Leaves that nearly every node touches, while no other leaf of these nodes is touched by more than half.

    In one rail-optimised unit every leaf touches every node, and they are all alike: that is none.
    """
    leaves: dict[str, dict[str, HostCable]] = defaultdict(dict)
    for item in wiring.compute_cables:
        leaves[item.leaf.device].setdefault(item.host.device, item)
    together = Sets()
    for home in set(wiring.homes.values()):
        for leaf in home:
            together.join(leaf, home[0])
    for cable in wiring.switch_cables:
        together.join(cable.a.device, cable.b.device)
    fabrics: dict[str, list[str]] = defaultdict(list)
    for leaf in leaves:
        fabrics[together.of(leaf)].append(leaf)
    for mine in fabrics.values():
        nodes = {host for leaf in mine for host in leaves[leaf]}
        if len(mine) < 3 or len(nodes) < _FEWEST_NODES:
            continue
        wide = [leaf for leaf in mine if len(leaves[leaf]) >= _NEARLY_ALL * len(nodes)]
        narrow = [leaf for leaf in mine if len(leaves[leaf]) <= _AT_MOST * len(nodes)]
        elsewhere = {host for leaf in narrow for host in leaves[leaf]}
        if len(wide) + len(narrow) == len(mine) and len(elsewhere) >= _NEARLY_ALL * len(nodes):
            for leaf in wide:
                yield _finding(leaf, leaves[leaf], len(nodes), len(narrow))


def _finding(leaf: str, touching: dict[str, HostCable], nodes: int, others: int) -> Finding:
    nics = Counter(item.nic for item in touching.values())
    nic, _ = max(nics.items(), key=lambda entry: (entry[1], entry[0]))
    text = (
        f"{leaf}: {len(touching)} of {nodes} nodes touch it, most with {nic}, while their other NICs are on {others} "
        "leaves: as a leaf of compute ports it makes all nodes near, expected role storage"
    )
    where = next(iter(touching.values())).cable.where
    return Finding(FindingKind.STORAGE_LEAF, leaf, None, "role storage for its ports", text, where)
