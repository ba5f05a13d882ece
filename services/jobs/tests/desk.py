"""A committer at a desk: a test hands it events one by one, in the words of the tests, and looks at what it did.

desk = Desk()
desk.submit("j", workers=2, gpus=1)
desk.propose()
desk.report("j", ReportState.PREPARED)
assert desk.state_of("j") is JobState.PREPARED

What it stores is kept as the record keeps it and folded into the shared view at once, so a proposal here is never
stale unless the test makes it so. What it would publish, ack and refuse is kept in lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from railweave.contracts.desired import NodeDesired, NodeMode
from railweave.contracts.envelope import Event
from railweave.contracts.identity import JobKey, JobRun
from railweave.contracts.inventory import Failure, NodeHardware, Report, ReportState
from railweave.contracts.job import (
    JobEnded,
    JobStarted,
    JobSubmitted,
    JobUpdated,
    Outcome,
    SchedulerSnapshot,
    WorkerGroup,
)
from railweave.contracts.placement import Epoch, Fence, Head, JobState, Placement, PlacementState
from railweave.contracts.proposal import (
    Ask,
    Concern,
    DataProposal,
    FabricProposal,
    GpuProposal,
    GpuShare,
    NicProposal,
    NodeData,
    NodesProposal,
    Proposal,
    VfRef,
    WorkerGpus,
    WorkerVfs,
)
from railweave.contracts.reasons import Lack, Reason, ReasonCode
from railweave.contracts.types import ClusterName, Document, JobName, NodeName, VfIndex
from railweave.jobs.committer import Committer, Input, JobInput, SnapshotInput, Tick
from railweave.jobs.model import Ack, CommitterConfig, Effect, Job, Publish, Refuse, Store
from railweave.runtime.cluster import ClusterState
from railweave_testing.clusters import CLUSTER, ClusterBuilder, spec

START = datetime(2026, 12, 1, tzinfo=UTC)
GPUS, RAILS, VFS = 2, 2, 3

E = TypeVar("E", bound=Event)
M = TypeVar("M", bound=Document)


def make(model: type[M], /, **fields: Any) -> M:
    """A document from plain values."""
    return model.model_validate(fields, strict=False)


def key_of(job: str) -> JobKey:
    return JobKey(ClusterName(CLUSTER), JobName(job))


def small_cluster(nodes: int, **fields: Any) -> ClusterBuilder:
    """Nodes n0, n1, ... on one leaf, each with two GPUs and two rails of three VFs."""
    builder = ClusterBuilder()
    for index in range(nodes):
        builder.node(f"n{index}", **({"gpus": GPUS, "rails": RAILS, "vfs": VFS} | fields))
    return builder


def lacking(*lacks: Lack, code: ReasonCode = ReasonCode.INSUFFICIENT_GPUS, text: str = "full") -> Reason:
    return Reason(code=code, text=text, lacks=lacks or (Lack.GPU,))


@dataclass(frozen=True, slots=True)
class Stored:
    """An event as the record has it."""

    event: Event
    sequence: int
    stored_at: datetime


@dataclass
class Desk:
    """See the module."""

    nodes: int = 4
    builder: ClusterBuilder | None = None
    config: CommitterConfig = field(default_factory=CommitterConfig)
    now: datetime = START
    record: dict[str, Stored] = field(default_factory=dict)
    last_sequence: int = 0
    stores: list[Store] = field(default_factory=list)
    said: list[Event] = field(default_factory=list)
    """Answers published, in order."""
    asks: list[Ask] = field(default_factory=list)
    """Asks nobody has answered."""
    acked: list[int] = field(default_factory=list)
    refused: list[Refuse] = field(default_factory=list)
    reports: dict[tuple[NodeName, JobRun], Report] = field(default_factory=dict)
    job_sequence: int = 0
    instances: int = 0
    is_cold: bool = False
    """True: the record begins without an epoch."""
    committer: Committer = field(init=False)
    _revision: int = 0
    _node_sequence: int = 100_000

    def __post_init__(self) -> None:
        self.builder = self.builder or small_cluster(self.nodes)
        if not self.is_cold:
            self._store(Store((make(Epoch, epoch=1, cause="bootstrap", text="of a test"),), atomic=False))
            # Raised just now, it would have every committer wait for the nodes first.
            ((subject, first),) = self.record.items()
            self.record[subject] = replace(first, stored_at=first.stored_at - timedelta(hours=1))
            self.stores.clear()
        self.activate()

    # -- the committer ------------------------------------------------------------------------------------------------

    @property
    def state(self) -> ClusterState:
        assert self.builder is not None
        return self.builder.state

    @property
    def book(self) -> Any:
        return self.committer.book

    def activate(self, *, is_suspect: bool = False, reports: bool = True) -> None:
        """A committer folds the record, and reads the latest reports."""
        self.instances += 1
        self.committer = Committer(self.state, self.config, f"c{self.instances}")
        self.asks.clear()
        effects = self.committer.start(
            [(item.event, item.sequence, item.stored_at) for item in self._recorded(Head)],
            [(item.event, item.sequence) for item in self._recorded(Placement)],
            epoch=max((item.event.epoch for item in self._recorded(Epoch)), default=0),
            epoch_at=max((item.stored_at for item in self._recorded(Epoch)), default=None),
            last_sequence=self.last_sequence,
            now=self.now,
            is_suspect=is_suspect,
        )
        self._carry_out(effects)
        if reports:
            for report in list(self.reports.values()):
                self.tell(report)

    def _recorded(self, kind: type[E]) -> list[Any]:
        return [item for item in self.record.values() if isinstance(item.event, kind)]

    def lose_record(self, keep: Mapping[str, Stored] | None = None, last_sequence: int = 0) -> None:
        """The record is another one now: an earlier copy, or empty."""
        self.record = dict(keep or {})
        self.last_sequence = last_sequence
        self.state.reset("PLACEMENTS")
        for item in self.record.values():
            self.state.apply_event(item.event, item.sequence, "PLACEMENTS")

    def copy_of_record(self) -> tuple[dict[str, Stored], int]:
        return dict(self.record), self.last_sequence

    def tell(self, happened: Input) -> list[Effect]:
        """Hand over one input, let it wake who waits, and do what it says; returns what it said."""
        effects = self.committer.handle(happened, self.now)
        effects += self.committer.wake(self.now)
        self._carry_out(effects)
        return effects

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Store():
                    self._store(effect)
                case Publish(event=Ask() as ask):
                    self.asks.append(ask)
                case Publish():
                    self.said.append(effect.event)
                case Ack():
                    self.acked.append(effect.sequence)
                case Refuse():
                    self.refused.append(effect)

    def _store(self, store: Store) -> None:
        self.stores.append(store)
        for event in store.events:
            self.last_sequence += 1
            self.record[event.subject()] = Stored(event, self.last_sequence, self.now)
            self.state.apply_event(event, self.last_sequence, "PLACEMENTS")

    def wait(self, seconds: float, *, step: float = 0.5) -> None:
        """Let time pass, with a tick every half second."""
        end = self.now + timedelta(seconds=seconds)
        while self.now < end:
            self.now = min(end, self.now + timedelta(seconds=step))
            self.tell(Tick())

    # -- the scheduler ------------------------------------------------------------------------------------------------

    def submit(self, job: str = "j", *, attempt: int = 1, uid: str | None = None, **fields: Any) -> int:
        """`submitted` is stored; its sequence. `fields` as `railweave_testing.clusters.spec` takes them."""
        wanted = spec(job, attempt=attempt, uid=uid, **fields)
        return self.job_event(JobSubmitted.of(wanted))

    def start(self, job: str = "j", *, attempt: int = 1, uid: str | None = None, **fields: Any) -> int:
        return self.job_event(make(JobStarted, cluster=CLUSTER, job=job, attempt=attempt, uid=uid, **fields))

    def end(
        self, job: str = "j", outcome: Outcome = Outcome.SUCCEEDED, *, attempt: int = 1, uid: str | None = None
    ) -> int:
        return self.job_event(make(JobEnded, cluster=CLUSTER, job=job, attempt=attempt, uid=uid, outcome=outcome))

    def update(self, job: str = "j", revision: int = 1, *, attempt: int = 1, **fields: Any) -> int:
        return self.job_event(make(JobUpdated, cluster=CLUSTER, job=job, attempt=attempt, revision=revision, **fields))

    def job_event(self, event: JobSubmitted | JobStarted | JobEnded | JobUpdated, *, at: datetime | None = None) -> int:
        """An event of a scheduler is stored and delivered; its sequence in JOBS."""
        self.job_sequence += 1
        # Two messages of a stream never have the same time.
        self.now += timedelta(milliseconds=1)
        self.tell(JobInput(event, self.job_sequence, at or self.now))
        return self.job_sequence

    def again(self, event: JobSubmitted | JobStarted | JobEnded | JobUpdated, sequence: int, at: datetime) -> None:
        """A delivery of a message that was stored before."""
        self.tell(JobInput(event, sequence, at))

    def snapshot(self, *live: str, number: int = 1, taken_at: datetime | None = None) -> None:
        """The scheduler's list: `job` or `job#attempt`."""
        runs = []
        for text in live:
            name, _, attempt = text.partition("#")
            runs.append({"job": name, "attempt": int(attempt or 1)})
        taken_at = taken_at or self.now
        event = make(SchedulerSnapshot, cluster=CLUSTER, number=number, taken_at=taken_at, live=runs)
        self.tell(SnapshotInput(event, self.now))

    # -- services -----------------------------------------------------------------------------------------------------

    def propose(self, job: str | None = None, nodes: Sequence[str] | None = None, *, most: int = 100) -> None:
        """All concerns answer every open ask (of one job), and those that follow, on the record as it is."""
        for _ in range(most):
            ask = next((ask for ask in self.asks if job in {None, ask.job}), None)
            if ask is None:
                return
            self.asks.remove(ask)
            for proposal in self.answers(ask, nodes):
                self.tell(proposal)
        raise AssertionError("asked for ever")

    def take_ask(self, job: str = "j") -> Ask:
        """The open ask of a job, which is then nobody else's to answer."""
        ask = next(ask for ask in reversed(self.asks) if ask.job == job)
        self.asks = [other for other in self.asks if other.job != job]
        return ask

    def refuse(self, job: str = "j", *reasons: Reason, never: bool = False) -> None:
        """The first concern says no to the open ask of a job."""
        self.tell(NodesProposal(**about(self.take_ask(job)), reasons=reasons or (lacking(),), never=never))

    def answers(self, ask: Ask, nodes: Sequence[str] | None = None) -> list[Proposal]:
        """What each concern says to an ask: the first nodes with enough free, or that there are none."""
        places = ask.spec.places()
        groups_of: dict[int, list[WorkerGroup]] = {}
        for place in places:
            groups_of.setdefault(place.slot, []).append(place.group)
        chosen: list[NodeName] = []
        names, before = iter(sorted(self.state.nodes)), groups_of[0]
        for slot, groups in groups_of.items():
            if nodes is not None:
                chosen.append(NodeName(nodes[slot]))
                continue
            if groups != before:
                # Who did not fit the slot before may fit this one.
                names, before = iter(sorted(set(self.state.nodes) - set(chosen))), groups
            found = next((name for name in names if self._fits(name, groups, ask)), None)
            if found is None:
                capable = [node for node in self.state.nodes.values() if node.hardware is not None]
                never = ask.spec.slot_count > len(capable) or any(group.gpus > GPUS for group in ask.spec.workers)
                return [NodesProposal(**about(ask), reasons=(lacking(),), never=never)]
            chosen.append(found)
        gpus, vfs = self._devices(places, chosen)
        answers: dict[Concern, Proposal] = {
            Concern.NODES: NodesProposal(**about(ask), nodes=tuple(chosen)),
            Concern.GPU: GpuProposal(**about(ask), workers=gpus),
            Concern.FABRIC: FabricProposal(**about(ask)),
            Concern.NIC: NicProposal(**about(ask), workers=vfs),
            Concern.DATA: DataProposal(**about(ask), nodes=tuple(self._data(name, ask) for name in chosen)),
        }
        return [answers[concern] for concern in ask.concerns]

    def _fits(self, name: NodeName, groups: Sequence[WorkerGroup], ask: Ask) -> bool:
        node = self.state.nodes[name]
        if not node.is_schedulable or name in ask.exclude or name in ask.avoid:
            return False
        listed = ask.spec.nodes.node_list
        if listed is not None and name not in listed:
            return False
        free = [node.free_gpu_milli(index) for index in range(GPUS)]
        for group in groups:
            for _ in range(group.gpus):
                best = next((index for index in range(GPUS) if free[index] >= int(group.milli_per_gpu)), None)
                if best is None:
                    return False
                free[best] -= int(group.milli_per_gpu)
        return not ask.spec.wants_network or len(self._free_vfs(name)) >= len(groups)

    def _free_vfs(self, name: NodeName) -> list[int]:
        used = {vf for _, vf in self.state.nodes[name].vfs_used}
        return [vf for vf in range(VFS) if vf not in used]

    def _devices(
        self, places: Iterable[Any], chosen: Sequence[NodeName]
    ) -> tuple[tuple[WorkerGpus, ...], tuple[WorkerVfs, ...]]:
        free = {name: {index: self.state.node(name).free_gpu_milli(index) for index in range(GPUS)} for name in chosen}
        vfs_of = {name: self._free_vfs(name) for name in chosen}
        gpus, vfs = [], []
        for place in places:
            name = chosen[place.slot]
            shares = []
            for _ in range(place.group.gpus):
                needed = place.group.milli_per_gpu
                index = next((index for index in range(GPUS) if free[name][index] >= int(needed)), GPUS - 1)
                free[name][index] -= int(needed)
                shares.append(GpuShare(index, needed))
            vf = vfs_of[name].pop(0) if vfs_of[name] else 0
            if shares:
                gpus.append(WorkerGpus(worker=place.worker, gpus=tuple(shares)))
            refs = tuple(VfRef(rail, VfIndex(vf)) for rail in range(RAILS))
            vfs.append(WorkerVfs(worker=place.worker, group=f"g{vf}", vfs=refs))
        return tuple(gpus), tuple(vfs)

    def _data(self, name: NodeName, ask: Ask) -> NodeData:
        node = self.state.node(name)
        there = tuple(want.dataset for want in ask.spec.datasets if node.has_ready(want.dataset))
        fetch = {want.dataset: want.size_bytes or 0 for want in ask.spec.datasets if want.dataset not in there}
        return make(NodeData, node=name, use=there, fetch=fetch)

    # -- agents -------------------------------------------------------------------------------------------------------

    def report(
        self,
        job: str,
        state: ReportState,
        nodes: Iterable[str] | None = None,
        *,
        fence: Fence | None = None,
        held: Placement | None = None,
    ) -> None:
        """Nodes of a job (default: all that have a placement) report on what the record says now."""
        for node in list(nodes if nodes is not None else (item.event.node for item in self.placements(job))):
            placement = self.placement(job, node)
            self.report_on(placement.event, state, fence or Fence(placement.event.epoch, placement.sequence), held=held)

    def report_on(
        self, placement: Placement, state: ReportState, fence: Fence, *, held: Placement | None = None
    ) -> Report:
        """A node reports on a placement."""
        self._revision += 1
        failed = state in {ReportState.REFUSED, ReportState.FAILED}
        report = Report(
            cluster=placement.cluster,
            job=placement.job,
            attempt=placement.attempt,
            uid=placement.uid,
            node=placement.node,
            revision=self._revision,
            boot_id="b",
            fence=fence,
            state=state,
            failure=Failure(step="attach rail0", error="EBUSY", text="in use") if failed else None,
            held=held,
        )
        self.reports[report.node, report.run] = report
        self._node_sequence += 1
        self.state.apply_event(report, self._node_sequence, "NODES")
        self.tell(report)
        return report

    def orphan(self, placement: Placement, fence: Fence) -> None:
        """A node's journal holds a placement that the record does not name."""
        self.report_on(placement, ReportState.ORPHAN, fence, held=placement)

    def hears_fence(self, node: str, fence: Fence) -> None:
        """A node's inventory tells the highest fence it has applied."""
        hardware = self.state.node(NodeName(node)).hardware
        assert hardware is not None
        self._revision += 1
        told = hardware.model_copy(update={"fence_seen": fence, "revision": self._revision})
        assert isinstance(told, NodeHardware)
        self._node_sequence += 1
        self.state.apply_event(told, self._node_sequence, "NODES")
        self.tell(told)

    def mode(self, node: str, mode: NodeMode) -> None:
        """An operator's wish for a node."""
        self._node_sequence += 1
        wish = make(NodeDesired, node=node, generation=self._node_sequence, mode=mode)
        self.state.apply_event(wish, self._node_sequence, "DESIRED")
        self.tell(wish)

    # -- what came of it ----------------------------------------------------------------------------------------------

    def place(self, job: str = "j", nodes: Sequence[str] | None = None, **fields: Any) -> None:
        """Submit and place a job."""
        self.submit(job, **fields)
        self.propose(job, nodes)
        assert self.state_of(job) is JobState.PLACED, self.head(job)

    def prepare(self, job: str = "j", nodes: Sequence[str] | None = None, **fields: Any) -> None:
        """Submit, place and prepare a job."""
        self.place(job, nodes, **fields)
        self.report(job, ReportState.PREPARED)

    def attach(self, job: str = "j", nodes: Sequence[str] | None = None, **fields: Any) -> None:
        """Submit, place, prepare, start and attach a job."""
        self.prepare(job, nodes, **fields)
        attempt, uid = fields.get("attempt", 1), fields.get("uid")
        self.start(job, attempt=attempt, uid=uid)
        self.report(job, ReportState.ATTACHED)

    def live(self, job: str = "j") -> Job:
        """The job as the committer has it."""
        return self.book.jobs[key_of(job)]

    def head(self, job: str = "j") -> Head:
        """The stored head of a job."""
        found = [item.event for item in self._recorded(Head) if item.event.job == job]
        assert found, f"no head of {job} is stored"
        return found[0]

    def has_head(self, job: str = "j") -> bool:
        return any(item.event.job == job for item in self._recorded(Head))

    def state_of(self, job: str = "j") -> JobState:
        return self.head(job).state

    def placements(self, job: str = "j") -> list[Stored]:
        """Placements of a job that are not released, in rank order."""
        found = [
            item
            for item in self._recorded(Placement)
            if item.event.job == job and item.event.state is not PlacementState.RELEASED
        ]
        return sorted(found, key=lambda item: item.event.node_rank)

    def placement(self, job: str, node: str) -> Stored:
        """The placement of a job on a node, whatever its state; the newest attempt's."""
        found = [item for item in self._recorded(Placement) if (item.event.job, item.event.node) == (job, node)]
        return max(found, key=lambda item: item.sequence)

    def nodes_of(self, job: str = "j") -> tuple[str, ...]:
        return tuple(item.event.node for item in self.placements(job))

    def told(self, kind: type[E], job: str = "j") -> list[E]:
        """What was published of one type about a job."""
        return [event for event in self.said if isinstance(event, kind) and event.job == job]

    def names_told(self, job: str = "j") -> list[str]:
        """Short names of all answers about a job, in order: `placed`, `prepared`."""
        return [event.EVENT for event in self.said if event.job == job]

    def codes(self, job: str = "j") -> list[ReasonCode]:
        return [reason.code for reason in self.head(job).reasons]


def about(ask: Ask) -> dict[str, Any]:
    """The fields by which an answer names its ask."""
    return {"cluster": ask.cluster, "job": ask.job, "attempt": ask.attempt, "uid": ask.uid, "round": ask.round}
