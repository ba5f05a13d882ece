"""What the agent owes each placement, decided from three values: what is stored, what the journal holds, what
else holds.

Pure: no I/O, no clock. `decide` names the one next thing to do for one placement; the agent does it and asks again
until there is nothing left. `due_report` says what the node's report must then say.

    (nothing) --Begin--> preparing --> prepared --Attach--> attaching --> attached
                             |             |                    |            |
                             +---- failed / refused <-----------+            |
                             +-------------+--- Undo (a stored release) -----+--> undoing --> (buried)

The rules behind it (design: R4, R6, R8): a fence older than what was taken in is refused; release wins; nothing is
undone but on a stored release of that very run, or where the same epoch's record gave the same run another round;
what the record lacks is kept and reported as an orphan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from railweave.contracts.identity import JobKey
from railweave.contracts.inventory import Failure, ReportState, Step
from railweave.contracts.job import StartedWorker
from railweave.contracts.placement import Fence, Placement, PlacementState
from railweave.contracts.types import Attempt, ClusterName, JobName, RunUid

ATTACH_MODES = frozenset({"started", "cni", "spank", "pyxis", "host"})
"""What this agent knows; a placement of another mode is refused."""

_ATTACHED_BY_OTHERS = frozenset({"cni", "spank", "pyxis"})


class EntryKey(NamedTuple):
    """Names a placement on this node: what its subject says. At most one run of it is held at a time."""

    cluster: ClusterName
    job: JobName
    attempt: Attempt

    @property
    def job_key(self) -> JobKey:
        return JobKey(self.cluster, self.job)

    def __str__(self) -> str:
        return f"{self.cluster}/{self.job}#{int(self.attempt)}"

    @classmethod
    def of(cls, placement: Placement) -> EntryKey:
        return cls(placement.cluster, placement.job, placement.attempt)


class Phase(StrEnum):
    """Prepare: before the worker exists. Attach: inside its namespace."""

    PREPARE = "prepare"
    ATTACH = "attach"


@dataclass(frozen=True, slots=True)
class JournaledStep:
    """One change: whose applier it is, when it is made, and the applier's own value (before, after, and its undo)."""

    concern: str
    phase: Phase
    body: Any


class EntryState(StrEnum):
    """How far a placement is on this node. `failed` keeps what was done until released; `refused` holds nothing."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    ATTACHING = "attaching"
    ATTACHED = "attached"
    UNDOING = "undoing"
    FAILED = "failed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Entry:
    """The journal's entry of one placement: written before what it says is done."""

    key: EntryKey
    placement: Placement
    fence: Fence
    state: EntryState
    steps: tuple[JournaledStep, ...] = ()
    """In the order they are applied; undone in reverse."""
    failure: Failure | None = None
    timings: tuple[Step, ...] = ()
    evicted: frozenset[str] = frozenset()
    """Evictions done: never done again for this placement, whatever came into the cache since."""
    namespaces: Mapping[int, StartedWorker] = field(default_factory=dict)
    """Workers' namespaces told over the local socket, by rank."""
    undone_at: Fence | None = None
    """While undoing: the fence of the release, which the report will carry."""

    @property
    def uid(self) -> RunUid | None:
        return self.placement.uid

    @property
    def holds(self) -> bool:
        """Whether something of it may be left on this node."""
        return self.state is not EntryState.REFUSED

    def uses(self, dataset: str) -> bool:
        """Whether the dataset must stay for it."""
        return self.holds and any(item.dataset == dataset for item in self.placement.datasets)


@dataclass(frozen=True, slots=True)
class Record:
    """A stored placement, as the follower told it. What it gives is only read where it is desired."""

    key: EntryKey
    uid: RunUid | None
    round: int
    state: PlacementState
    fence: Fence
    placement: Placement | None = None
    """Of a desired one."""
    traceparent: str | None = None
    """The trace it belongs to, which its report goes on with."""

    @classmethod
    def of(cls, placement: Placement, fence: Fence, traceparent: str | None = None) -> Record:
        desired = placement if placement.state is PlacementState.DESIRED else None
        key, round_number = EntryKey.of(placement), int(placement.round)
        return cls(key, placement.uid, round_number, placement.state, fence, desired, traceparent)


@dataclass(frozen=True, slots=True)
class Buried:
    """What is left of an undone placement: who it was of, and the fence below which nothing for it is taken in."""

    uid: RunUid | None
    fence: Fence


class Do(StrEnum):
    """What the agent does next for one placement."""

    REST = "rest"
    """Nothing: it is as it should be, or as it must stay."""
    WAIT = "wait"
    """Another run of the job is still held here."""
    REFUSE = "refuse"
    """This node cannot: say so, touch nothing."""
    BEGIN = "begin"
    """Journal it and prepare."""
    PREPARE = "prepare"
    """Go on preparing what a crash or a failure of the journal interrupted."""
    TAKE_IN = "take in"
    """The same thing with a newer fence: remember that, and where its workers are."""
    ATTACH = "attach"
    UNDO = "undo"
    BURY = "bury"
    """Nothing of it is here: remember the release, so that an older placement coming late is refused."""


@dataclass(frozen=True, slots=True)
class Action:
    """What to do, and why where it is not plain."""

    do: Do
    failure: Failure | None = None
    why: str = ""


REST = Action(Do.REST)
_BEGIN = Action(Do.BEGIN)


@dataclass(frozen=True, slots=True)
class Node:
    """What deciding needs to know of the node."""

    features: frozenset[str] = frozenset()
    sees_record: bool = True
    """The follower has told everything that is stored: absence says something now (though never enough to undo)."""


def decide(
    record: Record | None, entry: Entry | None, buried: Buried | None, blocked_by: EntryKey | None, node: Node
) -> Action:
    """The next thing to do for one placement.

    Args:
        record: what is stored under its subject, None where nothing is (or nothing is known yet).
        entry: what the journal holds of it.
        buried: what is remembered of an undone one.
        blocked_by: another run of the same job that this node still holds.
        node: what the node can do.
    """
    if entry is not None and entry.state is EntryState.UNDOING:
        return Action(Do.UNDO, why="its release was taken in before")
    if record is None:
        return REST
    if is_stale(record, entry, buried):
        # Put back to an older state of the same thing: what was begun under the newer one is finished all the same.
        return _go_on(entry) if entry is not None and _is_of_the_same_round(record, entry) else REST
    placement = record.placement
    if placement is None:
        return _on_release(record, entry, buried)
    if entry is None:
        return _on_new(placement, blocked_by, node)
    return _go_on(entry) if record.fence == entry.fence else _on_newer(record, placement, entry)


def _on_newer(record: Record, placement: Placement, entry: Entry) -> Action:
    match _relation(placement, record.fence, entry):
        case _Relation.SAME:
            return Action(Do.TAKE_IN)
        case _Relation.REPLACED:
            return Action(Do.UNDO, why=f"the record gives it round {record.round}")
        case _Relation.FOREIGN:
            return Action(Do.WAIT, why=f"another run of {entry.key} is held here")


def is_stale(record: Record, entry: Entry | None, buried: Buried | None) -> bool:
    """Whether the fence is older than what was taken in for this placement already (R8)."""
    if entry is not None and record.fence < entry.fence:
        return True
    if buried is None:
        return False
    return record.fence < buried.fence or (record.fence == buried.fence and record.state is PlacementState.DESIRED)


def _on_release(record: Record, entry: Entry | None, buried: Buried | None) -> Action:
    if entry is None:
        is_known = buried is not None and buried.fence >= record.fence
        return REST if is_known else Action(Do.BURY)
    if record.uid != entry.uid:
        # It releases another run than the journal holds: nothing of that run is here, and this one stays.
        return REST
    return Action(Do.UNDO, why=f"it is {record.state}")


def _on_new(placement: Placement, blocked_by: EntryKey | None, node: Node) -> Action:
    unknown = [feature for feature in placement.requires if feature not in node.features]
    if unknown:
        text = f"this agent cannot do {', '.join(unknown)}; upgrade it or place the job elsewhere"
        return Action(Do.REFUSE, Failure(step="requires", error="Unsupported", text=text))
    if placement.attach not in ATTACH_MODES:
        text = f"attach mode {placement.attach!r} is not known here ({', '.join(sorted(ATTACH_MODES))})"
        return Action(Do.REFUSE, Failure(step="attach mode", error="Unsupported", text=text))
    if blocked_by is not None:
        return Action(Do.WAIT, why=f"{blocked_by} is held here until it is released")
    return _BEGIN


def _go_on(entry: Entry) -> Action:
    if entry.state is EntryState.PREPARING:
        return Action(Do.PREPARE)
    if entry.state is EntryState.ATTACHING:
        return Action(Do.ATTACH)
    if entry.state is EntryState.PREPARED and is_attach_due(entry):
        return Action(Do.ATTACH)
    return REST


def is_attach_due(entry: Entry) -> bool:
    """Whether the workers' namespaces are known, or there is nothing to attach and the workers were started."""
    workers = network_workers(entry.placement)
    if not workers:
        return entry.placement.started
    if entry.placement.attach in _ATTACHED_BY_OTHERS or entry.namespaces:
        return all(rank in entry.namespaces for rank in workers)
    return entry.placement.started


def network_workers(placement: Placement) -> list[int]:
    """Ranks of the workers whose VFs go into a namespace of theirs; none in host mode."""
    if placement.attach == "host":
        return []
    return [worker.worker for worker in placement.workers if worker.network is not None and worker.network.interfaces]


class _Relation(StrEnum):
    SAME = "same"
    REPLACED = "replaced"
    FOREIGN = "foreign"


def _relation(placement: Placement, fence: Fence, entry: Entry) -> _Relation:
    """How a newer desired placement relates to what is held under its subject."""
    held = entry.placement
    if placement.uid != held.uid:
        return _Relation.FOREIGN
    is_same_epoch = fence.epoch == entry.fence.epoch
    if gives_the_same(placement, held) and (placement.round == held.round or not is_same_epoch):
        # A new epoch with the same devices is an adoption.
        return _Relation.SAME
    # In one epoch the committer knew what is held here and has given it up. After a lost record it may not know: then
    # only a release may end what runs.
    return _Relation.REPLACED if is_same_epoch else _Relation.FOREIGN


def _is_of_the_same_round(record: Record, entry: Entry) -> bool:
    """Whether the record desires, in an older or newer state, what the journal holds."""
    placement, held = record.placement, entry.placement
    return (
        placement is not None
        and placement.uid == held.uid
        and placement.round == held.round
        and gives_the_same(placement, held)
    )


def gives_the_same(one: Placement, other: Placement) -> bool:
    """Whether two placements give the same devices, data and space."""
    if one.datasets != other.datasets or one.scratch != other.scratch or len(one.workers) != len(other.workers):
        return False
    return all(
        mine.worker == theirs.worker and mine.gpus == theirs.gpus and mine.network == theirs.network
        for mine, theirs in zip(one.workers, other.workers, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Said:
    """What a report says, as far as two of them are compared."""

    state: ReportState
    fence: Fence
    uid: RunUid | None


_REPORTED_AS: Mapping[EntryState, ReportState] = {
    EntryState.PREPARED: ReportState.PREPARED,
    EntryState.ATTACHED: ReportState.ATTACHED,
    EntryState.FAILED: ReportState.FAILED,
    EntryState.REFUSED: ReportState.REFUSED,
}


def due_report(record: Record | None, entry: Entry | None, buried: Buried | None, node: Node) -> Said | None:
    """What must be reported of a placement at rest; None where there is nothing to say (yet)."""
    if entry is None:
        if record is None or buried is None:
            return None
        is_wanted_again = record.state is PlacementState.DESIRED and not is_stale(record, None, buried)
        return None if is_wanted_again else Said(ReportState.UNDONE, buried.fence, buried.uid)
    if record is not None and _releases_another(record, entry) and not is_stale(record, entry, buried):
        return Said(ReportState.UNDONE, record.fence, record.uid)
    if entry.state is EntryState.UNDOING:
        return None
    if is_orphan(record, entry, node):
        return Said(ReportState.ORPHAN, entry.fence, entry.uid)
    reported = _REPORTED_AS.get(entry.state)
    return None if reported is None else Said(reported, entry.fence, entry.uid)


def _releases_another(record: Record, entry: Entry) -> bool:
    return record.state is PlacementState.RELEASING and record.uid != entry.uid


def is_orphan(record: Record | None, entry: Entry, node: Node) -> bool:
    """Whether the journal holds what the record lacks."""
    if not node.sees_record or not entry.holds:
        return False
    if record is None:
        return True
    if record.fence < entry.fence:
        # The record was put back. What it has of the very same thing stands, under our newer fence; what it has of
        # another round, or its release, is of a past that the committer must be told is over.
        return not _is_of_the_same_round(record, entry)
    if record.placement is None:
        return record.uid != entry.uid
    is_newer = record.fence != entry.fence
    return is_newer and _relation(record.placement, record.fence, entry) is _Relation.FOREIGN
