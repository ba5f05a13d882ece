"""How good a node is for a job: one function a term, each 0 to 1, where 1 is good. The weights are configuration.

The data terms follow Toil's and Dragonfly's shape (named terms, one function each); what is lost by evicting is weighed
against what is brought in, so that both are in the same unit: bytes to fetch again.
"""

from __future__ import annotations

from railweave.cache.model import Candidate, Shape, SlotNeed
from railweave.runtime.cluster import WHOLE_GPU_MILLI


def has_data(worth_bytes: float, wanted_bytes: int) -> float:
    """Share of the wanted bytes that need not be fetched; copies on their way count for a little less."""
    return worth_bytes / wanted_bytes if wanted_bytes else 1.0


def nothing_lost(lost_value: float, incoming_bytes: int) -> float:
    """1 where nothing is evicted, a half where what is lost is worth as much as what is brought in."""
    return 1.0 - lost_value / (lost_value + incoming_bytes) if lost_value else 1.0


def room_left(candidate: Candidate, missing_bytes: int) -> float:
    """Share of the cache space that is free after the fetch."""
    if not candidate.cache_bytes:
        return 0.0
    return min(1.0, max(0, candidate.room_bytes - missing_bytes) / candidate.cache_bytes)


def gpu_fit(shape: Shape, need: SlotNeed) -> float:
    """Best fit: the less of a node's GPUs is left over, the better; half of it for not splitting an empty card.

    A node that is filled up leaves others whole for gangs and large asks. A job without GPUs is best on a node without
    (free) ones. Fragmentation gradient descent would take this function's place.
    """
    total = len(shape.cards) * WHOLE_GPU_MILLI
    if not total:
        return 1.0
    free = sum(card.free_milli for card in shape.cards)
    gpu = need.gpu
    if gpu is None:
        return 1.0 - free / total
    left = max(0, free - gpu.cards * gpu.fraction_milli)
    return 0.5 * (1.0 - left / total) + (0.0 if _splits_an_empty_card(shape, need) else 0.5)


def _splits_an_empty_card(shape: Shape, need: SlotNeed) -> bool:
    gpu = need.gpu
    if gpu is None or not gpu.is_shared:
        return False
    split = [card for card in shape.cards if card.free_milli < WHOLE_GPU_MILLI]
    return not gpu.fits(split)


def locality(leaves: int, pods: int, fewest_leaves: int, preferred: str) -> float:
    """1 where a gang is as close together as asked for, less with every leaf or pod beyond."""
    if preferred == "island":
        return 1.0
    if preferred == "pod":
        return 1.0 / pods
    return min(1.0, fewest_leaves / leaves) * (1.0 if pods == 1 else 0.5)


def leaf_fit(free_nodes: int, taken_nodes: int, leaf_size: int) -> float:
    """The fewer fitting nodes of a leaf are left over, the better."""
    return 1.0 - max(0, free_nodes - taken_nodes) / leaf_size if leaf_size else 0.0
