"""The folded cluster over a real broker: ready when read, current afterwards, read again when a stream is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest

from railweave.contracts import encode_event
from railweave.contracts.inventory import Gpu, NodeHardware
from railweave.contracts.types import NodeName
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus
from railweave.runtime.cluster import Change
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.metrics import Metrics
from railweave.runtime.view import ClusterView
from railweave_testing.buses import connected, eventually
from railweave_testing.servers import running_nats


def hardware(name: str, gpus: int, revision: int = 1) -> NodeHardware:
    cards = [
        {"index": index, "uuid": f"GPU-{name}-{index}", "model": "H100", "memory_mib": 80} for index in range(gpus)
    ]
    return NodeHardware(
        node=NodeName(name),
        revision=revision,
        boot_id="b",  # type: ignore[arg-type]
        agent_version="t",
        gpus=tuple(Gpu.model_validate(card, strict=False) for card in cards),
    )


@contextlib.asynccontextmanager
async def viewing(bus: Bus) -> AsyncIterator[ClusterView]:
    view = ClusterView(bus, Metrics(process_metrics=False))
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(view.run(stop))
        try:
            yield view
        finally:
            stop.set()


@pytest.fixture
def server() -> Iterator[LocalNatsServer]:
    with running_nats() as running:
        yield running


async def test_what_was_stored_before_is_there_when_the_view_is_ready_and_is_told_once(server: LocalNatsServer) -> None:
    async with connected(server) as bus:
        await bootstrap(bus)
        await bus.publish_many([encode_event(hardware(f"n{number}", 8)) for number in range(50)])
        changes: list[Change] = []
        async with viewing(bus) as view:
            view.on_change(changes.append)
            await asyncio.wait_for(view.wait_ready(), 10)
            assert len(view.state.nodes) == 50
            await eventually(lambda: len(changes) == 1)
            assert len(changes[0].nodes) == 50


async def test_a_view_of_empty_streams_becomes_ready(server: LocalNatsServer) -> None:
    async with connected(server) as bus:
        await bootstrap(bus)
        async with viewing(bus) as view:
            await asyncio.wait_for(view.wait_ready(), 10)
            assert view.state.nodes == {}


async def test_what_is_stored_later_is_told_by_name(server: LocalNatsServer) -> None:
    async with connected(server) as bus:
        await bootstrap(bus)
        async with viewing(bus) as view:
            await asyncio.wait_for(view.wait_ready(), 10)
            changes: list[Change] = []
            view.on_change(changes.append)
            stored = await bus.publish(encode_event(hardware("n1", 8)))
            await view.wait_applied("NODES", stored.sequence, 5)
            assert view.state.node(NodeName("n1")).free_whole_gpus == 8
            assert [change.nodes for change in changes] == [{"n1"}]


async def test_a_malformed_message_does_not_stop_the_view(server: LocalNatsServer) -> None:
    async with connected(server) as bus:
        await bootstrap(bus)
        async with viewing(bus) as view:
            good = encode_event(hardware("n1", 8))
            bad = type(good)("rw.inventory.n2.hardware", b"{", good.headers, "bad-1")
            await bus.publish(bad)
            stored = await bus.publish(good)
            await view.wait_applied("NODES", stored.sequence, 5)
            assert set(view.state.nodes) == {"n1"}
            assert view.state.skipped == 1


async def test_a_stream_put_back_to_an_older_copy_is_read_again_and_only_it(server: LocalNatsServer, tmp_path) -> None:
    async with connected(server) as bus:
        await bootstrap(bus)
        async with viewing(bus) as view:
            await bus.publish(encode_event(hardware("old", 8)))
            await asyncio.sleep(0.3)
            server.stop()
            server.copy_store(tmp_path / "copy")
            server.restart()
            await bus.wait_up(10)
            stored = await bus.publish(encode_event(hardware("new", 8)))
            await view.wait_applied("NODES", stored.sequence, 10)
            changes: list[Change] = []
            resets: list[str] = []
            view.on_change(changes.append)
            view.on_reset(lambda stream, _cause: resets.append(stream))
            server.kill()
            server.restore_store(tmp_path / "copy")
            server.restart()
            await eventually(lambda: set(view.state.nodes) == {"old"} and view.is_ready and bool(changes), 20)
            await asyncio.wait_for(view.wait_ready(), 5)
            assert "NODES" in resets
            told = Change()
            for change in changes:
                told.merge(change)
            assert "new" in told.nodes
