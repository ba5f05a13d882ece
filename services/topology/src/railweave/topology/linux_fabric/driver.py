"""Makes a software fabric on this machine: observes, plans, applies. Level-triggered: run it again and it mends.

It touches only what it made: namespaces whose loopback carries its mark, and in them devices with a mark and routes
with our protocol number. A namespace that was made and not marked, because its maker was killed in between, is empty
and taken."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from railweave.runtime.netlink import (
    RAILWEAVE_PROTOCOL,
    Action,
    AddAddress,
    Address,
    AddRoute,
    CreateBridge,
    CreateVeth,
    DeleteAddress,
    DeleteLink,
    DeleteRoute,
    Kernel,
    Link,
    Namespace,
    NetnsGone,
    NotThere,
    Route,
    SetLink,
    SetSysctl,
    settle_all,
)
from railweave.topology.linux_fabric.model import DeviceState, FabricPlan, FabricStep, FabricStepKind, NetnsState
from railweave.topology.linux_fabric.planning import kept_in_use, plan, segments_in_use
from railweave.topology.linux_fabric.render import MARK, SETTINGS, SWITCHED_ONLY

__all__ = ["FabricOutcome", "LinuxFabric"]

_MAIN = 254
_PATH = "/run/netns/"


@dataclass(frozen=True, slots=True)
class FabricOutcome:
    """What a run did: the steps applied, and what stays although unwanted, since ports are plugged in."""

    steps: tuple[FabricStep, ...]
    kept: tuple[str, ...]
    segments_in_use: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By leaf the segments that a port is a member of."""


class LinuxFabric:
    """The driver of one run's fabric. Not for two tasks at once."""

    def __init__(self, kernel: Kernel, run: str) -> None:
        self._kernel = kernel
        self._run = run

    async def sync(self, desired: FabricPlan) -> FabricOutcome:
        """Makes the fabric what is wanted.

        Raises:
            FabricRefused: nothing was changed; a name is in the way or the plan is wrong.
            KernelError: the kernel refused a step; run it again when the cause is gone.
        """
        return await asyncio.to_thread(self.sync_blocking, desired)

    async def remove(self) -> list[str]:
        """Takes the whole fabric of this run away, plugged in or not. Gives the namespaces that went."""
        return await asyncio.to_thread(self.remove_blocking)

    def sync_blocking(self, desired: FabricPlan) -> FabricOutcome:
        """`sync`, for those without an event loop."""
        if desired.run != self._run:
            raise ValueError(f"a plan of run {desired.run!r} given to the driver of {self._run!r}")
        observed = self.observe()
        steps = plan(desired, observed)
        self.apply(steps)
        return FabricOutcome(tuple(steps), tuple(kept_in_use(desired, observed)), segments_in_use(observed))

    def remove_blocking(self) -> list[str]:
        """`remove`, for those without an event loop."""
        ours = [name for name, state in self.observe().items() if state is not None and state.mark]
        return [name for name in ours if self._kernel.delete_netns(name)]

    def observe(self) -> dict[str, NetnsState | None]:
        """All namespaces of this run by name; None for those that are not the fabric's."""
        found: dict[str, NetnsState | None] = {}
        for name in self._kernel.netns_names():
            if name.startswith(f"{self._run}-"):
                with contextlib.suppress(NetnsGone), self._kernel.open(_PATH + name) as inside:
                    found[name] = _state_of(inside)
        return found

    def apply(self, steps: Sequence[FabricStep]) -> None:
        """Applies planned steps, those of one kind and namespace together.

        Raises:
            KernelError: the first refusal; steps of later kinds were not tried.
        """
        with contextlib.ExitStack() as stack:
            opened: dict[str, Namespace] = {}

            def namespace(name: str) -> Namespace:
                if name not in opened:
                    opened[name] = stack.enter_context(self._kernel.open(_PATH + name))
                return opened[name]

            for kind in FabricStepKind:
                of_kind: dict[str, list[FabricStep]] = defaultdict(list)
                for step in steps:
                    if step.kind is kind:
                        of_kind[step.netns].append(step)
                for name, group in of_kind.items():
                    if kind is FabricStepKind.DROP_NETNS:
                        self._kernel.delete_netns(name)
                    elif kind is FabricStepKind.NETNS:
                        self._kernel.create_netns(name)
                        settle_all(namespace(name), [SetLink("lo", alias=group[0].value)])
                    else:
                        _apply_group(namespace(name), group, namespace)


def _apply_group(inside: Namespace, group: Sequence[FabricStep], namespace: Callable[[str], Namespace]) -> None:
    """Steps of one kind in one namespace."""
    devices: dict[str, Link] = {}
    if group[0].kind in {FabricStepKind.ADDRESS, FabricStepKind.DROP_ADDRESS}:
        devices = inside.links_named({step.device for step in group})
    elif group[0].kind is FabricStepKind.MASTER:
        devices = inside.links_named({step.value for step in group})
    settle_all(inside, [_action(step, devices, namespace) for step in group])


def _action(step: FabricStep, devices: Mapping[str, Link], namespace: Callable[[str], Namespace]) -> Action:  # noqa: PLR0911
    match step.kind:
        case FabricStepKind.SETTING | FabricStepKind.DEVICE_SETTING:
            return SetSysctl(step.device, step.value)
        case FabricStepKind.BRIDGE:
            return CreateBridge(step.device, mac=step.value or None)
        case FabricStepKind.LINK if step.peer is not None:
            return CreateVeth(step.device, step.peer[1], namespace(step.peer[0]).ref)
        case FabricStepKind.MARK:
            return SetLink(step.device, alias=step.value)
        case FabricStepKind.MTU:
            return SetLink(step.device, mtu=int(step.value))
        case FabricStepKind.MAC:
            return SetLink(step.device, mac=step.value)
        case FabricStepKind.MASTER:
            if step.value not in devices:
                raise NotThere(step.describe(), detail="the bridge is gone")
            return SetLink(step.device, master=devices[step.value].index)
        case FabricStepKind.UP:
            return SetLink(step.device, up=True)
        case FabricStepKind.DROP_DEVICE:
            return DeleteLink(step.device)
        case FabricStepKind.ADDRESS | FabricStepKind.DROP_ADDRESS:
            if step.device not in devices:
                raise NotThere(step.describe(), detail="the device is gone")
            address = Address(devices[step.device].index, step.value)
            return AddAddress(address) if step.kind is FabricStepKind.ADDRESS else DeleteAddress(address)
        case FabricStepKind.ROUTE | FabricStepKind.DROP_ROUTE:
            to, _, via = step.value.partition(" via ")
            route = Route(to, _MAIN, via)
            return AddRoute(route) if step.kind is FabricStepKind.ROUTE else DeleteRoute(route)
        case _:
            raise ValueError(f"not an action: {step.describe()}")


def _settings_of(inside: Namespace, link: Link) -> dict[str, str]:
    found: dict[str, str] = {}
    for key in SWITCHED_ONLY:
        family, _, setting = key.partition("/")
        # A device may go between the list and this: it is made anew at the next look.
        with contextlib.suppress(NotThere):
            found[key] = inside.sysctl(f"{family}/conf/{link.name}/{setting}")
    return found


def _state_of(inside: Namespace) -> NetnsState | None:
    links = inside.links()
    mark = next((link.alias for link in links if link.name == "lo"), "")
    if not mark.startswith(MARK):
        # Made and not yet marked when its maker was killed: taken as ours as long as nothing is in it.
        return None if mark or len(links) > 1 else NetnsState("", {}, {}, {})
    addresses: dict[int, set[str]] = defaultdict(set)
    for address in inside.addresses():
        addresses[address.index].add(address.cidr)
    names = {link.index: link.name for link in links}
    devices: dict[str, DeviceState] = {}
    foreign: set[str] = set()
    for link in links:
        if link.name == "lo":
            continue
        if not link.alias.startswith(MARK) and (link.alias or link.kind not in {"bridge", "veth"}):
            foreign.add(link.name)
            continue
        devices[link.name] = DeviceState(
            kind="bridge" if link.kind == "bridge" else "link",
            mark=link.alias,
            mtu=link.mtu,
            up=link.up,
            addresses=frozenset(addresses[link.index]),
            mac=link.mac,
            ports=sum(1 for port in links if port.master == link.index and not port.alias.startswith(MARK)),
            master=names.get(link.master),
            settings=_settings_of(inside, link) if link.alias.startswith(f"{MARK}segment/") else {},
        )
    routes = {
        route.to: route.via
        for route in inside.routes()
        if route.protocol == RAILWEAVE_PROTOCOL and route.table == _MAIN and route.via is not None
    }
    settings = {key: inside.sysctl(key) for key in SETTINGS}
    return NetnsState(mark, devices, routes, settings, frozenset(foreign))
