"""What the choice of nodes is about: what a slot needs, what a node has, and how much each argument weighs."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from railweave.contracts.inventory import NodeHardware, NodeStorage
from railweave.contracts.job import JobSpec, WorkerGroup
from railweave.contracts.types import NodeName
from railweave.runtime.cluster import Hold, NodeState
from railweave.runtime.gpu_shares import Card, GpuNeed


@dataclass(frozen=True, slots=True)
class Weights:
    """How much each term of a node's score counts; every term is 0 to 1, and 1 is good.

    `has_data` is more than all others together: a node that has the data wins over one that must fetch.
    """

    has_data: float = 8.0
    """Bytes that need not be fetched."""
    nothing_lost: float = 4.0
    """Value of what would be evicted."""
    gpu_fit: float = 1.0
    """How little of the node's GPUs is left over, and no empty card split without need."""
    room_left: float = 0.25
    """Cache space left after the fetch, so that fetches do not all go to one node."""
    locality: float = 2.0
    """Few leaves for a gang."""
    leaf_fit: float = 0.5
    """How little of a leaf is left over, so that whole leaves stay free for gangs."""


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """How nodes are chosen and room is made."""

    weights: Weights = field(default_factory=Weights)
    keep_free_permille: int = 20
    """Thousandths of a cache space kept free: the watermark that a fetch respects and an eviction restores."""
    fetching_worth: float = 0.9
    """What a copy on its way is worth beside one that is there: a herd of jobs should wait for one, not fetch anew."""
    half_life_sequences: int = 50_000
    """After so many messages of the record a past use counts half; some ten messages make a job on one node."""
    last_copy_factor: float = 4.0
    """How much dearer the last copy in the cluster is than one of several."""
    fetch_overhead_bytes: int = 64 * 2**20
    """What a fetch costs beyond its bytes, in bytes: many small datasets are dearer to fetch again than a large one."""


class Check(IntEnum):
    """What a node must pass, in this order. The first that leaves too few nodes is the reason given."""

    SCHEDULABLE = 1
    """An agent spoke for it, no operator took it out."""
    EXCLUDED = 2
    """The job does not want it, or it refused this job before."""
    SELECTOR = 3
    """It has the labels asked for."""
    FABRIC = 4
    """The fabric inventory knows where it hangs; wanted by jobs with a network."""
    OCCUPIED = 5
    """Nobody has it alone, and nobody has it at all where the job wants it alone."""
    GPUS = 6
    VFS = 7
    EVICTING = 8
    """No dataset of the job is being deleted there."""
    SOURCE = 9
    """It has the datasets that nobody says where to fetch from."""
    SCRATCH = 10
    CACHE = 11
    """The datasets are there, or there is room, or room can be made."""
    KEPT = 12
    """It is not kept for an older gang."""


@dataclass(frozen=True, slots=True)
class SlotNeed:
    """What a node slot needs of a node, but for space: equal needs are judged once."""

    workers: int
    gpu: GpuNeed | None = None
    wants_network: bool = False
    vf_groups: int = 0
    """Groups of one VF of every PF."""
    vfs: int = 0
    """VFs of any PF, for the other rules; which ones is the nic service's decision."""
    exclusive: bool = False
    selector: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class SlotKind:
    """Node slots that need the same."""

    need: SlotNeed
    scratch_bytes: int
    slots: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.slots)


class Wanted(NamedTuple):
    """A dataset the job wants on every node."""

    dataset: str
    """`name@version`."""
    size_bytes: int
    has_source: bool = True
    """Somebody says where to fetch it from: the job, or its record."""


class Occupancy(IntEnum):
    EMPTY = 0
    SHARED = 1
    EXCLUSIVE = 2


@dataclass(frozen=True, slots=True)
class Shape:
    """A node's free devices. Nodes of one shape are alike to every need: it is judged once for all of them."""

    is_schedulable: bool
    in_fabric: bool
    occupancy: Occupancy
    labels: frozenset[tuple[str, str]]
    cards: tuple[Card, ...]
    """Healthy GPUs, sorted."""
    vf_groups: int
    """Free VF indices that every usable PF has."""
    vfs: int
    """Free VFs of usable PFs."""


@dataclass(eq=False, slots=True)
class Place:
    """Where nodes hang: one leaf, or one set of leaves where each rail has its own. Compared by identity."""

    island: str
    pod: str
    leaf: str
    size: int = 0
    """Nodes known there."""
    rank: int = 0
    """Position in topology order."""

    def __str__(self) -> str:
        return self.leaf or "(not in the fabric)"


@dataclass(frozen=True, slots=True)
class Proposed(Hold):
    """What was proposed of a node. Which GPUs and VFs is not known here: GPU indices are negative, VFs are counted."""

    vf_groups: int = 0
    any_vfs: int = 0


@dataclass(frozen=True, slots=True)
class Victim:
    """A cached dataset that may be evicted."""

    dataset: str
    size_bytes: int
    value: float
    """Expected cost of fetching it again, in bytes."""
    reason: str


@dataclass(slots=True)
class Candidate:
    """A node, summed up when it changed, so that a choice over thousands of them is a few comparisons each."""

    name: NodeName
    node: NodeState
    place: Place
    shape: int
    """Number of its shape in the survey's table."""
    could_be: int
    """Number of the shape it would have empty and well."""
    order: int = 0
    """Position in topology order."""
    cache_bytes: int = 0
    """Size of the cache space; 0 where its agent has not told."""
    keep_free_bytes: int = 0
    room_bytes: int = 0
    """Free in the cache space beyond what is kept free; negative where it is overfull."""
    scratch_free_bytes: int = 0
    hardware: NodeHardware | None = None
    storage: NodeStorage | None = None
    """What it was summed up from: while the same, parts of the sum stay."""
    on_disk_bytes: int = 0
    """Sum of all copies on disk."""
    coming: dict[str, int] = field(default_factory=dict)
    """Datasets being fetched there, and their bytes."""
    leaving: frozenset[str] = frozenset()
    """Datasets on disk that are being evicted."""
    used: frozenset[str] = frozenset()
    """Datasets that jobs there use."""
    victims: tuple[Victim, ...] | None = None
    """What may be evicted, cheapest first; worked out when first needed."""
    victims_at: int = 0
    """Sequence of the record at which their values were worked out."""


def kinds_of(spec: JobSpec) -> tuple[SlotKind, ...]:
    """The node slots of a job, those that need the same together, in the order of their first slot."""
    workers: dict[int, int] = {}
    groups = {}
    for place in spec.places():
        workers[place.slot] = workers.get(place.slot, 0) + 1
        groups[place.slot] = place.group
    rule = spec.network.vfs if spec.wants_network and spec.network is not None else "none"
    selector = frozenset((key, str(value)) for key, value in spec.nodes.selector.items())
    slots: dict[tuple[SlotNeed, int], list[int]] = {}
    made: dict[tuple[int, int], tuple[SlotNeed, int]] = {}
    for slot, count in workers.items():
        group = groups[slot]
        kind = made.get((id(group), count))
        if kind is None:
            need = SlotNeed(
                workers=count,
                gpu=GpuNeed.of(group, count),
                wants_network=rule != "none",
                vf_groups=count if _takes_groups(rule, group) else 0,
                vfs=0 if _takes_groups(rule, group) else _vfs_of(rule) * count,
                exclusive=spec.nodes.exclusive,
                selector=selector,
            )
            kind = made[id(group), count] = (need, count * int(group.scratch_bytes))
        slots.setdefault(kind, []).append(slot)
    return tuple(SlotKind(need, scratch, tuple(mine)) for (need, scratch), mine in slots.items())


def _takes_groups(rule: str, group: WorkerGroup) -> bool:
    """Whether each worker takes a VF of every PF; without GPUs there is no nearest PF."""
    return rule == "one-per-pf" or (rule == "near-gpus" and not group.gpus)


def _vfs_of(rule: str) -> int:
    """VFs of one worker by the other rules: at least one."""
    if rule.startswith("count="):
        return int(rule.removeprefix("count="))
    return 0 if rule == "none" else 1
