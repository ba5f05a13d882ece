"""All agents of a process on one bus: one follower of the record, one of what nodes said, one runner, one
resync timer.

One agent on a node and a hundred simulated ones in a process are the same here; what costs is shared, and no agent
has a task of its own that sleeps. Work of one job on one node runs one piece at a time.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from railweave.contracts import ContractError, StoredMessage, WireMessage
from railweave.contracts.codec import encode_token
from railweave.contracts.identity import JobKey
from railweave.contracts.types import NodeName
from railweave.node_agent.building import Built
from railweave.node_agent.measures import Measures
from railweave.node_agent.reading import read_placement
from railweave.node_agent.settings import AgentSettings
from railweave.runtime.bus import Bus, ResetCause
from railweave.runtime.deadletters import DeadLetters
from railweave.runtime.errors import BusError
from railweave.runtime.follower import Follower
from railweave.runtime.keyed import KeyedRunner, KeyedRunnerClosed
from railweave.runtime.periodic import run_periodically
from railweave.runtime.redis_store import RedisUnavailable, WorkingMemory
from railweave.runtime.streams import NODES, PLACEMENTS

if TYPE_CHECKING:
    from redis.asyncio.client import Pipeline

_log = logging.getLogger("railweave.agent")

_OWN_FILTERS = 16
"""Up to so many nodes a process asks for its own subjects; beyond that it takes all and looks at the node."""
_SAY_DEADLINE_S = 3.0
"""A report that is not stored by then is tried again later; SIGTERM must not wait longer for it."""
_CAPACITY = 1_000_000

Call = Callable[[], Awaitable[None]]
WorkKey = tuple[str, JobKey]
"""A node's subject token, and a job on it."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a fleet stands on."""

    bus: Bus
    memory: WorkingMemory | None
    measures: Measures
    rng: random.Random


class Fleet:
    """The agents of one process. Add them, then `run`."""

    def __init__(self, settings: AgentSettings, on: Surroundings) -> None:
        self._settings = settings
        self._on = on
        self._agents: dict[str, Built] = {}
        self._mend: set[WorkKey] = set()
        self._calls: dict[WorkKey, list[Call]] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._nudge = asyncio.Event()
        self._stop = asyncio.Event()
        self._dead_letters = DeadLetters(on.bus, "agent")
        self._malformed: asyncio.Queue[tuple[StoredMessage, ContractError]] = asyncio.Queue(1000)
        self._lost: dict[str, asyncio.Event] = {PLACEMENTS: asyncio.Event(), NODES: asyncio.Event()}
        self._is_ready = False
        self._placements: Follower | None = None
        self._runner: KeyedRunner[WorkKey, None] = KeyedRunner(
            self._work,
            concurrency=settings.concurrency,
            capacity=_CAPACITY,
            coalesce=True,
            on_error=self._failed,
        )

    def add(self, built: Built) -> None:
        """Take an agent in, before `run`.

        Raises:
            ValueError: there is one for that node already; two would undo each other's work.
        """
        token = encode_token(str(built.agent.node))
        if token in self._agents:
            raise ValueError(f"node {built.agent.node} is named twice in the agent's settings")
        self._agents[token] = built

    @property
    def agents(self) -> Sequence[Built]:
        """All agents."""
        return tuple(self._agents.values())

    def find(self, node: NodeName | None) -> Built | None:
        """An agent by its node; None for the only one there is."""
        if node is None:
            return next(iter(self._agents.values())) if len(self._agents) == 1 else None
        return self._agents.get(encode_token(str(node)))

    @property
    def is_ready(self) -> bool:
        """What is stored has been read, and every node has said what it has."""
        return self._is_ready

    @property
    def is_busy(self) -> bool:
        """Whether anything that was told is not done and reported yet."""
        return self._runner.busy_keys > 0

    @property
    def applied(self) -> int:
        """The sequence of the record up to which everything was told to the agents."""
        return self._placements.applied_sequence if self._placements is not None else 0

    async def say(self, message: WireMessage) -> bool:
        """Every agent's voice: store a message; whether it is stored."""
        try:
            await self._on.bus.publish(message, stream=NODES, deadline_s=_SAY_DEADLINE_S)
        except BusError as error:
            self._on.measures.unsaid.inc()
            _log.warning("not stored, to be said again: %s", error)
            return False
        return True

    def later(self, node: NodeName, job: JobKey, seconds: float) -> None:
        """Reconcile a job of a node again in so many seconds."""
        key = (encode_token(str(node)), job)

        def due() -> None:
            self._timers.discard(handle)
            self._submit(key)

        handle = asyncio.get_running_loop().call_later(seconds, due)
        self._timers.add(handle)

    async def call(self, built: Built, job: JobKey, work: Call) -> None:
        """Run something of a job's in its turn, and reconcile the job behind it; raises what it raises."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def turn() -> None:
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - it is the caller's
                if not done.cancelled():
                    done.set_exception(error)
            else:
                if not done.cancelled():
                    done.set_result(None)

        key = (encode_token(str(built.agent.node)), job)
        self._calls.setdefault(key, []).append(turn)
        self._submit(key)
        await done

    # Running

    async def run(self, stop: asyncio.Event) -> None:
        """Be the agents until `stop` is set; then finish the steps at hand and undo nothing."""
        bus = self._on.bus
        placements = self._placements = self._follow(PLACEMENTS, ["rw.placement"], self._take_placements)
        nodes = self._follow(NODES, ["rw.report", "rw.inventory"], self._take_own)
        bus.connection.on_connected.add(self._reconnected)
        async with asyncio.TaskGroup() as group, self._runner:
            background = [
                group.create_task(nodes.run()),
                group.create_task(self._keep_up(group, placements, nodes)),
                group.create_task(self._bury_malformed()),
                group.create_task(
                    run_periodically(
                        self._resync,
                        every_s=self._settings.resync_s,
                        stop=self._stop,
                        rng=self._on.rng,
                        nudge=self._nudge,
                    )
                ),
                group.create_task(
                    run_periodically(self._look_at_devices, every_s=self._settings.inventory_s, stop=self._stop)
                ),
            ]
            if self._on.memory is not None:
                beat = run_periodically(
                    self._beat, every_s=self._settings.heartbeat_s, stop=self._stop, jitter=0.1, at_once=True
                )
                background.append(group.create_task(beat))
            try:
                await stop.wait()
            finally:
                bus.connection.on_connected.discard(self._reconnected)
                self._stop.set()
                for built in self._agents.values():
                    built.agent.stop()
                for timer in self._timers:
                    timer.cancel()
                await self._runner.wait_quiet()
                for task in background:
                    task.cancel()

    def _follow(
        self, stream: str, subjects: Sequence[str], take: Callable[[Sequence[StoredMessage]], None]
    ) -> Follower:
        if len(self._agents) <= _OWN_FILTERS:
            filters = [f"{subject}.{token}.>" for subject in subjects for token in self._agents]
        else:
            filters = [f"{subject}.>" for subject in subjects]

        def on_reset(cause: ResetCause) -> None:
            self._reset(stream, cause)

        # A placement is of one node and stands for itself: batches need not be whole.
        return self._on.bus.follow(stream, filters, take, on_reset=on_reset, whole_batches=False)

    async def _keep_up(self, group: asyncio.TaskGroup, placements: Follower, nodes: Follower) -> None:
        """First what was said is heard, then what is desired is told; again whenever a stream was lost."""
        await nodes.wait_ready()
        await self._say_inventories()
        following = group.create_task(placements.run())
        try:
            while True:
                while not (placements.is_ready and nodes.is_ready):
                    await placements.wait_ready()
                    await nodes.wait_ready()
                for event in self._lost.values():
                    event.clear()
                for built in self._agents.values():
                    built.agent.record_ready()
                self._submit_all()
                self._is_ready = True
                waits = [asyncio.ensure_future(event.wait()) for event in self._lost.values()]
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for wait in waits:
                        wait.cancel()
                # The committer has to know what was seen beyond the end of the record before it decides on it.
                await self._say_inventories()
        finally:
            following.cancel()

    def _reset(self, stream: str, cause: ResetCause) -> None:
        _log.warning("stream %s was lost or put back (%s): nothing is undone, everything is compared", stream, cause)
        for built in self._agents.values():
            if stream == PLACEMENTS:
                built.agent.record_lost()
            else:
                built.agent.speaker.stream_lost()
        self._lost[stream].set()

    def _reconnected(self) -> None:
        # Spread, so that a thousand agents do not all ask at the moment in which the broker is back.
        asyncio.get_running_loop().call_later(self._on.rng.random(), self._nudge.set)

    # What comes

    def _take_placements(self, messages: Sequence[StoredMessage]) -> None:
        for message in messages:
            token = message.subject.split(".", 3)[2]
            built = self._agents.get(token)
            if built is None:
                continue
            try:
                record = read_placement(message)
            except ContractError as error:
                self._put_aside(message, error)
                continue
            job = built.agent.take(record)
            if job is not None:
                self._submit((token, job))

    def _take_own(self, messages: Sequence[StoredMessage]) -> None:
        for message in messages:
            built = self._agents.get(message.subject.split(".", 3)[2])
            if built is not None:
                built.agent.speaker.heard(message)

    def _put_aside(self, message: StoredMessage, error: ContractError) -> None:
        _log.error("a placement cannot be read and changes nothing: %s: %s", message.subject, error)
        if not self._malformed.full():
            self._malformed.put_nowait((message, error))

    async def _bury_malformed(self) -> None:
        while True:
            message, error = await self._malformed.get()
            try:
                await self._dead_letters.store(message, error.reason, error.field)
            except BusError as lost:
                _log.warning("a malformed placement is not among the dead letters: %s", lost)

    # Work

    def _submit(self, key: WorkKey) -> None:
        try:
            self._runner.submit_nowait(key, None)
        except KeyedRunnerClosed:
            _log.debug("not begun, the process ends: %s", key)

    def _submit_all(self, *, mend: bool = False) -> None:
        for token, built in self._agents.items():
            for job in built.agent.jobs():
                if mend:
                    self._mend.add((token, job))
                self._submit((token, job))

    async def _work(self, key: WorkKey, _item: None) -> None:
        token, job = key
        agent = self._agents[token].agent
        for call in self._calls.pop(key, ()):
            await call()
        mend = key in self._mend
        if mend:
            self._mend.discard(key)
        with self._on.measures.reconciling():
            await agent.reconcile(job, mend=mend)

    def _failed(self, key: WorkKey, _item: None, error: Exception) -> None:
        token, job = key
        _log.error("%s: work on %s failed and is tried again", token, job, exc_info=error)
        self.later(self._agents[token].agent.node, job, 5.0)

    async def _resync(self) -> None:
        """Compare everything with everything (R6)."""
        await self._say_inventories()
        for built in self._agents.values():
            built.agent.tidy()
        self._submit_all(mend=True)

    async def _say_inventories(self) -> None:
        async def say(built: Built) -> None:
            await built.agent.speaker.say_inventories()

        agents = list(self._agents.values())
        for start in range(0, len(agents), 64):
            async with asyncio.TaskGroup() as group:
                for built in agents[start : start + 64]:
                    group.create_task(say(built))

    async def _look_at_devices(self) -> None:
        """Real devices change: links go down, leaves come up."""
        for built in self._agents.values():
            if not built.is_simulated:
                await built.agent.speaker.say_inventories()

    async def _beat(self) -> None:
        memory = self._on.memory
        if memory is None or not memory.available:
            return
        lifetime_s = 3 * self._settings.heartbeat_s
        names = [str(built.agent.node) for built in self._agents.values()]
        now = datetime.now(UTC).isoformat()

        def build(pipe: Pipeline) -> None:
            for name in names:
                pipe.set(memory.key("beat", "agent", name), now, px=int(lifetime_s * 1000))

        try:
            await memory.pipeline("beat", build)
        except RedisUnavailable:
            _log.debug("no heartbeat: redis is away")
