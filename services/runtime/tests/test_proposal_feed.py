"""Listeners beside desks: what is stored from now on, once, whoever else reads the stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import pytest

from railweave.contracts.envelope import decode_event, encode_event
from railweave.contracts.job import JobSpec
from railweave.contracts.proposal import Ask, Concern, NodesProposal, Proposal
from railweave.contracts.wire import StoredMessage
from railweave.runtime.answering import ProposalDesk
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus, BusSettings
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.proposal_feed import ProposalFeed

PATIENCE_S = 10.0


@pytest.fixture
async def bus(fresh_nats_server: LocalNatsServer) -> AsyncIterator[Bus]:
    async with await Bus.connect(BusSettings(servers=(fresh_nats_server.url,))) as connected:
        await bootstrap(connected)
        yield connected


def ask(job: str, round_number: int = 1) -> Ask:
    spec = JobSpec.model_validate_json(
        f'{{"cluster": "lab", "job": "{job}", "attempt": 1, "workers": [{{"count": 1, "gpus": 1}}]}}'
    )
    about = {"cluster": spec.cluster, "job": spec.job, "attempt": spec.attempt, "round": round_number}
    return Ask(**about, spec=spec, concerns=(Concern.NODES,))


class Listener:
    """Remembers the ids of what it heard."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def take(self, messages: Sequence[StoredMessage]) -> None:
        self.heard += [decode_event(message).data.event_id() for message in messages]


def desk_on(bus: Bus) -> ProposalDesk:
    def answer(asked: Ask, _proposals: Mapping[Concern, Proposal]) -> Proposal:
        return NodesProposal(cluster=asked.cluster, job=asked.job, attempt=asked.attempt, round=asked.round)

    return ProposalDesk(bus, service="cache", concerns={Concern.NODES}, answer=answer)


@contextlib.asynccontextmanager
async def listening(bus: Bus) -> AsyncIterator[Listener]:
    listener, feed = Listener(), ProposalFeed.of(bus)
    task = asyncio.create_task(feed.listen(listener.take))
    await asyncio.sleep(0)
    await feed.wait_ready()
    try:
        yield listener
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def answering(desk: ProposalDesk) -> AsyncIterator[None]:
    task = asyncio.create_task(desk.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - what is awaited is on a server
            await asyncio.sleep(0.01)


async def test_a_listener_alone_hears_what_is_stored_from_now_on(bus: Bus) -> None:
    await bus.publish(encode_event(ask("before")))
    async with listening(bus) as listener:
        await bus.publish(encode_event(ask("now")))
        await until(lambda: "propose/lab/now/1/1" in listener.heard)
        assert listener.heard == ["propose/lab/now/1/1"]


async def test_a_desk_that_joins_answers_what_was_asked_before_and_the_listener_hears_nothing_twice(bus: Bus) -> None:
    await bus.publish(encode_event(ask("before")))
    async with listening(bus) as listener:
        await bus.publish(encode_event(ask("now")))
        await until(lambda: len(listener.heard) == 1)
        async with answering(desk_on(bus)):
            await until(lambda: len(listener.heard) == 3)
            await bus.publish(encode_event(ask("later")))
            await until(lambda: len(listener.heard) == 5)
        assert sorted(listener.heard) == [
            "proposal.nodes/lab/before/1/1",
            "proposal.nodes/lab/later/1/1",
            "proposal.nodes/lab/now/1/1",
            "propose/lab/later/1/1",
            "propose/lab/now/1/1",
        ]


async def test_a_listener_that_joins_a_desk_hears_only_what_comes(bus: Bus) -> None:
    await bus.publish(encode_event(ask("before")))
    desk = desk_on(bus)
    async with answering(desk):
        await until(lambda: desk.ready)
        async with listening(bus) as listener:
            await bus.publish(encode_event(ask("now")))
            await until(lambda: "proposal.nodes/lab/now/1/1" in listener.heard)
            assert not any("before/1/1" in heard and heard.startswith("propose/") for heard in listener.heard)


async def test_the_desk_goes_on_when_the_listener_leaves_and_the_other_way_round(bus: Bus) -> None:
    async with listening(bus) as listener:
        async with answering(desk_on(bus)):
            async with listening(bus) as other:
                await bus.publish(encode_event(ask("first")))
                await until(lambda: len(other.heard) == 2)
            await bus.publish(encode_event(ask("second")))
            await until(lambda: "proposal.nodes/lab/second/1/1" in listener.heard)
            assert "propose/lab/second/1/1" not in other.heard
        await bus.publish(encode_event(ask("third")))
        await until(lambda: "propose/lab/third/1/1" in listener.heard)


async def test_a_listener_hears_of_the_stream_that_comes_after_a_lost_one(bus: Bus) -> None:
    async with listening(bus) as listener:
        for number in range(3):
            await bus.publish(encode_event(ask(f"first-{number}")))
        await until(lambda: len(listener.heard) == 3)
        await bus.api.call("STREAM.DELETE.PROPOSALS")
        await bootstrap(bus)
        await asyncio.sleep(0.1)
        await bus.publish(encode_event(ask("anew")))
        await until(lambda: "propose/lab/anew/1/1" in listener.heard)
