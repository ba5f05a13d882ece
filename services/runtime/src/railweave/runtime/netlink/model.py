"""What is in a network namespace, and what can be done there, as values.

`Link`, `Route` and `Rule` are what is read; the actions are what is asked. A `Kernel` carries actions out: the real
one is `railweave.runtime.netlink.linux.LinuxKernel`; the node agent has one in memory. Devices are referred to by their
index in the namespace, or by name where an action makes or finds them in the same breath.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, Protocol, Self

__all__ = [
    "GUARD_METRIC",
    "RAILWEAVE_PROTOCOL",
    "Action",
    "AddAddress",
    "AddRoute",
    "AddRule",
    "Address",
    "Counters",
    "CreateBridge",
    "CreateVeth",
    "DeleteAddress",
    "DeleteLink",
    "DeleteRoute",
    "DeleteRule",
    "Kernel",
    "Link",
    "Namespace",
    "NetnsRef",
    "Route",
    "Rule",
    "SetLink",
    "SetSysctl",
    "canonical_network",
    "family_of",
]

RAILWEAVE_PROTOCOL = 82
"""The routing protocol number that our routes and rules carry, so that they can be told from others'."""

GUARD_METRIC = 4278198272
"""The metric of the `unreachable` guard: worse than any route that could answer."""


@lru_cache(maxsize=65536)
def canonical_network(text: str, family: int = 4) -> str:
    """A destination in one spelling: "default" becomes the family's zero prefix, host bits are an error.

    Raises:
        ValueError: not a network.
    """
    if text == "default":
        return "0.0.0.0/0" if family == 4 else "::/0"
    return str(ipaddress.ip_network(text))


def family_of(text: str) -> Literal[4, 6]:
    """4 or 6, by the look of an address, network or interface address."""
    return 6 if ":" in text else 4


@dataclass(frozen=True, slots=True)
class NetnsRef:
    """Which network namespace: where it was found, and its identity. The path alone is never enough: it may by now
    lead to another one (kubernetes#100648). Nor is the inode: the kernel gives the next namespace that of the last one
    that died. The cookie it gives once until it boots."""

    path: str
    dev: int
    inode: int
    cookie: int = 0
    """0: not known (before Linux 5.14, or not asked for)."""

    def is_same(self, other: NetnsRef) -> bool:
        """Whether both are one namespace, however they were found."""
        if self.cookie and other.cookie and self.cookie != other.cookie:
            return False
        return (self.dev, self.inode) == (other.dev, other.inode)


@dataclass(frozen=True, slots=True)
class Counters:
    """Packets and bytes through a link since it was made."""

    rx_packets: int = 0
    tx_packets: int = 0
    rx_bytes: int = 0
    tx_bytes: int = 0
    rx_dropped: int = 0
    tx_dropped: int = 0


@dataclass(frozen=True, slots=True)
class Link:
    """A network device as the kernel shows it. `ipv4` holds its IPv4 settings by sysctl name."""

    index: int
    name: str
    kind: str
    mac: str
    mtu: int
    up: bool
    carrier: bool
    master: int = 0
    alias: str = ""
    parent_device: str = ""
    peer_index: int = 0
    ipv4: Mapping[str, int] = field(default_factory=dict)
    counters: Counters | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """An interface address ("10.64.0.18/26") on the device of that index."""

    index: int
    cidr: str


@dataclass(frozen=True, slots=True)
class Route:
    """A route. `to` is a canonical network; `device` an index or 0; `metric` 0 is the family's default."""

    to: str
    table: int
    via: str | None = None
    device: int = 0
    metric: int = 0
    kind: Literal["unicast", "unreachable"] = "unicast"
    protocol: int = RAILWEAVE_PROTOCOL

    def key(self) -> tuple[str, int, str | None, int, int, str]:
        """What makes two routes the same to a packet. An unreachable route's device says nothing (IPv6 shows lo)."""
        metric = self.metric or (1024 if family_of(self.to) == 6 else 0)
        return (self.to, self.table, self.via, 0 if self.kind == "unreachable" else self.device, metric, self.kind)


@dataclass(frozen=True, slots=True)
class Rule:
    """`from SOURCE lookup TABLE` with a priority, always said: without one the kernel takes duplicates for ever."""

    priority: int
    source: str
    table: int
    protocol: int = RAILWEAVE_PROTOCOL

    def key(self) -> tuple[int, str, int]:
        """What makes two rules the same to a packet."""
        return (self.priority, self.source, self.table)


@dataclass(frozen=True, slots=True)
class CreateVeth:
    """A pair: `name` here, `peer` in `peer_netns` (here when None)."""

    name: str
    peer: str
    peer_netns: NetnsRef | None = None
    mac: str | None = None
    mtu: int | None = None


@dataclass(frozen=True, slots=True)
class CreateBridge:
    """A plain bridge, without spanning tree."""

    name: str
    mac: str | None = None


@dataclass(frozen=True, slots=True)
class SetLink:
    """Changes of one device; what is None is left as it is. `master` 0 takes it off its bridge. `netns` moves it, and
    must be asked alone: a move and a rename in one request are not atomic, the name may be refused and the device gone.
    """

    device: int | str
    up: bool | None = None
    mac: str | None = None
    mtu: int | None = None
    name: str | None = None
    master: int | None = None
    alias: str | None = None
    netns: NetnsRef | None = None
    ipv4: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class DeleteLink:
    """Removes a device (of a veth pair: both ends)."""

    device: int | str


@dataclass(frozen=True, slots=True)
class AddAddress:
    """Adds an address; IPv6 ones without duplicate detection, since ours are claims and exclusive already."""

    address: Address


@dataclass(frozen=True, slots=True)
class DeleteAddress:
    """Removes an address."""

    address: Address


@dataclass(frozen=True, slots=True)
class AddRoute:
    """Adds a route, never in place of another."""

    route: Route


@dataclass(frozen=True, slots=True)
class DeleteRoute:
    """Removes that very route."""

    route: Route


@dataclass(frozen=True, slots=True)
class AddRule:
    """Adds a rule, once."""

    rule: Rule


@dataclass(frozen=True, slots=True)
class DeleteRule:
    """Removes that very rule."""

    rule: Rule


@dataclass(frozen=True, slots=True)
class SetSysctl:
    """Writes a setting below /proc/sys/net inside the namespace: key ("ipv4/ip_forward") and value."""

    key: str
    value: str


Action = (
    CreateVeth
    | CreateBridge
    | SetLink
    | DeleteLink
    | AddAddress
    | DeleteAddress
    | AddRoute
    | DeleteRoute
    | AddRule
    | DeleteRule
    | SetSysctl
)


class Namespace(Protocol):
    """An open network namespace. Keep it open no longer than the work takes: an open one keeps the namespace, and
    every device in it, alive after its owner is gone (sriov-cni#349)."""

    @property
    def ref(self) -> NetnsRef:
        """Which one it is."""
        ...

    def links(self, *, counters: bool = False) -> list[Link]:
        """All devices."""
        ...

    def links_named(self, names: Iterable[str]) -> dict[str, Link]:
        """Those of the names that exist."""
        ...

    def addresses(self) -> list[Address]:
        """All addresses but link-local IPv6 ones."""
        ...

    def routes(self) -> list[Route]:
        """Unicast and unreachable routes of all tables but `local`."""
        ...

    def rules(self) -> list[Rule]:
        """The rules that match on a source alone (so: not the kernel's own three)."""
        ...

    def sysctl(self, key: str) -> str:
        """A setting below /proc/sys/net, or KernelError."""
        ...

    def execute(self, actions: Sequence[Action]) -> list[Exception | None]:
        """Carries out all actions, in order, in as few sends as can be. Says for each None or its KernelError; one that
        fails does not stop those behind it."""
        ...

    def close(self) -> None:
        """Lets go of the namespace."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


class Kernel(Protocol):
    """Where namespaces are made and opened. Calls block (`blocking` says whether noticeably): not for an event loop."""

    @property
    def blocking(self) -> bool:
        """Whether calls can take long enough to be kept out of an event loop."""
        ...

    def create_netns(self, name: str) -> NetnsRef:
        """Makes a named namespace with loopback up, or finds the one that has the name."""
        ...

    def delete_netns(self, name: str) -> bool:
        """Removes the name; True if there was one."""
        ...

    def netns_names(self) -> list[str]:
        """Named namespaces, sorted."""
        ...

    def find(self, where: str | NetnsRef) -> NetnsRef:
        """The identity of what a path leads to; of a reference, where that namespace is now (it may have lost its
        path and live in a process). Raises NetnsGone."""
        ...

    def open(self, where: str | NetnsRef) -> Namespace:
        """Opens it. Raises NetnsGone where there is none, or, for a reference, another one."""
        ...
