"""What is free by count, for jobs that wait: says no only where the services would have to. Pure.

It counts what the ledger counts (thousandths of GPUs by node, nodes that somebody has alone, a tenant's quota) and
leaves everything else to the services: fabric, VFs, space, labels. So it says yes too often, and never no wrongly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from railweave.contracts.job import JobSpec
from railweave.contracts.types import NodeName
from railweave.jobs.ledger import Ledger
from railweave.jobs.model import Demand
from railweave.runtime.cluster import WHOLE_GPU_MILLI, NodeState


def demand_of(spec: JobSpec) -> Demand:
    """Count what a job wants."""
    slots: Counter[int] = Counter()
    for group in spec.workers:
        # A share of memory may come to more thousandths than were asked for, never to fewer.
        each = group.gpus * int(group.milli_per_gpu)
        full, rest = divmod(group.count, group.per_node)
        slots[each * group.per_node] += full
        slots[each * rest] += bool(rest)
    found = tuple(sorted(((size, count) for size, count in slots.items() if count), reverse=True))
    milli = sum(size * count for size, count in found)
    return Demand(found, spec.slot_count, milli, str(spec.tenant), spec.nodes.exclusive)


class Room:
    """What is free on some nodes, less what was set aside for jobs that are asked for and may get it."""

    def __init__(self, nodes: Iterable[NodeState], ledger: Ledger, avoid: frozenset[NodeName] = frozenset()) -> None:
        self._ledger = ledger
        self._free: Counter[int] = Counter()
        """Nodes by the thousandths they have free."""
        self._empty = 0
        for node in nodes:
            if node.hardware is None or not node.is_schedulable or node.name in avoid:
                continue
            use = ledger.use_of(node.name)
            if use.is_exclusive:
                continue
            self._free[len(node.hardware.gpus) * WHOLE_GPU_MILLI - use.gpu_milli] += 1
            self._empty += not use.holds
        self._free_milli = sum(milli * nodes for milli, nodes in self._free.items() if milli > 0)
        self._taken: Counter[int] = Counter()
        """Slots set aside, by size."""
        self._taken_milli = 0
        self._taken_by_tenant: Counter[str] = Counter()
        self._slots_of: dict[int, int] = {}

    def could_fit(self, demand: Demand) -> bool:
        """Whether it could fit beside what was set aside."""
        if sum(self._free.values()) < demand.nodes or (demand.wants_empty_nodes and self._empty < demand.nodes):
            return False
        if self._free_milli - self._taken_milli < demand.milli:
            return False
        if demand.milli and not self._has_quota(demand):
            return False
        needed = 0
        for size, count in demand.slots:
            needed += count  # a job's slots are on different nodes
            if sum(nodes for milli, nodes in self._free.items() if milli >= size) < needed:
                return False
        return self._fits_beside(demand)

    def set_aside(self, demand: Demand) -> None:
        """Count on a job getting what it wants."""
        for size, count in demand.slots:
            self._taken[size] += count
        self._taken_milli += demand.milli
        self._taken_by_tenant[demand.tenant] += demand.milli

    def _has_quota(self, demand: Demand) -> bool:
        free = self._ledger.free_quota_milli(demand.tenant)
        return free is None or free - self._taken_by_tenant[demand.tenant] >= demand.milli

    def _fits_beside(self, demand: Demand) -> bool:
        """Of each size, no more slots that large are wanted than the nodes have places for."""
        if not self._taken:
            return True
        sizes = {size for size, _ in demand.slots} | self._taken.keys()
        largest = demand.slots[0][0]
        for size in sizes:
            if 0 < size <= largest:
                wanted = sum(count for other, count in demand.slots if other >= size)
                wanted += sum(count for other, count in self._taken.items() if other >= size)
                if wanted > self._places_of(size):
                    return False
        return True

    def _places_of(self, size: int) -> int:
        """How many slots of a size there are, several of a node counted."""
        places = self._slots_of.get(size)
        if places is None:
            places = sum(milli // size * nodes for milli, nodes in self._free.items() if milli >= size)
            self._slots_of[size] = places
        return places
