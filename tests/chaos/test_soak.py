"""Jobs come and go for a while: the memory of each process stays flat, and so do consumers and subscriptions.

RAILWEAVE_SOAK_S says for how long (60); the figures are printed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import urllib.request
from pathlib import Path

import pytest
from kill_anything import SIMULATED
from rig.checks import consumers, dead_letters, find_leaks
from rig.plan import make_plan
from rig.scheduler import Scheduler
from rig.stack import ChaosStack
from rig.watch import RecordWatch

SOAK_S = float(os.environ.get("RAILWEAVE_SOAK_S", "60"))
WARM_UP_S = 20.0
GROWTH_MIB = 3.0
"""Of a process of ours, over the soak, beside what it remembers of runs that are over."""
REMEMBERED_KIB = 16.0
"""Of each run, up to the 50,000 latest ends (runtime/cluster.py), and for as long as its tombstone lives."""
SERVICES = ("jobs", "topology", "nic", "gpu", "cache", "agent")
SERVER_GROWTH_MIB = 64.0
"""Of nats-server and valkey-server: their stores and Go's garbage collector are not ours."""
JOBS_PER_S = 3.0

pytestmark = pytest.mark.timeout(SOAK_S + 240)


async def test_memory_consumers_and_subscriptions_stay_flat_while_jobs_come_and_go(tmp_path: Path) -> None:
    stack = ChaosStack(tmp_path, SIMULATED, programs=dict.fromkeys(SERVICES, "forgetful.py"))
    span = WARM_UP_S + SOAK_S
    samples: dict[str, list[float]] = {part.name: [] for part in stack.parts}
    subscriptions: list[int] = []
    try:
        await stack.start()
        async with stack.bus() as bus, RecordWatch(bus) as record:
            scheduler = Scheduler(bus, make_plan(random.Random(41), int(span * JOBS_PER_S), span, 4, 4, []))
            async with scheduler.at_work():
                await asyncio.sleep(WARM_UP_S)
                before = await consumers(bus)
                for _ in range(int(SOAK_S)):
                    await asyncio.sleep(1.0)
                    for part in stack.parts:
                        samples[part.name].append(part.rss_mib)
                    subscriptions.append(await asyncio.to_thread(_subscriptions, stack.monitoring))
                after = await consumers(bus)
                assert await scheduler.wait_finished(90), scheduler.unfinished
                assert await find_leaks(stack, bus) == []
            assert record.violations == []
            assert await dead_letters(bus) == []
            assert stack.deaths == []
        tenth = max(3, len(subscriptions) // 10)
        growth = {name: statistics.median(of[-tenth:]) - statistics.median(of[:tenth]) for name, of in samples.items()}
        print(f"{scheduler.tally.submitted} runs over {span:.0f} s; MiB at the end, and grown over {SOAK_S:.0f} s:")
        print(", ".join(f"{name} {samples[name][-1]:.0f} ({grown:+.1f})" for name, grown in growth.items()))
        print(f"subscriptions {subscriptions[0]} -> {subscriptions[-1]}, consumers {before.total()} -> {after.total()}")
        assert after == before
        # A command that asks something has an inbox for a moment.
        assert abs(statistics.median(subscriptions[-tenth:]) - statistics.median(subscriptions[:tenth])) <= 2
        ours = GROWTH_MIB + REMEMBERED_KIB / 1024 * JOBS_PER_S * SOAK_S
        for name, grown in growth.items():
            assert grown < (SERVER_GROWTH_MIB if name.endswith("-server") else ours), f"{name} grew"
    finally:
        await stack.stop()


def _subscriptions(monitoring: str) -> int:
    with urllib.request.urlopen(f"{monitoring}/varz", timeout=5.0) as answer:
        return int(json.loads(answer.read())["subscriptions"])
