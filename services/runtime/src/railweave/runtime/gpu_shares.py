"""What workers take of GPUs, and whether a set of cards can give it.

The choice of nodes and the choice of GPUs both ask, and must be answered alike: a node that is chosen for its GPUs and
then refused for them costs a round.
Which cards are taken is the gpu service's decision, not this module's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from railweave.contracts.job import WorkerGroup
from railweave.runtime.cluster import WHOLE_GPU_MILLI


class Card(NamedTuple):
    """A GPU as far as its fit matters."""

    model: str
    memory_mib: int
    free_milli: int


@dataclass(frozen=True, slots=True)
class GpuNeed:
    """What the workers of one node slot want of its GPUs; all of them are of one group, so they want the same."""

    workers: int
    gpus: int
    """Cards of each worker, all different."""
    fraction_milli: int = WHOLE_GPU_MILLI
    """Thousandths of each of them."""
    memory_mib: int = 0
    """Memory each card must have; of a shared card, memory that the fraction must cover."""
    model: str | None = None
    is_shared: bool = False
    """A fraction was asked for: other workers may be on the same card."""

    @classmethod
    def of(cls, group: WorkerGroup, workers: int) -> GpuNeed | None:
        """What `workers` workers of a group want; None where they want no GPU."""
        if not group.gpus:
            return None
        return cls(
            workers=workers,
            gpus=group.gpus,
            fraction_milli=int(group.milli_per_gpu),
            memory_mib=int(group.gpu_memory_mib or 0),
            model=group.gpu_model,
            is_shared=group.gpu_fraction_milli is not None,
        )

    @property
    def cards(self) -> int:
        """Cards of all workers, counted once for each worker."""
        return self.workers * self.gpus

    def milli_of(self, model: str, memory_mib: int) -> int:
        """Thousandths one worker takes of a card of this make; 0 where the card will not do.

        Memory becomes thousandths by the card's real size, rounded up: 8,192 MiB of 81,559 are 101 thousandths.
        """
        if (self.model is not None and self.model != model) or self.memory_mib > memory_mib:
            return 0
        if not self.is_shared:
            return WHOLE_GPU_MILLI
        for_memory = -(-self.memory_mib * WHOLE_GPU_MILLI // memory_mib) if self.memory_mib else 0
        return max(self.fraction_milli, for_memory)

    def fits(self, cards: Iterable[Card]) -> bool:
        """Whether these cards can give every worker its `gpus` different cards.

        A card with room for c shares serves min(c, workers) workers: a worker takes at most one share of a card.
        The sum reaching workers x gpus is enough (Gale-Ryser): give each worker the cards with most room left.
        """
        workers = self.workers
        missing = self.cards
        for model, memory_mib, free_milli in cards:
            milli = self.milli_of(model, memory_mib)
            if milli and free_milli >= milli:
                missing -= min(free_milli // milli, workers)
                if missing <= 0:
                    return True
        return missing <= 0
