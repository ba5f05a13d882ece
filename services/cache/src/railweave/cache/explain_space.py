"""Why no room: what each class of nodes has free, could free, and may not free. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from railweave.cache.choice import Choice
from railweave.cache.model import Candidate
from railweave.cache.text import amount

_MOST_CLASSES = 3
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Space:
    """A node's cache space, as far as this job could have it."""

    candidate: Candidate
    missing_bytes: int
    """What would have to be fetched there."""
    free_bytes: int
    evictable_bytes: int
    in_use_bytes: int
    pinned_bytes: int
    pinned: tuple[str, ...]

    @property
    def reachable_bytes(self) -> int:
        return self.free_bytes + self.evictable_bytes

    @property
    def short_bytes(self) -> int:
        return self.missing_bytes - self.reachable_bytes


def space_of(choice: Choice, candidate: Candidate) -> Space:
    """What a node's cache has free, could free, and may not free."""
    node = choice.as_proposed(candidate)
    wanted = {want.dataset for want in choice.wanted}
    victims = [v for v in choice.survey.victims(node, choice.state) if v.dataset not in wanted]
    pinned = [item for item in node.node.datasets() if node.node.is_pinned(item.dataset)]
    in_use = sum(int(item.bytes) for item in node.node.datasets() if item.dataset in node.used)
    return Space(
        candidate=node,
        missing_bytes=choice.wanted_bytes - choice.held(node).here_bytes,
        free_bytes=max(0, node.room_bytes),
        evictable_bytes=sum(victim.size_bytes for victim in victims) + min(0, node.room_bytes),
        in_use_bytes=in_use,
        pinned_bytes=sum(int(item.bytes) for item in pinned),
        pinned=tuple(item.dataset for item in sorted(pinned, key=lambda item: -int(item.bytes))),
    )


def cache_words(choice: Choice, losers: Sequence[Candidate]) -> tuple[str, dict[str, int], str | None]:
    """The best node of each class (nodes with caches of one size), and what would help on the best of all."""
    best_of: dict[int, Space] = {}
    for candidate in losers:
        space = space_of(choice, candidate)
        known = best_of.get(candidate.cache_bytes)
        if known is None or space.short_bytes < known.short_bytes:
            best_of[candidate.cache_bytes] = space
    classes = sorted(best_of.values(), key=lambda space: space.short_bytes)
    best = classes[0]
    words = [
        f"{'best node' if space is best else 'best'} of {amount(space.candidate.cache_bytes)} is "
        f"{space.candidate.name}: free {amount(space.free_bytes)} + evictable {amount(space.evictable_bytes)} = "
        f"{amount(space.reachable_bytes)} of {amount(space.missing_bytes)}"
        for space in classes[:_MOST_CLASSES]
    ]
    if best.pinned_bytes:
        words.append(f"{amount(best.pinned_bytes)} pinned there ({', '.join(best.pinned[:_MOST_NAMED])})")
    if best.in_use_bytes:
        words.append(f"{amount(best.in_use_bytes)} in use there")
    leaving = sorted(best.candidate.leaving & {want.dataset for want in choice.wanted})
    if leaving:
        words.append(f"{', '.join(leaving)} is being deleted there")
    numbers = {
        "needed_bytes": best.missing_bytes,
        "best_free_bytes": best.free_bytes,
        "largest_evictable_bytes": best.evictable_bytes,
        "short_bytes": max(0, best.short_bytes),
        "pinned_bytes": best.pinned_bytes,
        "in_use_bytes": best.in_use_bytes,
        "keep_free_bytes": best.candidate.keep_free_bytes,
        "cache_bytes": best.candidate.cache_bytes,
    }
    return "; ".join(words), numbers, _remedy(best)


def _remedy(best: Space) -> str:
    name = best.candidate.name
    if best.pinned and best.short_bytes <= best.pinned_bytes:
        return f"unpin {best.pinned[0]} on {name}: {amount(best.pinned_bytes)} are pinned there"
    if best.in_use_bytes >= best.short_bytes > 0:
        return f"wait until jobs on {name} release their datasets ({amount(best.in_use_bytes)} in use)"
    if best.short_bytes > 0:
        return f"{amount(best.short_bytes)} more are needed on {name}: wait, or use a smaller dataset"
    return "asked again when the deletion is done"


def scratch_words(choice: Choice, losers: Sequence[Candidate]) -> tuple[str, dict[str, int], str]:
    """The node with most scratch space, and how much would fit now."""
    best = max(losers, key=lambda candidate: choice.as_proposed(candidate).scratch_free_bytes)
    free = max(0, choice.as_proposed(best).scratch_free_bytes)
    return (
        f"most free: {best.name} with {amount(free)}",
        {"best_free_scratch_bytes": free},
        f"ask for at most {amount(free)} of scratch on a node, or wait for jobs to end",
    )


def no_source(choice: Choice) -> tuple[str, dict[str, int], str]:
    """Datasets that nobody says where to fetch from."""
    names = [want.dataset for want in choice.wanted if not want.has_source]
    return (
        f"neither the job nor a record says where to fetch {', '.join(names)} from",
        {"datasets_without_source": len(names)},
        f"say datasets[].source in the job, or register {names[0]} with its source",
    )
