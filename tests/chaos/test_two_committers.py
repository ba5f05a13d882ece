"""Two committers that both believe in their lease: one stores nothing, whoever it is, and nothing is held twice."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from kill_anything import SIMULATED
from rig.checks import dead_letters, find_leaks
from rig.parts import wait_until
from rig.plan import make_plan
from rig.scheduler import Scheduler
from rig.stack import ChaosStack
from rig.watch import RecordWatch

from railweave.runtime.bus import Bus
from railweave.runtime.streams import PLACEMENTS

pytestmark = pytest.mark.timeout(240)


async def test_an_active_committer_that_was_frozen_past_its_lease_stores_nothing_when_it_wakes(tmp_path: Path) -> None:
    stack = ChaosStack(tmp_path, SIMULATED)
    rng = random.Random(21)
    try:
        await stack.start()
        async with stack.bus() as bus, RecordWatch(bus) as record:
            scheduler = Scheduler(bus, make_plan(rng, 40, 15.0, 4, 4, []))
            async with scheduler.at_work():
                for _ in range(3):
                    await asyncio.sleep(2.0)
                    first = await stack.active(bus)
                    assert first is not None
                    stack.part(first).pause()
                    try:
                        await wait_until(lambda was=first: _other(stack, bus, was), 20, "the standby takes over")
                        before = (await bus.stream_state(PLACEMENTS)).last_sequence
                        await wait_until(lambda was=before: _grew(bus, was), 20, "the standby commits")
                    finally:
                        stack.part(first).resume()
                    await wait_until(lambda part=first: stack.services[part].is_ready, 20, "the frozen one stands by")
                assert await scheduler.wait_finished(60), scheduler.unfinished
                assert await find_leaks(stack, bus) == []
            assert record.violations == []
            assert await dead_letters(bus) == []
            assert stack.deaths == []
    finally:
        await stack.stop()


async def test_two_that_never_doubt_their_lease_hold_nothing_twice(tmp_path: Path) -> None:
    stack = ChaosStack(tmp_path, SIMULATED, programs={"jobs": "liar.py"})
    rng = random.Random(22)
    try:
        await stack.start()
        async with stack.bus() as bus, RecordWatch(bus) as record:
            scheduler = Scheduler(bus, make_plan(rng, 25, 10.0, 4, 4, []))
            async with scheduler.at_work():
                await asyncio.sleep(15.0)
                refused = stack.logged("the record has another writer")
                assert refused, "they never met"
                assert record.violations == []
                print(f"refused for another writer {len(refused)} times, held twice 0")
                # One gives up; what both had begun is brought to its end by the other.
                await asyncio.to_thread(stack.part("jobs-2").kill)
                await scheduler.wait_finished(90)
                assert scheduler.is_finished, scheduler.unfinished
                assert await find_leaks(stack, bus) == []
            assert record.violations == []
            assert await dead_letters(bus) == []
    finally:
        await stack.stop()


async def _other(stack: ChaosStack, bus: Bus, was: str) -> bool:
    return await stack.active(bus) not in {None, was}


async def _grew(bus: Bus, was: int) -> bool:
    return (await bus.stream_state(PLACEMENTS)).last_sequence > was + 3
