"""What a check finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from railweave.topology.cabling import Where

_LONGEST: Final = 500


class FindingKind(StrEnum):
    """What is wrong. The names are part of `railweave fabric check --json` and stay."""

    MISCABLING = "miscabling"
    """NIC i of a node is on another leaf than NIC i of its peers."""
    HALF_LINK = "half-link"
    """One end tells of the link, and the other, which was asked too, does not."""
    DUPLICATE_NAME = "duplicate-name"
    """A name is used twice, or by names that differ in upper and lower case only."""
    MISSING_NAME = "missing-name"
    """A device has no name, or only the number that its maker gave it."""
    BAD_NAME = "bad-name"
    """A name that no host or switch can have: spaces, slashes, control characters, too long."""
    UNKNOWN_DEVICE = "unknown-device"
    """A cable ends on a device that is not there."""
    NO_LINKS = "no-links"
    """A node or switch without any link."""
    LOOP = "loop"
    """A cable that closes a loop in a tree, runs within a tier or past one, or has both ends on one device."""
    PORT_USED_TWICE = "port-used-twice"
    """Two cables in one port, or two NICs that are the same rail of a node."""
    BAD_RAIL = "bad-rail"
    """A rail that cannot be: below 0, too high, or not told where the host's others are."""
    STORAGE_LEAF = "storage-leaf"
    """A leaf that (nearly) every node touches with a compute port, while their other leaves differ."""
    HOST_TO_HOST = "host-to-host"
    """A cable between two hosts."""
    HOST_ON_SPINE = "host-on-spine"
    """A host on a switch above the leaves."""
    ISLAND = "island"
    """Parts of the fabric cannot reach each other. Legal: no job ever spans two."""
    SUBNET_TWICE = "subnet-twice"
    """Two VLANs have the same subnet."""
    SUBNETS_OVERLAP = "subnets-overlap"
    """The subnet of one VLAN lies within that of another."""
    UNTAGGED_TWICE = "untagged-twice"
    """A port is untagged in two VLANs: what comes in there belongs to one only."""
    BAD_GATEWAY = "bad-gateway"
    """The address of a switch in a VLAN is none."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, at one port of one device."""

    kind: FindingKind
    device: str
    port: str | None
    """The device's port or NIC; None where the fault is of the device as a whole."""
    expected: str
    """What was expected there."""
    text: str
    """All of it in one line, for people."""
    where: Where | None = None
    is_error: bool = True
    """Whether it must be mended. What is not an error is legal, and worth a look."""

    def __post_init__(self) -> None:
        # Names are as written: line ends, terminal sequences and megabytes are not for people's eyes.
        object.__setattr__(self, "expected", _one_line(self.expected))
        object.__setattr__(self, "text", _one_line(self.text))


def _one_line(text: str) -> str:
    shown = text[:_LONGEST] + "..." if len(text) > _LONGEST else text
    return (
        shown if shown.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in shown)
    )
