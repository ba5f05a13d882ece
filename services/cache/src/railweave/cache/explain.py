"""Why no nodes: one reason that names what is short, with the numbers of all that was looked at. Pure.

Nodes are put through the checks in order; the first check that leaves too few is the reason. What has to change before
asking again makes sense is everything that took nodes away up to there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from railweave.cache.capacity import never_reasons
from railweave.cache.choice import Choice
from railweave.cache.explain_space import cache_words, no_source, scratch_words
from railweave.cache.gang import domains_of, leaves_of
from railweave.cache.listed import MOST_NODES_NAMED
from railweave.cache.model import Candidate, Check, SlotKind
from railweave.cache.text import slots_wanted
from railweave.contracts.desired import NodeMode
from railweave.contracts.reasons import Lack, Reason, ReasonCode

_CODES: Mapping[Check, ReasonCode] = {
    Check.SCHEDULABLE: ReasonCode.INSUFFICIENT_NODES,
    Check.EXCLUDED: ReasonCode.INSUFFICIENT_NODES,
    Check.SELECTOR: ReasonCode.INSUFFICIENT_NODES,
    Check.FABRIC: ReasonCode.FABRIC_UNKNOWN,
    Check.OCCUPIED: ReasonCode.INSUFFICIENT_NODES,
    Check.GPUS: ReasonCode.INSUFFICIENT_GPUS,
    Check.VFS: ReasonCode.VF_GROUPS_EXHAUSTED,
    Check.EVICTING: ReasonCode.CACHE_SPACE_INSUFFICIENT,
    Check.SOURCE: ReasonCode.DATASET_SOURCE_UNKNOWN,
    Check.SCRATCH: ReasonCode.SCRATCH_SPACE_INSUFFICIENT,
    Check.CACHE: ReasonCode.CACHE_SPACE_INSUFFICIENT,
    Check.KEPT: ReasonCode.KEPT_FOR_GANG,
}

_LACKS: Mapping[Check, tuple[Lack, ...]] = {
    Check.SCHEDULABLE: (Lack.NODE, Lack.AGENT),
    Check.EXCLUDED: (Lack.NODE,),
    Check.SELECTOR: (Lack.NODE,),
    Check.FABRIC: (Lack.FABRIC,),
    Check.OCCUPIED: (Lack.NODE,),
    Check.GPUS: (Lack.GPU,),
    Check.VFS: (Lack.VF,),
    Check.EVICTING: (Lack.CACHE,),
    Check.SOURCE: (Lack.DATASET,),
    Check.SCRATCH: (Lack.SCRATCH,),
    Check.CACHE: (Lack.CACHE,),
    Check.KEPT: (Lack.NODE,),
}

_WORDS: Mapping[Check, str] = {
    Check.SCHEDULABLE: "not schedulable",
    Check.EXCLUDED: "excluded for this job",
    Check.SELECTOR: "without the labels",
    Check.FABRIC: "not in the fabric inventory",
    Check.OCCUPIED: "occupied",
    Check.GPUS: "without enough free GPUs",
    Check.VFS: "without enough free VFs",
    Check.EVICTING: "deleting one of the datasets",
    Check.SOURCE: "without a dataset that has no source",
    Check.SCRATCH: "without enough scratch space",
    Check.CACHE: "without enough cache space",
    Check.KEPT: "kept for an older gang",
}

_REMEDIES: Mapping[Check, str] = {
    Check.EXCLUDED: "nodes that the job excludes or that refused it before: railweave job shows which",
    Check.SELECTOR: "change nodes.selector, or the labels of the agents",
    Check.OCCUPIED: "wait until jobs that hold nodes alone are released",
    Check.FABRIC: "add the nodes to the fabric file: railweave fabric",
    Check.KEPT: "runs when the gang before it in the queue has started; a higher priority goes first",
}


def why_none(choice: Choice) -> tuple[tuple[Reason, ...], bool]:
    """The reasons why no nodes can be given, and whether they never can."""
    never = never_reasons(choice)
    if never:
        return never, True
    for kind in choice.kinds:
        failed, fitting = _sift(choice, kind)
        if len(fitting) < kind.count:
            return (_too_few(choice, kind, failed, len(fitting)),), False
    return (_not_together(choice),), False


def _sift(choice: Choice, kind: SlotKind) -> tuple[dict[Check, list[Candidate]], list[Candidate]]:
    failed: dict[Check, list[Candidate]] = {}
    fitting: list[Candidate] = []
    for candidate in choice.survey.candidates:
        check = choice.first_failure(candidate, kind)
        if check is None:
            fitting.append(candidate)
        else:
            failed.setdefault(check, []).append(candidate)
    return failed, fitting


def _too_few(choice: Choice, kind: SlotKind, failed: Mapping[Check, list[Candidate]], fitting: int) -> Reason:
    nodes = len(choice.survey.candidates)
    left = nodes
    decisive = Check.SCHEDULABLE
    for check in Check:
        left -= len(failed.get(check, ()))
        if left < kind.count:
            decisive = check
            break
    taking = [check for check in Check if check <= decisive and failed.get(check)]
    lacks = tuple(dict.fromkeys(lack for check in taking for lack in _LACKS[check])) or (Lack.NODE, Lack.AGENT)
    numbers = {"needed_nodes": kind.count, "fitting_nodes": fitting, "nodes": nodes}
    numbers |= {f"nodes_{check.name.lower()}": len(found) for check, found in sorted(failed.items())}
    blocked = ", ".join(f"{len(found)} {_WORDS[check]}" for check, found in sorted(failed.items()))
    text = f"wants {slots_wanted(kind, choice.wanted_bytes)}; {fitting} of {nodes} nodes fit"
    text += f": {blocked}" if blocked else ""
    losers = failed.get(decisive, [])
    code = _CODES[decisive]
    if decisive is Check.SCHEDULABLE and left + sum(map(_is_silent, losers)) >= kind.count:
        # Operators have left enough in service: it is the agents that are missed.
        code = ReasonCode.AGENT_UNREACHABLE
    detail, extra, remedy = _detail(choice, kind, decisive, losers)
    return Reason(
        code=code,
        text=text + (f"; {detail}" if detail else ""),
        numbers=numbers | extra,
        lacks=lacks,
        remedy=remedy,
    )


def _detail(
    choice: Choice, kind: SlotKind, check: Check, losers: Sequence[Candidate]
) -> tuple[str, dict[str, int], str | None]:
    """What came nearest at the check that decided, its numbers, and what would help."""
    if not losers:
        return "", {}, "see that the agents of the nodes run: railweave nodes"
    match check:
        case Check.GPUS:
            return _gpus(choice, kind, losers)
        case Check.VFS:
            return _vfs(choice, losers)
        case Check.SCRATCH:
            return scratch_words(choice, losers)
        case Check.CACHE | Check.EVICTING:
            return cache_words(choice, losers)
        case Check.SCHEDULABLE:
            return _taken_out(losers)
        case Check.SOURCE:
            return no_source(choice)
        case _:
            return "", {}, _REMEDIES.get(check)


def _taken_out(losers: Sequence[Candidate]) -> tuple[str, dict[str, int], str]:
    silent = [str(candidate.name) for candidate in losers if _is_silent(candidate)]
    out = len(losers) - len(silent)
    named = ", ".join(silent[:MOST_NODES_NAMED]) + (", ..." if len(silent) > MOST_NODES_NAMED else "")
    return (
        f"{out} cordoned, draining or retired, {len(silent)} whose agent has not spoken"
        + (f": {named}" if silent else ""),
        {"nodes_taken_out": out, "nodes_silent": len(silent)},
        "railweave node resume NODE, or see that its agent runs",
    )


def _is_silent(candidate: Candidate) -> bool:
    """Whether nothing but its agent's silence takes a node out."""
    return candidate.hardware is None and candidate.node.mode is NodeMode.SCHEDULABLE


def _vfs(choice: Choice, losers: Sequence[Candidate]) -> tuple[str, dict[str, int], str]:
    shapes = [(choice.survey.shape(choice.as_proposed(candidate).shape), candidate) for candidate in losers]
    shape, best = max(shapes, key=lambda entry: (entry[0].vf_groups, entry[0].vfs))
    groups, vfs = max(0, shape.vf_groups), max(0, shape.vfs)
    return (
        f"most free: {best.name} with {groups} VF groups",
        {"best_free_vf_groups": groups, "best_free_vfs": vfs},
        "wait for jobs to release VFs; rails that are down or cordoned: railweave nodes",
    )


def _gpus(choice: Choice, kind: SlotKind, losers: Sequence[Candidate]) -> tuple[str, dict[str, int], str]:
    gpu = kind.need.gpu
    best_name, best_free, most_milli = "", -1, 0
    known: dict[int, tuple[int, int]] = {}
    for candidate in losers:
        number = choice.as_proposed(candidate).shape
        if number not in known:
            cards = choice.survey.shape(number).cards
            milli = [gpu.milli_of(card.model, card.memory_mib) if gpu is not None else 0 for card in cards]
            known[number] = (
                sum(1 for card, part in zip(cards, milli, strict=True) if 0 < part <= card.free_milli),
                max((card.free_milli for card, part in zip(cards, milli, strict=True) if part), default=0),
            )
        free, largest = known[number]
        most_milli = max(most_milli, largest)
        if free > best_free:
            best_name, best_free = candidate.name, free
    needed = gpu.cards if gpu is not None else 0
    numbers = {"needed_gpus": needed, "best_free_gpus": best_free, "largest_free_milli": most_milli}
    return (
        f"most free: {best_name} with {best_free} GPUs that would do",
        numbers,
        "wait for jobs to release GPUs, or ask for fewer on a node",
    )


def _not_together(choice: Choice) -> Reason:
    """Every kind of slot finds nodes, but not all of them at once, or not close to each other."""
    required = choice.ask.spec.nodes.topology.required
    total = sum(kind.count for kind in choice.kinds)
    by_kind = [choice.fits(kind, evicting=True) for kind in choice.kinds]
    fits = {fit[2].name: fit for leaves in by_kind for leaf in leaves for fit in leaf.fits}
    sizes = sorted(
        (
            (domain.size, domain.name)
            for domain in domains_of(leaves_of(sorted(fits.values(), key=lambda fit: fit[1])), required)
        ),
        key=lambda entry: (-entry[0], entry[1]),
    )
    largest, name = sizes[0] if sizes else (0, "none")
    listed = ", ".join(f"{domain} {size}" for size, domain in sizes[:4])
    enough_elsewhere = required != "island" and len(fits) >= total
    return Reason(
        code=ReasonCode.TOPOLOGY_FRAGMENTED if len(fits) >= total else ReasonCode.INSUFFICIENT_NODES,
        text=f"wants {total} nodes in one {required}; {len(fits)} nodes fit: {listed}. "
        f"Largest in one {required}: {largest} of {total}, {name}",
        numbers={"needed_nodes": total, "fitting_nodes": len(fits), "largest_nodes": largest, "domains": len(sizes)},
        lacks=(Lack.NODE, Lack.GPU, Lack.VF, Lack.CACHE, Lack.SCRATCH),
        remedy=f"allow a wider topology.required than {required}: {len(fits)} nodes fit now"
        if enough_elsewhere
        else f"wait until more nodes of one {required} are free",
    )
