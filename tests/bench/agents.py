"""How many placement changes one process of simulated agents takes in, does and reports.

    .venv/bin/python tests/bench/agents.py [--nodes 96] [--jobs 240] [--rounds 5] [--json FILE]

A job is 4 nodes x 4 VFs x 8 GPUs and a dataset, and goes through its life: desired, started, releasing, released. One
row is the agent alone (bytes in, bytes out); others are the whole fleet on a real nats-server, with the floor beside
it: publishing as many messages of the same size and following them, without agents.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from railweave.contracts import StoredMessage, WireMessage, encode_event
from railweave.contracts.job import StartedWorker
from railweave.contracts.placement import (
    Interface,
    PlacedDataset,
    PlacedGpu,
    Placement,
    PlacementState,
    Rule,
    Worker,
    WorkerNetwork,
)
from railweave.contracts.types import NodeName
from railweave.node_agent.building import build_simulated, simulated_gpus, simulated_pfs
from railweave.node_agent.fleet import Fleet, Surroundings
from railweave.node_agent.measures import Measures
from railweave.node_agent.reading import read_placement
from railweave.node_agent.settings import AgentSettings, GpusSettings, SimulatedSettings
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus, BusSettings
from railweave.runtime.metrics import Metrics
from railweave_testing.servers import running_nats

RAILS, PER_JOB = 4, 4
GPUS = GpusSettings(count=8)
LIFE = (("desired", False), ("desired", True), ("releasing", True), ("released", True))


def placement(node: str, job: str, state: str, started: bool) -> Placement:
    pfs = simulated_pfs(range(RAILS), 8, 9000, driver="simulated")
    interfaces = tuple(
        Interface(
            name=f"rail{rail}",
            rail=rail,
            pf=pfs[rail].pci,
            vf=0,
            mac=f"02:00:00:01:{rail:02x}:00",
            leaf="leaf1",
            port="p1",
            vlan=100 + rail,
            mtu=9000,
            addresses=(f"10.{rail}.0.5/24",),
            gateways=(f"10.{rail}.0.1",),
            rules=(Rule(priority=1000 + rail, source=f"10.{rail}.0.5/32", table=1000 + rail),),
        )
        for rail in range(RAILS)
    )
    gpus = tuple(
        PlacedGpu(index=gpu.index, uuid=gpu.uuid, fraction_milli=1000, memory_mib=int(gpu.memory_mib))
        for gpu in simulated_gpus(NodeName(node), GPUS)
    )
    worker = Worker(
        name="worker",
        worker=0,
        gpus=gpus,
        network=WorkerNetwork(vf_group="g0", interfaces=interfaces),
        namespace=StartedWorker(worker=0, netns="/run/netns/w") if started else None,
    )
    return Placement(
        cluster="c",
        job=job,
        attempt=1,
        node=node,
        state=PlacementState(state),
        epoch=1,
        round=1,
        commit="bench",
        workers=(worker,),
        started=started,
        datasets=(PlacedDataset(name="d", version="1", action="fetch", bytes=1000, source="file:/d"),),
    )


def waves(nodes: int, jobs: int) -> list[list[WireMessage]]:
    """Messages of which each list may be published at once: a node has one job at a time."""
    at_a_time = nodes // PER_JOB
    listed: list[list[WireMessage]] = []
    for first in range(0, jobs, at_a_time):
        for state, started in LIFE:
            messages = []
            for job in range(first, min(jobs, first + at_a_time)):
                for part in range(PER_JOB):
                    node = f"node-{(job - first) * PER_JOB + part + 1:0{len(str(nodes))}}"
                    message = encode_event(placement(node, f"j{job}", state, started))
                    messages.append(WireMessage(message.subject, message.body, message.headers))
            listed.append(messages)
    return listed


async def alone(settings: SimulatedSettings, listed: Sequence[Sequence[WireMessage]]) -> float:
    """Microseconds of CPU a change, without a bus."""
    agents: dict[str, Any] = {}

    async def voice(message: WireMessage) -> bool:
        return True

    for name in settings.node_names():
        built = await build_simulated(name, settings, voice=voice, version="bench", later=lambda node, job, s: None)
        agents[str(name)] = built.agent
    now = datetime.now(UTC)
    stored = [
        StoredMessage("PLACEMENTS", message.subject, number, now, message.headers, message.body)
        for number, message in enumerate((message for wave in listed for message in wave), start=1)
    ]
    begun = time.process_time()
    for message in stored:
        agent = agents[message.subject.split(".")[2]]
        job = agent.take(read_placement(message))
        if job is not None:
            await agent.reconcile(job)
    assert not any(agent.journal.entries for agent in agents.values())
    return (time.process_time() - begun) / len(stored) * 1e6


async def on_a_bus(
    settings: SimulatedSettings, listed: Sequence[Sequence[WireMessage]], url: str
) -> tuple[float, float]:
    """(changes/s of the fleet, microseconds of CPU a change, publishing included)."""
    async with await Bus.connect(BusSettings(servers=(url,))) as bus:
        await bootstrap(bus, storage="memory")
        measures = Measures(Metrics(process_metrics=False))
        fleet = Fleet(AgentSettings(simulated=settings), Surroundings(bus, None, measures, random.Random(1)))
        for name in settings.node_names():
            fleet.add(await build_simulated(name, settings, voice=fleet.say, version="bench", later=fleet.later))
        stop = asyncio.Event()
        task = asyncio.create_task(fleet.run(stop))
        while not fleet.is_ready:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        begun, cpu = time.perf_counter(), time.process_time()
        sequence = 0
        for wave in listed:
            sequence = max(stored.sequence for stored in await bus.publish_many(wave))
            while fleet.is_busy or fleet.applied < sequence:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        changes = sum(len(wave) for wave in listed)
        took, burnt = time.perf_counter() - begun, time.process_time() - cpu
        stop.set()
        await task
        return changes / took, burnt / changes * 1e6


async def floor(listed: Sequence[Sequence[WireMessage]], url: str) -> float:
    """Changes/s published and followed, with nobody acting on them."""
    async with await Bus.connect(BusSettings(servers=(url,))) as bus:
        await bootstrap(bus, storage="memory")
        seen = 0

        def take(messages: Sequence[StoredMessage]) -> None:
            nonlocal seen
            seen = messages[-1].sequence

        follower = bus.follow("PLACEMENTS", ["rw.placement.>"], take, on_reset=lambda c: None, whole_batches=False)
        async with follower:
            await follower.wait_ready()
            begun = time.perf_counter()
            for wave in listed:
                last = max(stored.sequence for stored in await bus.publish_many(wave))
                while seen < last:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            return sum(len(wave) for wave in listed) / (time.perf_counter() - begun)


async def measure(nodes: int, jobs: int, rounds: int) -> dict[str, Any]:
    settings = SimulatedSettings(count=nodes, prefix="node-", rails=RAILS, gpus=GPUS)
    listed = waves(nodes, jobs)
    cpu_alone, rates, cpu_bus, floors = [], [], [], []
    for _ in range(rounds):
        cpu_alone.append(await alone(settings, listed))
        with running_nats() as server:
            floors.append(await floor(listed, server.url))
        with running_nats() as server:
            rate, cpu = await on_a_bus(settings, listed, server.url)
        rates.append(rate)
        cpu_bus.append(cpu)
    return {
        "nodes": nodes,
        "jobs": jobs,
        "changes": sum(len(wave) for wave in listed),
        "alone_cpu_us": spread(cpu_alone),
        "bus_changes_per_s": spread(rates),
        "bus_cpu_us": spread(cpu_bus),
        "floor_changes_per_s": spread(floors),
        "ratio_to_floor": statistics.median(rates) / statistics.median(floors),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=96)
    parser.add_argument("--jobs", type=int, default=240)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = asyncio.run(measure(arguments.nodes, arguments.jobs, arguments.rounds))
    print(f"{found['nodes']} agents in one process, {found['changes']} changes a round; {found['machine']}")
    print(f"{'':32} {'median':>9} {'min':>9} {'max':>9}")
    for name, key in (
        ("agent alone, us of CPU a change", "alone_cpu_us"),
        ("fleet on nats, changes/s", "bus_changes_per_s"),
        ("fleet on nats, us of CPU", "bus_cpu_us"),
        ("floor: publish + follow, per s", "floor_changes_per_s"),
    ):
        row = found[key]
        print(f"{name:32} {row['median']:9.0f} {row['min']:9.0f} {row['max']:9.0f}")
    print(f"fleet to floor: {found['ratio_to_floor']:.2f}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
