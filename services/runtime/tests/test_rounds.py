"""Asks and proposals, joined by round."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from railweave.contracts.envelope import Event, encode_event
from railweave.contracts.errors import ContractError
from railweave.contracts.job import JobSpec
from railweave.contracts.proposal import Ask, Concern, FabricProposal, NicProposal, NodesProposal
from railweave.contracts.wire import StoredMessage
from railweave.runtime.rounds import RoundBoard

CONCERNS = (Concern.NODES, Concern.FABRIC, Concern.NIC)


class Stream:
    """Numbers messages as PROPOSALS does."""

    def __init__(self) -> None:
        self.sequence = 0
        self.malformed: list[tuple[int, str]] = []

    def board(self, most_rounds: int = 100) -> RoundBoard:
        def malformed(message: StoredMessage, error: ContractError) -> None:
            self.malformed.append((message.sequence, error.field))

        return RoundBoard(malformed, most_rounds=most_rounds)

    def store(self, event: Event) -> StoredMessage:
        wire = encode_event(event)
        return self.raw(wire.subject, wire.body, dict(wire.headers))

    def raw(self, subject: str, body: bytes, headers: dict[str, str] | None = None) -> StoredMessage:
        self.sequence += 1
        stored_at = datetime(2026, 12, 1, tzinfo=UTC)
        return StoredMessage("PROPOSALS", subject, self.sequence, stored_at, headers or {}, body)


def ask(job: str = "88121", round_number: int = 1, attempt: int = 1) -> Ask:
    spec = JobSpec.model_validate_json(
        f'{{"cluster": "slurm-a", "job": "{job}", "attempt": {attempt}, "workers": [{{"count": 2, "gpus": 1}}]}}'
    )
    return Ask(
        cluster=spec.cluster, job=spec.job, attempt=spec.attempt, round=round_number, spec=spec, concerns=CONCERNS
    )


def nodes(of: Ask, *names: str) -> NodesProposal:
    return NodesProposal(cluster=of.cluster, job=of.job, attempt=of.attempt, round=of.round, nodes=names)


def test_a_proposal_joins_the_ask_of_its_round() -> None:
    stream = Stream()
    board = stream.board()
    wanted = ask()
    opened = board.take(stream.store(wanted))
    assert opened is not None
    assert opened.ask == wanted
    assert not opened.has(Concern.NODES)
    assert board.take(stream.store(nodes(wanted, "n1", "n2"))) is opened
    assert opened.proposals() == {Concern.NODES: nodes(wanted, "n1", "n2")}


def test_a_proposal_of_an_older_round_changes_nothing() -> None:
    stream = Stream()
    board = stream.board()
    board.take(stream.store(ask(round_number=1)))
    newer = board.take(stream.store(ask(round_number=2)))
    assert newer is not None
    assert board.take(stream.store(nodes(ask(round_number=1), "n1"))) is None
    assert not newer.has(Concern.NODES)


def test_a_proposal_of_another_attempt_changes_nothing() -> None:
    stream = Stream()
    board = stream.board()
    board.take(stream.store(ask(attempt=2)))
    assert board.take(stream.store(nodes(ask(attempt=1), "n1"))) is None


def test_an_ask_stored_again_starts_its_round_over() -> None:
    stream = Stream()
    board = stream.board()
    board.take(stream.store(ask()))
    board.take(stream.store(nodes(ask(), "n1")))
    again = board.take(stream.store(ask()))
    assert again is not None
    assert not again.has(Concern.NODES)
    assert len(board) == 1


def test_a_malformed_ask_is_told_once_and_names_the_field() -> None:
    stream = Stream()
    board = stream.board()
    good = encode_event(ask())
    body = good.body.replace(b'"count":2', b'"count":"two"')
    opened = board.take(stream.raw(good.subject, body, dict(good.headers)))
    assert opened is not None
    assert opened.ask is None
    assert opened.ask is None
    assert stream.malformed == [(1, "data.spec.workers[0].count")]


def test_a_malformed_proposal_is_as_if_it_were_not_there() -> None:
    stream = Stream()
    board = stream.board()
    opened = board.take(stream.store(ask()))
    assert opened is not None
    good = encode_event(nodes(ask(), "n1"))
    board.take(stream.raw(good.subject, b"{}", dict(good.headers)))
    assert opened.proposal(Concern.NODES) is None
    assert not opened.has(Concern.NODES)
    assert len(stream.malformed) == 1


def test_a_header_that_speaks_for_another_round_is_malformed() -> None:
    stream = Stream()
    board = stream.board()
    opened = board.take(stream.store(ask(round_number=2)))
    assert opened is not None
    old = encode_event(nodes(ask(round_number=1), "n1"))
    headers = dict(old.headers) | {"ce-id": nodes(ask(round_number=2)).event_id()}
    board.take(stream.raw(old.subject, old.body, headers))
    assert opened.proposal(Concern.NODES) is None
    assert stream.malformed == [(2, "ce-id")]


def test_messages_without_headers_are_joined_too() -> None:
    stream = Stream()
    board = stream.board()
    for event in (ask(), nodes(ask(), "n1")):
        wire = encode_event(event)
        board.take(stream.raw(wire.subject, wire.body))
    (opened,) = board
    assert opened.proposal(Concern.NODES) == nodes(ask(), "n1")


def test_rubbish_is_told_and_harms_nothing() -> None:
    stream = Stream()
    board = stream.board()
    assert board.take(stream.raw("rw.propose.a.b", b"\xff")) is None
    assert board.take(stream.raw("rw.propose.a", b"{}")) is None
    assert board.take(stream.raw("rw.proposal.weather.a.b", b"{}")) is None
    assert [sequence for sequence, _ in stream.malformed] == [1, 2]
    assert len(board) == 0


def test_the_oldest_round_goes_when_there_are_too_many() -> None:
    stream = Stream()
    board = stream.board(most_rounds=3)
    for job in ("a", "b", "c", "a", "d"):
        board.take(stream.store(ask(job)))
    assert [str(opened.ask.job) for opened in board if opened.ask] == ["c", "a", "d"]
    assert board.dropped == 1


@given(st.lists(st.tuples(st.sampled_from(["ask", "nodes", "fabric", "nic"]), st.integers(1, 3)), max_size=30))
def test_what_is_joined_is_what_came_after_the_latest_ask_of_the_same_round(story: list[tuple[str, int]]) -> None:
    makers = {"nodes": NodesProposal, "fabric": FabricProposal, "nic": NicProposal}
    stream = Stream()
    board = stream.board()
    latest, expected = None, set()
    for kind, number in story:
        if kind == "ask":
            board.take(stream.store(ask(round_number=number)))
            latest, expected = number, set()
        else:
            asked = ask(round_number=number)
            board.take(
                stream.store(
                    makers[kind](cluster=asked.cluster, job=asked.job, attempt=asked.attempt, round=asked.round)
                )
            )
            if number == latest:
                expected.add(makers[kind].CONCERN)
    assert {concern for opened in board for concern in opened.proposals()} == expected
    assert not stream.malformed


def test_a_closed_round_is_closed_only_while_it_is_the_latest() -> None:
    stream = Stream()
    board = stream.board()
    first = board.take(stream.store(ask(round_number=1)))
    second = board.take(stream.store(ask(round_number=2)))
    assert first is not None
    assert second is not None
    board.close(first)
    assert board.is_open(second)
    board.close(dataclasses.replace(second))
    assert board.is_open(second)
    board.close(second)
    assert len(board) == 0
