"""A write whose answer was lost is settled by the record itself, and of two writers one is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest
from cutting_proxy import CuttingProxy
from desk import START, make

from railweave.contracts.envelope import Event, decode_event
from railweave.contracts.placement import Head, Placement
from railweave.jobs.active import read_record
from railweave.jobs.model import Store
from railweave.jobs.recorder import Fenced, Recorder
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.streams import PLACEMENTS
from railweave_testing.buses import connected

pytestmark = pytest.mark.timeout(60)


def head(job: str, *, commit: str = "c-1", state: str = "placed", nodes: tuple[str, ...] = ("n0",)) -> Head:
    about = {"cluster": "lab", "job": job, "attempt": 1, "epoch": 1, "round": 1}
    return make(Head, **about, state=state, commit=commit, submitted_at=START, nodes=nodes)


def placement(job: str, node: str = "n0", *, state: str = "desired", commit: str = "c-1") -> Placement:
    about = {"cluster": "lab", "job": job, "attempt": 1, "epoch": 1, "round": 1}
    return make(Placement, **about, node=node, state=state, commit=commit)


def batch(job: str, nodes: int = 3) -> Store:
    names = tuple(f"n{number}" for number in range(nodes))
    return Store((*(placement(job, name) for name in names), head(job, nodes=names)), atomic=True)


@dataclass(frozen=True, slots=True)
class Bench:
    """A record, a way to it that can be cut, and one that cannot."""

    proxy: CuttingProxy
    through: Bus
    direct: Bus

    def recorder(self, *, at: int = 0, instance: str = "a", direct: bool = False) -> Recorder:
        return Recorder(self.direct if direct else self.through, at, lambda key: None, instance)

    async def stored(self) -> list[Event]:
        state = await self.direct.stream_state(PLACEMENTS)
        found = [await self.direct.read(PLACEMENTS, number) for number in range(1, state.last_sequence + 1)]
        return [decode_event(message).data for message in found if message is not None]


@pytest.fixture
async def bench(fresh_nats_server: LocalNatsServer) -> AsyncIterator[Bench]:
    async with contextlib.AsyncExitStack() as stack:
        direct = await stack.enter_async_context(connected(fresh_nats_server))
        await bootstrap(direct)
        proxy = CuttingProxy(urlsplit(fresh_nats_server.url).port or 0)
        await stack.enter_async_context(proxy.running())
        through = await stack.enter_async_context(
            connected(fresh_nats_server, servers=(f"nats://127.0.0.1:{proxy.port}",))
        )
        yield Bench(proxy, through, direct)


async def test_a_commit_whose_answer_was_lost_is_not_stored_again(bench: Bench) -> None:
    recorder = bench.recorder()
    bench.proxy.cut_reply_to = b"Nats-Batch-Commit"
    await recorder.store([batch("1")])
    assert bench.proxy.was_cut.is_set()
    assert await bench.stored() == list(batch("1").events)
    assert recorder.last_sequence == 4
    await recorder.store([batch("2")])
    assert len(await bench.stored()) == 8


async def test_a_commit_that_was_cut_before_the_server_heard_its_end_is_stored_whole(bench: Bench) -> None:
    recorder = bench.recorder()
    bench.proxy.cut_before = b"Nats-Batch-Commit"
    await recorder.store([batch("1")])
    assert bench.proxy.was_cut.is_set()
    assert await bench.stored() == list(batch("1").events)
    assert recorder.last_sequence == 4


async def test_a_plain_write_whose_answer_was_lost_is_not_stored_again(bench: Bench) -> None:
    recorder = bench.recorder()
    bench.proxy.cut_reply_to = b"rw.placement.n1"
    events = tuple(placement("1", f"n{number}", state="releasing") for number in range(4))
    await recorder.store([Store(events, atomic=False)])
    assert bench.proxy.was_cut.is_set()
    assert await bench.stored() == list(events)
    assert recorder.last_sequence == 4


async def test_a_single_head_whose_answer_was_lost_is_not_stored_again(bench: Bench) -> None:
    recorder = bench.recorder()
    bench.proxy.cut_reply_to = b"rw.head"
    await recorder.store([Store((head("1", state="pending", nodes=()),), atomic=False)])
    assert bench.proxy.was_cut.is_set()
    assert (await bench.direct.stream_state(PLACEMENTS)).last_sequence == recorder.last_sequence == 1


@pytest.mark.parametrize("cut", ["cut_reply_to", "cut_before"])
async def test_another_writer_during_the_doubt_fences(bench: Bench, cut: str) -> None:
    recorder = bench.recorder()
    setattr(bench.proxy, cut, b"Nats-Batch-Commit")
    bench.proxy.lets_in.clear()
    waits = asyncio.ensure_future(recorder.store([batch("1")]))
    async with asyncio.timeout(20):
        await bench.proxy.was_cut.wait()
        last = (await bench.direct.stream_state(PLACEMENTS)).last_sequence
        other = bench.recorder(at=last, instance="b", direct=True)
        theirs = (*(placement("1", f"n{number}", commit="c-2") for number in range(3)), head("1", commit="c-2"))
        await other.store([Store(theirs, atomic=True)])
        bench.proxy.lets_in.set()
        with pytest.raises(Fenced):
            await waits
    assert {event.commit for event in await bench.stored()} == {"c-2"}


async def test_of_two_committers_that_believe_in_their_lease_one_stores_nothing(bench: Bench) -> None:
    one, other = bench.recorder(), bench.recorder(instance="b", direct=True)
    await one.store([batch("1")])
    for store in (batch("2"), Store((head("2"),), atomic=False), Store((placement("2"),), atomic=False)):
        with pytest.raises(Fenced):
            await other.store([store])
    assert await bench.stored() == list(batch("1").events)
    await one.store([batch("3")])


async def test_both_at_once_store_whole_batches_of_one_of_them(bench: Bench) -> None:
    async def write(instance: str) -> int:
        recorder = bench.recorder(instance=instance, direct=True)
        done = 0
        with contextlib.suppress(Fenced):
            for number in range(20):
                await recorder.store([batch(f"{instance}{number}")])
                done += 1
        return done

    done = await asyncio.gather(write("a"), write("b"))
    stored = await bench.stored()
    assert len(stored) == 4 * sum(done)
    assert min(done) == 0 or sum(done) == 20


async def test_groups_that_must_be_atomic_are_not_split_over_two_batches(bench: Bench) -> None:
    recorder = bench.recorder(direct=True)
    stores = [batch(f"j{number}", nodes=300) for number in range(5)]
    await recorder.store(stores)
    assert recorder.last_sequence == 5 * 301
    read = await read_record(bench.direct)
    assert len(read.heads) == 5
    assert len(read.placements) == 1500


async def test_a_tombstone_is_stored_with_its_time_to_live(bench: Bench) -> None:
    recorder = bench.recorder(direct=True)
    await recorder.store([Store((head("1", state="released", nodes=()),), atomic=False, ttl_s=99)])
    message = await bench.direct.read(PLACEMENTS, 1)
    assert message is not None
    assert message.headers["Nats-TTL"] == "99s"


async def test_a_record_that_was_put_back_fences(bench: Bench) -> None:
    recorder = bench.recorder(at=50, direct=True)
    with pytest.raises(Fenced):
        await recorder.store([batch("1")])
    assert await bench.stored() == []
