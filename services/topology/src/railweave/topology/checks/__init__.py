"""What is wrong with a fabric as written: every fault found, each with device, port and what was expected there. Pure.

Looks at what a file tells (`Found`) and not at the graph, since a graph that exists has no faults. What each kind of
finding means, and what to do about it, is in docs/operate/checking.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from railweave.topology.checks import cables, names, rails, roles, shape, vlans
from railweave.topology.checks.finding import Finding, FindingKind
from railweave.topology.checks.wiring import Wiring
from railweave.topology.collecting import collector_paused
from railweave.topology.inferring import natural
from railweave.topology.providers.base import Found

_CHECKS: Final[tuple[Callable[[Wiring], Iterator[Finding]], ...]] = (
    names.names_twice,
    names.names_alike,
    names.names_missing,
    names.names_impossible,
    cables.unknown_devices,
    cables.cables_to_themselves,
    cables.half_links,
    cables.ports_used_twice,
    cables.rails_impossible,
    cables.hosts_cabled_together,
    cables.hosts_on_spines,
    cables.devices_without_links,
    rails.miscabled,
    roles.storage_leaves,
    shape.loops,
    shape.islands,
)


def check(found: Found) -> tuple[Finding, ...]:
    """Everything that is wrong, errors first, then by kind, device and port; the same for the same input."""
    with collector_paused():
        wiring = Wiring(found.cabling)
        findings = {finding for each in _CHECKS for finding in each(wiring)}
        findings.update(vlans.faults(found.vlans))
    return tuple(sorted(findings, key=_order))


def _order(finding: Finding) -> tuple[object, ...]:
    where = finding.where
    return (
        not finding.is_error,
        finding.kind,
        natural(finding.device),
        natural(finding.port or ""),
        (where.file, where.line or 0) if where is not None else ("", 0),
        finding.text,
    )


__all__ = ["Finding", "FindingKind", "check"]
