"""What the record, the nodes, the operators and the fabric say, folded into one state that every proposer reads.

One process folds each stream once, for all its services. The state holds claims, not documents: 10,000 nodes with a few
jobs each fit in memory. Deciding functions read it and never change it.

Not here: how messages come (view.py), and what is stored (the jobs service's own ledger is the authority; this view may
be milliseconds old, which costs a round and never a double claim).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar

import structlog

from railweave.contracts import ContractError, StoredMessage, decode_event
from railweave.contracts.desired import Dataset, Environment, NodeDesired, Tenant
from railweave.contracts.envelope import Event
from railweave.contracts.fabric import FabricLeaf, FabricNode, FabricReport, LeafVlan
from railweave.contracts.identity import JobKey, JobRun
from railweave.contracts.inventory import NodeHardware, NodeStorage, Report, ReportState
from railweave.contracts.placement import DataRecord, Epoch, Grant, Head, JobState, Placement, PlacementState
from railweave.contracts.types import LeafName, NodeName, Rail
from railweave.runtime.cluster_index import ClusterIndex
from railweave.runtime.held import WHOLE_GPU_MILLI, Hold, NodeState, RunSlot, hold_of
from railweave.runtime.sharing import share_parts

__all__ = [
    "WHOLE_GPU_MILLI",
    "Change",
    "ClusterState",
    "Distance",
    "HeadSummary",
    "Hold",
    "NodeState",
    "hold_of",
]

K = TypeVar("K")
V = TypeVar("V")

_log = structlog.stdlib.get_logger(__name__)

PLACEMENTS, NODES, DESIRED, FABRIC = "PLACEMENTS", "NODES", "DESIRED", "FABRIC"
STREAMS = (PLACEMENTS, NODES, DESIRED, FABRIC)

ENDED_KEPT = 50_000
"""Ended subjects whose last sequence is remembered, so that an older message told again changes nothing."""


@dataclass(frozen=True, slots=True)
class HeadSummary:
    """How a job stands, without its spec."""

    run: JobRun
    state: JobState
    round: int
    nodes: tuple[NodeName, ...]
    sequence: int


class Distance(IntEnum):
    """How far two nodes are apart in the fabric; less is nearer."""

    SAME_NODE = 0
    SAME_LEAF = 1
    SAME_POD = 2
    SAME_ISLAND = 3
    UNREACHABLE = 4


@dataclass(slots=True)
class Change:
    """What one or several messages changed: names to look at again."""

    nodes: set[NodeName] = field(default_factory=set)
    jobs: set[JobKey] = field(default_factory=set)
    tenants: set[str] = field(default_factory=set)
    datasets: set[str] = field(default_factory=set)
    environments: set[tuple[str, str]] = field(default_factory=set)
    leaves: set[LeafName] = field(default_factory=set)
    epoch: bool = False

    def __bool__(self) -> bool:
        return self.epoch or any((self.nodes, self.jobs, self.tenants, self.datasets, self.environments, self.leaves))

    def merge(self, other: Change) -> None:
        """Take in another change."""
        self.nodes |= other.nodes
        self.jobs |= other.jobs
        self.tenants |= other.tenants
        self.datasets |= other.datasets
        self.environments |= other.environments
        self.leaves |= other.leaves
        self.epoch = self.epoch or other.epoch


class ClusterState:
    """The folded state. `apply` is idempotent and takes messages in any order: the highest sequence of a subject wins.

    Args:
        on_skipped: told stream and field of each malformed message that was passed over.
    """

    def __init__(self, *, on_skipped: Callable[[str, str], None] | None = None) -> None:
        self.listeners: list[Callable[[Event, StoredMessage], None]] = []
        """Told of every event after it was folded, so that a process decodes each message once. They must not raise."""
        self.nodes: dict[NodeName, NodeState] = {}
        self.leaves: dict[LeafName, FabricLeaf] = {}
        self.reports: dict[LeafName, FabricReport] = {}
        """What leaves' drivers said last; nothing of leaves that have none."""
        self.heads: dict[JobKey, HeadSummary] = {}
        self.tenants: dict[str, Tenant] = {}
        self.datasets: dict[str, Dataset] = {}
        self.environments: dict[tuple[str, str], Environment] = {}
        self.epoch = 0
        self.sequences: dict[str, int] = {}
        """Last sequence applied of each stream."""
        self.skipped = 0
        """Malformed messages passed over."""
        self._on_skipped = on_skipped
        self._seen: dict[str, dict[str, int]] = {stream: {} for stream in STREAMS}
        self._ended: OrderedDict[tuple[str, str], Callable[[], None]] = OrderedDict()
        self._index = ClusterIndex()
        self._segments: dict[LeafName, tuple[FabricLeaf, frozenset[int]]] = {}
        self._vlans: dict[LeafName, tuple[FabricLeaf, dict[tuple[Rail, int | None], LeafVlan]]] = {}

    # -- questions ------------------------------------------------------------------------------------------------

    def node(self, name: NodeName) -> NodeState:
        """The node's state; an empty one, not kept, where nothing was ever said of it."""
        return self.nodes.get(name) or NodeState(name)

    def vlan_of(self, leaf: LeafName, rail: Rail, segment: int | None = None) -> LeafVlan | None:
        """The VLAN of a leaf for a rail: the shared one, or a segment's."""
        record = self.leaves.get(leaf)
        if record is None:
            return None
        known = self._vlans.get(leaf)
        if known is None or known[0] is not record:
            # The first of a rail and segment counts; asked for by every worker and rail of a job.
            first = {(vlan.rail, vlan.segment): vlan for vlan in reversed(record.vlans)}
            known = self._vlans[leaf] = (record, first)
        return known[1].get((rail, segment))

    def segments_of(self, leaf: LeafName) -> frozenset[int]:
        """The segments of which a leaf carries a VLAN for every rail that it has one for."""
        record = self.leaves.get(leaf)
        if record is None:
            return frozenset()
        known = self._segments.get(leaf)
        if known is None or known[0] is not record:
            rails = {vlan.rail for vlan in record.vlans}
            counts = Counter(vlan.segment for vlan in record.vlans if vlan.segment is not None)
            whole = frozenset(segment for segment, count in counts.items() if count >= len(rails))
            known = self._segments[leaf] = (record, whole)
        return known[1]

    def distance(self, one: NodeName, other: NodeName) -> Distance:
        """How far apart two nodes are. On the same leaf means: on every rail that both have."""
        if one == other:
            return Distance.SAME_NODE
        a, b = (node.fabric if (node := self.nodes.get(name)) is not None else None for name in (one, other))
        if a is None or b is None or a.island != b.island:
            return Distance.UNREACHABLE
        leaf_of = {attachment.rail: attachment.leaf for attachment in a.attachments}
        shared = [leaf_of[item.rail] == item.leaf for item in b.attachments if item.rail in leaf_of]
        if shared and all(shared):
            return Distance.SAME_LEAF
        return Distance.SAME_POD if a.pod == b.pod else Distance.SAME_ISLAND

    def nodes_with_free_gpus(self, at_least: int) -> Iterator[NodeState]:
        """Schedulable nodes with that many whole GPUs free, fewest first; in no order among equals."""
        for count in sorted(self._index.by_free_gpus):
            if count >= at_least:
                for name in self._index.by_free_gpus[count]:
                    yield self.nodes[name]

    def nodes_with_dataset(self, dataset: str) -> Iterable[NodeName]:
        """Nodes that have a dataset (`name@version`) on disk, in whatever state."""
        return self._index.by_dataset.get(dataset, frozenset())

    def nodes_held_by(self, job: JobKey) -> Iterable[NodeName]:
        """Nodes on which a job holds anything."""
        return self._index.by_job.get(job, frozenset())

    def segments_held(self) -> Set[tuple[int, str]]:
        """The segments that jobs are in, and whose each is."""
        return self._index.by_segment.keys()

    def tenant_gpu_milli(self, tenant: str) -> int:
        """Thousandths of GPUs that a tenant's jobs and environments hold."""
        return self._index.tenant_milli.get(tenant, 0)

    # -- folding --------------------------------------------------------------------------------------------------

    def apply(self, message: StoredMessage) -> Change:
        """Take in a stored message. Malformed ones are counted, logged and passed over."""
        try:
            event = decode_event(message).data
        except ContractError as error:
            self.skipped += 1
            if self._on_skipped is not None:
                self._on_skipped(message.stream, error.field)
            _log.warning(
                "malformed message passed over",
                stream=message.stream,
                subject=message.subject,
                sequence=message.sequence,
                field=error.field,
                reason=error.reason,
            )
            return Change()
        change = self.apply_event(event, message.sequence, message.stream)
        for listener in self.listeners:
            listener(event, message)
        return change

    def apply_event(self, event: Event, sequence: int, stream: str) -> Change:
        """Take in an event stored in `stream` at `sequence`; what it changed. Types not folded change nothing."""
        self.sequences[stream] = max(sequence, self.sequences.get(stream, 0))
        change = Change()
        seen = self._seen.setdefault(stream, {})
        subject = event.subject()
        if sequence <= seen.get(subject, 0) or not self._fold(event, sequence, change):
            return change
        seen[subject] = sequence
        self._remember_end(event, stream, subject)
        self._derive(change)
        return change

    def _fold(self, event: Event, sequence: int, change: Change) -> bool:
        match event:
            case Placement() | Report() | Grant() | DataRecord():
                self._fold_on_node(event, sequence, change)
            case NodeHardware():
                self._told_of(event.node).hardware = share_parts(event)
                change.nodes.add(event.node)
            case NodeStorage():
                self._told_of(event.node).take_storage(share_parts(event))
                change.nodes.add(event.node)
            case NodeDesired():
                self._told_of(event.node).desired = event
                change.nodes.add(event.node)
            case FabricNode():
                self._told_of(event.node).fabric = share_parts(event)
                change.nodes.add(event.node)
            case Head():
                nodes = event.nodes
                self.heads[event.key] = HeadSummary(event.run, event.state, int(event.round), nodes, sequence)
                change.jobs.add(event.key)
            case FabricLeaf():
                self.leaves[event.leaf] = share_parts(event)
                change.leaves.add(event.leaf)
            case FabricReport():
                self.reports[event.leaf] = event
            case Tenant():
                _put(self.tenants, str(event.tenant), event, present=event.state == "present")
                change.tenants.add(str(event.tenant))
            case Dataset():
                _put(self.datasets, event.dataset, event, present=event.state == "present")
                change.datasets.add(event.dataset)
            case Environment():
                key = (str(event.cluster), str(event.environment))
                _put(self.environments, key, event, present=event.state == "present")
                change.environments.add(key)
            case Epoch():
                self.epoch = int(event.epoch)
                change.epoch = True
            case _:
                return False
        return True

    def _told_of(self, name: NodeName) -> NodeState:
        state = self.nodes.get(name)
        if state is None:
            state = self.nodes[name] = NodeState(name)
        return state

    def _fold_on_node(self, event: Placement | Report | Grant | DataRecord, sequence: int, change: Change) -> None:
        node = self._told_of(event.node)
        change.nodes.add(event.node)
        match event:
            case Placement():
                node.take_placement(event, sequence)
                change.jobs.add(event.key)
            case Report():
                node.take_report(event)
                change.jobs.add(event.key)
            case Grant():
                node.take_grant(event, sequence)
                change.tenants.add(str(event.tenant))
            case DataRecord():
                node.take_data(event)
                change.datasets.add(event.dataset)

    def reset(self, stream: str) -> Change:
        """Forget all that `stream` said: it was lost, restored or made anew, and is told from the beginning."""
        self._seen[stream] = {}
        self.sequences.pop(stream, None)
        for ended in [key for key in self._ended if key[0] == stream]:
            del self._ended[ended]
        change = Change()
        match stream:
            case "PLACEMENTS":
                change.jobs.update(self.heads)
                self.heads.clear()
                self.epoch, change.epoch = 0, True
                self._forget_on_nodes(NodeState.forget_record, change)
            case "NODES":
                self._forget_on_nodes(NodeState.forget_reports, change)
            case "DESIRED":
                change.tenants.update(self.tenants)
                change.datasets.update(self.datasets)
                change.environments.update(self.environments)
                for told in (self.tenants, self.datasets, self.environments):
                    told.clear()
                self._forget_on_nodes(_forget_desired, change)
            case "FABRIC":
                change.leaves.update(self.leaves)
                self.leaves.clear()
                self.reports.clear()
                self._forget_on_nodes(_forget_fabric, change)
            case _:
                pass
        self._derive(change)
        return change

    def _forget_on_nodes(self, forget: Callable[[NodeState], None], change: Change) -> None:
        for name, node in self.nodes.items():
            forget(node)
            change.nodes.add(name)

    def _derive(self, change: Change) -> None:
        for name in change.nodes:
            node = self.nodes[name]
            node.derive()
            change.jobs |= self._index.update(node)
            if node.is_empty:
                del self.nodes[name]

    def _remember_end(self, event: Event, stream: str, subject: str) -> None:
        """Bound what is remembered of what has ended; the stream itself forgets it by its TTL."""
        forget = self._end_of(event)
        if forget is None:
            self._ended.pop((stream, subject), None)
            return
        self._ended[stream, subject] = forget
        self._ended.move_to_end((stream, subject))
        while len(self._ended) > ENDED_KEPT:
            (old_stream, old_subject), forget_old = self._ended.popitem(last=False)
            self._seen[old_stream].pop(old_subject, None)
            forget_old()

    def _end_of(self, event: Event) -> Callable[[], None] | None:
        match event:
            case Head(state=JobState.RELEASED | JobState.REJECTED, key=key):
                return lambda: _drop(self.heads, key)
            case Placement(state=PlacementState.RELEASED) | Report(state=ReportState.UNDONE):
                name, slot = event.node, RunSlot(event.cluster, event.job, int(event.attempt))
                return lambda: self._forget_task(name, slot)
            case Grant(state="released") | DataRecord(state="absent"):
                return _nothing
            case _:
                return None

    def _forget_task(self, name: NodeName, slot: RunSlot) -> None:
        node = self.nodes.get(name)
        if node is not None:
            node.forget_task(slot)


def _put(kept: dict[K, V], key: K, value: V, *, present: bool) -> None:
    if present:
        kept[key] = value
    else:
        kept.pop(key, None)


def _drop(heads: dict[JobKey, HeadSummary], key: JobKey) -> None:
    head = heads.get(key)
    if head is not None and head.state in (JobState.RELEASED, JobState.REJECTED):
        del heads[key]


def _nothing() -> None:
    return None


def _forget_desired(node: NodeState) -> None:
    node.desired = None


def _forget_fabric(node: NodeState) -> None:
    node.fabric = None
