"""From cabling to the canonical graph: what formats leave out is inferred here, once for all of them. Pure.

Tiers: a switch with compute hosts is a leaf; any other stands one above the nearest switch below it. Rails: the NICs of
a host in the natural order of their names; a host that lacks some of the NICs of its peers keeps the rails of the rest.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from railweave.contracts.types import LeafName, NodeName, Rail
from railweave.topology.cabling import Cable, Cabling, Device, End, Kind, Where
from railweave.topology.collecting import collector_paused
from railweave.topology.model import Graph, GraphError, Leaf, Link, LinkEnd, Node, NodePort, Role, Spine
from railweave.topology.yaml_tree import FileError

MOST_RAILS: Final = 256
_MOST_NAMED: Final = 8
_DIGITS: Final = re.compile(r"(\d+)")


def graph_of(cabling: Cabling) -> tuple[Graph, tuple[str, ...]]:
    """Infer the graph.

    Returns:
        The graph, and what was left out or guessed, a line each.

    Raises:
        FileError: names that cannot be or are written twice, a port used twice, a cable with both ends on one device.
    """
    with collector_paused():
        return _Inference(cabling).graph()


@lru_cache(maxsize=65_536)
def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """The key that sorts `eth10` behind `eth9`."""
    return tuple(
        # Python refuses to make a number of thousands of digits, and no port has such a name.
        (0, int(part), part) if part.isdecimal() and part.isascii() and len(part) < 20 else (1, 0, part)
        for part in _DIGITS.split(name)
        if part
    )


def tiers_of(cabling: Cabling) -> dict[str, int]:
    """How high each switch stands, a leaf being 1; of a cabling whose cables all end on devices that are there."""
    inference = _Inference(cabling)
    return inference.tiers(*inference.sorted_cables())


class _Inference:
    def __init__(self, cabling: Cabling) -> None:
        self._cabling = cabling
        self._devices: Mapping[str, Device] = {device.name: device for device in cabling.devices}
        self._notes: list[str] = list(cabling.notes)

    def graph(self) -> tuple[Graph, tuple[str, ...]]:
        self._check_names()
        host_cables, switch_cables = self.sorted_cables()
        tiers = self.tiers(host_cables, switch_cables)
        host_cables = self._without_strays(host_cables, tiers)
        try:
            return self._made(tiers, host_cables, switch_cables), tuple(self._notes)
        except GraphError as error:
            raise self._at(error.thing, error.reason) from None

    def _check_names(self) -> None:
        if self._cabling.repeated:
            again = self._cabling.repeated[0]
            first = self._devices[again.name]
            same = "the name is used twice" if first.kind is again.kind else f"a {first.kind} has the same name"
            thing = f"{'node' if again.kind is Kind.HOST else 'switch'} {again.name}"
            raise FileError(*again.where, thing, f"{same}, first at {first.where}")
        for device in self._cabling.devices:
            try:
                NodeName(device.name) if device.kind is Kind.HOST else LeafName(device.name)
            except ValueError as error:
                raise FileError(*device.where, device.name[:80], str(error)) from None

    def sorted_cables(self) -> tuple[list[tuple[End, End, Cable]], list[Cable]]:
        """Cables of hosts as (host's end, leaf's end, cable), and those between switches; half links are left out."""
        hosts: list[tuple[End, End, Cable]] = []
        switches: list[Cable] = []
        halves: list[str] = []
        between_hosts: list[str] = []
        for cable in self._cabling.cables:
            a, b = self._kind(cable.a, cable.b, cable), self._kind(cable.b, cable.a, cable)
            if self._cabling.is_half(cable):
                halves.append(_name(cable))
            elif a is Kind.SWITCH and b is Kind.SWITCH:
                switches.append(cable)
            elif a is Kind.HOST and b is Kind.HOST:
                between_hosts.append(_name(cable))
            else:
                ends = (cable.a, cable.b) if a is Kind.HOST else (cable.b, cable.a)
                hosts.append((*ends, cable))
        self._say(halves, "half link, left out: only one end tells of")
        self._say(between_hosts, "cable between hosts, left out:")
        return hosts, switches

    def _kind(self, end: End, other: End, cable: Cable) -> Kind:
        device = self._devices.get(end.device)
        if device is None:
            beside = self._devices.get(other.device)
            if beside is not None and beside.kind is Kind.HOST:
                rail = f" rail {cable.rail}" if cable.rail is not None else ""
                raise FileError(*cable.where, f"node {other.device}{rail}", f"there is no leaf {end.device!r}")
            ends = f"{cable.a.device} - {cable.b.device}"
            raise FileError(*cable.where, f"link {ends}", f"there is no switch {end.device!r}")
        return device.kind

    def _say(self, things: Sequence[str], what: str) -> None:
        self._notes += [f"{what} {thing}" for thing in things[:_MOST_NAMED]]
        if len(things) > _MOST_NAMED:
            self._notes.append(f"{what} {len(things) - _MOST_NAMED} more")

    def tiers(self, host_cables: Iterable[tuple[End, End, Cable]], switch_cables: Iterable[Cable]) -> dict[str, int]:
        switches = [device for device in self._cabling.devices if device.kind is Kind.SWITCH]
        tiers = {device.name: device.tier for device in switches if device.tier is not None}
        beside: dict[str, set[str]] = defaultdict(set)
        for cable in switch_cables:
            beside[cable.a.device].add(cable.b.device)
            beside[cable.b.device].add(cable.a.device)
        with_hosts = {leaf.device: False for _, leaf, _ in host_cables}
        for _, leaf, cable in host_cables:
            with_hosts[leaf.device] |= cable.role is not Role.MANAGEMENT
        for name, is_compute in with_hosts.items():
            # A management host alone (a subnet manager on a spine) makes no leaf of a switch with leaves around it.
            if is_compute or not any(with_hosts.get(other) for other in beside[name]):
                tiers.setdefault(name, 1)
        waiting = deque(sorted(tiers, key=lambda name: (tiers[name], name)))
        while waiting:
            name = waiting.popleft()
            for other in sorted(beside[name]):
                if other not in tiers:
                    tiers[other] = tiers[name] + 1
                    waiting.append(other)
        unknown = [device.name for device in switches if device.name not in tiers]
        self._say(unknown, "no host below, taken for a leaf:")
        return tiers | dict.fromkeys(unknown, 1)

    def _without_strays(
        self, host_cables: list[tuple[End, End, Cable]], tiers: Mapping[str, int]
    ) -> list[tuple[End, End, Cable]]:
        """Without hosts on spines: nodes hang on leaves."""
        strays = [_name(cable) for _, leaf, cable in host_cables if tiers[leaf.device] > 1]
        self._say(strays, "host on a switch above the leaves, left out:")
        return [entry for entry in host_cables if tiers[entry[1].device] == 1] if strays else host_cables

    def _made(
        self, tiers: Mapping[str, int], host_cables: list[tuple[End, End, Cable]], switch_cables: list[Cable]
    ) -> Graph:
        ports = self._ports(host_cables)
        devices = self._cabling.devices
        return Graph(
            leaves=tuple(
                Leaf(LeafName(device.name), device.pod)
                for device in devices
                if device.kind is Kind.SWITCH and tiers[device.name] == 1
            ),
            spines=tuple(
                Spine(device.name, tiers[device.name])
                for device in devices
                if device.kind is Kind.SWITCH and tiers[device.name] > 1
            ),
            links=tuple(Link(LinkEnd(*cable.a), LinkEnd(*cable.b)) for cable in switch_cables),
            nodes=tuple(
                Node(NodeName(device.name), tuple(ports.get(device.name, ())))
                for device in devices
                if device.kind is Kind.HOST
            ),
        )

    def _ports(self, host_cables: list[tuple[End, End, Cable]]) -> dict[str, list[NodePort]]:
        of_host: dict[tuple[str, Role], list[tuple[End, End, Cable]]] = defaultdict(list)
        for entry in host_cables:
            of_host[entry[0].device, entry[2].role].append(entry)
        ranks = _ranks(entries for (_, role), entries in of_host.items() if role is Role.COMPUTE)
        found: dict[str, list[NodePort]] = defaultdict(list)
        for (host, role), entries in of_host.items():
            if any(cable.rail is None for _, _, cable in entries):
                entries.sort(key=lambda entry: (natural(entry[0].port or ""), natural(entry[1].device)))
            nics = tuple(entry[0].port or "" for entry in entries)
            rank = ranks.get(frozenset(nics)) if role is Role.COMPUTE and len(set(nics)) == len(nics) else None
            for place, (nic, leaf, cable) in enumerate(entries):
                rail = cable.rail
                if rail is None:
                    rail = place if rank is None else rank[nic.port or ""]
                if not 0 <= rail < MOST_RAILS:
                    reason = f"expected a rail from 0 to {MOST_RAILS - 1}, found {rail}"
                    raise FileError(*cable.where, _name(cable), reason)
                port = leaf.port or f"{host}:{nic.port or rail}"
                found[host].append(NodePort(Rail(rail), LeafName(leaf.device), port, role))
        return found

    def _at(self, thing: str, reason: str) -> FileError:
        """A GraphError with the place of what it is about."""
        return FileError(*_place(thing, self._cabling, self._devices), thing, reason)


def _place(thing: str, cabling: Cabling, devices: Mapping[str, Device]) -> Where:
    """Where a thing is written that a graph names: `node N rail K`, `link A - B`, `port P of S`, `leaf L`."""
    words = thing.split(" ")
    for cable in reversed(cabling.cables):
        ends = {cable.a.device, cable.b.device}
        match words:
            case ["node", name, "rail", rail] if name in ends and cable.rail in {None, int(rail)}:
                return cable.where
            case ["link", a, *rest] if ends == {a, *rest[1:]}:
                return cable.where
            case ["port", port, "of", switch] if End(switch, port) in {cable.a, cable.b}:
                return cable.where
            case _:
                pass
    named = next((devices[word] for word in words if word in devices), cabling.devices[0])
    return named.where


def _ranks(hosts: Iterable[list[tuple[End, End, Cable]]]) -> dict[frozenset[str], dict[str, int]]:
    """The rail of each NIC name, by the set of NIC names of a host.

    Hosts with the most NICs set the numbers of their kind; one whose NICs are some of theirs has a cable out, and its
    NICs keep the numbers they have elsewhere.
    """
    kinds = {frozenset(entry[0].port or "" for entry in entries) for entries in hosts}
    models: list[tuple[frozenset[str], dict[str, int]]] = []
    ranks: dict[frozenset[str], dict[str, int]] = {}
    for names in sorted(kinds, key=lambda names: (-len(names), sorted(names))):
        model = next((rank for whole, rank in models if names <= whole), None)
        if model is None:
            model = {name: place for place, name in enumerate(sorted(names, key=natural))}
            models.append((names, model))
        ranks[names] = model
    return ranks


def _name(cable: Cable) -> str:
    return " - ".join(end.device if end.port is None else f"{end.device}:{end.port}" for end in (cable.a, cable.b))
