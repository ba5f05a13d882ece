"""Names: used twice, alike, missing, impossible."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from railweave.contracts.types import LeafName, NodeName
from railweave.topology.cabling import Device, Kind
from railweave.topology.checks.finding import Finding, FindingKind
from railweave.topology.checks.wiring import Wiring

_NUMBER: Final = re.compile(
    r"(?:[HSR]-|ca-)?(?:0x)?(?:[0-9a-f]{16}|[0-9a-f]{12}|(?:[0-9a-f]{2}[:-]){5,7}[0-9a-f]{2})", re.IGNORECASE
)
"""A GUID or MAC address, as formats and importers name what has no name."""
_NOBODY: Final = frozenset({"localhost", "localhost.localdomain"})
"""What a host calls itself that nobody has given a name."""
_LONGEST: Final = 80


def names_twice(wiring: Wiring) -> Iterator[Finding]:
    """Devices declared under a name that was taken, be it a host's and a switch's."""
    for again in wiring.cabling.repeated:
        first = wiring.devices[again.name]
        of_what = "" if first.kind is again.kind else f" of a {first.kind}"
        yield Finding(
            FindingKind.DUPLICATE_NAME,
            again.name,
            None,
            f"a name of its own: it is the name{of_what} at {first.where}",
            f"{again.kind} {_shown(again)}: the name is used twice, first{of_what} at {first.where}",
            again.where,
        )


def names_alike(wiring: Wiring) -> Iterator[Finding]:
    """Names that differ in upper and lower case only: DNS and Slurm take them for one."""
    alike: dict[str, list[Device]] = defaultdict(list)
    for device in wiring.devices.values():
        alike[device.name.casefold()].append(device)
    for first, *others in alike.values():
        for other in others:
            yield Finding(
                FindingKind.DUPLICATE_NAME,
                other.name,
                None,
                f"one spelling: {_shown(first)} or {_shown(other)}",
                f"{other.kind} {_shown(other)}: differs from {first.kind} {_shown(first)} at {first.where} "
                "in upper and lower case only",
                other.where,
            )


def names_missing(wiring: Wiring) -> Iterator[Finding]:
    """No name at all is an error. What is known by its number works, and no scheduler knows a node by that name."""
    for device in wiring.devices.values():
        is_empty = not device.name.strip()
        if is_empty or _NUMBER.fullmatch(device.name) or device.name.casefold() in _NOBODY:
            what = "there is no name" if is_empty else "has no name of its own"
            yield Finding(
                FindingKind.MISSING_NAME,
                device.name,
                None,
                f"the name of the {device.kind}",
                f"{device.kind} {_shown(device)}: {what}",
                device.where,
                is_error=is_empty,
            )


def names_impossible(wiring: Wiring) -> Iterator[Finding]:
    """Names that cannot be a host's or a switch's."""
    for device in wiring.devices.values():
        if not device.name.strip():
            continue
        try:
            NodeName(device.name) if device.kind is Kind.HOST else LeafName(device.name)
        except ValueError as error:
            text = f"{device.kind} {_shown(device)}: {error}"
            expected = NodeName.MEANING
            yield Finding(FindingKind.BAD_NAME, device.name, None, expected, text, device.where)


def _shown(device: Device) -> str:
    """The name, of a bearable length, with blanks that can be seen."""
    shown = device.name if device.name.strip() else repr(device.name)
    return shown if len(shown) <= _LONGEST else shown[:_LONGEST] + "..."
