"""A software fabric as values: what is wanted (`FabricPlan`), what is (`NetnsState` by name), and the steps between.

A leaf is a network namespace with a bridge per VLAN, which carries the VLAN's gateway addresses; a spine one that
routes between leaves; a link a veth pair with an address at each end. Ports are not in here: they are made by who
plugs in.

A segment is a router of its own on each leaf and spine, a namespace each: its VLANs are bridges of the leaf like all
others, where ports are, but their gateways are in the segment's namespace, at the other end of a veth pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = [
    "DeviceState",
    "FabricLink",
    "FabricPlan",
    "FabricRefused",
    "FabricStep",
    "FabricStepKind",
    "NetnsState",
    "SoftwareLeaf",
    "SoftwareSpine",
    "SoftwareVlan",
]


class FabricRefused(Exception):
    """The wanted fabric cannot be made here, and nothing was changed; says what is in the way."""


@dataclass(frozen=True, slots=True)
class SoftwareVlan:
    """A VLAN of a leaf: gateways as interface addresses ("10.64.0.1/26"), MTU in bytes."""

    vlan: int
    gateway: str
    gateway6: str | None = None
    mtu: int = 9000
    segment: int | None = None
    """None: routed to all other VLANs without one. Otherwise to those of the same segment alone."""


@dataclass(frozen=True, slots=True)
class SoftwareLeaf:
    """A leaf and the VLANs it carries."""

    name: str
    vlans: tuple[SoftwareVlan, ...]


@dataclass(frozen=True, slots=True)
class SoftwareSpine:
    """A spine."""

    name: str


@dataclass(frozen=True, slots=True)
class FabricLink:
    """A cable between a leaf and a spine, with both ends' addresses (/31; IPv6 /127 optional)."""

    leaf: str
    spine: str
    leaf_address: str
    spine_address: str
    leaf_address6: str | None = None
    spine_address6: str | None = None


@dataclass(frozen=True, slots=True)
class FabricPlan:
    """A whole fabric. `run` prefixes all namespaces, so that several runs share a machine."""

    run: str
    leaves: tuple[SoftwareLeaf, ...] = ()
    spines: tuple[SoftwareSpine, ...] = ()
    links: tuple[FabricLink, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A bridge or one end of a link. `mark` is its alias, "" for one that was made and not marked; that of a link names
    the other end, as does `peer` (only in what is wanted). `ports` counts the members of a bridge that are not ours."""

    kind: str
    mark: str
    mtu: int
    up: bool
    addresses: frozenset[str]
    mac: str | None = None
    peer: tuple[str, str] | None = field(default=None, compare=False)
    ports: int = field(default=0, compare=False)
    master: str | None = None
    """The bridge that it is a member of."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Its own: `ipv4/rp_filter` stands for `ipv4/conf/DEVICE/rp_filter`."""


@dataclass(frozen=True, slots=True)
class NetnsState:
    """A leaf or spine. `routes` maps a destination to its gateway, ours in table main alone."""

    mark: str
    devices: Mapping[str, DeviceState]
    routes: Mapping[str, str]
    settings: Mapping[str, str]
    foreign: frozenset[str] = frozenset()
    """Names of devices that are not ours."""


class FabricStepKind(StrEnum):
    """In the order in which they are applied: what goes goes first."""

    DROP_ROUTE = "drop route"
    DROP_ADDRESS = "drop address"
    DROP_DEVICE = "drop device"
    DROP_NETNS = "drop namespace"
    NETNS = "namespace"
    SETTING = "setting"
    BRIDGE = "bridge"
    LINK = "link"
    MARK = "mark"
    DEVICE_SETTING = "device setting"
    MASTER = "master"
    MTU = "mtu"
    MAC = "mac"
    ADDRESS = "address"
    UP = "up"
    ROUTE = "route"


@dataclass(frozen=True, slots=True)
class FabricStep:
    """One change in one namespace: of `device` where there is one, to or of `value`."""

    kind: FabricStepKind
    netns: str
    device: str = ""
    value: str = ""
    peer: tuple[str, str] | None = None

    def describe(self) -> str:
        """In words."""
        to = f" to {self.peer[0]}/{self.peer[1]}" if self.peer is not None else ""
        return " ".join(part for part in (f"{self.netns}:", str(self.kind), self.device, self.value) if part) + to
