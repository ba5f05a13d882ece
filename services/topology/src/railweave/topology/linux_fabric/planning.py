"""From what is wanted and what is to the steps between. Pure; where all is so there are none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from railweave.topology.linux_fabric.model import (
    DeviceState,
    FabricPlan,
    FabricRefused,
    FabricStep,
    FabricStepKind,
    NetnsState,
)
from railweave.topology.linux_fabric.render import MARK, render

__all__ = ["kept_in_use", "plan", "segments_in_use"]

Observed = Mapping[str, NetnsState | None]
_ORDER = {kind: place for place, kind in enumerate(FabricStepKind)}


def plan(desired: FabricPlan, observed: Observed) -> list[FabricStep]:
    """The steps that make the observed namespaces (None: one that has the name and is not ours) the wanted fabric.

    What is no longer wanted goes, unless a node's port is still plugged into it (`kept_in_use` lists those).

    Raises:
        FabricRefused: a namespace or device that is not ours has a name that is needed; or `render` refused.
    """
    wanted = render(desired)
    steps: list[FabricStep] = []
    for name, state in wanted.items():
        there = observed.get(name)
        if name in observed and there is None:
            raise FabricRefused(f"the namespace {name} is there and not ours")
        if there is None:
            steps.append(FabricStep(FabricStepKind.NETNS, name, value=state.mark))
            there = NetnsState(state.mark, {}, {}, {})
        elif there.mark != state.mark:
            # Unmarked, or that of another leaf or spine whose name came out the same: NETNS marks it.
            if there.mark:
                raise FabricRefused(f"the namespace {name} is that of {there.mark.removeprefix(MARK)}")
            steps.append(FabricStep(FabricStepKind.NETNS, name, value=state.mark))
        steps += _netns_steps(name, state, there, observed)
    for name, there in observed.items():
        if there is not None and name not in wanted and there.mark and not _ports(there):
            steps.append(FabricStep(FabricStepKind.DROP_NETNS, name))
    return sorted(steps, key=lambda step: _ORDER[step.kind])


def kept_in_use(desired: FabricPlan, observed: Observed) -> list[str]:
    """What is not wanted any more and stays because nodes' ports are plugged in: "NETNS: n ports on DEVICE"."""
    wanted = render(desired)
    kept: list[str] = []
    for name, there in observed.items():
        if there is None:
            continue
        goes = wanted[name].devices if name in wanted else {}
        kept += [
            f"{name}: {device.ports} ports on {device_name}"
            for device_name, device in sorted(there.devices.items())
            if device_name not in goes and device.ports
        ]
    return kept


def segments_in_use(observed: Observed) -> dict[str, tuple[int, ...]]:
    """By leaf the segments that a port is plugged into."""
    found: dict[str, set[int]] = {}
    for there in observed.values():
        leaf = there.mark.removeprefix(f"{MARK}leaf/") if there is not None else ""
        for device in there.devices.values() if there is not None else ():
            _, _, segment = device.mark.partition(f"{MARK}segment/")
            if segment and device.ports:
                found.setdefault(leaf, set()).add(int(segment.partition("/")[0]))
    return {leaf: tuple(sorted(segments)) for leaf, segments in found.items()}


def _ports(state: NetnsState) -> int:
    return sum(device.ports for device in state.devices.values())


def _netns_steps(name: str, state: NetnsState, there: NetnsState, observed: Observed) -> Iterator[FabricStep]:
    clash = state.devices.keys() & there.foreign
    if clash:
        raise FabricRefused(f"{name}: the device {min(clash)} is there and not ours")
    for key, value in state.settings.items():
        if there.settings.get(key) != value:
            yield FabricStep(FabricStepKind.SETTING, name, key, value)
    for device_name, device in there.devices.items():
        if device_name not in state.devices and device.mark and not device.ports:
            yield FabricStep(FabricStepKind.DROP_DEVICE, name, device_name)
    is_disturbed = False
    for device_name, device in state.devices.items():
        found = there.devices.get(device_name)
        if found is not None and found.kind != device.kind and not found.mark:
            raise FabricRefused(f"{name}: the device {device_name} is there and no {device.kind} of ours")
        if found is not None and (found.kind != device.kind or (found.mark and found.mark != device.mark)):
            yield FabricStep(FabricStepKind.DROP_DEVICE, name, device_name)
            found, is_disturbed = None, True
        if found is not None and device.peer is not None and not _is_there(device.peer, observed):
            # The other end's namespace is dying, and takes this end with it in its own time: do not wait for that.
            yield FabricStep(FabricStepKind.DROP_DEVICE, name, device_name)
            found, is_disturbed = None, True
        yield from _device_steps(name, device_name, device, found)
        if device.master is not None and (found is None or found.master != device.master or is_disturbed):
            yield FabricStep(FabricStepKind.MASTER, name, device_name, device.master)
    for to, via in there.routes.items():
        if state.routes.get(to) != via:
            yield FabricStep(FabricStepKind.DROP_ROUTE, name, value=f"{to} via {via}")
    for to, via in state.routes.items():
        # A device that is made anew takes its routes with it, though they were observed; adding twice is no harm.
        if is_disturbed or there.routes.get(to) != via:
            yield FabricStep(FabricStepKind.ROUTE, name, value=f"{to} via {via}")


def _is_there(end: tuple[str, str], observed: Observed) -> bool:
    state = observed.get(end[0])
    return state is not None and end[1] in state.devices


def _device_steps(netns: str, name: str, device: DeviceState, found: DeviceState | None) -> Iterator[FabricStep]:
    if found is None:
        if device.kind == "bridge":
            yield FabricStep(FabricStepKind.BRIDGE, netns, name, device.mac or "")
        elif device.peer is not None and (netns, name) < device.peer:
            # Either end's namespace can make the pair; the first by name does.
            yield FabricStep(FabricStepKind.LINK, netns, name, peer=device.peer)
        # A bridge is made with its MAC; an end of a link gets one from the kernel.
        found = DeviceState(device.kind, "", 0, False, frozenset(), device.mac if device.kind == "bridge" else None)
    if found.mark != device.mark:
        yield FabricStep(FabricStepKind.MARK, netns, name, device.mark)
    if found.mtu != device.mtu:
        yield FabricStep(FabricStepKind.MTU, netns, name, str(device.mtu))
    for key, value in device.settings.items():
        if found.settings.get(key) != value:
            family, _, setting = key.partition("/")
            path = f"{family}/conf/{name}/{setting}"
            yield FabricStep(FabricStepKind.DEVICE_SETTING, netns, path, value)
    if device.mac is not None and found.mac != device.mac:
        yield FabricStep(FabricStepKind.MAC, netns, name, device.mac)
    for address in sorted(found.addresses - device.addresses):
        yield FabricStep(FabricStepKind.DROP_ADDRESS, netns, name, address)
    for address in sorted(device.addresses - found.addresses):
        yield FabricStep(FabricStepKind.ADDRESS, netns, name, address)
    if not found.up:
        yield FabricStep(FabricStepKind.UP, netns, name)
