"""What makes room: which cached datasets a node would lose, and what they are worth. Pure.

The value of a copy is its decayed use frequency times the cost of fetching it again; copies go by value per byte,
least first (GDSF: Cherkasova 1998; Landlord: Young 2002), just until the room is there. The cost is in bytes: what has
to be moved again, with a fixed part for every fetch. Used and pinned copies are never lost, nor is one that nobody
could fetch again.

Decay is by position in the record, not by time: `uses * 2^((last_used - now) / half_life)`. The factor of `now` is
common to all copies, so their order does not change while nothing is used.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from railweave.cache.model import CacheConfig, Candidate, Victim
from railweave.contracts.inventory import CachedDataset, DatasetState
from railweave.runtime.cluster import ClusterState

LEAST_VALUE = "LeastValue"
"""Of all copies there, it is worth least for its size."""
FAILED = "Failed"
"""The copy is broken."""

_EVICTABLE = frozenset({DatasetState.READY, DatasetState.FAILED})


def victims_of(candidate: Candidate, state: ClusterState, config: CacheConfig) -> tuple[Victim, ...]:
    """Every copy of a node that may be evicted, cheapest for its size first."""
    now = state.sequences.get("PLACEMENTS", 0)
    found: list[tuple[float, int, str, Victim]] = []
    for item in candidate.node.datasets():
        victim = _victim(item, candidate, state, config, now)
        if victim is not None:
            density = victim.value / (victim.size_bytes + 1)
            found.append((density, item.last_used, victim.dataset, victim))
    found.sort(key=lambda entry: entry[:3])
    return tuple(entry[3] for entry in found)


def _victim(
    item: CachedDataset, candidate: Candidate, state: ClusterState, config: CacheConfig, now: int
) -> Victim | None:
    dataset = item.dataset
    if item.state not in _EVICTABLE or dataset in candidate.used or dataset in candidate.leaving:
        return None
    wish = candidate.node.data.get(dataset)
    if (wish is not None and wish.present) or candidate.node.is_pinned(dataset) or dataset in candidate.coming:
        return None
    size = int(item.bytes)
    if item.state is DatasetState.FAILED:
        return Victim(dataset, size, 0.0, FAILED)
    record = state.datasets.get(dataset)
    if item.source is None and (record is None or record.source_uri is None):
        return None  # nobody could fetch it again: it may be the only copy there is
    is_last = not any(name != candidate.name for name in state.nodes_with_dataset(dataset))
    age = max(0, now - item.last_used)
    uses = max(1, item.uses) * 2.0 ** (-age / config.half_life_sequences)
    cost = (size + config.fetch_overhead_bytes) * (config.last_copy_factor if is_last else 1.0)
    return Victim(dataset, size, uses * cost, LEAST_VALUE)


def plan_eviction(
    victims: Sequence[Victim], needed_bytes: int, spared: Collection[str] = ()
) -> tuple[Victim, ...] | None:
    """Which of `victims` (cheapest first) to evict for that many bytes, none of `spared`; None where all are too few.

    Taken cheapest first until the room is there; then those that turn out not to be needed stay, dearest first.
    """
    taken: list[Victim] = []
    freed = 0
    for victim in victims:
        if freed >= needed_bytes:
            break
        if victim.dataset not in spared:
            taken.append(victim)
            freed += victim.size_bytes
    if freed < needed_bytes:
        return None
    for victim in sorted(taken, key=lambda victim: victim.value, reverse=True):
        if freed - victim.size_bytes >= needed_bytes:
            taken.remove(victim)
            freed -= victim.size_bytes
    return tuple(taken)


def lost_value(victims: Sequence[Victim]) -> float:
    """What evicting them costs, in bytes to fetch again."""
    return sum(victim.value for victim in victims)
