"""The state of namespaces and devices in memory, and what happens to it of itself: routes that go with a link, devices
that go with their namespace."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from railweave.runtime.netlink import Address, Link, NetnsRef, Route, Rule, family_of

__all__ = ["KERNEL_PROTOCOL", "Device", "Netns", "RoutePlace", "network_of", "place_of"]

KERNEL_PROTOCOL = 2
_MAIN = 254
_IPV4_DEFAULTS: Mapping[str, int] = {"forwarding": 0, "rp_filter": 0, "arp_announce": 0, "arp_ignore": 0}
_IPV6_DEFAULTS: Mapping[str, int] = {"accept_dad": 1, "accept_ra": 1, "keep_addr_on_down": 0}


RoutePlace = tuple[str, int, int, int]
"""Destination, table and metric, which one route of ours can have; the kernel's own have their device behind it."""


def place_of(route: Route) -> tuple[str, int, int]:
    """What no two routes of ours can share."""
    return (route.to, route.table, route.metric or (1024 if ":" in route.to else 0))


@lru_cache(maxsize=65536)
def network_of(cidr: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """The subnet of an interface address; remembered, since parsing is most of what an action costs here."""
    return ipaddress.ip_interface(cidr).network


@dataclass(eq=False, slots=True)
class Device:
    """A device; `peer` is a veth's other end."""

    index: int
    name: str
    kind: str
    mac: str
    netns: Netns
    mtu: int = 1500
    up: bool = False
    master: int = 0
    alias: str = ""
    peer: Device | None = None
    ipv4: dict[str, int] = field(default_factory=lambda: dict(_IPV4_DEFAULTS))
    ipv6: dict[str, int] = field(default_factory=lambda: dict(_IPV6_DEFAULTS))

    def shown(self) -> Link:
        """As a dump shows it."""
        return Link(
            index=self.index,
            name=self.name,
            kind=self.kind,
            mac=self.mac,
            mtu=self.mtu,
            up=self.up,
            carrier=self.up and (self.peer is None or self.peer.up),
            master=self.master,
            alias=self.alias,
            peer_index=self.peer.index if self.peer is not None else 0,
            ipv4=dict(self.ipv4),
        )


class Netns:
    """State of a namespace."""

    def __init__(self, ref: NetnsRef) -> None:
        self.ref = ref
        self.devices: dict[int, Device] = {}
        self.names: dict[str, Device] = {}
        self.addresses: list[Address] = []
        self.routes: dict[RoutePlace, Route] = {}
        self.rules: list[Rule] = []
        self.settings: dict[str, str] = {}
        self._last_index = 0

    def has_name(self, name: str) -> bool:
        """Whether a device of that name is here."""
        return name in self.names

    def add_loopback(self) -> None:
        """What every namespace starts with."""
        device = self.add("lo", "", "00:00:00:00:00:00")
        device.mtu, device.up = 65536, True

    def add(self, name: str, kind: str, mac: str) -> Device:
        """A new device, down."""
        self._last_index += 1
        device = Device(self._last_index, name, kind, mac, self)
        self.devices[device.index] = self.names[name] = device
        return device

    def rename(self, device: Device, name: str) -> None:
        """Another name, which must be free."""
        del self.names[device.name]
        device.name = name
        self.names[name] = device

    def remove(self, device: Device) -> None:
        """Ends a device, and the other end of its pair."""
        self._take_out(device)
        for other in self.devices.values():
            if other.master == device.index:
                other.master = 0
        if device.peer is not None:
            peer, device.peer = device.peer, None
            peer.peer = None
            peer.netns.remove(peer)

    def _take_out(self, device: Device) -> None:
        self.set_down(device)
        self.addresses = [a for a in self.addresses if a.index != device.index]
        del self.devices[device.index], self.names[device.name]

    def move(self, device: Device, target: Netns) -> None:
        """To another namespace: it arrives down and bare."""
        self._take_out(device)
        device.master = 0
        device.ipv4, device.ipv6 = dict(_IPV4_DEFAULTS), dict(_IPV6_DEFAULTS)
        target._last_index = max(target._last_index, device.index)
        if device.index in target.devices:
            target._last_index += 1
            device.index = target._last_index
        device.netns = target
        target.devices[device.index] = target.names[device.name] = device

    def set_down(self, device: Device) -> None:
        """Down: its routes go, and its IPv6 addresses unless told to stay."""
        device.up = False
        self.drop_routes(lambda route: route.device == device.index and route.kind != "unreachable")
        if not device.ipv6["keep_addr_on_down"]:
            self.addresses = [a for a in self.addresses if a.index != device.index or family_of(a.cidr) == 4]

    def set_up(self, device: Device) -> None:
        """Up: the kernel's own routes come back, nobody else's."""
        if not device.up:
            device.up = True
            for address in self.addresses:
                if address.index == device.index:
                    self.connect(address)

    def connect(self, address: Address) -> None:
        """The kernel's route in `main` to an address' subnet."""
        network = network_of(address.cidr)
        if network.prefixlen < network.max_prefixlen:
            metric = 256 if network.version == 6 else 0
            route = Route(str(network), _MAIN, None, address.index, metric, protocol=KERNEL_PROTOCOL)
            # Two devices in one subnet: the kernel keeps a route for each.
            self.routes[(*place_of(route), address.index)] = route

    def drop_routes(self, is_lost: Callable[[Route], bool]) -> None:
        """Routes that go by themselves."""
        lost = [place for place, route in self.routes.items() if is_lost(route)]
        for place in lost:
            del self.routes[place]
