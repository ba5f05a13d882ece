"""Desks that answer asks, on a real broker."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

import pytest

from railweave.contracts.dead import DeadLetter
from railweave.contracts.desired import NodeDesired, NodeMode
from railweave.contracts.envelope import decode_as, decode_event, encode_event
from railweave.contracts.job import JobSpec
from railweave.contracts.proposal import (
    PROPOSAL_TYPES,
    Ask,
    Concern,
    DataProposal,
    FabricProposal,
    NicProposal,
    NodesProposal,
    Proposal,
)
from railweave.contracts.reasons import Reason, ReasonCode
from railweave.contracts.types import NodeName
from railweave.contracts.wire import StoredMessage, WireMessage
from railweave.runtime.answering import ProposalDesk
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus, BusSettings
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.metrics import Metrics
from railweave.runtime.view import ClusterView

PATIENCE_S = 10.0


@pytest.fixture
async def bus(fresh_nats_server: LocalNatsServer) -> AsyncIterator[Bus]:
    async with await Bus.connect(BusSettings(servers=(fresh_nats_server.url,))) as connected:
        await bootstrap(connected)
        yield connected


def ask(job: str = "88121", round_number: int = 1, concerns: Collection[Concern] = (Concern.NODES,)) -> Ask:
    spec = JobSpec.model_validate_json(
        f'{{"cluster": "slurm-a", "job": "{job}", "attempt": 1, "workers": [{{"count": 2, "gpus": 1}}]}}'
    )
    return Ask(
        cluster=spec.cluster,
        job=spec.job,
        attempt=spec.attempt,
        round=round_number,
        spec=spec,
        concerns=tuple(concerns),
    )


def answer_of(concern: Concern, asked: Ask, reasons: tuple[Reason, ...] = ()) -> Proposal:
    made = PROPOSAL_TYPES[concern]
    return made(cluster=asked.cluster, job=asked.job, attempt=asked.attempt, round=asked.round, reasons=reasons)


class Desk:
    """A service that answers and remembers what it was asked."""

    def __init__(self, bus: Bus, concern: Concern, needs: Collection[Concern] = (), reasons: tuple[Reason, ...] = ()):
        self.asked: list[tuple[str, int, frozenset[Concern]]] = []
        self._concern = concern
        self._reasons = reasons
        self.desk = ProposalDesk(bus, service=str(concern), concerns={concern}, needs=needs, answer=self._answer)

    def _answer(self, asked: Ask, proposals: Mapping[Concern, Proposal]) -> Proposal:
        self.asked.append((str(asked.job), int(asked.round), frozenset(proposals)))
        return answer_of(self._concern, asked, self._reasons)


@contextlib.asynccontextmanager
async def running(*desks: ProposalDesk) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(desk.run()) for desk in desks]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def stored(bus: Bus, subject: str, stream: str = "PROPOSALS") -> object:
    """The event at the end of a subject, once there is one."""
    async with asyncio.timeout(PATIENCE_S):
        while (message := await bus.read_last(stream, subject)) is None:  # noqa: ASYNC110 - what is awaited is on a server
            await asyncio.sleep(0.01)
    return decode_event(message).data


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_an_ask_is_answered_when_what_it_needs_is_there(bus: Bus) -> None:
    concerns = (Concern.NODES, Concern.FABRIC, Concern.NIC)
    cache = Desk(bus, Concern.NODES)
    topology = Desk(bus, Concern.FABRIC, needs={Concern.NODES})
    nic = Desk(bus, Concern.NIC, needs={Concern.NODES, Concern.FABRIC, Concern.GPU})
    async with running(cache.desk, topology.desk, nic.desk):
        await bus.publish(encode_event(ask(concerns=concerns)))
        assert isinstance(await stored(bus, "rw.proposal.nic.slurm-a.88121"), NicProposal)
    assert nic.asked == [("88121", 1, frozenset({Concern.NODES, Concern.FABRIC}))]
    assert topology.asked == [("88121", 1, frozenset({Concern.NODES}))]


async def test_who_is_not_asked_takes_no_part(bus: Bus) -> None:
    cache, topology = Desk(bus, Concern.NODES), Desk(bus, Concern.FABRIC, needs={Concern.NODES})
    async with running(cache.desk, topology.desk):
        await bus.publish(encode_event(ask("a", concerns=(Concern.NODES,))))
        await bus.publish(encode_event(ask("b", concerns=(Concern.NODES, Concern.FABRIC))))
        await stored(bus, "rw.proposal.fabric.slurm-a.b")
    assert [job for job, *_ in topology.asked] == ["b"]


async def test_asks_made_while_nobody_listened_are_answered_at_start_and_answered_ones_are_not(bus: Bus) -> None:
    for job in ("old", "new"):
        await bus.publish(encode_event(ask(job)))
    await bus.publish(encode_event(answer_of(Concern.NODES, ask("old"))))
    cache = Desk(bus, Concern.NODES)
    async with running(cache.desk):
        await stored(bus, "rw.proposal.nodes.slurm-a.new")
    assert [job for job, *_ in cache.asked] == ["new"]


async def test_a_desk_that_comes_late_answers_what_the_others_have_forgotten(bus: Bus) -> None:
    cache, topology = Desk(bus, Concern.NODES), Desk(bus, Concern.FABRIC, needs={Concern.NODES})
    async with running(cache.desk):
        await bus.publish(encode_event(ask(concerns=(Concern.NODES, Concern.FABRIC))))
        await stored(bus, "rw.proposal.nodes.slurm-a.88121")
        async with running(topology.desk):
            assert isinstance(await stored(bus, "rw.proposal.fabric.slurm-a.88121"), FabricProposal)
    assert len(cache.asked) == 1


async def test_a_round_that_is_refused_goes_no_further(bus: Bus) -> None:
    no = Reason(code=ReasonCode.INSUFFICIENT_NODES, text="none is free")
    concerns = (Concern.NODES, Concern.FABRIC)
    cache = Desk(bus, Concern.NODES, reasons=(no,))
    topology = Desk(bus, Concern.FABRIC, needs={Concern.NODES})
    async with running(cache.desk, topology.desk):
        await bus.publish(encode_event(ask("a", concerns=concerns)))
        await stored(bus, "rw.proposal.nodes.slurm-a.a")
        await bus.publish(encode_event(ask("b", concerns=(Concern.FABRIC,))))
        await stored(bus, "rw.proposal.fabric.slurm-a.b")
    assert [job for job, *_ in topology.asked] == ["b"]


async def test_a_malformed_ask_becomes_a_dead_letter_and_the_next_is_answered(bus: Bus) -> None:
    good = encode_event(ask("bad"))
    bad = WireMessage(good.subject, good.body.replace(b'"count":2', b'"count":-2'), good.headers, good.msg_id)
    cache = Desk(bus, Concern.NODES)
    async with running(cache.desk):
        await bus.publish(bad)
        await bus.publish(encode_event(ask("good")))
        await stored(bus, "rw.proposal.nodes.slurm-a.good")
        letter = await stored(bus, "rw.dead.proposals", "DEAD")
    assert isinstance(letter, DeadLetter)
    assert letter.field == "data.spec.workers[0].count"
    assert base64.b64decode(letter.original_base64) == bad.body
    assert [job for job, *_ in cache.asked] == ["good"]


async def test_a_decision_that_fails_is_put_aside_and_the_desk_goes_on(bus: Bus) -> None:
    def answer(asked: Ask, _proposals: Mapping[Concern, Proposal]) -> Proposal:
        if asked.job == "bad":
            raise ZeroDivisionError("no nodes at all")
        return answer_of(Concern.NODES, asked)

    async with running(ProposalDesk(bus, service="cache", concerns={Concern.NODES}, answer=answer)):
        await bus.publish(encode_event(ask("bad")))
        await bus.publish(encode_event(ask("good")))
        await stored(bus, "rw.proposal.nodes.slurm-a.good")
        letter = await stored(bus, "rw.dead.proposals", "DEAD")
    assert isinstance(letter, DeadLetter)
    assert letter.cause == "cache: ZeroDivisionError: no nodes at all"


async def test_what_is_stored_of_a_round_stays_and_only_the_rest_is_added(bus: Bus) -> None:
    both = (Concern.NODES, Concern.DATA)
    asked = ask(concerns=both)
    seen: list[Mapping[Concern, Proposal]] = []

    def answer(to: Ask, proposals: Mapping[Concern, Proposal]) -> Sequence[Proposal]:
        seen.append(proposals)
        return [answer_of(concern, to) for concern in both]

    await bus.publish(encode_event(asked))
    first = NodesProposal(cluster=asked.cluster, job=asked.job, attempt=asked.attempt, round=asked.round, nodes=("n1",))
    await bus.publish(encode_event(first))
    async with running(ProposalDesk(bus, service="cache", concerns=both, answer=answer)):
        assert isinstance(await stored(bus, "rw.proposal.data.slurm-a.88121"), DataProposal)
    assert seen == [{Concern.NODES: first}]
    assert await stored(bus, "rw.proposal.nodes.slurm-a.88121") == first


async def test_an_answer_past_the_payload_limit_becomes_a_reason(bus: Bus) -> None:
    def answer(asked: Ask, _proposals: Mapping[Concern, Proposal]) -> Proposal:
        names = tuple(f"{number:0250d}" for number in range(5000))
        return NodesProposal(
            cluster=asked.cluster, job=asked.job, attempt=asked.attempt, round=asked.round, nodes=names
        )

    async with running(ProposalDesk(bus, service="cache", concerns={Concern.NODES}, answer=answer)):
        await bus.publish(encode_event(ask()))
        found = await stored(bus, "rw.proposal.nodes.slurm-a.88121")
    assert isinstance(found, NodesProposal)
    assert found.reasons[0].code is ReasonCode.TOO_LARGE
    assert found.never


async def test_the_trace_of_the_ask_goes_on_in_the_answer(bus: Bus) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    cache = Desk(bus, Concern.NODES)
    async with running(cache.desk):
        await bus.publish(encode_event(ask(), traceparent=f"00-{trace}-b7ad6b7169203331-01"))
        await stored(bus, "rw.proposal.nodes.slurm-a.88121")
        message = await bus.read_last("PROPOSALS", "rw.proposal.nodes.slurm-a.88121")
    assert message is not None
    carried = decode_as(NodesProposal, message).traceparent
    assert carried is not None
    assert carried.split("-")[1] == trace
    assert carried.split("-")[2] != "b7ad6b7169203331"


async def test_nothing_is_answered_while_the_view_is_not_complete(bus: Bus) -> None:
    complete = asyncio.Event()
    asked: list[str] = []

    def answer(to: Ask, _proposals: Mapping[Concern, Proposal]) -> Proposal:
        asked.append(str(to.job))
        return answer_of(Concern.NODES, to)

    async def hold() -> None:
        await complete.wait()

    desk = ProposalDesk(bus, service="cache", concerns={Concern.NODES}, answer=answer, hold=hold)
    async with running(desk):
        await bus.publish(encode_event(ask(round_number=1)))
        await bus.publish(encode_event(ask(round_number=2)))
        await until(lambda: desk.ready)
        await asyncio.sleep(0.1)
        assert not asked
        complete.set()
        found = await stored(bus, "rw.proposal.nodes.slurm-a.88121")
    assert isinstance(found, NodesProposal)
    assert found.round == 2
    assert asked == ["88121"]


async def test_a_broker_killed_and_restarted_costs_no_answer(fresh_nats_server: LocalNatsServer, bus: Bus) -> None:
    concerns = (Concern.NODES, Concern.FABRIC)
    cache, topology = Desk(bus, Concern.NODES), Desk(bus, Concern.FABRIC, needs={Concern.NODES})
    async with running(cache.desk, topology.desk):
        await until(lambda: cache.desk.ready)
        await asyncio.sleep(0.3)
        for number in range(30):
            await bus.publish(encode_event(ask(f"j{number}", concerns=concerns)))
            if number == 10:
                await asyncio.to_thread(fresh_nats_server.kill)
                await asyncio.to_thread(fresh_nats_server.restart)
                # A broker killed right behind its acknowledgement may have lost what it acknowledged.
                for lost in range(11):
                    await bus.publish(encode_event(ask(f"j{lost}", round_number=2, concerns=concerns)))
        for number in range(30):
            await stored(bus, f"rw.proposal.fabric.slurm-a.j{number}")


async def test_a_burst_of_asks_is_answered_and_forgotten(bus: Bus) -> None:
    concerns = (Concern.NODES, Concern.FABRIC)
    cache, topology = Desk(bus, Concern.NODES), Desk(bus, Concern.FABRIC, needs={Concern.NODES})
    async with running(cache.desk, topology.desk):
        await bus.publish_many(encode_event(ask(f"j{number}", concerns=concerns)) for number in range(300))
        for number in range(300):
            await stored(bus, f"rw.proposal.fabric.slurm-a.j{number}")
        await until(lambda: len(cache.desk._feed.board) == 0)
    assert len(topology.asked) == 300


async def test_desks_that_come_one_after_the_other_answer_each_ask_once(bus: Bus) -> None:
    concerns = (Concern.NODES, Concern.FABRIC, Concern.NIC)
    for number in range(100):
        asked = ask(f"j{number}", concerns=concerns)
        await bus.publish(encode_event(asked))
        if number % 2:
            await bus.publish(encode_event(answer_of(Concern.NODES, asked)))
    cache = Desk(bus, Concern.NODES)
    topology = Desk(bus, Concern.FABRIC, needs={Concern.NODES})
    nic = Desk(bus, Concern.NIC, needs={Concern.NODES, Concern.FABRIC})
    async with running(cache.desk):
        await asyncio.sleep(0.02)
        async with running(topology.desk):
            await asyncio.sleep(0.02)
            async with running(nic.desk):
                for number in range(100):
                    await stored(bus, f"rw.proposal.nic.slurm-a.j{number}")
    # An answer that was on its way when the stream was read again may be made again, under the same id.
    assert {job for job, *_ in cache.asked} == {f"j{number}" for number in range(0, 100, 2)}
    assert len({job for job, *_ in nic.asked}) == 100
    last = (await bus.stream_state("PROPOSALS")).last_sequence
    assert last == 100 + 3 * 100


async def test_a_refusal_is_decided_again_on_a_view_that_has_caught_up(bus: Bus) -> None:
    view = ClusterView(bus, Metrics(process_metrics=False))
    node = NodeDesired(node=NodeName("n1"), generation=1, mode=NodeMode.SCHEDULABLE)
    no = Reason(code=ReasonCode.INSUFFICIENT_NODES, text="none is known")
    decided: list[bool] = []

    def answer(asked: Ask, _proposals: Mapping[Concern, Proposal]) -> Proposal:
        decided.append("n1" in view.state.nodes)
        return answer_of(Concern.NODES, asked, () if decided[-1] else (no,))

    # The view is made to lag: what comes is held back until the test lets it go.
    held: list[Sequence[StoredMessage]] = []
    follower = view._followers["DESIRED"]
    take = follower._on_messages
    follower._on_messages = held.append
    stop = asyncio.Event()
    following = asyncio.create_task(view.run(stop))
    async with running(ProposalDesk(bus, service="cache", concerns={Concern.NODES}, answer=answer, view=view)):
        await view.wait_ready()
        follower._advance = lambda _sequence: None  # type: ignore[method-assign]
        await bus.publish(encode_event(node))
        await bus.publish(encode_event(ask()))
        await until(lambda: bool(decided) and bool(held))
        assert await bus.read_last("PROPOSALS", "rw.proposal.nodes.slurm-a.88121") is None
        take(held.pop())
        del follower._advance
        follower._advance((await bus.stream_state("DESIRED")).last_sequence)
        found = await stored(bus, "rw.proposal.nodes.slurm-a.88121")
    assert isinstance(found, NodesProposal)
    assert not found.reasons
    assert decided == [False, True]
    stop.set()
    await following


async def test_a_refusal_that_stands_is_said_once_and_decided_once(bus: Bus) -> None:
    view = ClusterView(bus, Metrics(process_metrics=False))
    no = Reason(code=ReasonCode.INSUFFICIENT_NODES, text="none is free")
    decided: list[str] = []

    def answer(asked: Ask, _proposals: Mapping[Concern, Proposal]) -> Proposal:
        decided.append(str(asked.job))
        return answer_of(Concern.NODES, asked, (no,))

    stop = asyncio.Event()
    following = asyncio.create_task(view.run(stop))
    async with running(ProposalDesk(bus, service="cache", concerns={Concern.NODES}, answer=answer, view=view)):
        for number in range(20):
            await bus.publish(encode_event(ask(f"j{number}")))
        for number in range(20):
            found = await stored(bus, f"rw.proposal.nodes.slurm-a.j{number}")
            assert isinstance(found, NodesProposal)
            assert found.reasons == (no,)
    assert sorted(decided) == sorted(f"j{number}" for number in range(20))
    stop.set()
    await following
