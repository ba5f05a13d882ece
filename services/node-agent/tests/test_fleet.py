"""Agents on a real broker: what is stored reaches them, what they did is stored, whatever happens to the broker."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from railweave.contracts import StoredMessage, WireMessage, decode_event, encode_event
from railweave.contracts.inventory import NodeHardware, NodeStorage, Report, ReportState
from railweave.contracts.placement import Placement
from railweave.contracts.types import NodeName
from railweave.node_agent.building import Built, build_simulated
from railweave.node_agent.data import MemorySpace
from railweave.node_agent.fleet import Fleet, Surroundings
from railweave.node_agent.measures import Measures
from railweave.node_agent.model import EntryState
from railweave.node_agent.settings import AgentSettings, GpusSettings, SimulatedSettings
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus, BusSettings
from railweave.runtime.local_servers import LocalNatsServer, LocalValkeyServer
from railweave.runtime.metrics import Metrics
from railweave.runtime.redis_store import WorkingMemory
from railweave.runtime.settings import RedisSettings
from railweave.runtime.streams import DEAD, NODES, PLACEMENTS

NETNS = "/run/netns/w"


class Plane:
    """A broker, a process of agents, and somebody who writes the record and reads the reports."""

    def __init__(self, bus: Bus, settings: AgentSettings) -> None:
        self.bus = bus
        self.settings = settings
        self.heard: dict[str, Any] = {}
        self.history: list[Any] = []
        self.stop = asyncio.Event()
        self.fleet: Fleet = None  # type: ignore[assignment]
        self._kept: dict[str, Built] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self.stop = asyncio.Event()
        self.fleet = Fleet(
            self.settings, Surroundings(self.bus, None, Measures(Metrics(process_metrics=False)), random.Random(1))
        )
        for name in self.settings.simulated.node_names():
            built = await build_simulated(
                name, self.settings.simulated, voice=self.fleet.say, version="t", later=self.fleet.later
            )
            self.fleet.add(built)
        self._tasks = [asyncio.create_task(self.fleet.run(self.stop))]
        await self.until(lambda: self.fleet.is_ready)

    async def listen(self) -> None:
        def take(messages: Any) -> None:
            for message in messages:
                event = decode_event(message).data
                self.heard[message.subject] = event
                self.history.append(event)

        follower = self.bus.follow(NODES, [], take, on_reset=lambda cause: self.heard.clear())
        self._listening = asyncio.create_task(follower.run())

    async def end(self) -> None:
        self.stop.set()
        await asyncio.gather(*self._tasks)

    async def store(self, placement: Placement) -> int:
        message = encode_event(placement)
        stored = await self.bus.publish(WireMessage(message.subject, message.body, message.headers))
        return stored.sequence

    async def until(self, condition: Callable[[], Any], seconds: float = 10.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.01)

    def report(self, job: str = "j1", attempt: int = 1, node: str = "n1") -> Report | None:
        found = self.heard.get(f"rw.report.{node}.c.{job}.{attempt}")
        return found if isinstance(found, Report) else None

    def is_reported(self, state: str, job: str = "j1") -> bool:
        report = self.report(job)
        return report is not None and report.state == state

    def built(self, node: str = "n1") -> Built:
        found = self.fleet.find(NodeName(node))
        assert found is not None
        return found


def _settings(count: int = 1) -> AgentSettings:
    names = tuple(NodeName(f"n{number}") for number in range(1, count + 1))
    simulated = SimulatedSettings(
        names=names, rails=2, vfs=4, gpus=GpusSettings(count=4), cache_bytes=10_000, scratch_bytes=10_000
    )
    return AgentSettings(simulated=simulated, resync_s=0.5)


@contextlib.asynccontextmanager
async def _plane(server: LocalNatsServer, count: int = 1) -> AsyncIterator[Plane]:
    async with await Bus.connect(BusSettings(servers=(server.url,), reconnect_wait_max_s=0.2)) as bus:
        await bootstrap(bus)
        plane = Plane(bus, _settings(count))
        await plane.listen()
        try:
            await plane.start()
            yield plane
        finally:
            await plane.end()
            plane._listening.cancel()
            await asyncio.gather(plane._listening, return_exceptions=True)


async def test_a_job_goes_through_its_life_on_a_broker(fresh_nats_server: LocalNatsServer, make: Any) -> None:
    async with _plane(fresh_nats_server) as plane:
        assert isinstance(plane.heard.get("rw.inventory.n1.hardware"), NodeHardware)
        assert isinstance(plane.heard.get("rw.inventory.n1.storage"), NodeStorage)
        await plane.store(make.placement(datasets=(make.dataset(),), scratch=10))
        await plane.until(lambda: plane.is_reported("prepared"))
        kinds = [type(event).__name__ for event in plane.history]
        assert kinds.index("Report") > max(i for i, kind in enumerate(kinds) if kind == "NodeStorage")
        await plane.store(make.placement(netns=NETNS, datasets=(make.dataset(),), scratch=10))
        await plane.until(lambda: plane.is_reported("attached"))
        sequence = await plane.store(make.placement(state="releasing"))
        await plane.until(lambda: plane.is_reported("undone"))
        assert plane.report().fence == (1, sequence)  # type: ignore[union-attr]
        assert not plane.built().table.uses  # type: ignore[union-attr]


async def test_what_was_stored_while_the_agent_was_away_is_done_when_it_is_back(
    fresh_nats_server: LocalNatsServer, make: Any
) -> None:
    async with _plane(fresh_nats_server) as plane:
        await plane.end()
        await plane.store(make.placement())
        await plane.store(make.placement("j2", state="releasing"))
        await plane.start()
        await plane.until(lambda: plane.is_reported("prepared") and plane.is_reported("undone", "j2"))


async def test_one_follower_serves_many_agents(fresh_nats_server: LocalNatsServer, make: Any) -> None:
    async with _plane(fresh_nats_server, count=20) as plane:
        stored = make.placement(workers=[make.worker(vf=0, gpus=())])
        for number in range(1, 21):
            await plane.store(stored.model_copy(update={"node": NodeName(f"n{number}")}))
        await plane.until(lambda: all(plane.report(node=f"n{number}") for number in range(1, 21)))
        state = await plane.bus.api.call("CONSUMER.LIST.PLACEMENTS")
        assert len(state["consumers"]) == 1


async def test_a_malformed_placement_is_a_dead_letter_and_the_others_go_on(
    fresh_nats_server: LocalNatsServer, make: Any
) -> None:
    async with _plane(fresh_nats_server) as plane:
        good = encode_event(make.placement())
        bad = good.body.replace(b'"round":1', b'"round":"one"')
        await plane.bus.publish(WireMessage("rw.placement.n1.c.j1.1", bad, good.headers))
        await plane.store(make.placement("j2", workers=[make.worker(vf=1, gpus=())]))
        await plane.until(lambda: plane.is_reported("prepared", "j2"))
        letter: StoredMessage | None = None
        async with asyncio.timeout(5):
            while letter is None:
                letter = await plane.bus.read_last(DEAD, "rw.dead.agent")
        dead: Any = decode_event(letter).data
        assert dead.field == "data.round"


async def test_a_killed_broker_loses_nothing(fresh_nats_server: LocalNatsServer, make: Any) -> None:
    async with _plane(fresh_nats_server) as plane:
        await plane.store(make.placement())
        await plane.until(lambda: plane.is_reported("prepared"))
        fresh_nats_server.kill()
        await asyncio.sleep(0.2)
        await asyncio.to_thread(fresh_nats_server.restart)
        await plane.bus.wait_up(10)
        await plane.store(make.placement(state="releasing"))
        await plane.until(lambda: plane.is_reported("undone"), 15)


async def test_an_empty_store_undoes_nothing_and_everything_is_said_again(
    fresh_nats_server: LocalNatsServer, make: Any
) -> None:
    async with _plane(fresh_nats_server) as plane:
        for number in range(3):
            await plane.store(make.placement(f"j{number}", workers=[make.worker(vf=number, gpus=())], netns=None))
        await plane.until(lambda: all(plane.is_reported("prepared", f"j{n}") for n in range(3)))
        for stream in (PLACEMENTS, NODES):
            await plane.bus.api.call(f"STREAM.DELETE.{stream}")
        await bootstrap(plane.bus)
        await plane.until(lambda: all(plane.is_reported("orphan", f"j{n}") for n in range(3)), 20)
        hardware = plane.heard["rw.inventory.n1.hardware"]
        assert hardware.fence_seen == (1, 3)
        assert len(plane.built().table.uses) == 6  # type: ignore[union-attr]
        adopted = plane.report("j1").held.model_copy(update={"epoch": 2})  # type: ignore[union-attr]
        await plane.store(adopted)
        await plane.until(lambda: plane.is_reported("prepared", "j1"))
        await plane.store(make.placement("j2", epoch=2, state="releasing"))
        await plane.until(lambda: plane.is_reported("undone", "j2"))
        assert len(plane.built().table.uses) == 4  # type: ignore[union-attr]


async def test_inventories_that_the_stream_lost_are_said_again(fresh_nats_server: LocalNatsServer) -> None:
    async with _plane(fresh_nats_server) as plane:
        first = plane.heard["rw.inventory.n1.hardware"].revision
        await plane.bus.api.call(f"STREAM.DELETE.{NODES}")
        await bootstrap(plane.bus)
        subject = "rw.inventory.n1.hardware"
        await plane.until(lambda: subject in plane.heard and plane.heard[subject].revision > first, 20)


async def test_drift_is_mended_at_the_next_resync(fresh_nats_server: LocalNatsServer, make: Any) -> None:
    async with _plane(fresh_nats_server) as plane:
        await plane.store(make.placement())
        await plane.until(lambda: plane.is_reported("prepared"))
        table = plane.built().table
        assert table is not None
        table.lose_all()
        await plane.until(lambda: len(table.uses) == 2)


async def test_a_release_cuts_a_long_fetch_short(fresh_nats_server: LocalNatsServer, make: Any) -> None:
    async with _plane(fresh_nats_server) as plane:
        space = plane.built().space
        assert isinstance(space, MemorySpace)
        space._fetch_s = lambda size: 3600.0
        await plane.store(make.placement(datasets=(make.dataset(),)))
        await plane.until(lambda: any(item.state == "fetching" for item in space.datasets()))
        await plane.store(make.placement(state="releasing"))
        await plane.until(lambda: plane.is_reported("undone"))
        assert space.datasets() == ()
        assert not plane.built().table.uses  # type: ignore[union-attr]


async def test_stopping_cuts_a_long_fetch_short_and_undoes_nothing(
    fresh_nats_server: LocalNatsServer, make: Any
) -> None:
    async with _plane(fresh_nats_server) as plane:
        space = plane.built().space
        assert isinstance(space, MemorySpace)
        space._fetch_s = lambda size: 3600.0
        await plane.store(make.placement(datasets=(make.dataset(),)))
        await plane.until(lambda: any(item.state == "fetching" for item in space.datasets()))
        async with asyncio.timeout(2):
            await plane.end()
        entries = list(plane.built().journal.entries.values())
        assert [entry.state for entry in entries] == [EntryState.PREPARING]
        assert len(plane.built().table.uses) == 2  # type: ignore[union-attr]
        assert plane.report() is None


@pytest.mark.parametrize("slow", [False, True])
async def test_reports_carry_the_highest_state_only_once(
    fresh_nats_server: LocalNatsServer, make: Any, slow: bool
) -> None:
    async with _plane(fresh_nats_server) as plane:
        await plane.store(make.placement())
        if slow:
            await plane.until(lambda: plane.is_reported("prepared"))
        await plane.store(make.placement(netns=NETNS))
        await plane.until(lambda: plane.is_reported("attached"))
        await asyncio.sleep(1.2)  # two resyncs
        states = [event.state for event in plane.history if isinstance(event, Report)]
        assert states.count(ReportState.ATTACHED) == 1
        assert states.count(ReportState.PREPARED) <= 1


def test_the_settings_are_found_by_their_section(tmp_path: Path) -> None:
    from railweave.runtime.settings import load_settings

    config = tmp_path / "railweave.yaml"
    config.write_text("agent:\n  simulated:\n    count: 3\n  nodes:\n    - name: host1\n      gpus: {count: 2}\n")
    section = load_settings(config=config, environ={}).section(AgentSettings)
    assert [str(name) for name in section.simulated.node_names()] == ["node-1", "node-2", "node-3"]
    assert section.nodes[0].gpus.count == 2


async def test_heartbeats_say_which_nodes_are_alive_and_expire(
    fresh_nats_server: LocalNatsServer, fresh_valkey_server: LocalValkeyServer
) -> None:
    metrics = Metrics(process_metrics=False)
    memory = WorkingMemory(RedisSettings(url=fresh_valkey_server.url), metrics)
    stop = asyncio.Event()
    contact = asyncio.create_task(memory.run(stop))
    assert await memory.wait_available(5)
    async with await Bus.connect(BusSettings(servers=(fresh_nats_server.url,))) as bus:
        await bootstrap(bus)
        settings = _settings(3).model_copy(update={"heartbeat_s": 0.1})
        fleet = Fleet(settings, Surroundings(bus, memory, Measures(metrics), random.Random(1)))
        for name in settings.simulated.node_names():
            fleet.add(await build_simulated(name, settings.simulated, voice=fleet.say, version="t", later=fleet.later))
        running = asyncio.create_task(fleet.run(stop_agents := asyncio.Event()))
        names = ["n1", "n2", "n3"]
        async with asyncio.timeout(5):
            while len(await memory.beats("agent", names)) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        stop_agents.set()
        await running
        async with asyncio.timeout(5):
            while await memory.beats("agent", names):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    stop.set()
    await contact
    await memory.close()


async def test_a_node_named_twice_is_refused(fresh_nats_server: LocalNatsServer) -> None:
    async with _plane(fresh_nats_server) as plane:
        with pytest.raises(ValueError, match="named twice"):
            plane.fleet.add(plane.built())
