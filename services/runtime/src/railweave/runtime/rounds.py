"""Asks and proposals joined by round: pure, bounded, each message decoded once in a process, and only when needed.

What belongs together is told by the ids alone (`propose/<run>/<round>`, `proposal.nic/<run>/<round>`), so that a
snapshot of an hour of answered asks costs no parsing.

Not here: how messages come, and who answers (answering.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from railweave.contracts.envelope import decode_as, decode_event
from railweave.contracts.errors import ContractError
from railweave.contracts.proposal import PROPOSAL_TYPES, Ask, Concern, Proposal
from railweave.contracts.wire import StoredMessage

OnMalformed = Callable[[StoredMessage, ContractError], None]

_ASK = "propose"
_PROPOSAL = "proposal"
_CONCERNS = {str(concern): concern for concern in Concern}


class JobTokens(NamedTuple):
    """The job a subject is about, as it stands in the subject."""

    cluster: str
    job: str


@dataclass(slots=True, eq=False)
class OpenRound:
    """An ask and what has been proposed for it. A later ask of the same job makes another one.

    `taken` holds the concerns that this process is answering: their proposals are on the way and not seen yet.
    """

    job: JobTokens
    round_id: str
    message: StoredMessage
    taken: set[Concern] = field(default_factory=set)
    _on_malformed: OnMalformed = field(repr=False, default=lambda _message, _error: None)
    _messages: dict[Concern, StoredMessage] = field(default_factory=dict)
    _decoded: dict[Concern, Proposal] = field(default_factory=dict)
    _ask: Ask | None = None
    _is_malformed: bool = False
    traceparent: str | None = None
    """Of the ask; known once it has been read."""

    def has(self, concern: Concern) -> bool:
        """Whether a proposal of that concern is stored or on its way from here."""
        return concern in self._messages or concern in self.taken

    def is_stored(self, concern: Concern) -> bool:
        """Whether a proposal of that concern is stored."""
        return concern in self._messages

    @property
    def ask(self) -> Ask | None:
        """The ask, or None where it is malformed (which is told once)."""
        if self._ask is None and not self._is_malformed:
            try:
                envelope = decode_as(Ask, self.message)
                _check_id(envelope.data.event_id(), _ASK, self.round_id)
            except ContractError as error:
                self._is_malformed = True
                self._on_malformed(self.message, error)
            else:
                self._ask = envelope.data
                self.traceparent = envelope.traceparent
        return self._ask

    def proposal(self, concern: Concern) -> Proposal | None:
        """What is proposed for a concern; None where nothing is, or what is there is malformed (told once)."""
        found = self._decoded.get(concern)
        if found is None and (message := self._messages.get(concern)) is not None:
            try:
                found = decode_as(PROPOSAL_TYPES[concern], message).data
                _check_id(found.event_id(), f"{_PROPOSAL}.{concern}", self.round_id)
            except ContractError as error:
                del self._messages[concern]
                self._on_malformed(message, error)
                return None
            self._decoded[concern] = found
        return found

    def proposals(self) -> Mapping[Concern, Proposal]:
        """Everything proposed so far that can be read."""
        found = ((concern, self.proposal(concern)) for concern in tuple(self._messages))
        return {concern: proposal for concern, proposal in found if proposal is not None}

    def add(self, concern: Concern, message: StoredMessage) -> None:
        """Take in a stored proposal of this round."""
        self._messages[concern] = message
        self._decoded.pop(concern, None)
        self.taken.discard(concern)


class RoundBoard:
    """The open rounds of all jobs, the oldest ask first.

    Args:
        on_malformed: told of every message that cannot be read, once.
        most_rounds: how many are kept; past it the oldest is dropped, and its committer asks again.
    """

    def __init__(self, on_malformed: OnMalformed, *, most_rounds: int = 20_000) -> None:
        self._on_malformed = on_malformed
        self._most_rounds = most_rounds
        self._rounds: dict[JobTokens, OpenRound] = {}
        self.dropped = 0
        """Rounds dropped because there were too many."""

    def __len__(self) -> int:
        return len(self._rounds)

    def __iter__(self) -> Iterator[OpenRound]:
        return iter(tuple(self._rounds.values()))

    def take(self, message: StoredMessage) -> OpenRound | None:
        """Take in a message of stream PROPOSALS, in the stream's order; return the round that it changed, if any.

        A proposal of another round than the job's latest ask changes nothing.
        """
        subject = message.subject.split(".")
        try:
            if len(subject) == 4 and subject[1] == _ASK:
                return self._asked(JobTokens(subject[2], subject[3]), message)
            if len(subject) == 5 and subject[1] == _PROPOSAL:
                # What a newer version proposes beyond our concerns is not for us.
                concern = _CONCERNS.get(subject[2])
                job = JobTokens(subject[3], subject[4])
                return self._proposed(job, concern, message) if concern is not None else None
        except ContractError as error:
            self._on_malformed(message, error)
            return None
        self._on_malformed(message, ContractError("subject", f"{message.subject!r} is neither an ask nor a proposal"))
        return None

    def close(self, open_round: OpenRound) -> None:
        """Forget a round that nobody here has anything to do for."""
        if self._rounds.get(open_round.job) is open_round:
            del self._rounds[open_round.job]

    def is_open(self, open_round: OpenRound) -> bool:
        """Whether it still is its job's latest round."""
        return self._rounds.get(open_round.job) is open_round

    def clear(self) -> None:
        """Forget everything: the stream starts over."""
        self._rounds.clear()

    def _asked(self, job: JobTokens, message: StoredMessage) -> OpenRound:
        # Asked again, even for the same round: what was proposed before belongs to the earlier ask. Popped first, so
        # that the dict's order stays that of the asks.
        self._rounds.pop(job, None)
        open_round = OpenRound(job, _round_id(message, _ASK), message, _on_malformed=self._on_malformed)
        self._rounds[job] = open_round
        while len(self._rounds) > self._most_rounds:
            del self._rounds[next(iter(self._rounds))]
            self.dropped += 1
        return open_round

    def _proposed(self, job: JobTokens, concern: Concern, message: StoredMessage) -> OpenRound | None:
        open_round = self._rounds.get(job)
        if open_round is None or open_round.round_id != _round_id(message, f"{_PROPOSAL}.{concern}"):
            return None
        open_round.add(concern, message)
        return open_round


def _round_id(message: StoredMessage, kind: str) -> str:
    """`<cluster>/<job>/<attempt>[/<uid>]/<round>`: the same in the ask's id and in those of its answers."""
    event_id = message.headers.get("ce-id")
    if event_id is None:  # published without our headers
        event_id = decode_event(message).data.event_id()
    prefix, slash, rest = event_id.partition("/")
    if prefix != kind or not slash:
        raise ContractError("ce-id", f"expected {kind}/..., found {event_id!r}")
    return rest


def _check_id(event_id: str, kind: str, round_id: str) -> None:
    if event_id != f"{kind}/{round_id}":
        raise ContractError("ce-id", f"the header says {kind}/{round_id}, the body {event_id}")
