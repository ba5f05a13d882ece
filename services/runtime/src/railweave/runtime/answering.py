"""Answering asks: a concern's service follows PROPOSALS, and answers a round when the proposals it builds on are there.

Level-triggered: nothing is acknowledged. After a restart the latest asks are read again, and those without an answer of
this concern are answered.

A "no" is only said on a view that has everything stored before it: a job is asked for when something was freed, and a
view a millisecond older would send it back to wait for a change that has been already.

Not here: what is answered (each service's propose.py), and who joins the answers (the jobs service).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

import structlog

from railweave.contracts.envelope import MAX_BODY_BYTES, encode_event
from railweave.contracts.errors import ContractError
from railweave.contracts.proposal import Ask, Concern, Proposal
from railweave.contracts.reasons import Reason, ReasonCode
from railweave.contracts.wire import WireMessage
from railweave.runtime.bus import Bus
from railweave.runtime.errors import BusClosed, BusError, OutcomeUnknown, PublishRefused
from railweave.runtime.logs import job_context
from railweave.runtime.proposal_feed import ProposalFeed
from railweave.runtime.rounds import OpenRound
from railweave.runtime.tracing import extract_trace, trace_hop
from railweave.runtime.view import FILTERS, ClusterView

_log = structlog.stdlib.get_logger(__name__)

Answer = Callable[[Ask, Mapping[Concern, Proposal]], Proposal | Sequence[Proposal]]
"""Pure: the ask, and all proposals of its round that are there (what the desk needs, maybe more, maybe one's own)."""

_MOST_IN_FLIGHT: Final = 256
_YIELD_EVERY_S: Final = 0.005
_TURNS_TO_SEND: Final = 4
"""Of the loop, from a decision until its message is on the socket."""
_MOST_BYTES: Final = MAX_BODY_BYTES - 4096  # the payload limit counts headers too
_CURRENT_S: Final = 2.0


class ProposalDesk:
    """One service's answers: asks that want one of its concerns, answered as soon as what it needs is there.

    A round is left alone when a proposal it needs holds reasons: it is over, and the committer has the reasons.

    Args:
        bus: the process's.
        service: its name, for logs.
        concerns: what it answers; all of those that an ask wants are answered by one call.
        needs: the concerns that an answer builds on, as far as the ask wants them.
        answer: the decision. One that raises is a fault: the ask becomes a dead letter and is not answered. It is made
            again, after the view has caught up, where it first is a refusal.
        view: what decisions rest on; nothing is answered while it is not complete.
        hold: awaited before answering, where there is no view.
        yields: nobody builds on its answers, so those of the process's other desks are sent first.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        service: str,
        concerns: Collection[Concern],
        answer: Answer,
        needs: Collection[Concern] = (),
        view: ClusterView | None = None,
        hold: Callable[[], Awaitable[None]] | None = None,
        yields: bool = False,
    ) -> None:
        self._bus = bus
        self._service = service
        self._concerns = frozenset(concerns)
        self._needs = frozenset(needs)
        self._answer = answer
        self._view = view
        self._yields = yields
        self._hold = view.wait_ready if view is not None else hold
        self._feed = ProposalFeed.of(bus)
        self._waiting: deque[OpenRound] = deque()
        self._wake = asyncio.Event()
        self._refused: dict[OpenRound, tuple[dict[str, int], list[WireMessage]]] = {}
        """Refusals not said yet, and how much of each stream was known when they were made."""
        self._doubt = asyncio.Event()
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
                if self._view is not None:
                    group.create_task(self._look_twice(group, self._view), name=f"{self._service}-refusals")
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
        self._refused.clear()

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
        """Whether somebody this desk builds on, or this desk itself, has refused."""
        for concern in (self._needs | self._concerns).intersection(ask.concerns):
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
            if self._yields:
                for _ in range(_TURNS_TO_SEND):
                    await asyncio.sleep(0)
            since = loop.time()
            while self._waiting:
                open_round = self._waiting.popleft()
                if self._feed.board.is_open(open_round) and self._is_for_me(open_round):
                    await self._settle(open_round, group, is_current=self._view is None)
                if loop.time() - since > _YIELD_EVERY_S:
                    # A burst of asks must not keep the connection from being read.
                    await asyncio.sleep(0)
                    since = loop.time()

    async def _look_twice(self, group: asyncio.TaskGroup, view: ClusterView) -> None:
        """Decide refusals again, all that have gathered at once, when the view has what was stored until now."""
        while True:
            self._doubt.clear()
            if not self._refused:
                await self._doubt.wait()
            refused, self._refused = self._refused, {}
            with contextlib.suppress(TimeoutError, BusError):
                # Where the ends of the streams cannot be had, what is known has to do.
                await catch_up(self._bus, view)
            for open_round, (known, messages) in refused.items():
                if self._feed.board.is_open(open_round) and self._is_for_me(open_round):
                    if known == view.state.sequences:
                        open_round.taken.update(self._concerns)
                        await self._send(messages, open_round, group)
                    else:
                        await self._settle(open_round, group, is_current=True)

    async def _settle(self, open_round: OpenRound, group: asyncio.TaskGroup, *, is_current: bool) -> None:
        await self._send(self._decide(open_round, is_current=is_current), open_round, group)

    async def _send(self, messages: Sequence[WireMessage], open_round: OpenRound, group: asyncio.TaskGroup) -> None:
        for message in messages:
            await self._room.acquire()
            group.create_task(self._publish(message, open_round))

    def _decide(self, open_round: OpenRound, *, is_current: bool) -> list[WireMessage]:
        ask = open_round.ask
        proposals = open_round.proposals()
        if ask is None or not (self._needs.intersection(ask.concerns) <= proposals.keys()):
            return []
        wanted = self._concerns.intersection(ask.concerns)
        sender = extract_trace(open_round.message.headers, open_round.traceparent)
        begun, outcome = time.perf_counter(), "error"
        with job_context(ask.run), trace_hop(sender) as hop:
            try:
                answered = self._answer(ask, proposals)
                answers = [answered] if isinstance(answered, Proposal) else answered
                # What is stored already (this desk was stopped between two answers of a round) stays as it is.
                missing = [made for made in answers if made.CONCERN in wanted and not open_round.has(made.CONCERN)]
                messages = [_bounded(made, str(hop)) for made in missing]
                outcome = "refused" if any(made.reasons for made in answers) else "ok"
            except Exception as fault:  # noqa: BLE001 - one faulty decision must not end the others
                _log.exception("no answer: the decision failed", round=int(ask.round), answering=self._service)
                self._feed.bury(open_round.message, f"{self._service}: {type(fault).__name__}: {fault}", None)
                open_round.taken.update(wanted)
                return []
            finally:
                took_s = time.perf_counter() - begun
                self._bus.connection.observer.took(
                    "handler", took_s, service=self._service, type="propose", outcome=outcome
                )
        if not is_current and self._view is not None and any(made.reasons for made in answers):
            self._refused[open_round] = (dict(self._view.state.sequences), messages)
            self._doubt.set()
            return []
        open_round.taken.update(wanted)
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


async def catch_up(bus: Bus, view: ClusterView) -> None:
    """Wait until a view has everything that its streams hold now.

    Raises:
        TimeoutError: it does not get there in time.
        BusError: the streams cannot be asked.
    """
    outcomes = await asyncio.gather(*(_catch_up_with(bus, view, stream) for stream in FILTERS), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


async def _catch_up_with(bus: Bus, view: ClusterView, stream: str) -> None:
    last = (await bus.stream_state(stream, deadline_s=_CURRENT_S)).last_sequence
    await view.wait_applied(stream, last, _CURRENT_S)


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
