"""Why no VF group: reasons with numbers, which rails are missing and why, and what would help."""

from __future__ import annotations

from collections.abc import Sequence

from railweave.contracts.reasons import Lack, Reason, ReasonCode
from railweave.contracts.types import NodeName
from railweave.nic.choose import free_groups
from railweave.nic.model import PfState

MOST_NODES_NAMED = 8
"""Nodes given a reason of their own; the summary counts the rest."""


def unknown_node(name: NodeName, workers: int) -> Reason:
    """The node has no inventory (any more)."""
    return Reason(
        code=ReasonCode.VF_GROUPS_EXHAUSTED,
        text=f"{name} has not told its NICs: no inventory of its agent",
        numbers={"needed_groups": workers, "free_groups": 0},
        node=name,
        lacks=(Lack.AGENT, Lack.NODE),
        remedy=f"see that the agent of {name} runs",
    )


def short_of(name: NodeName, pfs: Sequence[PfState], rule: str, workers: int) -> Reason:
    """A node whose free VFs are too few."""
    usable = [pf for pf in pfs if pf.fault is None]
    numbers = {
        "needed_groups": workers,
        "free_groups": len(free_groups(pfs)),
        "groups": min((pf.vfs for pf in usable), default=0),
        "pfs": len(pfs),
        "usable_pfs": len(usable),
        "free_vfs": sum(pf.free for pf in usable),
        "rails_down": sum(pf.fault == "down" for pf in pfs),
        "rails_cordoned": sum(pf.fault == "cordoned" for pf in pfs),
        "rails_without_port": sum(pf.fault is not None and pf.fault.startswith("without") for pf in pfs),
    }
    parts = [f"{name}: {workers} VF group{'s' if workers != 1 else ''} ({rule}) needed"]
    if not pfs:
        parts.append("it has no PF with VFs")
    elif not usable:
        parts.append("no rail is usable")
    elif rule == "one-per-pf":
        parts.append(f"{numbers['free_groups']} of {numbers['groups']} free")
    else:
        parts.append(f"{numbers['free_vfs']} VFs free on {len(usable)} rails")
    parts += [f"rail {pf.rail} {pf.fault}" for pf in pfs if pf.fault is not None]
    parts += [f"rail {pf.rail} has none of {pf.vfs} VFs free" for pf in usable if not pf.free]
    lacks = {Lack.VF}
    if numbers["rails_without_port"]:
        lacks.add(Lack.FABRIC)
    return Reason(
        code=ReasonCode.VF_GROUPS_EXHAUSTED,
        text="; ".join(parts),
        numbers=numbers,
        node=name,
        lacks=tuple(sorted(lacks)),
        remedy=_remedy(name, pfs),
    )


def reasons_for(short: Sequence[Reason], nodes: int, *, never: bool) -> tuple[Reason, ...]:
    """The summary, and the first nodes that are short."""
    named = tuple(short[:MOST_NODES_NAMED])
    if never:
        most = max(reason.numbers.get("needed_groups", 0) for reason in short)
        first = Reason(
            code=ReasonCode.EXCEEDS_CLUSTER_CAPACITY,
            text=f"no node that may run it has VFs for {most} workers, not even an empty one",
            numbers={"needed_groups": most, "nodes": nodes, "nodes_short": len(short)},
            remedy="ask for fewer workers a node, or for fewer VFs",
        )
        return (first, *named)
    if len(short) == 1:
        return named
    lacks = sorted({lack for reason in short for lack in reason.lacks})
    first = Reason(
        code=ReasonCode.VF_GROUPS_EXHAUSTED,
        text=f"{len(short)} of {nodes} nodes have too few free VF groups",
        numbers={"nodes": nodes, "nodes_short": len(short)},
        lacks=tuple(lacks),
    )
    return (first, *named)


def _remedy(name: NodeName, pfs: Sequence[PfState]) -> str | None:
    if any(pf.fault == "down" for pf in pfs):
        down = ", ".join(str(pf.rail) for pf in pfs if pf.fault == "down")
        return f"look after the link of rail {down} of {name}"
    if any(pf.fault is not None and pf.fault.startswith("without") for pf in pfs):
        return f"add the missing ports of {name} to the fabric file"
    if any(pf.fault == "cordoned" for pf in pfs):
        return f"uncordon the rails of {name}"
    if not pfs:
        return f"create VFs on {name}, or leave it out for jobs with network"
    return None
