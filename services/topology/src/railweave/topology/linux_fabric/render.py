"""From a wanted fabric to the state of every namespace, and the names in it. Pure."""

from __future__ import annotations

import hashlib
import ipaddress
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from railweave.runtime.netlink import (
    NameRefused,
    check_netns_name,
    distinct_device_names,
    veth_far_name,
    vlan_bridge_name,
)
from railweave.topology.linux_fabric.model import (
    DeviceState,
    FabricLink,
    FabricPlan,
    FabricRefused,
    NetnsState,
    SoftwareLeaf,
    SoftwareSpine,
    SoftwareVlan,
)

__all__ = ["MARK", "SETTINGS", "mesh_links", "netns_name", "netns_names", "port", "render", "routers"]

MARK = "railweave-fabric/"
"""How the alias of everything the driver makes begins; what has no such alias is not touched."""

SETTINGS: Mapping[str, str] = {
    "ipv4/ip_forward": "1",
    "ipv6/conf/all/forwarding": "1",
    # For devices made later. A link-local address that waits for duplicates cannot ask for neighbours for a second.
    "ipv6/conf/default/accept_dad": "0",
    # Loose: two directions of a flow may take two spines; strict would drop one of them. By device, since the stricter
    # of "all" and a device's own counts, and the bridges of segments have to be strict.
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "2",
    "ipv4/conf/all/send_redirects": "0",
    "ipv4/conf/default/send_redirects": "0",
}
"""What makes a namespace a router."""

SWITCHED_ONLY: Mapping[str, str] = {
    # Strict, and no route leads out by it: whatever is sent to the bridge's own MAC is dropped, whoever it claims to
    # be from. Without this a forged MAC would reach the leaf's own router, which is that of all other tenants.
    "ipv4/rp_filter": "1",
    "ipv4/forwarding": "0",
    # Never: a segment's hosts have no business with the leaf's own addresses.
    "ipv4/arp_ignore": "8",
    "ipv6/disable_ipv6": "1",
}
"""What takes a segment's bridge out of the leaf's own IP stack: it switches frames, and its gateway is elsewhere."""

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_UNFIT = re.compile(r"[^A-Za-z0-9._-]")
_NETNS_LIMIT = 64


def netns_name(run: str, name: str) -> str:
    """The namespace of a leaf or spine: run and name where that fits and is plain, else shortened with a digest of the
    name. The same input gives the same name everywhere."""
    whole = f"{run}-{name}"
    if _PLAIN.fullmatch(name) and len(whole) <= _NETNS_LIMIT:
        return check_netns_name(whole)
    digest = hashlib.sha256(name.encode()).hexdigest()[:10]
    room = _NETNS_LIMIT - len(run) - len(digest) - 2
    if room < 1:
        raise NameRefused(f"namespace name {whole!r}", detail="the run's prefix is too long")
    return check_netns_name(f"{run}-{_UNFIT.sub('', name)[:room]}_{digest}")


def routers(plan: FabricPlan) -> list[tuple[int | None, FabricPlan]]:
    """The fabric of each routing domain: that of all VLANs without a segment, and one of each segment.

    A segment's has the same leaves, spines and links under names of its own, as far as they carry it. Link addresses
    are the same in each: they never meet.
    """
    found: list[tuple[int | None, FabricPlan]] = []
    segments = {vlan.segment for leaf in plan.leaves for vlan in leaf.vlans if vlan.segment is not None}
    for segment in (None, *sorted(segments)):
        leaves = tuple(
            SoftwareLeaf(_of(leaf.name, segment), vlans)
            for leaf in plan.leaves
            if (vlans := tuple(vlan for vlan in leaf.vlans if vlan.segment == segment)) or segment is None
        )
        names = {leaf.name for leaf in leaves}
        links = tuple(
            replace(link, leaf=_of(link.leaf, segment), spine=_of(link.spine, segment))
            for link in plan.links
            if segment is None or _of(link.leaf, segment) in names
        )
        spines = tuple(SoftwareSpine(_of(spine.name, segment)) for spine in plan.spines)
        found.append((segment, FabricPlan(plan.run, leaves, spines, links)))
    return found


def _of(name: str, segment: int | None) -> str:
    return name if segment is None else f"{name}.s{segment}"


def netns_names(plan: FabricPlan) -> dict[str, str]:
    """The namespace of every leaf and spine, and of every segment on them.

    Raises:
        FabricRefused: two of them have one name.
    """
    taken: dict[str, str] = {}
    members = [
        name
        for _, domain in routers(plan)
        for name in (*(leaf.name for leaf in domain.leaves), *(spine.name for spine in domain.spines))
    ]
    for name in members:
        netns = netns_name(plan.run, name)
        if netns in taken:
            raise FabricRefused(f"{name!r} and {taken[netns]!r} would share the namespace {netns}")
        taken[netns] = name
    return {name: netns for netns, name in taken.items()}


def port(run: str, leaf: str, port_name: str, vf: int = 0) -> tuple[str, str]:
    """Where VF `vf` of a leaf's port plugs in: the leaf's namespace path, and the interface its far end must be."""
    return f"/run/netns/{netns_name(run, leaf)}", veth_far_name(port_name, vf)


def mesh_links(
    leaves: Sequence[str], spines: Sequence[str], pool: str = "100.64.0.0/16", pool6: str | None = None
) -> tuple[FabricLink, ...]:
    """A cable from every leaf to every spine, numbered out of the pools in the order given: append, and nothing is
    renumbered.

    Raises:
        FabricRefused: the pool is too small.
    """
    stride = 64
    network = ipaddress.ip_network(pool)
    network6 = ipaddress.ip_network(pool6) if pool6 is not None else None
    if len(spines) > stride or (len(leaves) * stride) * 2 > network.num_addresses:
        raise FabricRefused(f"{len(leaves)} leaves x {stride} links do not fit {pool}, or more than {stride} spines")
    links: list[FabricLink] = []
    for (row, leaf), (column, spine) in itertools.product(enumerate(leaves), enumerate(spines)):
        offset = 2 * (row * stride + column)
        link = FabricLink(leaf, spine, f"{network[offset]}/31", f"{network[offset + 1]}/31")
        if network6 is not None:
            ends6 = (f"{network6[offset]}/127", f"{network6[offset + 1]}/127")
            link = replace(link, leaf_address6=ends6[0], spine_address6=ends6[1])
        links.append(link)
    return tuple(links)


def render(plan: FabricPlan) -> dict[str, NetnsState]:
    """The state of every namespace of the fabric, by namespace name.

    Raises:
        FabricRefused: names that collide, links to what is not there, VLANs out of range, overlapping subnets.
    """
    names = netns_names(plan)
    _check(plan)
    found: dict[str, NetnsState] = {}
    for segment, domain in routers(plan):
        found |= _render_domain(segment, domain, names)
    for leaf in plan.leaves:
        state = found[names[leaf.name]]
        joins = {name: device for vlan in leaf.vlans for name, device in _joined(leaf.name, vlan, names)}
        found[names[leaf.name]] = replace(state, devices={**state.devices, **joins})
    return found


def _render_domain(segment: int | None, plan: FabricPlan, names: Mapping[str, str]) -> dict[str, NetnsState]:
    """The namespaces of one routing domain."""
    mtu = max((vlan.mtu for leaf in plan.leaves for vlan in leaf.vlans), default=1500)
    try:
        to_spine = distinct_device_names([spine.name for spine in plan.spines], "-up")
        to_leaf = distinct_device_names([leaf.name for leaf in plan.leaves], "-dn")
    except NameRefused as error:
        raise FabricRefused(str(error)) from error
    devices: dict[str, dict[str, DeviceState]] = {leaf.name: {} for leaf in plan.leaves}
    devices |= {spine.name: {} for spine in plan.spines}
    for leaf in plan.leaves:
        devices[leaf.name] |= _bridges(leaf) if segment is None else _gateways(leaf, segment, names)
    for link in plan.links:
        up, down = to_spine[link.spine], to_leaf[link.leaf]
        leaf_end, spine_end = (names[link.leaf], up), (names[link.spine], down)
        ends = (
            (link.leaf, up, spine_end, (link.leaf_address, link.leaf_address6)),
            (link.spine, down, leaf_end, (link.spine_address, link.spine_address6)),
        )
        for here, device, peer, addresses in ends:
            present = frozenset(address for address in addresses if address is not None)
            devices[here][device] = DeviceState("link", _link_mark(peer), mtu, True, present, peer=peer)
    routes = _routes(plan)
    return {
        names[name]: NetnsState(f"{MARK}{role}/{name}", devices[name], routes[name], SETTINGS)
        for role, members in (("leaf", plan.leaves), ("spine", plan.spines))
        for name in (member.name for member in members)
    }


def _link_mark(peer: tuple[str, str]) -> str:
    return f"{MARK}link/{'/'.join(peer)}"


def _bridges(leaf: SoftwareLeaf) -> dict[str, DeviceState]:
    return {
        vlan_bridge_name(vlan.vlan): DeviceState(
            "bridge",
            f"{MARK}vlan/{vlan.vlan}",
            vlan.mtu,
            True,
            _gateway_addresses(vlan),
            _gateway_mac(leaf.name, vlan.vlan),
        )
        for vlan in leaf.vlans
    }


def _gateways(leaf: SoftwareLeaf, segment: int, names: Mapping[str, str]) -> dict[str, DeviceState]:
    """The ends of a segment's VLANs at its router, which have the gateways' addresses."""
    switch = names[leaf.name.removesuffix(f".s{segment}")]
    return {
        f"gw{vlan.vlan}": DeviceState(
            "link",
            _link_mark(peer),
            vlan.mtu,
            True,
            _gateway_addresses(vlan),
            _gateway_mac(leaf.name, vlan.vlan),
            peer=peer,
        )
        for vlan in leaf.vlans
        for peer in ((switch, f"up{vlan.vlan}"),)
    }


def _joined(leaf: str, vlan: SoftwareVlan, names: Mapping[str, str]) -> Iterator[tuple[str, DeviceState]]:
    """A segment's VLAN at the leaf: the bridge that ports are on, and its uplink to the segment's router."""
    if vlan.segment is None:
        return
    bridge = vlan_bridge_name(vlan.vlan)
    mark = f"{MARK}segment/{vlan.segment}/{vlan.vlan}"
    yield bridge, DeviceState("bridge", mark, vlan.mtu, True, frozenset(), settings=SWITCHED_ONLY)
    peer = (names[_of(leaf, vlan.segment)], f"gw{vlan.vlan}")
    yield f"up{vlan.vlan}", DeviceState("link", _link_mark(peer), vlan.mtu, True, frozenset(), peer=peer, master=bridge)


def _gateway_addresses(vlan: SoftwareVlan) -> frozenset[str]:
    return frozenset(address for address in (vlan.gateway, vlan.gateway6) if address is not None)


def _gateway_mac(leaf: str, vlan: int) -> str:
    """A gateway's MAC stays over restarts, so that no host has to learn it anew."""
    digest = hashlib.sha256(f"{leaf}/{vlan}".encode()).hexdigest()
    return ":".join(["02", "fe", *(digest[place : place + 2] for place in (0, 2, 4, 6))])


def _check(plan: FabricPlan) -> None:
    leaves = {leaf.name for leaf in plan.leaves}
    spines = {spine.name for spine in plan.spines}
    cables = [(link.leaf, link.spine) for link in plan.links]
    for link in plan.links:
        if link.leaf not in leaves or link.spine not in spines:
            raise FabricRefused(f"link {link.leaf} - {link.spine}: there is no such leaf or spine")
    if len(set(cables)) != len(cables):
        raise FabricRefused("a leaf and a spine are linked twice")
    subnets: list[tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, str]] = []
    for leaf in plan.leaves:
        vlans = [vlan.vlan for vlan in leaf.vlans]
        if len(set(vlans)) != len(vlans) or not all(1 <= vlan <= 4094 for vlan in vlans):
            raise FabricRefused(f"leaf {leaf.name}: VLANs must be distinct and in 1 to 4094, not {vlans}")
        for vlan in leaf.vlans:
            gateways = [gateway for gateway in (vlan.gateway, vlan.gateway6) if gateway is not None]
            owner = f"{leaf.name} VLAN {vlan.vlan}"
            subnets.extend((ipaddress.ip_interface(gateway).network, owner) for gateway in gateways)
    subnets.sort(key=lambda entry: (entry[0].version, int(entry[0].network_address), entry[0].prefixlen))
    for (first, one), (second, other) in itertools.pairwise(subnets):
        if first.version == second.version and second.network_address in first:
            raise FabricRefused(f"{first} of {one} and {second} of {other} overlap")


def _routes(plan: FabricPlan) -> dict[str, dict[str, str]]:
    """Every leaf's subnets, by way of a spine that both leaves hang on; which, is spread over the spines by subnet."""
    members = [leaf.name for leaf in plan.leaves] + [spine.name for spine in plan.spines]
    routes: dict[str, dict[str, str]] = {name: {} for name in members}
    cables = {(link.leaf, link.spine): link for link in plan.links}
    spines_of: dict[str, list[str]] = {leaf.name: [] for leaf in plan.leaves}
    for leaf_name, spine in sorted(cables):
        spines_of[leaf_name].append(spine)
    for target in plan.leaves:
        for subnet, is_6 in _subnets(target):
            for spine in spines_of[target.name]:
                gateway = cables[target.name, spine].leaf_address6 if is_6 else cables[target.name, spine].leaf_address
                if gateway is not None:
                    routes[spine][subnet] = gateway.partition("/")[0]
            for leaf in plan.leaves:
                shared = [spine for spine in spines_of[leaf.name] if spine in spines_of[target.name]]
                if leaf is target or not shared:
                    continue
                link = cables[leaf.name, shared[_spread(subnet) % len(shared)]]
                gateway = link.spine_address6 if is_6 else link.spine_address
                if gateway is not None:
                    routes[leaf.name][subnet] = gateway.partition("/")[0]
    return routes


def _subnets(leaf: SoftwareLeaf) -> Iterable[tuple[str, bool]]:
    for vlan in leaf.vlans:
        yield str(ipaddress.ip_interface(vlan.gateway).network), False
        if vlan.gateway6 is not None:
            yield str(ipaddress.ip_interface(vlan.gateway6).network), True


def _spread(subnet: str) -> int:
    return hashlib.sha256(subnet.encode()).digest()[0]
