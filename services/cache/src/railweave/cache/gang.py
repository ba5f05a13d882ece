"""Nodes together: of all that fit, the ones that are good and close to each other. Pure.

Whole gangs first: a leaf that holds all of it, else few leaves of one pod, else few leaves of one island. Plans are
compared by the mean score of their nodes plus how close these are, so data on two leaves may win over one leaf without.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from railweave.cache.model import Candidate, Place, Weights
from railweave.cache.score import leaf_fit, locality
from railweave.contracts.job import TopologyWanted
from railweave.contracts.types import NodeName

Fit = tuple[float, int, Candidate, float]
"""A node that fits: minus its score, its order, the node, the bytes it need not fetch. Sorts best first."""


@dataclass(slots=True)
class Leaf:
    """The fitting nodes of one place."""

    place: Place
    fits: list[Fit]
    """All of them, or where many are alike, as many of these as could be taken."""
    count: int
    """All of them."""


@dataclass(frozen=True, slots=True)
class Domain:
    """Leaves among which a gang may be spread, and what to call them."""

    name: str
    leaves: list[Leaf]

    @property
    def size(self) -> int:
        return sum(leaf.count for leaf in self.leaves)


def leaves_of(fits: Iterable[Fit]) -> list[Leaf]:
    """Fitting nodes by place, in topology order."""
    leaves: dict[Place, Leaf] = {}
    for fit in fits:
        place = fit[2].place
        leaf = leaves.get(place)
        if leaf is None:
            leaf = leaves[place] = Leaf(place, [], 0)
        leaf.fits.append(fit)
        leaf.count += 1
    return list(leaves.values())


def domains_of(leaves: Sequence[Leaf], level: str) -> list[Domain]:
    """The leaves, pods or islands of these leaves."""
    if level == "leaf":
        return [Domain(str(leaf.place), [leaf]) for leaf in leaves]
    grouped: dict[tuple[str, str], list[Leaf]] = {}
    for leaf in leaves:
        key = (leaf.place.island, leaf.place.pod if level == "pod" else "")
        grouped.setdefault(key, []).append(leaf)
    return [Domain(pod or island or "(not in the fabric)", mine) for (island, pod), mine in grouped.items()]


def levels_within(required: str) -> tuple[str, ...]:
    """The levels a gang may be spread over, closest first."""
    levels = ("leaf", "pod", "island")
    return levels[: levels.index(required) + 1]


class Chooser:
    """Compares plans for one job."""

    def __init__(self, topology: TopologyWanted, weights: Weights, largest_place: int) -> None:
        self._topology = topology
        self._weights = weights
        self._largest_place = largest_place
        self._best: list[Fit] | None = None
        self._best_score = float("-inf")

    def choose(self, leaves: Sequence[Leaf], count: int) -> list[Candidate] | None:
        """The best `count` nodes, all alike in what they must do; None where no allowed domain has as many."""
        if sum(leaf.count for leaf in leaves) < count:
            return None
        for leaf in leaves:
            if leaf.count >= count:
                self._offer(_best_of(leaf.fits, count), leaf)
        best_node = -min(min(leaf.fits)[0] for leaf in leaves)
        for level in levels_within(self._topology.required)[1:]:
            if count == 1 or not self._could_win(best_node):
                break
            for domain in domains_of(leaves, level):
                if len(domain.leaves) > 1 and domain.size >= count:
                    self._offer(_fewest_leaves(domain.leaves, count))
                    if any(fit[3] for leaf in domain.leaves for fit in leaf.fits):
                        self._offer(_data_first(domain.leaves, count))
        return [fit[2] for fit in self._best] if self._best is not None else None

    def choose_mixed(
        self, leaves_by_kind: Sequence[Sequence[Leaf]], counts: Sequence[int]
    ) -> list[list[Candidate]] | None:
        """Nodes for several kinds of slots at once, none for two: in the closest domain that holds them all."""
        places = sorted({leaf.place for leaves in leaves_by_kind for leaf in leaves}, key=lambda place: place.rank)
        for level in levels_within(self._topology.required):
            best: list[list[Fit]] | None = None
            best_score = float("-inf")
            for domain in domains_of([Leaf(place, [], 0) for place in places], level):
                plan = _fewest_leaves_mixed([leaf.place for leaf in domain.leaves], leaves_by_kind, counts)
                if plan is not None:
                    score = self._score([fit for mine in plan for fit in mine], None)
                    if score > best_score:
                        best, best_score = plan, score
            if best is not None:
                return [[fit[2] for fit in mine] for mine in best]
        return None

    def _could_win(self, best_node: float) -> bool:
        """Whether a plan over several leaves could be better than the best so far, were all its nodes the best."""
        return self._best is None or best_node + self._weights.locality > self._best_score

    def _offer(self, plan: list[Fit], leaf: Leaf | None = None) -> None:
        score = self._score(plan, leaf)
        if score > self._best_score:
            self._best, self._best_score = plan, score

    def _score(self, plan: list[Fit], leaf: Leaf | None) -> float:
        mean = -sum(fit[0] for fit in plan) / len(plan)
        if leaf is not None:
            packed = leaf_fit(leaf.count, len(plan), leaf.place.size)
            return mean + self._weights.locality + self._weights.leaf_fit * packed
        places = {fit[2].place for fit in plan}
        pods = {(place.island, place.pod) for place in places}
        fewest = -(-len(plan) // self._largest_place)
        return mean + self._weights.locality * locality(len(places), len(pods), fewest, self._topology.preferred)


def _best_of(fits: list[Fit], count: int) -> list[Fit]:
    return [min(fits)] if count == 1 else sorted(fits)[:count]


def _fewest_leaves(leaves: Sequence[Leaf], count: int) -> list[Fit]:
    """Large leaves whole, then the smallest that holds the rest."""
    rest = sorted(leaves, key=lambda leaf: -leaf.count)
    plan: list[Fit] = []
    while len(plan) < count:
        missing = count - len(plan)
        if rest[0].count < missing:
            plan += rest.pop(0).fits
            continue
        last = min((leaf for leaf in rest if leaf.count >= missing), key=lambda leaf: leaf.count)
        plan += _best_of(last.fits, missing)
    return plan


def _data_first(leaves: Sequence[Leaf], count: int) -> list[Fit]:
    """The nodes that have the data, best first; then the nodes nearest to them."""
    plan = sorted(fit for leaf in leaves for fit in leaf.fits if fit[3])[:count]
    if len(plan) == count:
        return plan
    here: dict[Place, int] = {}
    for fit in plan:
        here[fit[2].place] = here.get(fit[2].place, 0) + 1
    chosen = {fit[1] for fit in plan}
    for leaf in sorted(leaves, key=lambda leaf: (-here.get(leaf.place, 0), -leaf.count)):
        more = [fit for fit in sorted(leaf.fits) if fit[1] not in chosen]
        plan += more[: count - len(plan)]
        if len(plan) == count:
            break
    return plan


def _fewest_leaves_mixed(
    places: Sequence[Place], leaves_by_kind: Sequence[Sequence[Leaf]], counts: Sequence[int]
) -> list[list[Fit]] | None:
    """Leaf after leaf, those with most fitting nodes first, until every slot has a node."""
    options_at = [{leaf.place: leaf.fits for leaf in leaves} for leaves in leaves_by_kind]
    richest = sorted(places, key=lambda place: -sum(len(at.get(place, ())) for at in options_at))
    options: list[list[Fit]] = [[] for _ in counts]
    for place in richest:
        for mine, at in zip(options, options_at, strict=True):
            mine.extend(at.get(place, ()))
        if all(len(mine) >= count for mine, count in zip(options, counts, strict=True)):
            plan = _assign(options, counts)
            if plan is not None:
                return plan
    return None


def _assign(options: Sequence[list[Fit]], counts: Sequence[int]) -> list[list[Fit]] | None:
    """Each kind its number of nodes, none twice; finds a way wherever there is one."""
    by_name = [{fit[2].name: fit for fit in sorted(mine)} for mine in options]
    taken = assign_names([list(mine) for mine in by_name], counts)
    if taken is None:
        return None
    return [[mine[name] for name in names] for mine, names in zip(by_name, taken, strict=True)]


def assign_names(options: Sequence[Sequence[NodeName]], counts: Sequence[int]) -> list[list[NodeName]] | None:
    """Bipartite matching with a number for each kind: the scarcest kind first, then by augmenting paths over kinds.

    Args:
        options: the nodes that fit each kind, best first.
        counts: how many each kind wants.
    """
    owner: dict[NodeName, int] = {}
    mine: list[dict[NodeName, None]] = [{} for _ in counts]
    for kind in sorted(range(len(counts)), key=lambda kind: len(options[kind]) - counts[kind]):
        for name in options[kind]:
            if len(mine[kind]) == counts[kind]:
                break
            if name not in owner:
                owner[name] = kind
                mine[kind][name] = None
        while len(mine[kind]) < counts[kind]:
            if not _augment(kind, options, owner, mine):
                return None
    return [list(names) for names in mine]


def _augment(
    kind: int, options: Sequence[Sequence[NodeName]], owner: dict[NodeName, int], mine: list[dict[NodeName, None]]
) -> bool:
    """Get one more node for a kind: from another kind, which gets one from a third, ... which finds a free one."""
    reached: dict[int, tuple[int, NodeName] | None] = {kind: None}
    queue = [kind]
    for at in queue:
        for name in options[at]:
            holder = owner.get(name)
            if holder is None:
                _hand_over(at, name, reached, owner, mine)
                return True
            if holder not in reached:
                reached[holder] = (at, name)
                queue.append(holder)
    return False


def _hand_over(
    at: int,
    name: NodeName,
    reached: dict[int, tuple[int, NodeName] | None],
    owner: dict[NodeName, int],
    mine: list[dict[NodeName, None]],
) -> None:
    while True:
        owner[name] = at
        mine[at][name] = None
        step = reached[at]
        if step is None:
            return
        asker, wanted = step
        del mine[at][wanted]
        at, name = asker, wanted
