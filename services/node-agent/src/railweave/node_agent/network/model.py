"""What the network half wants, sees and does, as values. No kernel in here.

`VfWant` is one interface of a placement; `Observed` is what is; a `Step` is one change with what was before and what
shall be after: enough to apply it, to undo it, and to write it into the journal beforehand."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Literal, Self

from railweave.contracts.placement import Interface
from railweave.runtime.netlink import NetnsRef, Route, Rule, vf_name

__all__ = ["Observed", "Phase", "Step", "StepKind", "VfState", "VfWant", "WorkerState"]


@dataclass(frozen=True, slots=True)
class VfWant:
    """One VF as a placement wants it: PF-side settings, and its life inside the worker's namespace.

    `addresses`, `gateways` and `rules` go together by position.
    """

    name: str
    rail: int
    vf: int
    mac: str
    mtu: int
    vlan: int
    addresses: tuple[str, ...]
    gateways: tuple[str, ...]
    rules: tuple[Rule, ...]
    max_tx_mbps: int | None = None

    @property
    def key(self) -> str:
        """What the VF goes by inside the agent, and its host name in the veth driver: `r<rail>v<vf>`."""
        return vf_name(self.rail, self.vf)

    @classmethod
    def of(cls, interface: Interface) -> Self:
        """From a placement's interface."""
        return cls(
            name=str(interface.name),
            rail=int(interface.rail),
            vf=int(interface.vf),
            mac=str(interface.mac),
            mtu=interface.mtu,
            vlan=int(interface.vlan),
            # In one spelling, the kernel's: fd00:0::1 for fd00::1 would be drift for ever.
            addresses=tuple(str(ipaddress.ip_interface(address)) for address in interface.addresses),
            gateways=tuple(str(ipaddress.ip_address(gateway)) for gateway in interface.gateways),
            rules=tuple(
                Rule(rule.priority, str(ipaddress.ip_interface(rule.source)), rule.table) for rule in interface.rules
            ),
            max_tx_mbps=interface.max_tx_mbps,
        )


class Phase(StrEnum):
    """Whether a step belongs to prepare (PF side, before the worker exists) or attach (inside its namespace)."""

    PREPARE = "prepare"
    ATTACH = "attach"


class StepKind(StrEnum):
    """The kinds of change, each one kernel action (`create`: the pair and its marks)."""

    CREATE = "create"
    MAC = "mac"
    MTU = "mtu"
    PORT_MTU = "port_mtu"
    VLAN = "vlan"
    MOVE = "move"
    RENAME = "rename"
    SETTINGS = "settings"
    ADDRESS = "address"
    UP = "up"
    ROUTE = "route"
    RULE = "rule"


def route_to_json(route: Route) -> dict[str, Any]:
    """A route without its device: that is the step's VF, whatever its index is by then."""
    return {"to": route.to, "table": route.table, "via": route.via, "metric": route.metric, "kind": route.kind}


def route_from_json(value: Mapping[str, Any], device: int) -> Route:
    """The route on the device of that index."""
    unreachable = value["kind"] == "unreachable"
    return Route(
        value["to"], value["table"], value["via"], 0 if unreachable else device, value["metric"], value["kind"]
    )


def rule_to_json(rule: Rule) -> dict[str, Any]:
    """A rule as JSON."""
    return {"priority": rule.priority, "from": rule.source, "table": rule.table}


def rule_from_json(value: Mapping[str, Any]) -> Rule:
    """A rule from JSON."""
    return Rule(value["priority"], value["from"], value["table"])


@dataclass(frozen=True, slots=True)
class Step:
    """One change of one VF: one kernel step, and its one undo.

    `netns` is the worker's namespace for what happens inside it (for MOVE: where to), None for the node's side.
    `before` and `after` are plain JSON; what was not there before has an empty `before`."""

    phase: Phase
    kind: StepKind
    vf: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    netns: NetnsRef | None = None

    def describe(self) -> str:
        """In words: what is done to which VF, and what it was before."""
        place = f" in {self.netns.path}" if self.netns is not None else ""
        return f"{self.kind} of {self.vf}{place}: {_words(self.before)} -> {_words(self.after)}"

    def to_json(self) -> dict[str, Any]:
        """For the journal."""
        netns = None
        if self.netns is not None:
            netns = asdict(self.netns)
        return {
            "phase": str(self.phase),
            "kind": str(self.kind),
            "vf": self.vf,
            "before": dict(self.before),
            "after": dict(self.after),
            "netns": netns,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """From the journal.

        Raises:
            KeyError, ValueError, TypeError: it is no step.
        """
        netns = None if value["netns"] is None else NetnsRef(**value["netns"])
        return cls(Phase(value["phase"]), StepKind(value["kind"]), value["vf"], value["before"], value["after"], netns)


def _words(value: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {inner}" for key, inner in value.items()) if value else "nothing"


@dataclass(frozen=True, slots=True)
class VfState:
    """A VF as it is. `where`: on the node, in the worker's namespace asked about, out in one that is not known (its far
    end is there, it is not), or missing. `vlan` None: on no VLAN."""

    key: str
    where: Literal["node", "worker", "out", "missing"]
    name: str = ""
    index: int = 0
    mac: str = ""
    mtu: int = 0
    up: bool = False
    carrier: bool = False
    settings: Mapping[str, int] = field(default_factory=dict)
    vlan: int | None = None
    port_mtu: int = 0
    port_up: bool = False


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The worker's namespace as it is: names taken, and what our VFs have there, by VF key."""

    ref: NetnsRef
    names: Mapping[str, str]
    """Interface name to VF key, "" for a device that is not ours."""
    addresses: Mapping[str, frozenset[str]]
    routes: tuple[Route, ...]
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Observed:
    """All that planning needs to know. `worker` is None when none was asked about or it is gone (`worker_gone`)."""

    vfs: Mapping[str, VfState]
    vlan_mtus: Mapping[tuple[int, int], int]
    """(rail, VLAN) of the VLANs that the rail's leaf carries, to the VLAN's MTU."""
    node_names: frozenset[str]
    worker: WorkerState | None = None
    worker_gone: bool = False
