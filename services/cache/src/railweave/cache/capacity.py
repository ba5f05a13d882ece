"""What could never be met: even with the cluster empty, every device well and every node back in service. Pure.

Careful in one direction: whatever is not known counts as enough. A node that hangs in the fabric but has not spoken yet
may be anything, and a cluster of which nothing is known at all refuses nobody for good.
"""

from __future__ import annotations

from collections.abc import Sequence

from railweave.cache.choice import Choice
from railweave.cache.gang import Fit, Leaf, assign_names, domains_of, leaves_of
from railweave.cache.model import Candidate, Check, SlotKind
from railweave.cache.text import amount, slots_wanted
from railweave.cache.view import is_retired
from railweave.contracts.reasons import Reason, ReasonCode
from railweave.contracts.types import NodeName


def never_on(choice: Choice, candidate: Candidate, kind: SlotKind) -> Check | None:
    """Why a node could not hold a slot even when empty; None where it could, or where that is not known."""
    if is_retired(candidate):
        return Check.SCHEDULABLE
    if candidate.name in choice.ask.spec.nodes.exclude:
        return Check.EXCLUDED
    if candidate.hardware is None:
        return None
    verdict = choice.survey.verdict(kind.need, candidate.could_be)
    if isinstance(verdict, Check):
        return verdict
    storage = candidate.storage
    if storage is None:
        return None
    if kind.scratch_bytes > int(storage.scratch.total_bytes):
        return Check.SCRATCH
    if choice.wanted_bytes and choice.wanted_bytes + candidate.keep_free_bytes > candidate.cache_bytes:
        return Check.CACHE
    return None


def never_reasons(choice: Choice) -> tuple[Reason, ...]:
    """Why a job can never run on this cluster; empty where it might."""
    candidates = [candidate for candidate in choice.survey.candidates if not is_retired(candidate)]
    if not any(candidate.hardware is not None for candidate in candidates):
        return ()
    if _could_in_one_domain(choice, candidates):
        return ()
    possible: list[list[Candidate]] = []
    for kind in choice.kinds:
        failed: dict[Check, int] = {}
        able: list[Candidate] = []
        for candidate in candidates:
            check = never_on(choice, candidate, kind)
            if check is None:
                able.append(candidate)
            else:
                failed[check] = failed.get(check, 0) + 1
        if len(able) < kind.count:
            return (_too_much(choice, kind, candidates, len(able), failed),)
        possible.append(able)
    return _never_together(choice, possible)


def _could_in_one_domain(choice: Choice, candidates: Sequence[Candidate]) -> bool:
    """A quick yes for jobs of one kind of slot: some domain has enough nodes, so the rest need not be looked at."""
    if len(choice.kinds) > 1:
        return False
    kind, required = choice.kinds[0], choice.ask.spec.nodes.topology.required
    able: dict[tuple[str, ...], int] = {}
    for candidate in candidates:
        if never_on(choice, candidate, kind) is None:
            place = candidate.place
            key = (place.island, place.pod, place.leaf)[: {"island": 1, "pod": 2, "leaf": 3}[required]]
            able[key] = able.get(key, 0) + 1
            if able[key] >= kind.count:
                return True
    return False


def _never_together(choice: Choice, possible: Sequence[list[Candidate]]) -> tuple[Reason, ...]:
    counts = [kind.count for kind in choice.kinds]
    names = [[candidate.name for candidate in able] for able in possible]
    total = sum(counts)
    if len(counts) > 1 and assign_names(names, counts) is None:
        different = len(set().union(*names))
        return (
            Reason(
                code=ReasonCode.EXCEEDS_CLUSTER_CAPACITY,
                text=f"wants {total} nodes of {len(counts)} kinds; the cluster has {different} that would do for any, "
                "too few for all at once even when empty",
                numbers={"needed_nodes": total, "possible_nodes": different},
                remedy="ask for fewer workers, or for more of them on a node",
            ),
        )
    required = choice.ask.spec.nodes.topology.required
    largest, most = _largest_domain(possible, counts, required)
    if most >= total:
        return ()
    return (
        Reason(
            code=ReasonCode.EXCEEDS_CLUSTER_CAPACITY,
            text=f"wants {total} nodes in one {required}; the largest, {largest}, has {most} that would do, "
            "even when empty",
            numbers={"needed_nodes": total, "largest_nodes": most},
            remedy=f"ask for a wider topology.required than {required}, or for fewer nodes",
        ),
    )


def _largest_domain(possible: Sequence[list[Candidate]], counts: Sequence[int], required: str) -> tuple[str, int]:
    """The domain in which most slots could be filled, and how many."""
    # Where a node hangs is not known before the fabric tells: it might be anywhere.
    anywhere = [[c.name for c in able if c.node.fabric is None] for able in possible]
    fits: dict[NodeName, Fit] = {
        c.name: (0.0, c.order, c, 0.0) for able in possible for c in able if c.node.fabric is not None
    }
    leaves: list[Leaf] = leaves_of(sorted(fits.values(), key=lambda fit: fit[1]))
    if not leaves:
        return "(not in the fabric)", _filled(anywhere, counts)
    best = ("", -1)
    for domain in domains_of(leaves, required):
        there = {fit[2].name for leaf in domain.leaves for fit in leaf.fits}
        options = [
            [c.name for c in able if c.name in there] + extra for able, extra in zip(possible, anywhere, strict=True)
        ]
        filled = _filled(options, counts)
        if filled > best[1]:
            best = (domain.name, filled)
    return best


def _filled(options: Sequence[Sequence[NodeName]], counts: Sequence[int]) -> int:
    if assign_names(options, counts) is not None:
        return sum(counts)
    return min(len(set().union(*options)), sum(counts) - 1)


_TOO_MUCH = {
    Check.GPUS: "GPUs",
    Check.VFS: "VFs",
    Check.SELECTOR: "labels",
    Check.EXCLUDED: "nodes not excluded",
    Check.SCRATCH: "scratch space",
    Check.CACHE: "cache space",
}


def _too_much(
    choice: Choice, kind: SlotKind, candidates: Sequence[Candidate], able: int, failed: dict[Check, int]
) -> Reason:
    worst = max(failed, key=lambda check: failed[check], default=None)
    numbers = {"needed_nodes": kind.count, "possible_nodes": able, "nodes": len(candidates)}
    numbers |= {f"nodes_{check.name.lower()}": count for check, count in failed.items()}
    wants = slots_wanted(kind, choice.wanted_bytes)
    if worst is Check.CACHE:
        largest = max(candidates, key=lambda candidate: candidate.cache_bytes)
        usable = largest.cache_bytes - largest.keep_free_bytes
        return Reason(
            code=ReasonCode.CACHE_SPACE_INSUFFICIENT,
            text=f"wants {wants}; the largest cache, of {largest.name}, takes {amount(usable)} when empty"
            + (f"; {able} of {len(candidates)} nodes could hold it" if able else ""),
            numbers=numbers | {"needed_bytes": choice.wanted_bytes, "largest_cache_bytes": usable},
            remedy="use a smaller dataset, or enlarge the cache space of the nodes",
        )
    if worst is Check.SCRATCH:
        largest_scratch = max(int(c.storage.scratch.total_bytes) for c in candidates if c.storage is not None)
        return Reason(
            code=ReasonCode.SCRATCH_SPACE_INSUFFICIENT,
            text=f"wants {wants}; the largest scratch space has {amount(largest_scratch)}",
            numbers=numbers | {"needed_bytes": kind.scratch_bytes, "largest_scratch_bytes": largest_scratch},
            remedy=f"ask for at most {amount(largest_scratch)} of scratch on a node",
        )
    sizes = _largest_node(candidates)
    lacking = ", ".join(f"{count} lack {_TOO_MUCH.get(check, check.name.lower())}" for check, count in failed.items())
    return Reason(
        code=ReasonCode.EXCEEDS_CLUSTER_CAPACITY,
        text=f"wants {wants}; of {len(candidates)} nodes {able} could hold one even when empty"
        + (f" ({lacking})" if lacking else "")
        + (f"; the largest has {sizes['largest_node_gpus']} GPUs" if worst is Check.GPUS else ""),
        numbers=numbers | sizes,
        remedy="ask for fewer nodes or fewer GPUs a node",
    )


def _largest_node(candidates: Sequence[Candidate]) -> dict[str, int]:
    gpus = [len(candidate.hardware.gpus) for candidate in candidates if candidate.hardware is not None]
    return {"cluster_gpus": sum(gpus), "largest_node_gpus": max(gpus, default=0)}
