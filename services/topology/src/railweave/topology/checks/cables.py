"""Cables one by one: ends that are missing, disagree, are taken, or are where no cable belongs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from railweave.topology.cabling import Cable, End, Kind
from railweave.topology.checks.finding import Finding, FindingKind
from railweave.topology.checks.wiring import HostCable, Wiring, listed, named
from railweave.topology.inferring import MOST_RAILS
from railweave.topology.model import Role


def unknown_devices(wiring: Wiring) -> Iterator[Finding]:
    """Cables to devices that are not there."""
    for cable in wiring.loose:
        for end, other in ((cable.a, cable.b), (cable.b, cable.a)):
            if end.device not in wiring.devices:
                text = f"{named(other)}: its cable leads to {named(end)}, and there is no {end.device}"
                expected = f"a device named {end.device}"
                yield Finding(FindingKind.UNKNOWN_DEVICE, other.device, other.port, expected, text, cable.where)


def cables_to_themselves(wiring: Wiring) -> Iterator[Finding]:
    """Cables with both ends on one device."""
    for cable in wiring.links:
        if cable.a.device == cable.b.device:
            text = f"{named(cable.a)}: its cable leads back to {named(cable.b)}"
            yield Finding(FindingKind.LOOP, cable.a.device, cable.a.port, "another device", text, cable.where)


def half_links(wiring: Wiring) -> Iterator[Finding]:
    """Links that one end tells of, and the other, which was asked, does not. Named after the end that is silent."""
    if not wiring.halves:
        return
    by_port: dict[End, list[Cable]] = defaultdict(list)
    for cable in (*wiring.links, *wiring.halves):
        by_port[cable.a].append(cable)
        by_port[cable.b].append(cable)
    for cable in wiring.halves:
        silent, other = (cable.a, cable.b) if cable.a.device not in cable.told_by else (cable.b, cable.a)
        instead = [named(_far(one, silent)) for one in by_port[silent] if one is not cable] if silent.port else []
        tells = f"tells of {listed(sorted(instead))} there" if instead else "tells of nothing there"
        text = f"{named(silent)}: {named(other)} tells of a link to it, and it {tells}"
        yield Finding(FindingKind.HALF_LINK, silent.device, silent.port, f"a link to {named(other)}", text, cable.where)


def ports_used_twice(wiring: Wiring) -> Iterator[Finding]:
    """Ports with two cables, and rails of a node with two NICs."""
    first: dict[End, Cable] = {}
    again: dict[End, list[Cable]] = {}
    for cable in wiring.links:
        for end in (cable.a, cable.b):
            if end.port is not None and first.setdefault(end, cable) is not cable:
                again.setdefault(end, [first[end]]).append(cable)
    for end, cables in again.items():
        yield _used_twice(end.device, end.port or "", named(end), [(_far(cable, end), cable) for cable in cables])
    rails: dict[tuple[str, Role, int], list[HostCable]] = {}
    for item in wiring.host_cables:
        if item.cable.rail is not None:
            rails.setdefault((item.host.device, item.cable.role, item.cable.rail), []).append(item)
    for (host, role, rail), items in rails.items():
        if len(items) > 1 and items[-1].host not in again:
            what = f"{host} {role} rail {rail}"
            yield _used_twice(host, f"rail {rail}", what, [(item.leaf, item.cable) for item in items])


def _used_twice(device: str, port: str, what: str, cables: list[tuple[End, Cable]]) -> Finding:
    ends = listed(sorted(named(other) for other, _ in cables))
    text = f"{what}: used {len(cables)} times, by cables to {ends}"
    return Finding(FindingKind.PORT_USED_TWICE, device, port, "one cable", text, cables[-1][1].where)


def rails_impossible(wiring: Wiring) -> Iterator[Finding]:
    """Rails out of bounds, and cables without one at hosts whose other cables have one."""
    untold: dict[tuple[str, Role], list[HostCable]] = defaultdict(list)
    told: set[tuple[str, Role]] = set()
    expected = f"a rail from 0 to {MOST_RAILS - 1}"
    for item in wiring.host_cables:
        host, _, cable = item
        if cable.rail is None:
            untold[host.device, cable.role].append(item)
            continue
        told.add((host.device, cable.role))
        if not 0 <= cable.rail < MOST_RAILS:
            text = f"{host.device} {item.nic}: expected {expected}, found {cable.rail}"
            yield Finding(FindingKind.BAD_RAIL, host.device, item.nic, expected, text, cable.where)
    for (name, role), items in untold.items():
        if (name, role) in told:
            for host, leaf, cable in items:
                text = f"{named(host)}: its cable to {named(leaf)} has no rail, and others of the host have"
                yield Finding(FindingKind.BAD_RAIL, name, host.port, expected, text, cable.where)
        elif len(items) > MOST_RAILS:
            text = f"{name}: expected at most {MOST_RAILS} {role} NICs, found {len(items)}"
            where = wiring.devices[name].where
            yield Finding(FindingKind.BAD_RAIL, name, None, f"at most {MOST_RAILS} NICs", text, where)


def hosts_cabled_together(wiring: Wiring) -> Iterator[Finding]:
    """Cables from host to host, which are left out."""
    for cable in wiring.links:
        if cable.a.device != cable.b.device and wiring.is_host(cable.a.device) and wiring.is_host(cable.b.device):
            text = f"{named(cable.a)}: its cable leads to host {named(cable.b)}, not to a leaf"
            kind = FindingKind.HOST_TO_HOST
            yield Finding(kind, cable.a.device, cable.a.port, "a leaf", text, cable.where, is_error=False)


def hosts_on_spines(wiring: Wiring) -> Iterator[Finding]:
    """Hosts on switches above the leaves, which are left out. For management that is common."""
    for item in wiring.host_cables:
        tier = wiring.tiers.get(item.leaf.device, 1)
        if tier > 1:
            text = f"{named(item.host)}: hangs on {named(item.leaf)}, a switch of tier {tier}, not on a leaf"
            yield Finding(
                FindingKind.HOST_ON_SPINE,
                item.host.device,
                item.host.port,
                "a leaf",
                text,
                item.cable.where,
                is_error=item.cable.role is not Role.MANAGEMENT,
            )


def devices_without_links(wiring: Wiring) -> Iterator[Finding]:
    """Nodes and switches that nothing leads to. A switch may be a spare."""
    linked = {end.device for cable in wiring.links for end in (cable.a, cable.b)}
    halves = {end.device for cable in wiring.halves for end in (cable.a, cable.b)}
    for device in wiring.devices.values():
        if device.name not in linked:
            is_host = device.kind is Kind.HOST
            why = "no link that both ends tell of" if device.name in halves else "no link"
            yield Finding(
                FindingKind.NO_LINKS,
                device.name,
                None,
                "a link to a leaf" if is_host else "a link",
                f"{'node' if is_host else 'switch'} {device.name}: {why}",
                device.where,
                is_error=is_host,
            )


def _far(cable: Cable, end: End) -> End:
    return cable.b if cable.a == end else cable.a
