"""Miscabling: NIC i of every node of a unit goes to leaf i of that unit.

Nobody tells the units, so they are inferred: nodes that share most of their leaves are one. Within it the leaf that the
clear majority of NICs i is on is where NIC i belongs. A whole unit elsewhere, half-full units, one leaf for all rails
and kinds of hosts of their own are no faults.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from railweave.topology.checks.finding import Finding, FindingKind
from railweave.topology.checks.wiring import HostCable, Wiring, listed

_CLEAR: Final = 3
"""How many times the nodes that are elsewhere alike those must be that are right: more alike are meant to be."""
_CLEARER: Final = 4
"""The same where half of a node's NICs are elsewhere."""
_MOST_LOOKED_AT: Final = 16
"""Units on a leaf that a node is compared with, the largest; keeps garbage linear."""

_Row = tuple[tuple[str, str], ...]
"""NIC and leaf of every cable of a node, sorted. Nodes cabled alike have the same."""


class _Unit:
    """Nodes that share most of their leaves."""

    def __init__(self, row: _Row, count: int) -> None:
        self.size = len(row)
        self.count = count
        """Nodes cabled as the first, of which there are most."""
        self.row = frozenset(row)
        self.leaves = Counter(leaf for _, leaf in row)
        self.rows: list[tuple[_Row, list[str]]] = []


class _Likeness(NamedTuple):
    """How well a node fits a unit; more is better."""

    leaves: int
    """Leaves that they share, each counted as often as both have NICs there."""
    nics: int
    """NICs on the same leaf."""


def miscabled(wiring: Wiring) -> Iterator[Finding]:
    """Every NIC that is not on the leaf of its peers."""
    cables: dict[str, dict[str, HostCable]] = defaultdict(dict)
    for item in wiring.compute_cables:
        # NICs without a name are all alike: which is which does not show, only on which leaves they are.
        key = item.nic if item.host.port or item.cable.rail is not None else f"\0{len(cables[item.host.device])}"
        cables[item.host.device].setdefault(key, item)
    alike: dict[_Row, list[str]] = defaultdict(list)
    for host, nics in cables.items():
        alike[tuple(sorted((_key(nic), item.leaf.device) for nic, item in nics.items()))].append(host)
    units, torn = _units(alike)
    for unit in units:
        if len(unit.rows) > 1:
            for host, wrong in _odd_ones(unit):
                yield _finding(cables[host], host, *wrong)
    for row, one, other in torn:
        for host in alike[row]:
            yield _torn(cables[host], host, one, other)


def _key(nic: str) -> str:
    return "" if nic.startswith("\0") else nic


def _units(alike: Mapping[_Row, list[str]]) -> tuple[list[_Unit], list[tuple[_Row, _Unit, _Unit]]]:
    """The units, and the rows that are half one's and half another's."""
    units: list[_Unit] = []
    torn: list[tuple[_Row, _Unit, _Unit]] = []
    on_leaf: dict[str, list[_Unit]] = defaultdict(list)
    for row, hosts in sorted(alike.items(), key=lambda entry: (-len(entry[1]), entry[0])):
        match _best(row, len(hosts), on_leaf):
            case [unit]:
                unit.rows.append((row, hosts))
            case [one, other, *_]:
                torn.append((row, one, other))
            case _:
                unit = _Unit(row, len(hosts))
                unit.rows.append((row, hosts))
                units.append(unit)
                for leaf in unit.leaves:
                    if len(on_leaf[leaf]) < _MOST_LOOKED_AT:
                        on_leaf[leaf].append(unit)
    return units, torn


def _best(row: _Row, count: int, on_leaf: Mapping[str, Sequence[_Unit]]) -> list[_Unit]:
    """The unit that the nodes of a row belong to: one, none, or several that they fit equally badly."""
    leaves = Counter(leaf for _, leaf in row)
    shared: Counter[_Unit] = Counter()
    for leaf, nics in leaves.items():
        for unit in on_leaf.get(leaf, ()):
            shared[unit] += min(nics, unit.leaves[leaf])
    best: list[_Unit] = []
    likeness = _Likeness(0, 0)
    for unit, leaves_shared in shared.items():
        if not _may_belong(row, count, unit, leaves_shared):
            continue
        this = _Likeness(leaves_shared, len(unit.row.intersection(row)))
        if this > likeness:
            best, likeness = [unit], this
        elif this == likeness:
            best.append(unit)
    # Units with more than half of the leaves in common are one but for rails on which they differ by design.
    return best[:1] if 2 * likeness.leaves > len(row) else best


def _may_belong(row: _Row, count: int, unit: _Unit, shared: int) -> bool:
    if len(row) != unit.size and count > 1:
        return False  # several with fewer or more NICs are a kind of hosts of their own
    size = max(len(row), unit.size)
    if 2 * shared == size and len(row) == unit.size:
        return unit.count >= _CLEARER * count
    return 2 * shared > size


class _Wrong(NamedTuple):
    """A NIC that is elsewhere."""

    nic: str
    leaf: str
    expected: str
    peers: int
    """Nodes whose NIC is as expected."""


def _odd_ones(unit: _Unit) -> Iterator[tuple[str, _Wrong]]:
    """Hosts and NICs of a unit that are not where the clear majority is."""
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    touched: Counter[str] = Counter()
    total = 0
    for row, hosts in unit.rows:
        total += len(hosts)
        for nic, leaf in row:
            if nic:
                votes[nic][leaf] += len(hosts)
        touched.update(dict.fromkeys({leaf for _, leaf in row}, len(hosts)))
    # A NIC with a name that others have too is where most of these are; any other, where most nodes are and it is not.
    counts = {nic: on.total() for nic, on in votes.items()}
    right = {
        nic: max(votes[nic].items(), key=lambda vote: (vote[1], vote[0])) for nic, count in counts.items() if count > 1
    }
    common = {leaf for leaf, count in touched.items() if 2 * count > total}
    for row, hosts in unit.rows:
        for nic, leaf in row:
            if nic in right:
                expected, peers = right[nic]
                is_clear = 2 * peers > counts[nic] and _is_clear(peers, votes[nic][leaf])
            else:
                expected = min(common - {on for _, on in row}, default=leaf)
                peers = touched[expected]
                is_clear = _is_clear(peers, touched[leaf])
            if leaf != expected and is_clear:
                for host in hosts:
                    yield host, _Wrong(nic, leaf, expected, peers)


def _is_clear(right: int, wrong: int) -> bool:
    return right > 1 if wrong == 1 else right >= _CLEAR * wrong


def _finding(cables: Mapping[str, HostCable], host: str, nic: str, leaf: str, expected: str, peers: int) -> Finding:
    item = cables[nic] if nic else next(item for item in cables.values() if item.leaf.device == leaf)
    at = leaf if item.leaf.port is None else f"{leaf}:{item.leaf.port}"
    like = f"as on {peers} nodes that share its other leaves"
    return Finding(
        FindingKind.MISCABLING,
        host,
        item.nic,
        f"leaf {expected}, {like}",
        f"{host} {item.nic}: is on {at}, expected {expected}, {like}",
        item.cable.where,
    )


def _torn(cables: Mapping[str, HostCable], host: str, one: _Unit, other: _Unit) -> Finding:
    """Half of its leaves are one unit's and half another's: which of its NICs are wrong cannot be told."""
    items = sorted(cables.values(), key=lambda item: item.nic)
    places = " or ".join(sorted(listed(sorted(unit.leaves)) for unit in (one, other)))
    ends = listed([f"{item.nic} on {item.leaf.device}" for item in items])
    text = f"{host}: its NICs are on leaves of two units ({ends}), expected all on {places}"
    return Finding(FindingKind.MISCABLING, host, None, f"all NICs on {places}", text, items[0].cable.where)
