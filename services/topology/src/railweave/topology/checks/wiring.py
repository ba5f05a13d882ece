"""Cabling sorted once for all checks: what counts as a link, what is whose, which switch stands how high."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from railweave.topology.cabling import Cable, Cabling, Device, End, Kind
from railweave.topology.inferring import tiers_of
from railweave.topology.model import Role


class HostCable(NamedTuple):
    """A cable from a host to a switch."""

    host: End
    leaf: End
    cable: Cable

    @property
    def nic(self) -> str:
        """The NIC as people call it."""
        return self.host.port or (f"rail {self.cable.rail}" if self.cable.rail is not None else "a NIC")


class Wiring:
    """What the checks look at."""

    def __init__(self, cabling: Cabling) -> None:
        self.cabling = cabling
        self.devices: dict[str, Device] = {device.name: device for device in cabling.devices}
        self.halves: list[Cable] = []
        self.loose: list[Cable] = []
        """With an end on a device that is not there."""
        self.links: list[Cable] = []
        """Cables whose ends are there and agree."""
        known = self.devices
        for cable in cabling.cables:
            if cable.a.device not in known or cable.b.device not in known:
                self.loose.append(cable)
            elif cabling.is_half(cable):
                self.halves.append(cable)
            else:
                self.links.append(cable)

    def is_host(self, name: str) -> bool:
        return self.devices[name].kind is Kind.HOST

    @cached_property
    def host_cables(self) -> list[HostCable]:
        """Cables between a host and a switch."""
        return list(self._host_cables())

    def _host_cables(self) -> Iterator[HostCable]:
        hosts = {name for name, device in self.devices.items() if device.kind is Kind.HOST}
        for cable in self.links:
            if (cable.a.device in hosts) != (cable.b.device in hosts):
                a_is_host = cable.a.device in hosts
                yield HostCable(*((cable.a, cable.b) if a_is_host else (cable.b, cable.a)), cable)

    @cached_property
    def compute_cables(self) -> list[HostCable]:
        """Those of them that carry jobs' traffic."""
        return [item for item in self.host_cables if item.cable.role is Role.COMPUTE]

    @cached_property
    def homes(self) -> dict[str, tuple[str, ...]]:
        """The leaves of every host's compute cables, as written."""
        found: dict[str, list[str]] = {}
        for host, leaf, _ in self.compute_cables:
            found.setdefault(host.device, []).append(leaf.device)
        return {host: tuple(leaves) for host, leaves in found.items()}

    @cached_property
    def switch_cables(self) -> list[Cable]:
        """Cables between two switches."""
        return [
            cable
            for cable in self.links
            if not self.is_host(cable.a.device)
            and not self.is_host(cable.b.device)
            and cable.a.device != cable.b.device
        ]

    @cached_property
    def tiers(self) -> dict[str, int]:
        """How high each switch stands; a leaf is 1."""
        return tiers_of(replace(self.cabling, cables=tuple(self.links), reporters=frozenset()))


def named(end: End) -> str:
    """An end as people write it."""
    return end.device if end.port is None else f"{end.device}:{end.port}"


def listed(names: list[str], most: int = 4) -> str:
    """Some of the names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
