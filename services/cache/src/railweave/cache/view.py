"""The survey: every node of the folded cluster summed up for choosing, kept in step by word of what changed.

Summing a node up costs some ten microseconds and happens when it changed; a choice then looks at a few numbers of each.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import replace

from railweave.cache.evict import victims_of
from railweave.cache.model import CacheConfig, Candidate, Occupancy, Place, Proposed, Shape, SlotNeed, Victim
from railweave.cache.score import gpu_fit
from railweave.cache.screen import Verdict, judge
from railweave.cache.shapes import shape_empty, shape_now, take_some
from railweave.contracts.desired import NodeMode
from railweave.contracts.types import NodeName
from railweave.runtime.cluster import ClusterState, Hold, NodeState

_MOST_NEEDS = 256
_SHAPES_PER_NODE = 8
_NUMBER = re.compile(r"(\d+)")


class Survey:
    """What choosing needs of every node. `touch` what changed, `refresh` before choosing."""

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self.candidates: list[Candidate] = []
        """In topology order: island, pod, leaf, node."""
        self.by_name: dict[NodeName, Candidate] = {}
        self.members: dict[int, dict[Place, list[Candidate]]] = {}
        """Nodes by number of their shape and by place, in topology order: what is alike is looked at together."""
        self.coming: dict[str, set[NodeName]] = {}
        """Nodes to which a dataset is on its way."""
        self.largest_place = 1
        self._touched: set[NodeName] = set()
        self._is_new = True
        self._shapes: dict[Shape, int] = {}
        self._shape_of: list[Shape] = []
        self._verdicts: dict[SlotNeed, dict[int, Verdict]] = {}
        self._places: dict[tuple[str, str, str], Place] = {}
        self._overlays: dict[NodeName, tuple[Candidate, list[Hold], Candidate]] = {}

    @classmethod
    def of(cls, state: ClusterState, config: CacheConfig) -> Survey:
        """A survey of the state as it is."""
        survey = cls(config)
        survey.refresh(state)
        return survey

    def touch(self, nodes: Iterable[NodeName]) -> None:
        """Note that nodes have changed."""
        self._touched.update(nodes)

    def touch_datasets(self, datasets: Iterable[str], state: ClusterState) -> None:
        """Note that records of datasets have changed: what their copies are worth follows from them."""
        for dataset in datasets:
            for name in state.nodes_with_dataset(dataset):
                self._forget_values(name)

    def forget(self) -> None:
        """Everything may have changed: sum all up again."""
        self._is_new = True

    def refresh(self, state: ClusterState) -> None:
        """Sum up anew what was touched."""
        if self._is_new or len(self._shape_of) > 1000 + _SHAPES_PER_NODE * len(state.nodes):
            self._start_over()
            self._touched.update(state.nodes)
        if not self._touched:
            return
        touched, self._touched = self._touched, set()
        moved = False
        for name in touched:
            node, old = state.nodes.get(name), self.by_name.get(name)
            if node is None:
                moved |= self._remove(old)
                continue
            new = self._sum_up(node, old, state)
            self.by_name[name] = new
            self._follow_copies(state, old, new)
            if old is not None and old.place is new.place:
                new.order = old.order
                self.candidates[old.order] = new
                self._leave_members(old)
                insort(self.members.setdefault(new.shape, {}).setdefault(new.place, []), new, key=_by_order)
            else:
                moved = True
        if moved:
            self._sort()

    def shape(self, number: int) -> Shape:
        """A shape by its number."""
        return self._shape_of[number]

    def verdicts(self, need: SlotNeed) -> dict[int, Verdict]:
        """What is known of a need, by number of shape; `verdict` fills it."""
        known = self._verdicts.get(need)
        if known is None:
            if len(self._verdicts) >= _MOST_NEEDS:
                del self._verdicts[next(iter(self._verdicts))]
            known = self._verdicts[need] = {}
        return known

    def verdict(self, need: SlotNeed, number: int) -> Verdict:
        """Whether a shape meets a need: how well its GPUs fit (0 to 1), or the check it fails."""
        known = self.verdicts(need)
        found = known.get(number)
        if found is None:
            shape = self._shape_of[number]
            found = known[number] = judge(shape, need) or gpu_fit(shape, need)
        return found

    def victims(self, candidate: Candidate, state: ClusterState) -> tuple[Victim, ...]:
        """What may be evicted on a node, cheapest first."""
        if candidate.victims is None:
            candidate.victims_at = state.sequences.get("PLACEMENTS", 0)
            candidate.victims = victims_of(candidate, state, self.config)
        return candidate.victims

    def with_proposed(self, candidate: Candidate, holds: Sequence[Hold]) -> Candidate:
        """The node as it will be when what is proposed there is stored."""
        if not holds:
            return candidate
        known = self._overlays.get(candidate.name)
        if known is not None and known[0] is candidate and known[1] == holds:
            return known[2]
        if len(self._overlays) > 2 * len(self.candidates):
            self._overlays.clear()
        shape = self._shape_of[candidate.shape]
        cards, vf_groups, vfs, exclusive = list(shape.cards), shape.vf_groups, shape.vfs, False
        coming, leaving, used = dict(candidate.coming), set(candidate.leaving), set(candidate.used)
        room, scratch = candidate.room_bytes, candidate.scratch_free_bytes
        for hold in holds:
            for _, milli in hold.gpus:
                take_some(cards, milli)
            if isinstance(hold, Proposed):
                vf_groups -= hold.vf_groups
                vfs -= hold.any_vfs + hold.vf_groups
            exclusive = exclusive or hold.exclusive
            scratch -= hold.scratch_bytes
            used |= hold.use
            leaving.update(name for name in hold.evict if candidate.node.cached(name) is not None)
            for dataset, size in hold.fetch.items():
                if dataset not in coming and candidate.node.cached(dataset) is None:
                    room -= size
                coming.setdefault(dataset, size)
        overlaid = replace(
            candidate,
            shape=self._number(
                replace(
                    shape,
                    cards=tuple(sorted(cards)),
                    vf_groups=vf_groups,
                    vfs=vfs,
                    occupancy=max(shape.occupancy, Occupancy.EXCLUSIVE if exclusive else Occupancy.SHARED),
                )
            ),
            coming=coming,
            leaving=frozenset(leaving),
            used=frozenset(used),
            room_bytes=room,
            scratch_free_bytes=scratch,
            victims=None,
        )
        self._overlays[candidate.name] = (candidate, list(holds), overlaid)
        return overlaid

    # -- keeping in step ------------------------------------------------------------------------------------------

    def _start_over(self) -> None:
        self._is_new = False
        self.candidates, self.by_name, self.members, self.coming = [], {}, {}, {}
        self._shapes, self._shape_of, self._verdicts = {}, [], {}
        self._places, self._overlays = {}, {}

    def _remove(self, old: Candidate | None) -> bool:
        if old is None:
            return False
        for dataset in old.coming:
            self._leave(dataset, old.name)
        del self.by_name[old.name]
        return True

    def _leave_members(self, old: Candidate) -> None:
        at_shape = self.members[old.shape]
        at_place = at_shape[old.place]
        at_place.pop(bisect_left(at_place, old.order, key=_by_order))
        if not at_place:
            del at_shape[old.place]
            if not at_shape:
                del self.members[old.shape]

    def _leave(self, dataset: str, name: NodeName) -> None:
        names = self.coming.get(dataset)
        if names is not None:
            names.discard(name)
            if not names:
                del self.coming[dataset]

    def _follow_copies(self, state: ClusterState, old: Candidate | None, new: Candidate) -> None:
        """Keep the index of what is coming; where a copy becomes, or no longer is, the last one, its value changes."""
        before: Iterable[str] = old.coming if old is not None else ()
        for dataset in before:
            if dataset not in new.coming:
                self._leave(dataset, new.name)
        for dataset in new.coming:
            self.coming.setdefault(dataset, set()).add(new.name)
        if old is not None and old.storage is not new.storage:
            was = {item.dataset for item in old.storage.datasets} if old.storage is not None else set()
            now = {item.dataset for item in new.storage.datasets} if new.storage is not None else set()
            for dataset in was ^ now:
                holders = tuple(state.nodes_with_dataset(dataset))
                if len(holders) <= 2:
                    for name in holders:
                        self._forget_values(name)

    def _forget_values(self, name: NodeName) -> None:
        candidate = self.by_name.get(name)
        if candidate is not None:
            candidate.victims = None
        self._overlays.pop(name, None)

    def _sort(self) -> None:
        # Leaves from which the last node has gone are forgotten.
        in_use = {candidate.place for candidate in self.by_name.values()}
        self._places = {key: place for key, place in self._places.items() if place in in_use}
        keys = {place: _sort_key(place) for place in in_use}
        for rank, place in enumerate(sorted(keys, key=lambda place: keys[place])):
            place.rank, place.size = rank, 0
        self.candidates = sorted(self.by_name.values(), key=lambda found: (found.place.rank, *_natural(found.name)))
        self.members = {}
        for order, candidate in enumerate(self.candidates):
            candidate.order = order
            candidate.place.size += 1
            self.members.setdefault(candidate.shape, {}).setdefault(candidate.place, []).append(candidate)
        self._overlays.clear()
        self.largest_place = max((place.size for place in keys), default=1)

    # -- summing up -----------------------------------------------------------------------------------------------

    def _number(self, shape: Shape) -> int:
        number = self._shapes.get(shape)
        if number is None:
            number = self._shapes[shape] = len(self._shape_of)
            self._shape_of.append(shape)
        return number

    def _sum_up(self, node: NodeState, old: Candidate | None, state: ClusterState) -> Candidate:
        holds = list(node.holds.values())
        same_disk = old is not None and old.storage is node.storage
        candidate = Candidate(
            name=node.name,
            node=node,
            place=self._place_of(node),
            shape=self._number(shape_now(node, state)),
            could_be=old.could_be
            if old is not None and old.hardware is node.hardware
            else self._number(shape_empty(node)),
            storage=node.storage,
            hardware=node.hardware,
            on_disk_bytes=old.on_disk_bytes
            if same_disk and old is not None
            else sum(int(item.bytes) for item in node.datasets()),
        )
        for hold in holds:
            for dataset, size in hold.fetch.items():
                if not _is_ready(node, dataset):
                    candidate.coming[dataset] = max(size, candidate.coming.get(dataset, 0))
        for dataset, wish in node.data.items():
            if wish.present and not _is_ready(node, dataset):
                candidate.coming.setdefault(dataset, wish.size_bytes)
        gone = {dataset for hold in holds for dataset in hold.evict}
        gone.update(dataset for dataset, wish in node.data.items() if not wish.present)
        candidate.leaving = frozenset(dataset for dataset in gone if node.cached(dataset) is not None)
        candidate.used = frozenset().union(*(hold.use for hold in holds))
        if node.storage is not None:
            self._sum_up_space(candidate, sum(hold.scratch_bytes for hold in holds))
        return candidate

    def _sum_up_space(self, candidate: Candidate, scratch_held: int) -> None:
        node, storage = candidate.node, candidate.node.storage
        if storage is None:
            return
        total = int(storage.cache.total_bytes)
        on_its_way = sum(size for dataset, size in candidate.coming.items() if node.cached(dataset) is None)
        # Files that are not ours take room too. A fetch that has begun shows in the filesystem's sum before it is
        # listed, so what is on its way is not taken for a stranger.
        strangers = max(0, int(storage.cache.used_bytes) - candidate.on_disk_bytes - on_its_way)
        candidate.cache_bytes = total
        candidate.keep_free_bytes = total * self.config.keep_free_permille // 1000
        candidate.room_bytes = total - candidate.on_disk_bytes - on_its_way - strangers - candidate.keep_free_bytes
        scratch_strangers = max(0, int(storage.scratch.used_bytes) - scratch_held)
        candidate.scratch_free_bytes = int(storage.scratch.total_bytes) - scratch_held - scratch_strangers

    def _place_of(self, node: NodeState) -> Place:
        fabric = node.fabric
        if fabric is None:
            key = ("", "", "")
        else:
            leaves = dict.fromkeys(str(item.leaf) for item in fabric.attachments)
            key = (fabric.island, fabric.pod, "+".join(leaves))
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = Place(*key)
        return place


def _by_order(candidate: Candidate) -> int:
    return candidate.order


def _is_ready(node: NodeState, dataset: str) -> bool:
    item = node.cached(dataset)
    return item is not None and item.state == "ready"


_Natural = tuple[tuple[tuple[int, int, str], ...], str]


def _natural(text: str) -> _Natural:
    """`gpu-9` before `gpu-10`; the text itself decides between `gpu-1` and `gpu-01`."""
    parts = (part for part in _NUMBER.split(text) if part)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts), text


def _sort_key(place: Place) -> tuple[_Natural, ...]:
    return _natural(place.island), _natural(place.pod), _natural(place.leaf)


def is_retired(candidate: Candidate) -> bool:
    """Gone for good: it counts for nothing."""
    return candidate.node.mode is NodeMode.RETIRED
