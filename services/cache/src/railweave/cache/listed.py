"""Nodes that the scheduler chose: checked and explained, never replaced. Pure.

GPUs and VFs of these nodes are left to the services that own them: they name the card and the rail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from railweave.cache.capacity import never_on
from railweave.cache.choice import Choice
from railweave.cache.explain_space import cache_words, no_source, scratch_words
from railweave.cache.model import Candidate, Check, Occupancy, SlotKind
from railweave.cache.text import amount
from railweave.contracts.desired import NodeMode
from railweave.contracts.reasons import Lack, Reason, ReasonCode
from railweave.contracts.types import NodeName

MOST_NODES_NAMED = 8


@dataclass(frozen=True, slots=True)
class Listed:
    """The nodes as listed, or what is wrong with them."""

    nodes: tuple[Candidate, ...] = ()
    reasons: tuple[Reason, ...] = ()
    never: bool = False


def check_listed(choice: Choice, names: Sequence[NodeName]) -> Listed:
    """Look at each listed node and say of each what is wrong with it."""
    nodes: list[Candidate] = []
    reasons: list[Reason] = []
    never = False
    kind_of = {slot: kind for kind in choice.kinds for slot in kind.slots}
    for slot, name in enumerate(names):
        candidate = choice.survey.by_name.get(name)
        if candidate is None or candidate.hardware is None:
            reasons.append(_unknown(name) if candidate is None else _silent(name))
            continue
        node = choice.as_proposed(candidate)
        nodes.append(node)
        reason = _not_usable(choice, node, kind_of[slot])
        if reason is None:
            continue
        could_never = never_on(choice, candidate, kind_of[slot]) in (Check.SCRATCH, Check.CACHE)
        never = never or could_never
        reasons.append(reason.model_copy(update={"lacks": ()}) if could_never else reason)
    if not reasons:
        reasons = _too_far_apart(choice, nodes)
    if reasons:
        return Listed(reasons=tuple(reasons[:MOST_NODES_NAMED]), never=never)
    return Listed(nodes=tuple(nodes))


def _unknown(name: NodeName) -> Reason:
    return Reason(
        code=ReasonCode.NODE_NOT_SCHEDULABLE,
        text=f"{name}, chosen by the scheduler, is not known: no agent has spoken for it",
        node=name,
        lacks=(Lack.AGENT, Lack.NODE),
        remedy=f"see that the agent of {name} runs and that the name is right: railweave nodes",
    )


def _silent(name: NodeName) -> Reason:
    return Reason(
        code=ReasonCode.AGENT_UNREACHABLE,
        text=f"{name}, chosen by the scheduler, is in the fabric, but its agent has never been heard of",
        node=name,
        lacks=(Lack.AGENT, Lack.NODE),
        remedy=f"see that the agent of {name} runs: railweave nodes",
    )


def _not_usable(choice: Choice, node: Candidate, kind: SlotKind) -> Reason | None:
    name = node.name
    desired = node.node.desired
    if node.node.mode is not NodeMode.SCHEDULABLE and desired is not None:
        by = f" by {desired.user}" if desired.user is not None else ""
        why = f": {desired.reason}" if desired.reason is not None else ""
        return Reason(
            code=ReasonCode.NODE_NOT_SCHEDULABLE,
            text=f"{name}, chosen by the scheduler, is {node.node.mode}{by}{why}",
            node=name,
            lacks=(Lack.NODE,),
            remedy=f"railweave node resume {name}, or give the job another node",
        )
    if name in choice.ask.exclude:
        return Reason(
            code=ReasonCode.NODE_NOT_SCHEDULABLE,
            text=f"{name}, chosen by the scheduler, refused or failed this job before",
            node=name,
            lacks=(Lack.NODE,),
            remedy=f"give the job another node; railweave node {name} says what failed",
        )
    occupied = _occupied(choice, node, kind)
    return occupied if occupied is not None else _no_space(choice, node, kind)


def _occupied(choice: Choice, node: Candidate, kind: SlotKind) -> Reason | None:
    occupancy = choice.survey.shape(node.shape).occupancy
    if occupancy is not Occupancy.EXCLUSIVE and (not kind.need.exclusive or occupancy is Occupancy.EMPTY):
        return None
    holders = ", ".join(str(run.key) for run in list(node.node.holds)[:4]) or "a job just proposed"
    wish = "is held alone by" if occupancy is Occupancy.EXCLUSIVE else "is wanted alone, but held by"
    return Reason(
        code=ReasonCode.INSUFFICIENT_NODES,
        text=f"{node.name}, chosen by the scheduler, {wish} {holders}",
        numbers={"holders": len(node.node.holds)},
        node=node.name,
        lacks=(Lack.NODE,),
        remedy=f"wait until {holders} is released, or give the job another node",
    )


def _no_space(choice: Choice, node: Candidate, kind: SlotKind) -> Reason | None:
    failed = choice.space_failure(node, kind)
    if failed is None:
        return None
    if failed is Check.SCRATCH:
        detail, numbers, remedy = scratch_words(choice, (node,))
        return Reason(
            code=ReasonCode.SCRATCH_SPACE_INSUFFICIENT,
            text=f"{node.name}, chosen by the scheduler: {amount(kind.scratch_bytes)} of scratch wanted; {detail}",
            numbers={"needed_bytes": kind.scratch_bytes} | numbers,
            node=node.name,
            lacks=(Lack.SCRATCH,),
            remedy=remedy,
        )
    lacks_source = failed is Check.SOURCE
    detail, more, help_text = no_source(choice) if lacks_source else cache_words(choice, (node,))
    return Reason(
        code=ReasonCode.DATASET_SOURCE_UNKNOWN if lacks_source else ReasonCode.CACHE_SPACE_INSUFFICIENT,
        text=f"{node.name}, chosen by the scheduler: {detail}",
        numbers=more,
        node=node.name,
        lacks=(Lack.DATASET,) if lacks_source else (Lack.CACHE,),
        remedy=help_text,
    )


def _too_far_apart(choice: Choice, nodes: Sequence[Candidate]) -> list[Reason]:
    required = choice.ask.spec.nodes.topology.required
    by_domain: dict[tuple[str, ...], int] = {}
    for node in nodes:
        place = node.place
        if node.node.fabric is None and not any(kind.need.wants_network for kind in choice.kinds):
            continue  # where it hangs is of no matter to a job without a network, and not known
        key = (place.island, place.pod, place.leaf)[: {"island": 1, "pod": 2, "leaf": 3}[required]]
        by_domain[key] = by_domain.get(key, 0) + 1
    if len(by_domain) <= 1:
        return []
    spread = ", ".join(
        f"{key[-1] or '(not in the fabric)'} {count}"
        for key, count in sorted(by_domain.items(), key=lambda e: -e[1])[:4]
    )
    return [
        Reason(
            code=ReasonCode.TOPOLOGY_FRAGMENTED,
            text=f"the scheduler chose {len(nodes)} nodes of {len(by_domain)} {required}s ({spread}); "
            f"the job requires one {required}",
            numbers={"nodes": len(nodes), "domains": len(by_domain), "largest_nodes": max(by_domain.values())},
            lacks=(Lack.FABRIC,),
            remedy=f"choose nodes of one {required}, or allow a wider topology.required",
        )
    ]
