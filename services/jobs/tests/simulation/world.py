"""A whole plane in one thread: streams that delay, repeat and reorder, naive services, agents, crashes anywhere.

Everything random comes from one seed, so a failing run can be run again. The committer is the real one; what is
around it is as unhelpful as the real parts may be: services propose on stale views, agents refuse and fail, messages
come late and twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from railweave.contracts.envelope import Event
from railweave.contracts.fabric import Attachment, FabricLeaf, FabricNode, LeafVlan
from railweave.contracts.identity import JobKey, JobRun
from railweave.contracts.inventory import Failure, Gpu, NodeHardware, NodeStorage, Pf, Report, ReportState, Space
from railweave.contracts.job import JobEnded, JobStarted, JobSubmitted, NetworkWanted, Outcome, WorkerGroup
from railweave.contracts.placement import (
    HOLDING_STATES,
    Epoch,
    Fence,
    Head,
    JobState,
    Placement,
    PlacementState,
    claim_terms,
)
from railweave.contracts.proposal import (
    Ask,
    Concern,
    FabricProposal,
    GpuProposal,
    GpuShare,
    NicProposal,
    NodesProposal,
    Proposal,
    VfRef,
    WorkerGpus,
    WorkerVfs,
)
from railweave.contracts.reasons import Lack, Reason, ReasonCode
from railweave.contracts.types import (
    Attempt,
    BootId,
    Bytes,
    ClusterName,
    GpuUuid,
    InterfaceName,
    JobName,
    Label,
    LeafName,
    Mib,
    Milli,
    NodeName,
    PciAddress,
    Rail,
    RunUid,
    Slot,
    VfIndex,
    VlanId,
)
from railweave.jobs.committer import Committer, Input, JobInput, Tick
from railweave.jobs.model import Ack, CommitterConfig, Publish, Refuse, Store
from railweave.runtime.cluster import ClusterState

GPUS = 2
VFS = 3
RAILS = 2
CLUSTER = ClusterName("lab")
START = datetime(2026, 12, 1, tzinfo=UTC)


NO_FENCE = Fence(0, 0)


class Broken(AssertionError):
    """An invariant does not hold."""


def node_names(count: int) -> list[NodeName]:
    return [NodeName(f"n{index}") for index in range(count)]


def cluster(nodes: Iterable[NodeName]) -> list[Event]:
    """The inventory and fabric of a small cluster: one leaf, two rails."""
    leaf = LeafName("leaf")
    events: list[Event] = [
        FabricLeaf(
            leaf=leaf,
            revision=1,
            island="i",
            pod="p",
            vlans=tuple(
                LeafVlan(rail=Rail(rail), vlan=VlanId(100 + rail), subnet=f"10.{rail}.0.0/24", gateway=f"10.{rail}.0.1")
                for rail in range(RAILS)
            ),
        )
    ]
    for index, node in enumerate(nodes):
        attachments = tuple(
            Attachment(rail=Rail(rail), leaf=leaf, port=f"e{index}", slot=Slot(index)) for rail in range(RAILS)
        )
        events += [
            FabricNode(node=node, revision=1, ordinal=index, island="i", pod="p", attachments=attachments),
            hardware(node, 1, NO_FENCE),
            NodeStorage(
                node=node,
                revision=1,
                boot_id=BootId("b"),
                cache=Space(total_bytes=Bytes(1000), used_bytes=Bytes(0)),
                scratch=Space(total_bytes=Bytes(1000), used_bytes=Bytes(0)),
            ),
        ]
    return events


def hardware(node: NodeName, revision: int, seen: Fence) -> NodeHardware:
    return NodeHardware(
        node=node,
        revision=revision,
        boot_id=BootId("b"),
        agent_version="0",
        fence_seen=seen,
        pfs=tuple(
            Pf(
                pci=PciAddress(f"0000:{rail:02x}:00.0"),
                rail=Rail(rail),
                netdev=InterfaceName(f"r{rail}"),
                vfs=VFS,
                mtu=9000,
            )
            for rail in range(RAILS)
        ),
        gpus=tuple(
            Gpu(index=index, uuid=GpuUuid(f"GPU-{node}-{index}"), model=Label("sim"), memory_mib=Mib(1000))
            for index in range(GPUS)
        ),
    )


@dataclass
class Message:
    """A stored event, and who has still to see it."""

    event: Event
    sequence: int
    stored_at: datetime


@dataclass
class Agent:
    """A node's agent: applies what the record says, in the order it hears of it, and never undoes on absence."""

    node: NodeName
    held: dict[JobRun, tuple[Placement, Fence, ReportState]] = field(default_factory=dict)
    last: dict[JobRun, Fence] = field(default_factory=dict)
    seen: Fence = NO_FENCE
    revision: int = 1

    def hear(self, placement: Placement, sequence: int, rng: random.Random) -> Report | None:
        fence = Fence(placement.epoch, sequence)
        if fence < self.last.get(placement.run, NO_FENCE):
            return None
        self.last[placement.run] = fence
        self.seen = max(self.seen, fence)
        if placement.state is PlacementState.RELEASED:
            self.held.pop(placement.run, None)
            return None
        if placement.state is PlacementState.RELEASING:
            self.held.pop(placement.run, None)
            return self.report(placement, fence, ReportState.UNDONE)
        if any(run != placement.run and overlaps(placement, other) for run, (other, _, _) in self.held.items()):
            return self.report(placement, fence, ReportState.REFUSED)
        already = self.held.get(placement.run)
        if already is None and rng.random() < 0.03:
            return self.report(placement, fence, ReportState.REFUSED)
        was_attached = already is not None and already[2] is ReportState.ATTACHED
        if placement.started and not was_attached and rng.random() < 0.02:
            state = ReportState.FAILED
        else:
            state = ReportState.ATTACHED if placement.started else ReportState.PREPARED
        self.held[placement.run] = (placement, fence, state)
        return self.report(placement, fence, state)

    def report(self, placement: Placement, fence: Fence, state: ReportState, held: Placement | None = None) -> Report:
        self.revision += 1
        failure = None
        if state in {ReportState.REFUSED, ReportState.FAILED}:
            failure = Failure(step="step", error="EBUSY", text="simulated")
        return Report(
            cluster=placement.cluster,
            job=placement.job,
            attempt=placement.attempt,
            uid=placement.uid,
            node=self.node,
            revision=self.revision,
            boot_id=BootId("b"),
            fence=fence,
            state=state,
            failure=failure,
            held=held,
        )


def exclusive_claims(placement: Placement) -> set[tuple[str, str]]:
    return {(kind, name) for kind, name, amount in claim_terms(placement) if amount is None}


def overlaps(one: Placement, other: Placement) -> bool:
    return bool(exclusive_claims(one) & exclusive_claims(other))


class World:
    """Run it step by step; `check` after each; `quiesce` at the end."""

    def __init__(self, seed: int, *, nodes: int = 4, jobs: int = 6, ending: bool = True) -> None:
        self.rng = random.Random(seed)
        self.now = START
        self.nodes = node_names(nodes)
        self.record: dict[str, Message] = {}
        self.last_sequence = 0
        self.record_lag: list[Message] = []
        """Record messages that agents and services have not heard of."""
        self.stale = ClusterState()
        """What services see: behind the record."""
        self.state = ClusterState()
        """What the committer sees of nodes and fabric."""
        for sequence, event in enumerate(cluster(self.nodes), 1):
            stream = "FABRIC" if isinstance(event, FabricNode | FabricLeaf) else "NODES"
            self.stale.apply_event(event, sequence, stream)
            self.state.apply_event(event, sequence, stream)
        self.node_sequence = 1000
        self.agents = {node: Agent(node) for node in self.nodes}
        self.deliveries: list[tuple[NodeName, Message]] = []
        self.reports: dict[tuple[NodeName, JobRun], Report] = {}
        self.report_queue: list[Report] = []
        self.job_stream: list[Message] = []
        self.unacked: dict[int, Message] = {}
        self.job_queue: list[Message] = []
        self.proposals: list[Proposal] = []
        self.asks: list[Ask] = []
        self.answers: list[Event] = []
        self.refused: list[Refuse] = []
        self.config = CommitterConfig(retry_pending_s=2.0, keep_nodes_after_s=5.0, orphan_grace_s=1.0)
        self.committers = 0
        self.committer = self.activate()
        self.ending = ending
        self.plan = self._make_plan(jobs)
        self.ended: set[JobKey] = set()

    # -- the scheduler -----------------------------------------------------------------------------------------------

    def _make_plan(self, jobs: int) -> list[tuple[float, Callable[[], None]]]:
        """What schedulers will say, and when: submissions, starts, ends, requeues, name reuse, repeats."""
        plan: list[tuple[float, Callable[[], None]]] = []
        for number in range(jobs):
            name = JobName(f"j{number}")
            at = self.rng.uniform(0, 20)
            runs: list[tuple[int, str | None]] = [(1, None)]
            if self.rng.random() < 0.3:
                runs.append((2, None))
            if self.rng.random() < 0.2:
                runs = [(1, "a"), (1, "b")]
            for (attempt, uid), following in pairwise([*runs, None]):
                spec = self._spec(name, attempt, uid)
                plan.append((at, self._teller(spec)))
                if self.rng.random() < 0.3:
                    plan.append((at + self.rng.uniform(0, 5), self._teller(spec)))
                started = JobStarted(cluster=CLUSTER, job=name, attempt=Attempt(attempt), uid=_uid(uid))
                plan.append((at + self.rng.uniform(1, 8), self._teller(started)))
                # A requeue says nothing of the old attempt half of the time: the new one ends it.
                if self.ending and (following is None or self.rng.random() < 0.5):
                    ended = JobEnded(
                        cluster=CLUSTER,
                        job=name,
                        attempt=Attempt(attempt),
                        uid=_uid(uid),
                        outcome=Outcome.SUCCEEDED,
                    )
                    plan.append((at + self.rng.uniform(0, 15), self._teller(ended)))
                    if self.rng.random() < 0.3:
                        plan.append((at + self.rng.uniform(0, 30), self._teller(ended)))
                at += self.rng.uniform(1, 16)
        plan.sort(key=lambda item: item[0])
        return plan

    def _spec(self, name: JobName, attempt: int, uid: str | None) -> JobSubmitted:
        count = self.rng.choice([1, 1, 2, 2, 3, len(self.nodes)])
        fraction = Milli(400) if self.rng.random() < 0.3 else None
        group = WorkerGroup(count=count, gpus=self.rng.choice([1, 1, 2]), gpu_fraction_milli=fraction)
        return JobSubmitted(
            cluster=CLUSTER,
            job=name,
            attempt=Attempt(attempt),
            uid=_uid(uid),
            workers=(group,),
            network=NetworkWanted() if self.rng.random() < 0.7 else None,
            priority=self.rng.choice([0, 0, 5]),
            prepare_deadline_s=10,
            attach_deadline_s=10,
            on_deadline=self.rng.choice(["give_back", "retry"]),
        )

    def _teller(self, event: Event) -> Callable[[], None]:
        def tell() -> None:
            # JetStream drops what comes again under the same id; the window is longer than these seeds live.
            if any(item.event.event_id() == event.event_id() for item in self.job_stream):
                return
            # No two messages of a stream have the same time.
            self.now += timedelta(microseconds=1)
            message = Message(event, len(self.job_stream) + 1, self.now)
            self.job_stream.append(message)
            self.unacked[message.sequence] = message
            self.job_queue.append(message)

        return tell

    # -- the committer -----------------------------------------------------------------------------------------------

    def activate(self, *, is_suspect: bool = False) -> Committer:
        """A new committer folds the record as it is."""
        self.committers += 1
        committer = Committer(self.state, self.config, f"c{self.committers}")
        heads = [
            (item.event, item.sequence, item.stored_at) for item in self.record.values() if isinstance(item.event, Head)
        ]
        placements = [(item.event, item.sequence) for item in self.record.values() if isinstance(item.event, Placement)]
        epochs = [(item.event.epoch, item.stored_at) for item in self.record.values() if isinstance(item.event, Epoch)]
        epoch, epoch_at = max(epochs, default=(0, None))
        effects = committer.start(
            heads,
            placements,
            epoch=epoch,
            epoch_at=epoch_at,
            last_sequence=self.last_sequence,
            now=self.now,
            is_suspect=is_suspect,
        )
        self.committer = committer
        self._carry_out(committer, effects, self.last_sequence)
        # Whatever is not acked comes again, in any order over jobs; the latest reports are read first, and come again.
        self.job_queue = list(self.unacked.values())
        self.proposals.clear()
        self.report_queue += list(self.reports.values())
        for report in list(self.reports.values()):
            if self.committer is committer:
                self.tell(report)
        return committer

    def tell(self, happened: Input) -> None:
        base = self.last_sequence
        effects = self.committer.handle(happened, self.now)
        effects += self.committer.wake(self.now)
        self._carry_out(self.committer, effects, base)

    def _carry_out(self, committer: Committer, effects: list[object], base: int) -> None:
        """Store, publish, ack; it may crash between any two, or in the middle of plain writes."""
        crash_at = self.rng.randrange(len(effects) + 1) if effects and self.rng.random() < 0.02 else None
        stores = [effect for effect in effects if isinstance(effect, Store)]
        rest = [effect for effect in effects if not isinstance(effect, Store)]
        for number, effect in enumerate([*stores, *rest]):
            if crash_at is not None and number >= crash_at and committer is self.committer and self.committers:
                self.activate()
                return
            match effect:
                case Store():
                    if base != self.last_sequence:
                        return
                    base = self._store(effect)
                case Publish():
                    self._publish(effect.event)
                case Ack():
                    self.unacked.pop(effect.sequence, None)
                case Refuse():
                    self.refused.append(effect)
                    self.unacked.pop(effect.sequence, None)

    def _store(self, store: Store) -> int:
        for event in store.events:
            self.last_sequence += 1
            message = Message(event, self.last_sequence, self.now)
            self.record[event.subject()] = message
            self.record_lag.append(message)
            if isinstance(event, Placement):
                self.deliveries.append((event.node, message))
        return self.last_sequence

    def _publish(self, event: Event) -> None:
        if isinstance(event, Ask):
            self.asks.append(event)
        else:
            self.answers.append(event)

    # -- the services ------------------------------------------------------------------------------------------------

    def answer(self, ask: Ask) -> None:
        """All concerns answer one ask on the stale view; sometimes one does not answer at all."""
        about = {"cluster": ask.cluster, "job": ask.job, "attempt": ask.attempt, "uid": ask.uid, "round": ask.round}
        free = [
            node
            for node in self.stale.nodes.values()
            if node.name not in ask.exclude and node.name not in ask.avoid and self._has_room(node.name, ask)
        ]
        self.rng.shuffle(free)
        if len(free) < ask.spec.slot_count:
            never = ask.spec.slot_count > len(self.nodes) - len(ask.exclude)
            reason = Reason(code=ReasonCode.INSUFFICIENT_GPUS, text="full", lacks=(Lack.GPU, Lack.VF))
            self.proposals.append(NodesProposal(**about, reasons=(reason,), never=never))
            return
        chosen = tuple(node.name for node in free[: ask.spec.slot_count])
        answers: list[Proposal] = [NodesProposal(**about, nodes=chosen)]
        places = ask.spec.places()
        if Concern.GPU in ask.concerns:
            workers = tuple(
                WorkerGpus(worker=place.worker, gpus=self._gpus(chosen[place.slot], place.group)) for place in places
            )
            answers.append(GpuProposal(**about, workers=workers))
        if Concern.NIC in ask.concerns:
            answers.append(FabricProposal(**about))
            answers.append(NicProposal(**about, workers=tuple(self._vfs(chosen[p.slot], p.worker) for p in places)))
        self.proposals += [item for item in answers if self.rng.random() > 0.01]

    def _has_room(self, name: NodeName, ask: Ask) -> bool:
        node = self.stale.nodes[name]
        group = ask.spec.workers[0]
        needed = int(group.milli_per_gpu)
        fitting = sum(1 for index in range(GPUS) if node.free_gpu_milli(index) >= needed)
        groups = [vf for vf in range(VFS) if not any(used == vf for _, used in node.vfs_used)]
        return fitting >= group.gpus and (not ask.spec.wants_network or bool(groups))

    def _gpus(self, name: NodeName, group: WorkerGroup) -> tuple[GpuShare, ...]:
        node = self.stale.nodes[name]
        needed = group.milli_per_gpu
        free = [index for index in range(GPUS) if node.free_gpu_milli(index) >= needed]
        return tuple(GpuShare(index, needed) for index in free[: group.gpus])

    def _vfs(self, name: NodeName, worker: int) -> WorkerVfs:
        node = self.stale.nodes[name]
        free = [vf for vf in range(VFS) if not any(used == vf for _, used in node.vfs_used)]
        vf = self.rng.choice(free)
        return WorkerVfs(worker=worker, group=f"g{vf}", vfs=tuple(VfRef(rail, VfIndex(vf)) for rail in range(RAILS)))

    # -- what may happen next ----------------------------------------------------------------------------------------

    def step(self) -> None:
        """Something happens."""
        actions: list[tuple[float, Callable[[], None]]] = [(1.0, self._pass_time)]
        if self.plan and self.plan[0][0] <= (self.now - START).total_seconds():
            actions.append((5.0, self._tell_next))
        if self.job_queue:
            actions.append((4.0, self._deliver_job_event))
        if self.asks:
            actions.append((4.0, lambda: self.answer(self.asks.pop(self.rng.randrange(len(self.asks))))))
        if self.proposals:
            actions.append((6.0, self._deliver_proposal))
        if self.deliveries:
            actions.append((5.0, self._deliver_placement))
        if self.report_queue:
            actions.append((5.0, self._deliver_report))
        if self.record_lag:
            actions.append((6.0, self._catch_up))
        actions += [(0.05, self._crash), (0.05, self._take_over), (0.1, self._redeliver), (0.2, self._resync)]
        weights = [weight for weight, _ in actions]
        self.rng.choices(actions, weights)[0][1]()

    def _tell_next(self) -> None:
        self.plan.pop(0)[1]()

    def _pass_time(self) -> None:
        self.now += timedelta(seconds=self.rng.choice([0.05, 0.25, 1.0]))
        self.tell(Tick())

    def _deliver_job_event(self) -> None:
        # One key at a time in order, as the consumer does; different jobs in any order.
        message = self.rng.choice(self.job_queue)
        first = next(
            item
            for item in self.job_queue
            if item.event.subject().rsplit(".", 1)[1] == message.event.subject().rsplit(".", 1)[1]
        )
        if self.rng.random() > 0.1:
            self.job_queue.remove(first)
        event = first.event
        assert isinstance(event, JobSubmitted | JobStarted | JobEnded)
        self.tell(JobInput(event, first.sequence, first.stored_at))

    def _deliver_proposal(self) -> None:
        index = self.rng.randrange(len(self.proposals))
        proposal = self.proposals[index]
        if self.rng.random() > 0.1:
            self.proposals.pop(index)
        self.tell(proposal)

    def _deliver_placement(self) -> None:
        index = self.rng.randrange(len(self.deliveries))
        node, message = self.deliveries[index]
        if self.rng.random() > 0.1:
            self.deliveries.pop(index)
        assert isinstance(message.event, Placement)
        self._heard(node, self.agents[node].hear(message.event, message.sequence, self.rng))

    def _heard(self, node: NodeName, report: Report | None) -> None:
        if report is None:
            return
        self.reports[node, report.run] = report
        self.report_queue.append(report)
        self.node_sequence += 1
        for state in (self.state, self.stale):
            state.apply_event(report, self.node_sequence, "NODES")

    def _deliver_report(self) -> None:
        index = self.rng.randrange(len(self.report_queue))
        report = self.report_queue[index]
        if self.rng.random() > 0.1:
            self.report_queue.pop(index)
        self.tell(report)

    def _catch_up(self) -> None:
        """The stale view hears of some of the record."""
        for _ in range(self.rng.randint(1, len(self.record_lag))):
            message = self.record_lag.pop(0)
            self.stale.apply_event(message.event, message.sequence, "PLACEMENTS")

    def _crash(self) -> None:
        self.activate()

    def _take_over(self) -> None:
        """A standby takes over while the old one still believes in its lease: what the old one stores is refused.

        The old one is told the same as the new one, and stores first where it can: then the new one is the one refused,
        and a third folds the record.
        """
        old, base = self.committer, self.last_sequence
        if self.rng.random() < 0.5:
            self.activate()
            after_start = self.last_sequence
            self._carry_out(old, old.handle(Tick(), self.now), base)
            if self.last_sequence != after_start:
                # The new one had nothing to store: the old one was first, and what the new one folded is void.
                self.activate()
            return
        new_base = self.last_sequence
        new = self.activate()
        if self.last_sequence == new_base:
            self._carry_out(old, old.handle(Tick(), self.now) + old.wake(self.now), base)
            if self.last_sequence != new_base:
                self._carry_out(new, new.handle(Tick(), self.now) + new.wake(self.now), new_base)
                self.activate()

    def _redeliver(self) -> None:
        """An ack was lost, or a message comes again long after it was handled."""
        if self.job_stream:
            self.job_queue.append(self.rng.choice(self.job_stream))

    def _resync(self) -> None:
        self.resync(self.rng.choice(self.nodes))

    def resync(self, node: NodeName) -> None:
        """An agent compares with the record: what the record has, it hears again; what only it holds is an orphan."""
        agent = self.agents[node]
        for message in list(self.record.values()):
            if isinstance(message.event, Placement) and message.event.node == agent.node:
                self.deliveries.append((agent.node, message))
        recorded = {
            item.event.run: Fence(item.event.epoch, item.sequence)
            for item in self.record.values()
            if isinstance(item.event, Placement) and item.event.node == agent.node
        }
        for run, (placement, fence, _) in list(agent.held.items()):
            if fence > recorded.get(run, NO_FENCE):
                self._heard(agent.node, agent.report(placement, fence, ReportState.ORPHAN, placement))

    # -- the record is put back --------------------------------------------------------------------------------------

    def put_back(self, record: dict[str, Message], last_sequence: int) -> None:
        """NATS comes back with an older copy of its store, or an empty one."""
        self.record = dict(record)
        self.last_sequence = last_sequence
        self.record_lag = list(record.values())
        self.stale.reset("PLACEMENTS")
        self.deliveries.clear()
        self.activate(is_suspect=True)
        for agent in self.agents.values():
            agent.revision += 1
            self.node_sequence += 1
            event = hardware(agent.node, agent.revision, agent.seen)
            self.state.apply_event(event, self.node_sequence, "NODES")
            self.tell(event)

    # -- what must hold ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """No claim twice, all or nothing, no GPU over its thousand, agents hold no two that overlap."""
        placements = [m.event for m in self.record.values() if isinstance(m.event, Placement)]
        self._check_claims(placements)
        heads = [m.event for m in self.record.values() if isinstance(m.event, Head)]
        by_run: dict[JobRun, set[NodeName]] = {}
        for placement in placements:
            if placement.state is not PlacementState.RELEASED:
                by_run.setdefault(placement.run, set()).add(placement.node)
        for head in heads:
            if head.state in HOLDING_STATES - {JobState.RELEASING} and by_run.get(head.run, set()) != set(head.nodes):
                raise Broken(f"{head.run} is {head.state} on {head.nodes}, placements on {by_run.get(head.run)}")
        for agent in self.agents.values():
            held = [placement for placement, _, _ in agent.held.values()]
            if any(overlaps(one, other) for one, other in pairwise(held)):
                raise Broken(f"{agent.node} holds two placements that overlap")
        for placement in placements:
            if placement.state is PlacementState.RELEASED and placement.run in self.agents[placement.node].held:
                raise Broken(f"{placement.run} is recorded as released while {placement.node} holds it")

    def _check_claims(self, placements: list[Placement]) -> None:
        exclusive: dict[tuple[str, str], JobRun] = {}
        amounts: dict[tuple[str, str], int] = {}
        for placement in placements:
            undone = self.reports.get((placement.node, placement.run))
            if undone is not None and undone.state is ReportState.UNDONE:
                continue
            for kind, name, amount in claim_terms(placement):
                key = (kind, name)
                if amount is not None:
                    amounts[key] = amounts.get(key, 0) + amount
                elif exclusive.setdefault(key, placement.run) != placement.run:
                    raise Broken(f"{key} is held by {exclusive[key]} and {placement.run}")
        for (kind, key), amount in amounts.items():
            if kind == "gpu_milli" and amount > 1000:
                raise Broken(f"{key} is given {amount} thousandths")

    def quiesce(self, most: int = 20_000) -> None:
        """Let everything that was said be heard, end all jobs, and require that nothing is left."""
        for _, tell in self.plan:
            tell()
        self.plan = []
        latest: dict[JobKey, JobSubmitted] = {}
        for message in self.job_stream:
            if isinstance(message.event, JobSubmitted):
                latest[message.event.key] = message.event
        for spec in latest.values():
            self._teller(
                JobEnded(
                    cluster=spec.cluster, job=spec.job, attempt=spec.attempt, uid=spec.uid, outcome=Outcome.CANCELLED
                )
            )()
        for _ in range(most):
            if self._is_quiet():
                break
            self.step()
            self.check()
        if not self._is_quiet():
            raise Broken(f"not quiet after {most} steps: {self.committer.book.jobs}")
        self._check_end()

    def _is_quiet(self) -> bool:
        queues = (self.unacked, self.job_queue, self.deliveries, self.report_queue, self.record_lag)
        return not any(queues) and not self.committer.book.jobs and not self.committer.book.strays

    def _check_end(self) -> None:
        for message in self.record.values():
            event = message.event
            if isinstance(event, Head) and event.state not in {JobState.RELEASED, JobState.REJECTED}:
                raise Broken(f"{event.run} ends {event.state}")
            if isinstance(event, Placement) and event.state is not PlacementState.RELEASED:
                raise Broken(f"the placement of {event.run} on {event.node} ends {event.state}")
        for agent in self.agents.values():
            if agent.held:
                raise Broken(f"{agent.node} still holds {list(agent.held)}")
        if not self.committer.book.ledger.is_empty():
            raise Broken(f"the ledger still holds {self.committer.book.ledger.snapshot()}")


def _uid(uid: str | None) -> RunUid | None:
    return RunUid(uid) if uid is not None else None
