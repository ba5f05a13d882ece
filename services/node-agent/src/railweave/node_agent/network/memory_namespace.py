"""One namespace of the kernel in memory: its state, and what each action does to it."""

from __future__ import annotations

import errno
import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Protocol, Self

from railweave.node_agent.network.memory_state import KERNEL_PROTOCOL, Device, Netns, network_of, place_of
from railweave.runtime.netlink import (
    Action,
    AddAddress,
    Address,
    AddRoute,
    AddRule,
    CreateBridge,
    CreateVeth,
    DeleteAddress,
    DeleteLink,
    DeleteRoute,
    DeleteRule,
    KernelError,
    Link,
    NetnsRef,
    Route,
    Rule,
    SetLink,
    SetSysctl,
    check_device_name,
    family_of,
    kernel_error,
)

__all__ = ["MemoryNamespace"]

_MULTICAST = 0x01


class _Faults(Protocol):
    def before_action(self, action: Action) -> KernelError | None: ...

    def netns_at(self, ref: NetnsRef) -> Netns | None: ...

    def next_mac(self) -> str: ...


class MemoryNamespace:
    """`railweave.runtime.netlink.Namespace` in memory."""

    def __init__(self, kernel: _Faults, netns: Netns) -> None:
        self._kernel = kernel
        self._netns = netns

    @property
    def ref(self) -> NetnsRef:
        """Which namespace it is."""
        return self._netns.ref

    def links(self, *, counters: bool = False) -> list[Link]:
        """All devices; there are no counters here."""
        del counters
        return [device.shown() for device in self._netns.devices.values()]

    def links_named(self, names: Iterable[str]) -> dict[str, Link]:
        """Those of the names that exist."""
        found = [self._netns.names.get(check_device_name(name)) for name in names]
        return {device.name: device.shown() for device in found if device is not None}

    def addresses(self) -> list[Address]:
        """All addresses."""
        return list(self._netns.addresses)

    def routes(self) -> list[Route]:
        """All routes."""
        return list(self._netns.routes.values())

    def rules(self) -> list[Rule]:
        """All rules but the kernel's own."""
        return list(self._netns.rules)

    def sysctl(self, key: str) -> str:
        """A setting."""
        parts = key.split("/")
        if len(parts) == 4 and parts[:2] == ["ipv6", "conf"]:
            device = self._netns.names.get(parts[2])
            if device is None or parts[3] not in device.ipv6:
                raise kernel_error(errno.ENOENT, f"read setting {key}")
            return str(device.ipv6[parts[3]])
        return self._netns.settings.get(key, "0")

    def execute(self, actions: Sequence[Action]) -> list[Exception | None]:
        """Carries out actions in order."""
        results: list[Exception | None] = []
        for action in actions:
            refusal: Exception | None = self._kernel.before_action(action)
            if refusal is None:
                try:
                    number = self._handlers[type(action)](self, action)
                    refusal = kernel_error(number, str(action)) if number else None
                except KernelError as error:
                    refusal = error
            results.append(refusal)
        return results

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # What each action does; the errno, or 0.

    def _device(self, device: int | str) -> Device | None:
        return self._netns.devices.get(device) if isinstance(device, int) else self._netns.names.get(device)

    def _create_veth(self, action: CreateVeth) -> int:
        far_netns = self._netns if action.peer_netns is None else self._kernel.netns_at(action.peer_netns)
        if far_netns is None:
            return errno.EINVAL
        name, peer = check_device_name(action.name), check_device_name(action.peer)
        if self._netns.has_name(name) or far_netns.has_name(peer):
            return errno.EEXIST
        near = self._netns.add(name, "veth", action.mac or self._kernel.next_mac())
        far = far_netns.add(peer, "veth", self._kernel.next_mac())
        near.peer, far.peer = far, near
        if action.mtu is not None:
            near.mtu = far.mtu = action.mtu
        return 0

    def _create_bridge(self, action: CreateBridge) -> int:
        if self._netns.has_name(check_device_name(action.name)):
            return errno.EEXIST
        self._netns.add(action.name, "bridge", action.mac or self._kernel.next_mac())
        return 0

    def _set_link(self, action: SetLink) -> int:  # noqa: PLR0911, PLR0912 - one check an attribute
        device = self._device(action.device)
        if device is None:
            return errno.ENODEV
        if action.netns is not None:
            target = self._kernel.netns_at(action.netns)
            if target is None:
                return errno.EINVAL
            if target is not self._netns and target.has_name(device.name):
                return errno.EEXIST
            if target is not self._netns:
                self._netns.move(device, target)
            return 0
        if action.mac is not None:
            if int(action.mac[:2], 16) & _MULTICAST:
                return errno.EADDRNOTAVAIL
            device.mac = action.mac
        if action.mtu is not None:
            if not 68 <= action.mtu <= 65535:
                return errno.EINVAL
            device.mtu = action.mtu
        if action.name is not None and action.name != device.name:
            if self._netns.has_name(check_device_name(action.name)):
                return errno.EEXIST
            self._netns.rename(device, action.name)
        if action.master is not None:
            if action.master and self._netns.devices.get(action.master) is None:
                return errno.EINVAL
            device.master = action.master
        if action.alias is not None:
            device.alias = action.alias
        if action.ipv4 is not None:
            device.ipv4.update(action.ipv4)
        if action.up is True:
            self._netns.set_up(device)
        elif action.up is False and device.up:
            self._netns.set_down(device)
        return 0

    def _delete_link(self, action: DeleteLink) -> int:
        device = self._device(action.device)
        if device is None:
            return errno.ENODEV
        self._netns.remove(device)
        return 0

    def _add_address(self, action: AddAddress) -> int:
        device = self._netns.devices.get(action.address.index)
        if device is None:
            return errno.ENODEV
        if action.address in self._netns.addresses:
            return errno.EEXIST
        self._netns.addresses.append(action.address)
        if device.up:
            self._netns.connect(action.address)
        return 0

    def _delete_address(self, action: DeleteAddress) -> int:
        netns, address = self._netns, action.address
        if address not in netns.addresses:
            return errno.EADDRNOTAVAIL
        netns.addresses.remove(address)
        subnet, family = str(network_of(address.cidr)), family_of(address.cidr)
        left = [a for a in netns.addresses if a.index == address.index and family_of(a.cidr) == family]

        def is_lost(route: Route) -> bool:
            if route.device != address.index or route.kind == "unreachable" or family_of(route.to) != family:
                return False
            # Without an address IPv4 ends on a device, and all its routes with it.
            return not left or (route.to == subnet and route.protocol == KERNEL_PROTOCOL)

        netns.drop_routes(is_lost)
        return 0

    def _add_route(self, action: AddRoute) -> int:
        route = action.route
        if route.kind == "unicast":
            device = self._netns.devices.get(route.device)
            if device is None:
                return errno.ENODEV
            if not device.up:
                return errno.ENETDOWN
            if route.via is not None and not self._reaches(route.device, route.via):
                return errno.ENETUNREACH
        place = (*place_of(route), 0)
        if place in self._netns.routes:
            return errno.EEXIST
        self._netns.routes[place] = route
        return 0

    def _reaches(self, index: int, gateway: str) -> bool:
        address = ipaddress.ip_address(gateway)
        return any(there.index == index and address in network_of(there.cidr) for there in self._netns.addresses)

    def _delete_route(self, action: DeleteRoute) -> int:
        wanted = action.route
        for device in (0, wanted.device):
            place = (*place_of(wanted), device)
            there = self._netns.routes.get(place)
            if there is not None and (there.key() == wanted.key() or (not wanted.device and there.via == wanted.via)):
                del self._netns.routes[place]
                return 0
        return errno.ESRCH

    def _add_rule(self, action: AddRule) -> int:
        if any(there.key() == action.rule.key() for there in self._netns.rules):
            return errno.EEXIST
        self._netns.rules.append(action.rule)
        return 0

    def _delete_rule(self, action: DeleteRule) -> int:
        for there in self._netns.rules:
            if there.key() == action.rule.key():
                self._netns.rules.remove(there)
                return 0
        return errno.ENOENT

    def _set_sysctl(self, action: SetSysctl) -> int:
        parts = action.key.split("/")
        if len(parts) == 4 and parts[:2] == ["ipv6", "conf"]:
            device = self._netns.names.get(parts[2])
            if device is None:
                return errno.ENOENT
            device.ipv6[parts[3]] = int(action.value)
        else:
            self._netns.settings[action.key] = action.value
        return 0

    _handlers: ClassVar[Mapping[type, Callable[..., int]]] = {
        CreateVeth: _create_veth,
        CreateBridge: _create_bridge,
        SetLink: _set_link,
        DeleteLink: _delete_link,
        AddAddress: _add_address,
        DeleteAddress: _delete_address,
        AddRoute: _add_route,
        DeleteRoute: _delete_route,
        AddRule: _add_rule,
        DeleteRule: _delete_rule,
        SetSysctl: _set_sysctl,
    }
