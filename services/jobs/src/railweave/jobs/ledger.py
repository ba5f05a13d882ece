"""The ledger of claims: what the record says is taken, and whether something more fits.

It is checked against claims, not against versions: two jobs conflict only where they want the same thing. It is
folded from the record that its owner alone writes, so that it is never behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from railweave.contracts.identity import JobRun
from railweave.contracts.inventory import CachedDataset, DatasetState
from railweave.contracts.placement import NODE_SHARE_WHOLE, Claim, ClaimKind, Placement, claim_terms
from railweave.contracts.reasons import Lack
from railweave.contracts.types import NodeName
from railweave.runtime.cluster import WHOLE_GPU_MILLI, ClusterState, Hold, hold_of

ClaimKey = tuple[str, str]
Term = tuple[str, str, int | None]
"""A claim as (kind, key, amount); None is exclusive."""

_LACK_OF_KIND: Mapping[str, Lack] = {
    ClaimKind.VF: Lack.VF,
    ClaimKind.ADDRESS: Lack.FABRIC,
    ClaimKind.MAC: Lack.FABRIC,
    ClaimKind.GPU_MILLI: Lack.GPU,
    ClaimKind.CACHE_BYTES: Lack.CACHE,
    ClaimKind.SCRATCH_BYTES: Lack.SCRATCH,
    ClaimKind.NODE_SHARE: Lack.NODE,
    ClaimKind.SEGMENT: Lack.SEGMENT,
    ClaimKind.TENANT_GPU_MILLI: Lack.QUOTA,
}

_ADDED_UP = frozenset(
    {
        ClaimKind.GPU_MILLI,
        ClaimKind.NODE_SHARE,
        ClaimKind.SCRATCH_BYTES,
        ClaimKind.CACHE_BYTES,
        ClaimKind.TENANT_GPU_MILLI,
    }
)
"""Kinds whose amounts share a capacity. One that this version does not know is exclusive, whatever its amount."""

_FIXED: Mapping[str, int] = {ClaimKind.GPU_MILLI: WHOLE_GPU_MILLI, ClaimKind.NODE_SHARE: NODE_SHARE_WHOLE}
"""Capacities that are the same for every key."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A claim that does not fit, and who is in the way."""

    kind: str
    key: str
    needed: int
    free: int
    holders: tuple[JobRun, ...]

    @property
    def lack(self) -> Lack:
        return _LACK_OF_KIND.get(self.kind, Lack.NODE)

    def __str__(self) -> str:
        held = ", ".join(str(run) for run in self.holders[:3]) or "nobody"
        return f"{self.kind} {self.key}: needs {self.needed}, free {self.free}, held by {held}"


@dataclass(frozen=True, slots=True)
class NodeUse:
    """What is held on a node, summed up."""

    gpu_milli: int = 0
    holds: int = 0
    is_exclusive: bool = False
    """Somebody has the node alone."""


_UNUSED = NodeUse()


class _Owned(NamedTuple):
    """What the claims of one owner share, and the runs that claim it."""

    owner: str
    runs: set[JobRun]


class Ledger:
    """Who holds what.

    Capacities that can change (disk, quota) come from the cluster's state when a claim is checked.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._exclusive: dict[ClaimKey, JobRun] = {}
        self._owned: dict[ClaimKey, _Owned] = {}
        self._owning: dict[JobRun, list[ClaimKey]] = {}
        self._amounts: dict[ClaimKey, dict[tuple[JobRun, NodeName | None], int]] = {}
        self._held: dict[tuple[JobRun, NodeName | None], tuple[Term, ...]] = {}
        self._holds: dict[NodeName, dict[JobRun, Hold]] = {}
        self._uses: dict[NodeName, NodeUse] = {}
        """Summed up when asked for, and forgotten when it changes."""

    def conflicts(
        self,
        run: JobRun,
        placements: Sequence[Placement],
        job_claims: Iterable[Claim] = (),
        *,
        but_on: NodeName | None = None,
    ) -> list[Conflict]:
        """Return what does not fit if a run took these placements; empty means that all of it does.

        `but_on`: a node on which what the run holds now is replaced, and so does not count.

        Claims of the run's own earlier rounds are gone by then: a round is proposed after the last one was released.
        """
        wanted_exclusive: set[ClaimKey] = set()
        wanted_amounts: dict[ClaimKey, int] = {}
        found: list[Conflict] = []
        owned = [claim for claim in job_claims if claim.owner is not None]
        for claim in owned:
            found.extend(self._owner_conflict(run, claim))
        for kind, name, amount in self._all_terms(placements, job_claims):
            key = (kind, name)
            if amount is None or kind not in _ADDED_UP:
                holder = self._exclusive.get(key)
                is_own = but_on is not None and holder == run
                if holder is None and key in self._owned:
                    found.append(Conflict(kind, name, 1, 0, tuple(self._owned[key].runs)))
                elif (holder is not None and not is_own) or key in wanted_exclusive:
                    found.append(Conflict(kind, name, 1, 0, (holder or run,)))
                wanted_exclusive.add(key)
            elif kind != ClaimKind.CACHE_BYTES:
                wanted_amounts[key] = wanted_amounts.get(key, 0) + amount
        for key, needed in wanted_amounts.items():
            free = self._capacity(*key)
            if needed > free or key in self._amounts:
                found.extend(self._amount_conflict(key, needed, free, None if but_on is None else (run, but_on)))
        for placement in placements:
            found.extend(self._dataset_conflicts(run, placement))
        return found

    def _owner_conflict(self, run: JobRun, claim: Claim) -> Iterator[Conflict]:
        """What all claims of one owner share is in the way of every other owner."""
        key = (claim.kind, claim.key)
        owned = self._owned.get(key)
        others = owned.runs - {run} if owned is not None and owned.owner != claim.owner else set()
        alone = self._exclusive.get(key)
        if alone is not None and alone != run:
            others = {*others, alone}
        if others:
            yield Conflict(claim.kind, claim.key, 1, 0, tuple(sorted(others, key=str)))

    def _amount_conflict(
        self, key: ClaimKey, needed: int, capacity: int, but: tuple[JobRun, NodeName] | None
    ) -> Iterator[Conflict]:
        taken = {holder: amount for holder, amount in self._amounts.get(key, {}).items() if holder != but}
        free = capacity - sum(taken.values())
        if needed > free:
            holders = tuple(dict.fromkeys(holder for holder, _ in taken))
            yield Conflict(key[0], key[1], needed, max(free, 0), holders)

    def take(self, run: JobRun, placement: Placement, sequence: int) -> None:
        """Record what a stored placement holds; a placement written again replaces what it held before."""
        self.free(run, placement.node)
        self._enter((run, placement.node), tuple(claim_terms(placement)))
        self._holds.setdefault(placement.node, {})[run] = hold_of(placement, sequence)
        self._uses.pop(placement.node, None)

    def take_claims(self, run: JobRun, claims: tuple[Claim, ...]) -> None:
        """Record what a job holds as a whole."""
        self._leave((run, None))
        self._enter((run, None), tuple(_terms_of(claims)))
        for claim in claims:
            if claim.owner is not None:
                self._owned.setdefault((claim.kind, claim.key), _Owned(claim.owner, set())).runs.add(run)
                self._owning.setdefault(run, []).append((claim.kind, claim.key))

    def settle_evictions(self, run: JobRun, node: NodeName) -> None:
        """A node reported prepared: what this placement evicted is gone, and may come back for another job."""
        on_node = self._holds.get(node, {})
        if (hold := on_node.get(run)) is not None and hold.evict:
            on_node[run] = replace(hold, evict={})

    def free(self, run: JobRun, node: NodeName | None) -> None:
        """Forget what a run holds on a node (None: as a whole). Freeing twice changes nothing."""
        self._leave((run, node))
        if node is not None and (on_node := self._holds.get(node)) is not None:
            on_node.pop(run, None)
            self._uses.pop(node, None)
            if not on_node:
                del self._holds[node]

    def holders_on(self, node: NodeName) -> Iterable[JobRun]:
        return tuple(self._holds.get(node, ()))

    def use_of(self, node: NodeName) -> NodeUse:
        """What is held on a node."""
        on_node = self._holds.get(node)
        if on_node is None:
            return _UNUSED
        use = self._uses.get(node)
        if use is None:
            holds = on_node.values()
            milli = sum(milli for hold in holds for _, milli in hold.gpus)
            use = self._uses[node] = NodeUse(milli, len(on_node), any(hold.exclusive for hold in holds))
        return use

    def free_quota_milli(self, tenant: str) -> int | None:
        """Thousandths of GPUs that a tenant's jobs may still hold; None where it has no limit."""
        known = self._state.tenants.get(tenant)
        if known is None or known.quota.gpus.limit is None:
            return None
        held = self._amounts.get((ClaimKind.TENANT_GPU_MILLI, tenant), {})
        return known.quota.gpus.limit * WHOLE_GPU_MILLI - sum(held.values())

    def snapshot(self) -> dict[str, object]:
        """Everything held, comparable: for tests that a folded ledger equals the live one."""
        return {
            "exclusive": dict(self._exclusive),
            "owned": {key: (owned.owner, set(owned.runs)) for key, owned in self._owned.items()},
            "amounts": {key: dict(value) for key, value in self._amounts.items()},
            "nodes": {node: set(runs) for node, runs in self._holds.items()},
        }

    def is_empty(self) -> bool:
        return not (self._exclusive or self._owned or self._amounts or self._held or self._holds)

    def _enter(self, holder: tuple[JobRun, NodeName | None], terms: tuple[Term, ...]) -> None:
        self._held[holder] = terms
        for kind, name, amount in terms:
            if amount is None or kind not in _ADDED_UP:
                self._exclusive[kind, name] = holder[0]
            else:
                taken = self._amounts.setdefault((kind, name), {})
                taken[holder] = taken.get(holder, 0) + amount

    def _leave(self, holder: tuple[JobRun, NodeName | None]) -> None:
        for owned_key in self._owning.pop(holder[0], ()) if holder[1] is None else ():
            owned = self._owned.get(owned_key)
            if owned is not None:
                owned.runs.discard(holder[0])
                if not owned.runs:
                    del self._owned[owned_key]
        for kind, name, amount in self._held.pop(holder, ()):
            key = (kind, name)
            if amount is None or kind not in _ADDED_UP:
                if self._exclusive.get(key) == holder[0]:
                    del self._exclusive[key]
            elif (taken := self._amounts.get(key)) is not None:
                taken.pop(holder, None)
                if not taken:
                    del self._amounts[key]

    def _capacity(self, kind: str, key: str) -> int:
        fixed = _FIXED.get(kind)
        if fixed is not None:
            return fixed
        match kind:
            case ClaimKind.SCRATCH_BYTES:
                node = self._state.nodes.get(NodeName(key))
                return int(node.storage.scratch.total_bytes) if node is not None and node.storage is not None else 0
            case ClaimKind.TENANT_GPU_MILLI:
                tenant = self._state.tenants.get(key)
                limit = tenant.quota.gpus.limit if tenant is not None else None
                return limit * WHOLE_GPU_MILLI if limit is not None else 2**62
            case _:
                return 0

    def _dataset_conflicts(self, run: JobRun, placement: Placement) -> Iterator[Conflict]:
        """Datasets: what is used is there or on its way, what is evicted nobody uses, what is fetched fits."""
        if not placement.datasets and not placement.evict:
            return
        node = placement.node
        known = self._state.nodes.get(node)
        on_disk = {item.dataset: item for item in known.datasets()} if known is not None else {}
        others = {holder: hold for holder, hold in self._holds.get(node, {}).items() if holder != run}
        fetched = {dataset: size for hold in others.values() for dataset, size in hold.fetch.items()}
        evicted_by = {
            dataset: holder for holder, hold in others.items() for dataset in hold.evict if dataset in on_disk
        }
        evict = {item.dataset for item in placement.evict}
        for item in placement.datasets:
            name = item.dataset
            if name in evicted_by:
                yield Conflict("dataset", f"{node}/{name}", 1, 0, (evicted_by[name],))
            elif item.action == "use" and name not in fetched and not _is_ready(on_disk.get(name)):
                yield Conflict("dataset", f"{node}/{name}", 1, 0, ())
        used = {item.dataset for item in placement.datasets if item.action == "use"}
        for name in evict:
            if name in used:
                yield Conflict("dataset", f"{node}/{name}", 1, 0, (run,))
            users = tuple(holder for holder, hold in others.items() if name in hold.use)
            if users:
                yield Conflict("dataset", f"{node}/{name}", 1, 0, users)
        yield from self._cache_conflict(
            placement,
            on_disk_bytes={name: int(item.bytes) for name, item in on_disk.items()},
            fetched=fetched,
            evicted=evict | set(evicted_by),
        )

    def _cache_conflict(
        self, placement: Placement, *, on_disk_bytes: Mapping[str, int], fetched: Mapping[str, int], evicted: set[str]
    ) -> Iterator[Conflict]:
        wanted = {item.dataset: int(item.bytes) for item in placement.datasets if item.action == "fetch"}
        kept = {name: size for name, size in on_disk_bytes.items() if name not in evicted}
        needed = sum(size for name, size in wanted.items() if name not in kept and name not in fetched)
        if not needed:
            return
        known = self._state.nodes.get(placement.node)
        total = int(known.storage.cache.total_bytes) if known is not None and known.storage is not None else 0
        coming = sum(size for name, size in fetched.items() if name not in kept)
        free = total - sum(kept.values()) - coming
        if needed > free:
            holders = tuple(self._holds.get(placement.node, ()))
            yield Conflict(ClaimKind.CACHE_BYTES, placement.node, needed, max(free, 0), holders)

    @staticmethod
    def _all_terms(placements: Sequence[Placement], job_claims: Iterable[Claim]) -> Iterator[Term]:
        for placement in placements:
            yield from claim_terms(placement)
        yield from _terms_of(job_claims)


def _terms_of(claims: Iterable[Claim]) -> Iterator[Term]:
    return ((claim.kind, claim.key, claim.amount) for claim in claims if claim.owner is None)


def _is_ready(cached: CachedDataset | None) -> bool:
    return cached is not None and cached.state is DatasetState.READY
