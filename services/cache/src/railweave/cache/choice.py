"""One round against one state: which nodes fit, how good each is, and what each would use, fetch and evict. Pure.

Nodes of one shape are judged together, and what is done for each of them is a comparison of bytes at most. Nodes on
which something is proposed but not stored, and those that have some of the data, are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from railweave.cache.evict import lost_value, plan_eviction
from railweave.cache.gang import Fit, Leaf
from railweave.cache.model import CacheConfig, Candidate, Check, Place, Proposed, SlotKind, Victim, Wanted, kinds_of
from railweave.cache.score import has_data, nothing_lost, room_left
from railweave.cache.view import Survey
from railweave.contracts.inventory import DatasetState
from railweave.contracts.job import JobSpec
from railweave.contracts.proposal import Ask, Eviction, NodeData
from railweave.contracts.types import Bytes, NodeName
from railweave.runtime.cluster import ClusterState
from railweave.runtime.outstanding import Outstanding


@dataclass(slots=True)
class Held:
    """What a node has of the datasets wanted."""

    worth_bytes: float = 0.0
    """Bytes that need not be fetched; what is on its way counts for a little less."""
    here_bytes: int = 0
    """Bytes that need no further room."""
    is_leaving: bool = False
    """One of them is being deleted there: until it is gone it can be neither used nor fetched."""
    is_missing: bool = False
    """One of them is not ready there, and nobody says where to fetch it from."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A node's terms, as `rw.query.cache.scores` shows them."""

    candidate: Candidate
    check: Check | None
    """The first check it fails; None where it fits."""
    terms: dict[str, float]
    total: float
    evict: tuple[Victim, ...] = ()


class Choice:
    """An ask, the nodes, and how they answer it."""

    def __init__(
        self, ask: Ask, wanted: tuple[Wanted, ...], state: ClusterState, outstanding: Outstanding, survey: Survey
    ) -> None:
        self.ask = ask
        self.wanted = wanted
        self.state = state
        self.survey = survey
        self.config: CacheConfig = survey.config
        self.kinds = kinds_of(ask.spec)
        self.wanted_bytes = sum(want.size_bytes for want in wanted)
        self.excluded = frozenset(ask.exclude).union(ask.spec.nodes.exclude)
        self.kept = frozenset(ask.avoid)
        self._names = frozenset(want.dataset for want in wanted)
        self._outstanding = outstanding
        self._busy = outstanding.nodes()
        self._held = dict(self._find_copies()) if wanted else {}
        self._skipped = self.excluded | self.kept
        self._apart = self._skipped.union(self._busy, self._held)
        known = (survey.by_name.get(name) for name in self._apart)
        self._looked_at: dict[tuple[int, bool], list[Fit]] = {}
        self._apart_at = {(node.shape, node.place) for node in known if node is not None}

    # -- nodes that fit -------------------------------------------------------------------------------------------

    def fits(self, kind: SlotKind, *, evicting: bool, most: int | None = None) -> list[Leaf]:
        """Every node that a slot of this kind fits on now, with its score, leaf by leaf in topology order.

        Args:
            kind: what the slot needs.
            evicting: nodes where room must be made are taken too.
            most: of nodes all alike on a leaf, list only so many; the others are counted.
        """
        leaves: dict[Place, Leaf] = {}
        weights = self.config.weights
        verdicts = self.survey.verdicts(kind.need)
        for number, places in self.survey.members.items():
            verdict = verdicts.get(number)
            if verdict is None:
                verdict = self.survey.verdict(kind.need, number)
            if verdict.__class__ is Check:
                continue
            gpu_score = weights.gpu_fit * verdict
            for place, nodes in places.items():
                alike = nodes
                if (number, place) in self._apart_at:
                    alike = [node for node in alike if node.name not in self._apart]
                if kind.scratch_bytes:
                    alike = [node for node in alike if node.scratch_free_bytes >= kind.scratch_bytes]
                if self.wanted:
                    found = self._to_fetch(alike, gpu_score, evicting=evicting)
                    count = len(found)
                else:
                    found = [(-gpu_score, node.order, node, 0.0) for node in alike[:most]]
                    count = len(alike)
                if count:
                    _add(leaves, place, found, count)
        for fit in self._fits_apart(kind, evicting=evicting):
            _add(leaves, fit[2].place, [fit], 1)
        return sorted(leaves.values(), key=lambda leaf: leaf.place.rank)

    def fits_with_all(self, kind: SlotKind) -> list[Leaf]:
        """The nodes that have every dataset wanted, ready: nothing needs to be fetched there."""
        leaves: dict[Place, Leaf] = {}
        for fit in self._fits_apart(kind, evicting=False):
            if fit[3] >= self.wanted_bytes:
                _add(leaves, fit[2].place, [fit], 1)
        return sorted(leaves.values(), key=lambda leaf: leaf.place.rank)

    def as_proposed(self, candidate: Candidate) -> Candidate:
        """The node as it will be when what is proposed to other jobs is stored."""
        return self.survey.with_proposed(candidate, list(self._outstanding.on(candidate.name, other_than=self.ask.key)))

    def held(self, candidate: Candidate) -> Held:
        """What a node has of the datasets wanted."""
        held = Held()
        for dataset, size, has_source in self.wanted:
            item = candidate.node.cached(dataset)
            if not has_source and (item is None or item.state is not DatasetState.READY):
                held.is_missing = True
            if item is None:
                if dataset in candidate.coming:
                    held.worth_bytes += size * self.config.fetching_worth
                    held.here_bytes += size
                continue
            held.here_bytes += size
            if dataset in candidate.leaving:
                held.is_leaving = True
            elif item.state is DatasetState.READY:
                held.worth_bytes += size
            elif dataset in candidate.coming:
                held.worth_bytes += size * self.config.fetching_worth
        return held

    def first_failure(self, candidate: Candidate, kind: SlotKind) -> Check | None:
        """The first check that a node fails, in the order of `Check`; eviction is made use of."""
        node = self.as_proposed(candidate) if candidate.name in self._busy else candidate
        verdict = self.survey.verdict(kind.need, node.shape)
        if verdict is Check.SCHEDULABLE:
            return Check.SCHEDULABLE
        if candidate.name in self.excluded:
            return Check.EXCLUDED
        if isinstance(verdict, Check):
            return verdict
        failed = self.space_failure(node, kind)
        if failed is None and candidate.name in self.kept:
            return Check.KEPT
        return failed

    def space_failure(self, node: Candidate, kind: SlotKind) -> Check | None:
        """The first check of its disk that a node fails."""
        held = self.held(node)
        if held.is_leaving:
            return Check.EVICTING
        if held.is_missing:
            return Check.SOURCE
        if kind.scratch_bytes > max(0, node.scratch_free_bytes):
            return Check.SCRATCH
        if self.wanted and self._victims_for(node, self.wanted_bytes - held.here_bytes) is None:
            return Check.CACHE
        return None

    # -- what a chosen node does ----------------------------------------------------------------------------------

    def plan(self, node: Candidate) -> NodeData:
        """What a node uses, fetches and evicts for the job; `space_failure` was None."""
        use: list[str] = []
        fetch: dict[str, Bytes] = {}
        for dataset, size, _ in self.wanted:
            item = node.node.cached(dataset)
            if item is not None and item.state is DatasetState.READY:
                use.append(dataset)
            else:
                fetch[dataset] = Bytes(size)
        victims = self._victims_for(node, self.wanted_bytes - self.held(node).here_bytes) or ()
        return NodeData(
            node=node.name,
            use=tuple(use),
            fetch=fetch,
            evict=tuple(
                Eviction(dataset=victim.dataset, bytes=Bytes(victim.size_bytes), reason=victim.reason)
                for victim in victims
            ),
        )

    def hold(self, node: Candidate, kind: SlotKind, data: NodeData | None) -> Proposed:
        """What a proposal takes of a node, to be kept in mind until it is stored."""
        gpu = kind.need.gpu
        cards = self.survey.shape(node.shape).cards
        milli = max((gpu.milli_of(card.model, card.memory_mib) for card in cards), default=0) if gpu is not None else 0
        return Proposed(
            gpus=tuple((-1 - index, milli) for index in range(gpu.cards)) if gpu is not None and milli else (),
            fetch={name: int(size) for name, size in data.fetch.items()} if data is not None else {},
            use=self._names,
            evict={item.dataset: int(item.bytes) for item in data.evict} if data is not None else {},
            scratch_bytes=kind.scratch_bytes,
            exclusive=kind.need.exclusive,
            tenant=str(self.ask.spec.tenant),
            vf_groups=kind.need.vf_groups,
            any_vfs=kind.need.vfs,
        )

    def table(self, kind: SlotKind) -> Iterator[Scored]:
        """Every node with its terms, or with the check it fails; in topology order."""
        weights = self.config.weights
        for candidate in self.survey.candidates:
            node = self.as_proposed(candidate)
            failed = self.first_failure(candidate, kind)
            verdict = self.survey.verdict(kind.need, node.shape)
            if failed is not None or isinstance(verdict, Check):
                yield Scored(node, failed, {}, 0.0)
                continue
            held = self.held(node)
            missing = self.wanted_bytes - held.here_bytes
            victims = self._victims_for(node, missing) or ()
            terms = {
                "has_data": has_data(held.worth_bytes, self.wanted_bytes),
                "nothing_lost": nothing_lost(self._lost(node, victims), missing),
                "gpu_fit": verdict,
                "room_left": room_left(node, missing),
            }
            total = (
                weights.has_data * terms["has_data"]
                + weights.nothing_lost * terms["nothing_lost"]
                + weights.gpu_fit * terms["gpu_fit"]
                + weights.room_left * terms["room_left"]
            )
            yield Scored(node, None, terms, total, victims)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _to_fetch(self, nodes: Iterable[Candidate], gpu_score: float, *, evicting: bool) -> list[Fit]:
        """Nodes that have none of the datasets: those with room; with `evicting`, also those where it can be made."""
        if not all(want.has_source for want in self.wanted):
            return []
        weights, wanted = self.config.weights, self.wanted_bytes
        base = -(gpu_score + weights.nothing_lost)
        found: list[Fit] = []
        for node in nodes:
            if node.room_bytes >= wanted:
                # The terms of `score` written out: this line runs for every node of the cluster.
                left = (node.room_bytes - wanted) / node.cache_bytes if node.cache_bytes else 0.0
                found.append((base - weights.room_left * left, node.order, node, 0.0))
            elif evicting:
                score = self._data_score(node, None, evicting=True)
                if score is not None:
                    found.append((-(gpu_score + score), node.order, node, 0.0))
        return found

    def _fits_apart(self, kind: SlotKind, *, evicting: bool) -> Sequence[Fit]:
        """Those that need a closer look: something is proposed there, or some of the data is there or on its way."""
        key = (kind.slots[0], evicting)
        found = self._looked_at.get(key)
        if found is None:
            found = self._looked_at[key] = list(self._look_closer(kind, evicting=evicting))
        return found

    def _look_closer(self, kind: SlotKind, *, evicting: bool) -> Iterator[Fit]:
        verdicts = self.survey.verdicts(kind.need)
        for name in self._held.keys() | self._busy:
            candidate = self.survey.by_name.get(name)
            if candidate is None or name in self._skipped:
                continue
            node = self.as_proposed(candidate) if name in self._busy else candidate
            verdict = verdicts.get(node.shape)
            if verdict is None:
                verdict = self.survey.verdict(kind.need, node.shape)
            if isinstance(verdict, Check) or (kind.scratch_bytes and kind.scratch_bytes > node.scratch_free_bytes):
                continue
            score, worth = self.config.weights.gpu_fit * verdict, 0.0
            if self.wanted:
                held = self._held.get(name) if node is candidate else self.held(node)
                data_score = self._data_score(node, held, evicting=evicting)
                if data_score is None:
                    continue
                score += data_score
                worth = held.worth_bytes if held is not None else 0.0
            yield (-score, candidate.order, node, worth)

    def _find_copies(self) -> Iterator[tuple[NodeName, Held]]:
        names: set[NodeName] = set()
        for dataset, _, _ in self.wanted:
            names.update(self.state.nodes_with_dataset(dataset))
            names.update(self.survey.coming.get(dataset, ()))
        for name in names:
            candidate = self.survey.by_name.get(name)
            if candidate is not None:
                yield name, self.held(candidate)

    def _data_score(self, node: Candidate, held: Held | None, *, evicting: bool) -> float | None:
        """The data terms, weighted; None where the datasets cannot be there."""
        weights = self.config.weights
        wanted = self.wanted_bytes
        if held is None:
            worth, missing = 0.0, wanted  # every dataset has a source, or `_to_fetch` would not ask
        elif held.is_leaving or held.is_missing:
            return None
        else:
            worth, missing = held.worth_bytes, wanted - held.here_bytes
        kept = weights.nothing_lost
        if missing > node.room_bytes and missing:
            if not evicting:
                return None
            victims = self._victims_for(node, missing)
            if victims is None:
                return None
            kept *= nothing_lost(self._lost(node, victims), missing)
        return weights.has_data * has_data(worth, wanted) + kept + weights.room_left * room_left(node, missing)

    def _victims_for(self, node: Candidate, missing: int) -> tuple[Victim, ...] | None:
        """What must go for `missing` bytes to fit; None where that is not enough, () where nothing must."""
        if missing <= 0 or missing <= node.room_bytes:
            return ()
        if missing + node.keep_free_bytes > node.cache_bytes:
            return None
        return plan_eviction(self.survey.victims(node, self.state), missing - node.room_bytes, self._names)

    def _lost(self, node: Candidate, victims: tuple[Victim, ...]) -> float:
        if not victims:
            return 0.0
        age = max(0, self.state.sequences.get("PLACEMENTS", 0) - node.victims_at)
        return float(lost_value(victims) * 2.0 ** (-age / self.config.half_life_sequences))


def _add(leaves: dict[Place, Leaf], place: Place, fits: list[Fit], count: int) -> None:
    leaf = leaves.get(place)
    if leaf is None:
        leaves[place] = Leaf(place, fits, count)
    else:
        leaf.fits.extend(fits)
        leaf.count += count


def sizes_of(spec: JobSpec, state: ClusterState) -> tuple[tuple[Wanted, ...], tuple[str, ...]]:
    """The datasets of a job with their sizes, and those whose size nobody knows.

    As declared; else as registered; else as of a copy that is there. Unknown is not zero.
    """
    known: list[Wanted] = []
    unknown: list[str] = []
    for want in spec.datasets:
        size = want.size_bytes
        record = state.datasets.get(want.dataset)
        if size is None:
            size = record.size_bytes if record is not None else None
        if size is None:
            size = _size_of_a_copy(want.dataset, state)
        if size is None:
            unknown.append(want.dataset)
        else:
            has_source = want.source is not None or (record is not None and record.source_uri is not None)
            known.append(Wanted(want.dataset, int(size), has_source))
    return tuple(known), tuple(unknown)


def _size_of_a_copy(dataset: str, state: ClusterState) -> Bytes | None:
    for name in state.nodes_with_dataset(dataset):
        node = state.nodes.get(name)
        item = node.cached(dataset) if node is not None else None
        if item is not None and item.state is DatasetState.READY:
            return item.bytes
    return None
