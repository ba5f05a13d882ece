"""Ways into the folded cluster other than by node name, kept in step node by node.

Each node's share of every index is remembered, so that a change of one node costs that node and nothing else.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TypeVar

from railweave.contracts.identity import JobKey
from railweave.contracts.types import NodeName
from railweave.runtime.held import NodeState

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _Share:
    """What one node puts into the indices."""

    free_gpus: int | None = None
    datasets: frozenset[str] = frozenset()
    jobs: frozenset[JobKey] = frozenset()
    tenant_milli: tuple[tuple[str, int], ...] = ()
    segments: frozenset[tuple[int, str]] = frozenset()


_NOTHING = _Share()


def _share_of(node: NodeState) -> _Share:
    milli: dict[str, int] = {}
    for hold in (*node.holds.values(), *node.grants.values()):
        amount = sum(part for _, part in hold.gpus)
        if amount:
            milli[hold.tenant] = milli.get(hold.tenant, 0) + amount
    return _Share(
        free_gpus=node.free_whole_gpus if node.is_schedulable else None,
        datasets=frozenset(item.dataset for item in node.datasets()),
        jobs=frozenset(run.key for run in node.holds),
        tenant_milli=tuple(sorted(milli.items())),
        segments=frozenset(segment for hold in node.holds.values() for segment in hold.segments),
    )


@dataclass(slots=True)
class ClusterIndex:
    """The indices. Names in them are of nodes that the state knows."""

    by_free_gpus: dict[int, set[NodeName]] = field(default_factory=dict)
    """Schedulable nodes by the number of whole GPUs free."""
    by_dataset: dict[str, set[NodeName]] = field(default_factory=dict)
    by_job: dict[JobKey, set[NodeName]] = field(default_factory=dict)
    by_segment: dict[tuple[int, str], set[NodeName]] = field(default_factory=dict)
    """Nodes with a job in a segment, by the segment and whose it is."""
    tenant_milli: dict[str, int] = field(default_factory=dict)
    _shares: dict[NodeName, _Share] = field(default_factory=dict)

    def update(self, node: NodeState) -> set[JobKey]:
        """Put a node where it belongs now; the jobs that hold something on it since, or no longer."""
        old, new = self._shares.get(node.name, _NOTHING), _share_of(node)
        if old == new:
            return set()
        if old.free_gpus != new.free_gpus:
            _leave(self.by_free_gpus, old.free_gpus, node.name)
            if new.free_gpus is not None:
                self.by_free_gpus.setdefault(new.free_gpus, set()).add(node.name)
        for dataset in old.datasets - new.datasets:
            _leave(self.by_dataset, dataset, node.name)
        for dataset in new.datasets - old.datasets:
            self.by_dataset.setdefault(dataset, set()).add(node.name)
        for job in old.jobs - new.jobs:
            _leave(self.by_job, job, node.name)
        for job in new.jobs - old.jobs:
            self.by_job.setdefault(job, set()).add(node.name)
        for segment in old.segments - new.segments:
            _leave(self.by_segment, segment, node.name)
        for segment in new.segments - old.segments:
            self.by_segment.setdefault(segment, set()).add(node.name)
        for sign, share in ((-1, old), (1, new)):
            for tenant, amount in share.tenant_milli:
                total = self.tenant_milli.get(tenant, 0) + sign * amount
                if total:
                    self.tenant_milli[tenant] = total
                else:
                    self.tenant_milli.pop(tenant, None)
        if new == _NOTHING:
            self._shares.pop(node.name, None)
        else:
            self._shares[node.name] = new
        return set(old.jobs ^ new.jobs)


def _leave(index: dict[K, set[NodeName]], key: K | None, name: NodeName) -> None:
    if key is None:
        return
    members = index.get(key)
    if members is not None:
        members.discard(name)
        if not members:
            del index[key]
