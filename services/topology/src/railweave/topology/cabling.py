"""What a format says of devices and cables before it is a graph: names as written, told twice, by half or not at all.

Importers make a `Cabling`. What their formats leave out (tiers, rails, names of ports) is inferred in one place
(inferring.py), and what is wrong in it is found in one place (checks.py), whatever the format.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from railweave.topology.model import Role
from railweave.topology.yaml_tree import FileError

MOST_DEVICES: Final = 200_000
MOST_CABLES: Final = 1_000_000
"""A few bytes may stand for many: hostlists times uplinks, hostlists times rails."""


class Where(NamedTuple):
    """A place in a file; the line is None where the format has none."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


class Kind(StrEnum):
    """What a device is."""

    SWITCH = "switch"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Device:
    """A switch or host, as written."""

    name: str
    kind: Kind
    where: Where
    tier: int | None = None
    """Of a switch: 1 is a leaf, 2 above the leaves, and so on. None: it follows from the cables."""
    pod: str | None = None


class End(NamedTuple):
    """One end of a cable: the device, and its port or NIC (`Ethernet12`, `mlx5_0`) where the format names it."""

    device: str
    port: str | None = None


@dataclass(frozen=True, slots=True)
class Cable:
    """A cable between two devices."""

    a: End
    b: End
    where: Where
    told_by: frozenset[str] = frozenset()
    """Of the devices that report for themselves (`Cabling.reporters`), those that told of this cable."""
    rail: int | None = None
    """Of the host at one end, where the format tells. None: it follows from the names of the host's NICs."""
    role: Role = Role.COMPUTE


@dataclass(frozen=True, slots=True)
class Cabling:
    """Everything that was read, in the order written."""

    devices: tuple[Device, ...]
    cables: tuple[Cable, ...]
    reporters: frozenset[str] = frozenset()
    """Devices whose own view was read. A cable between two of them that only one told of is a half link."""
    repeated: tuple[Device, ...] = ()
    """Declared again under a name that was taken."""
    notes: tuple[str, ...] = ()

    def is_half(self, cable: Cable) -> bool:
        """Whether one end says that the cable is there and the other, which was asked, does not."""
        if not self.reporters:
            return False
        asked = self.reporters & {cable.a.device, cable.b.device}
        return len(asked) == 2 and not asked <= cable.told_by


class CablingBuilder:
    """Collects what importers read. The same cable told by both its ends is one cable."""

    def __init__(self) -> None:
        self._devices: dict[str, Device] = {}
        self._declared: set[str] = set()
        self._repeated: list[Device] = []
        self._cables: dict[tuple[End, End] | int, Cable] = {}
        self._reporters: set[str] = set()
        self._notes: list[str] = []

    def declare(self, device: Device) -> None:
        """Take in a device that the format defines; one that was only mentioned so far is it.

        Raises:
            FileError: there are too many.
        """
        if device.name in self._declared:
            self._repeated.append(device)
            self._count(device.where)
            return
        self._declared.add(device.name)
        self._devices[device.name] = device
        self._count(device.where)

    def mention(self, device: Device) -> None:
        """Take in a device that something else names, unless it is known already; raises FileError as `declare`."""
        self._devices.setdefault(device.name, device)
        self._count(device.where)

    def _count(self, where: Where) -> None:
        if len(self._devices) + len(self._repeated) > MOST_DEVICES:
            raise FileError(*where, "", f"more than {MOST_DEVICES} devices")

    def report(self, name: str) -> None:
        """Say that this device's own view is read: of what is between two such devices both must tell."""
        self._reporters.add(name)

    def cable(self, cable: Cable) -> None:
        """Take in a cable. One whose ends both name a port is one cable however often it is told of.

        Raises:
            FileError: there are too many.
        """
        key: tuple[End, End] | int = len(self._cables)
        if cable.a.port is not None and cable.b.port is not None:
            key = (cable.a, cable.b) if _order(cable.a) <= _order(cable.b) else (cable.b, cable.a)
        known = self._cables.get(key)
        if known is None:
            self._cables[key] = cable
            if len(self._cables) > MOST_CABLES:
                raise FileError(*cable.where, "", f"more than {MOST_CABLES} cables")
        else:
            self._cables[key] = replace(known, told_by=known.told_by | cable.told_by)

    def note(self, text: str) -> None:
        """Say what is left out or guessed."""
        self._notes.append(text)

    def notes(self, texts: Iterable[str]) -> None:
        """Several notes."""
        self._notes.extend(texts)

    @property
    def known(self) -> dict[str, Device]:
        """The devices so far, by name; not to be changed."""
        return self._devices

    def built(self) -> Cabling:
        """Everything taken in."""
        return Cabling(
            tuple(self._devices.values()),
            tuple(self._cables.values()),
            frozenset(self._reporters),
            tuple(self._repeated),
            tuple(self._notes),
        )


def _order(end: End) -> tuple[str, str]:
    return end.device, end.port or ""
