"""Answering asks: a concern's service follows PROPOSALS, and answers a round when the proposals it builds on are there.

Level-triggered: nothing is acknowledged. After a restart the latest asks are read again, and those without an answer of
this concern are answered. All desks of a process share one follower and one decoding of each message.

Not here: what is answered (each service's propose.py), and who joins the answers (the jobs service).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import ClassVar, Final
from weakref import WeakKeyDictionary, ref

import structlog

from railweave.contracts.envelope import MAX_BODY_BYTES, encode_event
from railweave.contracts.errors import ContractError
from railweave.contracts.proposal import Ask, Concern, Proposal
from railweave.contracts.reasons import Reason, ReasonCode
from railweave.contracts.wire import StoredMessage, WireMessage
from railweave.runtime.bus import Bus, ResetCause
from railweave.runtime.deadletters import DeadLetters
from railweave.runtime.errors import BusClosed, BusError, OutcomeUnknown, PublishRefused
from railweave.runtime.logs import job_context
from railweave.runtime.rounds import OpenRound, RoundBoard
from railweave.runtime.streams import PROPOSALS
from railweave.runtime.tracing import extract_trace, trace_hop

_log = structlog.stdlib.get_logger(__name__)

Answer = Callable[[Ask, Mapping[Concern, Proposal]], Proposal | Sequence[Proposal]]
"""Pure: the ask, and all proposals of its round that are there (what the desk needs, maybe more, maybe one's own)."""

DEAD_LETTER_SERVICE: Final = "proposals"

_MOST_IN_FLIGHT: Final = 256
_YIELD_EVERY_S: Final = 0.005
_MOST_BYTES: Final = MAX_BODY_BYTES - 4096  # the payload limit counts headers too
_MOST_BURIED: Final = 10_000


class ProposalFeed:
    """The asks and proposals of a process: one follower, however many desks."""

    _of_bus: ClassVar[WeakKeyDictionary[Bus, ProposalFeed]] = WeakKeyDictionary()

    def __init__(self, bus: Bus) -> None:
        """Use `of`."""
        # The registry must not keep its own key alive; the desks do.
        self._bus_ref = ref(bus)
        self.board = RoundBoard(self._malformed)
        self._desks: list[ProposalDesk] = []
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._is_stale = False
        self._writes: set[asyncio.Task[None]] = set()
        self._is_ready = False
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
        return self._is_ready

    @property
    def _bus(self) -> Bus:
        bus = self._bus_ref()
        if bus is None:
            raise BusClosed("the bus is gone")
        return bus

    async def serve(self, desk: ProposalDesk) -> None:
        """Give `desk` every round there is to answer, until cancelled.

        Raises:
            BusClosed, PermissionRefused: the stream cannot be followed any more.
        """
        self._desks.append(desk)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="follow-proposals")
        elif self._is_ready:
            # Rounds that no other desk cared for are forgotten: read the stream again for the newcomer.
            self._unready()
            self._is_stale = True
            self._changed.set()
        task = self._task
        try:
            await asyncio.shield(task)
        finally:
            self._desks.remove(desk)
            if not self._desks:
                self._task = None
                task.cancel()
                for write in tuple(self._writes):
                    write.cancel()
                await asyncio.gather(task, *self._writes, return_exceptions=True)
                self._unready()
                self.board.clear()

    def settle(self, open_round: OpenRound) -> None:
        """Forget a round in which no desk of this process has anything left to do."""
        if self._is_ready and all(desk.is_done_with(open_round) for desk in self._desks):
            self.board.close(open_round)

    def _unready(self) -> None:
        self._is_ready = False
        for desk in self._desks:
            desk.forget()

    async def _run(self) -> None:
        while True:
            self._is_stale = False
            self.board.clear()
            follower = self._bus.follow(
                PROPOSALS, (), self._take, on_reset=self._reset, start="last_per_subject", whole_batches=False
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
        self._is_ready = True
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
        self._unready()
        self._changed.set()

    def _take(self, messages: Sequence[StoredMessage]) -> None:
        for message in messages:
            open_round = self.board.take(message)
            if open_round is not None and self._is_ready:
                self._offer(open_round)

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


class ProposalDesk:
    """One service's answers: asks that want one of its concerns, answered as soon as what it needs is there.

    A round is left alone when a proposal it needs holds reasons: it is over, and the committer has the reasons.

    Args:
        bus: the process's.
        service: its name, for logs.
        concerns: what it answers; all of those that an ask wants are answered by one call.
        needs: the concerns that an answer builds on, as far as the ask wants them.
        answer: the decision. One that raises is a fault: the ask becomes a dead letter and is not answered.
        hold: awaited before answering; waits while the service's view is not complete.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        service: str,
        concerns: Collection[Concern],
        answer: Answer,
        needs: Collection[Concern] = (),
        hold: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._bus = bus
        self._service = service
        self._concerns = frozenset(concerns)
        self._needs = frozenset(needs)
        self._answer = answer
        self._hold = hold
        self._feed = ProposalFeed.of(bus)
        self._waiting: deque[OpenRound] = deque()
        self._wake = asyncio.Event()
        self._room = asyncio.Semaphore(_MOST_IN_FLIGHT)

    @property
    def ready(self) -> bool:
        """Whether everything asked before has been read."""
        return self._feed.is_ready

    async def run(self) -> None:
        """Answer until cancelled. What is cut short is answered after the next start.

        Raises:
            BusClosed, PermissionRefused: PROPOSALS cannot be followed any more.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._feed.serve(self), name=f"{self._service}-asks")
                group.create_task(self._work(group), name=f"{self._service}-answers")
        except ExceptionGroup as failures:
            # The first failure is the cause; the groups cancelled the rest.
            failure: Exception = failures
            while isinstance(failure, ExceptionGroup):
                failure = failure.exceptions[0]
            raise failure from None

    # Called by the feed

    def offer(self, open_round: OpenRound) -> None:
        """Look at a round that changed."""
        if self._is_for_me(open_round):
            self._waiting.append(open_round)
            self._wake.set()

    def forget(self) -> None:
        """What was offered is void: it is offered again."""
        self._waiting.clear()

    def is_done_with(self, open_round: OpenRound) -> bool:
        """Whether nothing that may still come in this round concerns this desk."""
        if all(map(open_round.is_stored, self._concerns)):
            return True  # told by the ids, without reading anything
        ask = open_round.ask
        if ask is None:
            return True
        if all(map(open_round.is_stored, self._concerns.intersection(ask.concerns))):
            return True
        return self._is_over(open_round, ask)

    # Answering

    def _is_for_me(self, open_round: OpenRound) -> bool:
        """Whether this desk can answer now and has not."""
        if all(map(open_round.has, self._concerns)):
            return False
        ask = open_round.ask
        if ask is None:
            return False
        wanted = self._concerns.intersection(ask.concerns)
        if all(map(open_round.has, wanted)):
            return False
        needed = self._needs.intersection(ask.concerns)
        return all(map(open_round.is_stored, needed)) and not self._is_over(open_round, ask)

    def _is_over(self, open_round: OpenRound, ask: Ask) -> bool:
        for concern in self._needs.intersection(ask.concerns):
            proposal = open_round.proposal(concern)
            if proposal is not None and proposal.reasons:
                return True
        return False

    async def _work(self, group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            if not self._waiting:
                await self._wake.wait()
            if self._hold is not None:
                await self._hold()
            since = loop.time()
            while self._waiting:
                open_round = self._waiting.popleft()
                if self._feed.board.is_open(open_round) and self._is_for_me(open_round):
                    for message in self._decide(open_round):
                        await self._room.acquire()
                        group.create_task(self._publish(message, open_round))
                if loop.time() - since > _YIELD_EVERY_S:
                    # A burst of asks must not keep the connection from being read.
                    await asyncio.sleep(0)
                    since = loop.time()

    def _decide(self, open_round: OpenRound) -> list[WireMessage]:
        ask = open_round.ask
        proposals = open_round.proposals()
        if ask is None or not (self._needs.intersection(ask.concerns) <= proposals.keys()):
            return []
        wanted = self._concerns.intersection(ask.concerns)
        sender = extract_trace(open_round.message.headers, open_round.traceparent)
        with job_context(ask.run), trace_hop(sender) as hop:
            try:
                answered = self._answer(ask, proposals)
                answers = [answered] if isinstance(answered, Proposal) else answered
                # What is stored already (this desk was stopped between two answers of a round) stays as it is.
                missing = [made for made in answers if made.CONCERN in wanted and not open_round.has(made.CONCERN)]
                messages = [_bounded(made, str(hop)) for made in missing]
            except Exception as fault:  # noqa: BLE001 - one faulty decision must not end the others
                _log.exception("no answer: the decision failed", round=int(ask.round), answering=self._service)
                self._feed.bury(open_round.message, f"{self._service}: {type(fault).__name__}: {fault}", None)
                open_round.taken.update(wanted)
                return []
        open_round.taken.update(made.CONCERN for made in missing)
        return messages

    async def _publish(self, message: WireMessage, open_round: OpenRound) -> None:
        try:
            while self._feed.board.is_open(open_round):
                try:
                    await self._bus.publish(message)
                except OutcomeUnknown as unknown:
                    # Repeated under the same id, until it is stored or nobody waits for it any more.
                    _log.warning("answer not acknowledged yet", id=message.msg_id, error=str(unknown))
                except PublishRefused as refused:
                    _log.error("answer refused", id=message.msg_id, error=str(refused))
                    return
                else:
                    return
        except BusClosed:
            return  # the host ends the process
        finally:
            self._room.release()


def _bounded(proposal: Proposal, traceparent: str) -> WireMessage:
    """The proposal as a message; one past the payload limit becomes the reason why there is none."""
    try:
        message = encode_event(proposal, traceparent=traceparent)
        size = len(message.body)
        if size <= _MOST_BYTES:
            return message
    except ContractError:
        size = len(proposal.model_dump_json())
    reason = Reason(
        code=ReasonCode.TOO_LARGE,
        text=f"the {proposal.CONCERN} proposal has {size} bytes, a message takes {_MOST_BYTES}",
        numbers={"needed_bytes": size, "limit_bytes": _MOST_BYTES},
        remedy="split the job, or ask for fewer workers",
    )
    refusal = type(proposal)(
        cluster=proposal.cluster,
        job=proposal.job,
        attempt=proposal.attempt,
        uid=proposal.uid,
        round=proposal.round,
        based_on=proposal.based_on,
        reasons=(reason,),
        never=True,
    )
    return encode_event(refusal, traceparent=traceparent)
