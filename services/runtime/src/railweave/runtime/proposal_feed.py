"""The asks and proposals of a process, followed once and decoded once, for however many desks and listeners.

Not here: the join of a round (rounds.py), and who answers (answering.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol
from weakref import WeakKeyDictionary, ref

import structlog

from railweave.contracts.errors import ContractError
from railweave.contracts.wire import StoredMessage
from railweave.runtime.bus import Bus, ResetCause
from railweave.runtime.deadletters import DeadLetters
from railweave.runtime.errors import BusClosed, BusError
from railweave.runtime.rounds import OpenRound, RoundBoard
from railweave.runtime.streams import PROPOSALS

_log = structlog.stdlib.get_logger(__name__)

DEAD_LETTER_SERVICE: Final = "proposals"

_YIELD_EVERY_S: Final = 0.005
_MOST_BURIED: Final = 10_000


class RoundListener(Protocol):
    """Who looks at rounds."""

    def offer(self, open_round: OpenRound) -> None:
        """Look at a round that changed."""

    def forget(self) -> None:
        """What was offered is void: it is offered again."""

    def is_done_with(self, open_round: OpenRound) -> bool:
        """Whether nothing that may still come in this round concerns this listener."""


@dataclass(slots=True, eq=False)
class _Listener:
    """Who wants every message behind `after`."""

    take: Callable[[Sequence[StoredMessage]], None]
    after: int


class ProposalFeed:
    """The asks and proposals of a process: one follower, however many desks answer and listeners look on."""

    _of_bus: ClassVar[WeakKeyDictionary[Bus, ProposalFeed]] = WeakKeyDictionary()

    def __init__(self, bus: Bus) -> None:
        """Use `of`."""
        # The registry must not keep its own key alive; the desks do.
        self._bus_ref = ref(bus)
        self.board = RoundBoard(self._malformed)
        self._desks: list[RoundListener] = []
        self._listeners: list[_Listener] = []
        self._reads_all = False
        """Whether the follower began with what was asked before, as desks need it."""
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._received = 0
        self._is_stale = False
        self._writes: set[asyncio.Task[None]] = set()
        self._ready = asyncio.Event()
        self._buried: set[int] = set()

    @classmethod
    def of(cls, bus: Bus) -> ProposalFeed:
        """The feed that all services on this connection share."""
        feed = cls._of_bus.get(bus)
        if feed is None:
            feed = cls._of_bus[bus] = cls(bus)
        return feed

    @property
    def is_ready(self) -> bool:
        """Whether everything asked before has been read."""
        return self._ready.is_set()

    @property
    def _bus(self) -> Bus:
        bus = self._bus_ref()
        if bus is None:
            raise BusClosed("the bus is gone")
        return bus

    async def serve(self, desk: RoundListener) -> None:
        """Give `desk` every round there is to answer, until cancelled.

        Raises:
            BusClosed, PermissionRefused: the stream cannot be followed any more.
        """
        self._desks.append(desk)
        if self._task is not None and (self.is_ready or not self._reads_all):
            # Rounds that no other desk cared for are forgotten: read the stream again for the newcomer.
            self._unready()
            self._is_stale = True
            self._changed.set()
        try:
            await self._follow()
        finally:
            self._desks.remove(desk)
            await self._end_unless_wanted()

    async def listen(self, take: Callable[[Sequence[StoredMessage]], None]) -> None:
        """Give `take` every message stored from now on, in order, until cancelled. `wait_ready` tells when that is.

        Raises:
            StreamMissing: there is no stream PROPOSALS.
            BusClosed, PermissionRefused: the stream cannot be followed any more.
        """
        # What is being read of before is not for a newcomer.
        after = self._received if self.is_ready else (await self._bus.stream_state(PROPOSALS)).last_sequence
        listener = _Listener(take, after)
        self._listeners.append(listener)
        try:
            await self._follow()
        finally:
            self._listeners.remove(listener)
            await self._end_unless_wanted()

    async def wait_ready(self) -> None:
        """Wait until everything asked before has been read, and what is stored next will be."""
        await self._ready.wait()

    async def _follow(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="follow-proposals")
        await asyncio.shield(self._task)

    async def _end_unless_wanted(self) -> None:
        task = self._task
        if self._desks or self._listeners or task is None:
            return
        self._task = None
        task.cancel()
        for write in tuple(self._writes):
            write.cancel()
        await asyncio.gather(task, *self._writes, return_exceptions=True)
        self._unready()
        self.board.clear()

    def settle(self, open_round: OpenRound) -> None:
        """Forget a round in which no desk of this process has anything left to do."""
        if self.is_ready and all(desk.is_done_with(open_round) for desk in self._desks):
            self.board.close(open_round)

    def _unready(self) -> None:
        self._ready.clear()
        for desk in self._desks:
            desk.forget()

    async def _run(self) -> None:
        while True:
            self._is_stale = False
            self.board.clear()
            self._reads_all = bool(self._desks)
            follower = self._bus.follow(
                PROPOSALS,
                (),
                self._take,
                on_reset=self._reset,
                start="last_per_subject" if self._reads_all else "new",
                whole_batches=False,
            )
            async with asyncio.TaskGroup() as group:
                following = group.create_task(follower.run(), name="follow-PROPOSALS")
                while not self._is_stale:
                    self._changed.clear()
                    await follower.wait_ready()
                    await self._offer_all()
                    await self._changed.wait()
                following.cancel()

    async def _offer_all(self) -> None:
        self._ready.set()
        loop = asyncio.get_running_loop()
        since = loop.time()
        for open_round in self.board:
            if self.board.is_open(open_round):
                self._offer(open_round)
            if loop.time() - since > _YIELD_EVERY_S:
                await asyncio.sleep(0)
                since = loop.time()
            if self._changed.is_set():
                return  # read anew meanwhile, and offered then

    def _reset(self, cause: ResetCause) -> None:
        _log.warning("asks and proposals are read anew", stream=PROPOSALS, cause=cause.value)
        self.board.clear()
        self._buried.clear()
        self._received = 0
        for listener in self._listeners:
            listener.after = 0
        self._unready()
        self._changed.set()

    def _take(self, messages: Sequence[StoredMessage]) -> None:
        for message in messages:
            open_round = self.board.take(message)
            if open_round is not None and self.is_ready:
                self._offer(open_round)
        self._received = max(self._received, messages[-1].sequence)
        for listener in self._listeners:
            # Read again for a new desk, the stream gives what a listener had already.
            fresh = [message for message in messages if message.sequence > listener.after]
            if fresh:
                listener.after = fresh[-1].sequence
                listener.take(fresh)

    def _offer(self, open_round: OpenRound) -> None:
        for desk in self._desks:
            desk.offer(open_round)
        self.settle(open_round)

    def _malformed(self, message: StoredMessage, error: ContractError) -> None:
        self.bury(message, error.reason, error.field)

    def bury(self, message: StoredMessage, cause: str, field: str | None) -> None:
        """Put a message that cannot be handled aside, in stream DEAD; once, however often it is read."""
        if message.sequence in self._buried:
            return
        if len(self._buried) >= _MOST_BURIED:
            self._buried.clear()
        self._buried.add(message.sequence)
        _log.warning("message put aside", stream=message.stream, sequence=message.sequence, field=field, cause=cause)
        write = asyncio.get_running_loop().create_task(self._store(message, cause, field))
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)

    async def _store(self, message: StoredMessage, cause: str, field: str | None) -> None:
        try:
            await DeadLetters(self._bus, DEAD_LETTER_SERVICE).store(message, cause, field)
        except BusError as error:
            _log.error("dead letter not stored", sequence=message.sequence, error=str(error))
