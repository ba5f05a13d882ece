"""One spell of being the active committer: fold the record, then take what happens until lease or fence says stop.

All inputs go through one queue and one loop: handle what has come, store it in as few batches as possible, announce,
go on. While a batch is being stored the queue fills, and the next batch takes it all: jobs that are ready within
milliseconds share a batch.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from railweave.contracts.desired import Dataset, NodeDesired, Tenant
from railweave.contracts.envelope import MAX_BODY_BYTES, Envelope, Event, decode_event, encode_event
from railweave.contracts.errors import ContractError
from railweave.contracts.fabric import FabricLeaf, FabricNode, FabricReport
from railweave.contracts.identity import JobKey
from railweave.contracts.inventory import NodeHardware, NodeStorage, Report
from railweave.contracts.job import JobEnded, JobStarted, JobSubmitted, JobUpdated, SchedulerSnapshot
from railweave.contracts.placement import Epoch, Head, Placement
from railweave.contracts.proposal import Ask, Proposal
from railweave.contracts.reasons import Lack
from railweave.contracts.wire import StoredMessage, WireMessage
from railweave.jobs.announcer import Announcer
from railweave.jobs.committer import AskRepeated, Committer, Freed, Input, JobInput, SnapshotInput, Tick
from railweave.jobs.model import Ack, CommitterConfig, Effect, Publish, Refuse, Store
from railweave.jobs.recorder import Recorder
from railweave.runtime.bus import Bus
from railweave.runtime.cluster import ClusterState
from railweave.runtime.deadletters import DeadLetters
from railweave.runtime.delivery import Delivery
from railweave.runtime.errors import OutcomeUnknown, PublishRefused, Reject
from railweave.runtime.proposal_feed import ProposalFeed
from railweave.runtime.streams import NODES, PLACEMENTS, SNAPSHOTS

_log = structlog.stdlib.get_logger(__name__)

TICK_S = 0.25
_MOST_INPUTS = 1000
_PROPOSALS = "rw.proposal."
_TURNS_TO_SEND = 6
"""Of the loop, until the recorder has handed a batch to the connection."""
"""Inputs of one step: enough to fill a batch, few enough to keep a step short."""
_LARGEST_BYTES: dict[type[Event], int] = {
    JobSubmitted: 256 * 1024,
    JobUpdated: 256 * 1024,
    JobStarted: 512 * 1024,
}
"""What a job wants and where its workers are stand in its head beside its nodes, and a head is one message of 1 MiB."""


@dataclass(frozen=True, slots=True)
class StreamClock:
    """The stream's time: what its last message was stored at, plus what has passed here since."""

    anchor: datetime
    monotonic: float

    def now(self) -> datetime:
        """The time by the stream."""
        return self.anchor + timedelta(seconds=time.monotonic() - self.monotonic)


@dataclass(frozen=True, slots=True)
class RecordRead:
    """The record, read whole up to `last_sequence`."""

    heads: Sequence[tuple[Head, StoredMessage]]
    placements: Sequence[tuple[Placement, int]]
    epoch: int
    epoch_at: datetime | None
    """When it was raised, by the stream."""
    last_sequence: int


class ActiveCommitter:
    """Runs one `Committer` from activation to step-down. Not reusable."""

    def __init__(
        self,
        bus: Bus,
        state: ClusterState,
        config: CommitterConfig,
        instance: str,
        clock: StreamClock,
        *,
        is_suspect: bool = False,
    ) -> None:
        self._bus = bus
        self._state = state
        self._clock = clock
        self._is_suspect = is_suspect
        self._instance = instance
        self.committer = Committer(state, config, instance)
        self._inputs: deque[Input] = deque()
        self._wake = asyncio.Event()
        self._deliveries: dict[int, Delivery] = {}
        self._traces: dict[JobKey, str] = {}
        self._announcer = Announcer(bus)
        self._dead = DeadLetters(bus, "jobs")
        self._stop = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self.is_ready = False

    # -- what comes in ------------------------------------------------------------------------------------------------

    async def take_job_message(self, message: StoredMessage, delivery: Delivery) -> None:
        """Handler of the JOBS consumer: the delivery is settled when everything it causes is stored."""
        envelope = job_input(message)
        event = envelope.data
        if envelope.traceparent is not None:
            self._traces[event.key] = envelope.traceparent
        delivery.defer()
        self._deliveries[message.sequence] = delivery
        self.put(JobInput(event, message.sequence, message.stored_at))

    def take_node_event(self, event: Event, message: StoredMessage) -> None:
        """Listener of the shared view: what nodes, operators, platforms and topology say, as it was stored."""
        match event:
            case Report() | NodeHardware() | NodeStorage() | NodeDesired():
                self.put(event)
            case Tenant():
                self.put(Freed(frozenset({Lack.QUOTA})))
            case Dataset():
                self.put(Freed(frozenset({Lack.DATASET})))
            case FabricNode() | FabricLeaf():
                self.put(Freed(frozenset({Lack.FABRIC, Lack.SEGMENT})))
            case FabricReport():
                self.put(Freed(frozenset({Lack.SEGMENT})))
            case _:
                pass

    def take_proposals(self, messages: Sequence[StoredMessage]) -> None:
        """Listener of the process's proposals."""
        for message in messages:
            if message.subject.startswith(_PROPOSALS):
                event = self._decoded(message)
                if isinstance(event, Proposal):
                    self.put(event)

    def take_snapshots(self, messages: Sequence[StoredMessage]) -> None:
        """Callback of the follower of schedulers' snapshots."""
        for message in messages:
            event = self._decoded(message)
            if isinstance(event, SchedulerSnapshot):
                self.put(SnapshotInput(event, message.stored_at))

    def put(self, happened: Input) -> None:
        """Queue an input."""
        self._inputs.append(happened)
        self._wake.set()

    def _decoded(self, message: StoredMessage) -> Event | None:
        try:
            return decode_event(message).data
        except ContractError as error:
            _log.warning("malformed message", subject=message.subject, field=error.field, reason=error.reason)
            if self._group is not None:
                self._group.create_task(self._bury(message, error))
            return None

    async def _bury(self, message: StoredMessage, error: ContractError) -> None:
        try:
            await self._dead.store(message, error.reason, error.field)
        except (OutcomeUnknown, PublishRefused) as failure:
            _log.error("dead letter not stored", subject=message.subject, error=str(failure))

    # -- the spell ----------------------------------------------------------------------------------------------------

    def step_down(self) -> None:
        """End the spell after the step at hand."""
        self._stop.set()
        self._wake.set()

    async def run(self) -> None:
        """Be active until `step_down`.

        Raises:
            Fenced: someone else wrote into the record; fold it anew before going on.
        """
        feed = ProposalFeed.of(self._bus)
        snapshots = self._bus.follow(
            SNAPSHOTS, ("rw.snapshot.>",), self.take_snapshots, on_reset=lambda _: None, whole_batches=False
        )
        self._state.listeners.append(self.take_node_event)
        try:
            async with snapshots, asyncio.TaskGroup() as group:
                listening = group.create_task(feed.listen(self.take_proposals))
                record = await read_record(self._bus)
                reports = await read_reports(self._bus)
                await feed.wait_ready()
                await snapshots.wait_ready()
                self._group = group
                announcing = group.create_task(self._announcer.run())
                ticking = group.create_task(self._tick())
                try:
                    await self._work(record, reports)
                    await self._announcer.drain(2.0)
                finally:
                    self._group = None
                    for task in (announcing, ticking, listening):
                        task.cancel()
        except BaseExceptionGroup as failures:
            raise _first_of(failures) from failures
        finally:
            self.is_ready = False
            self._state.listeners.remove(self.take_node_event)

    async def _work(self, record: RecordRead, reports: Sequence[Report]) -> None:
        for head, message in record.heads:
            if (trace := message.headers.get("traceparent")) is not None:
                self._traces[head.key] = trace
        recorder = Recorder(self._bus, record.last_sequence, self._traces.get, self._instance)
        effects = self.committer.start(
            [(head, message.sequence, message.stored_at) for head, message in record.heads],
            record.placements,
            epoch=record.epoch,
            epoch_at=record.epoch_at,
            last_sequence=record.last_sequence,
            now=self._clock.now(),
            is_suspect=self._is_suspect,
        )
        await self._carry_out(effects, recorder)
        self._inputs.extendleft(reversed(reports))
        _log.info(
            "active",
            epoch=self.committer.book.epoch,
            jobs=len(self.committer.book.jobs),
            last_sequence=record.last_sequence,
        )
        self.is_ready = True
        while not self._stop.is_set():
            if not self._inputs:
                self._wake.clear()
                await self._wake.wait()
            effects = self._handle_inputs()
            await self._carry_out(effects, recorder)

    def _handle_inputs(self) -> list[Effect]:
        now = self._clock.now()
        effects: list[Effect] = []
        for _ in range(min(len(self._inputs), _MOST_INPUTS)):
            effects += self.committer.handle(self._inputs.popleft(), now)
        effects += self.committer.wake(now)
        return effects

    async def _carry_out(self, effects: Sequence[Effect], recorder: Recorder) -> None:
        events: list[Event] = []
        done: list[Delivery] = []
        stores: list[Store] = []
        for effect in effects:
            match effect:
                case Store():
                    stores.append(effect)
                case Publish(after_store=False):
                    self._publish_now(effect.event)
                case Publish():
                    events.append(effect.event)
                case Ack():
                    if (delivery := self._deliveries.pop(effect.sequence, None)) is not None:
                        done.append(delivery)
                case Refuse():
                    await self._refuse(effect)
        if stores:
            storing = asyncio.ensure_future(recorder.store(stores))
            try:
                messages = await self._encoded(events)
            finally:
                await storing
        else:
            messages = [self._encode(event) for event in events]
        self._announcer.put(messages, done)
        # What is stored is announced before the next inputs are looked at.
        await asyncio.sleep(0)

    async def _encoded(self, events: Sequence[Event]) -> list[WireMessage]:
        """Announcements as messages, made while the record is being written."""
        for _ in range(_TURNS_TO_SEND):
            await asyncio.sleep(0)
        return [self._encode(event) for event in events]

    def _publish_now(self, event: Event) -> None:
        if self._group is not None:
            self._group.create_task(self._publish(event))
            return
        self._announcer.put([self._encode(event)], [])

    async def _publish(self, event: Event) -> None:
        message = self._encode(event)
        try:
            stored = await self._bus.publish(message)
        except (OutcomeUnknown, PublishRefused) as error:
            # Asked again when the ask is overdue.
            _log.warning("ask not stored", id=message.msg_id, error=str(error))
        else:
            if stored.duplicate and isinstance(event, Ask):
                self.put(AskRepeated(event.run, event.round))

    def _encode(self, event: Event) -> WireMessage:
        key = getattr(event, "key", None)
        return encode_event(event, traceparent=self._traces.get(key) if key is not None else None)

    async def _refuse(self, refusal: Refuse) -> None:
        delivery = self._deliveries.pop(refusal.sequence, None)
        if delivery is not None:
            await self._dead.store(delivery.message, refusal.reason, refusal.field)
            await delivery.terminate(f"{refusal.field}: {refusal.reason}")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.put(Tick())
            live = self.committer.book.jobs
            for key in [key for key in self._traces if key not in live]:
                del self._traces[key]


def job_input(message: StoredMessage) -> Envelope[JobSubmitted | JobUpdated | JobStarted | JobEnded]:
    """Read a scheduler's event.

    Raises:
        Reject: it is malformed or none; names the field.
    """
    try:
        envelope = decode_event(message)
    except ContractError as error:
        raise Reject(error.field, error.reason) from error
    event = envelope.data
    if not isinstance(event, JobSubmitted | JobUpdated | JobStarted | JobEnded):
        raise Reject("type", f"expected a scheduler's event, found {event.TYPE}")
    most = _LARGEST_BYTES.get(type(event), MAX_BODY_BYTES)
    if len(message.body) > most:
        raise Reject("body", f"expected at most {most} bytes, found {len(message.body)}")
    return Envelope(envelope.id, envelope.source, envelope.time, envelope.traceparent, event)


def _first_of(failure: BaseException) -> BaseException:
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


async def read_record(bus: Bus) -> RecordRead:
    """Read the whole record up to where it ends now. Malformed messages are passed over: only we write there."""
    found: list[StoredMessage] = []
    follower = bus.follow(
        PLACEMENTS, ("rw.head.>", "rw.placement.>", "rw.epoch"), found.extend, on_reset=lambda _: found.clear()
    )
    async with follower:
        await follower.wait_ready()
        last = (await bus.stream_state(PLACEMENTS)).last_sequence
        await follower.wait_applied(last)
    heads: dict[JobKey, tuple[Head, StoredMessage]] = {}
    placements: dict[str, tuple[Placement, int]] = {}
    epoch, epoch_at = 0, None
    for message in found:
        if message.sequence > last:
            continue
        try:
            event = decode_event(message).data
        except ContractError as error:
            _log.error(
                "malformed message in the record", subject=message.subject, field=error.field, reason=error.reason
            )
            continue
        match event:
            case Head():
                heads[event.key] = (event, message)
            case Placement():
                placements[message.subject] = (event, message.sequence)
            case Epoch() if event.epoch > epoch:
                epoch, epoch_at = event.epoch, message.stored_at
            case _:
                pass
    return RecordRead(list(heads.values()), list(placements.values()), epoch, epoch_at, last)


async def read_reports(bus: Bus) -> list[Report]:
    """Read the latest report of every placement."""
    found: list[StoredMessage] = []
    follower = bus.follow(NODES, ("rw.report.>",), found.extend, on_reset=lambda _: found.clear(), whole_batches=False)
    async with follower:
        await follower.wait_ready()
    reports: dict[str, Report] = {}
    for message in found:
        try:
            event = decode_event(message).data
        except ContractError:
            continue
        if isinstance(event, Report):
            reports[message.subject] = event
    return list(reports.values())
