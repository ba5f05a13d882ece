"""Services start before the servers they need, and end within five seconds when asked, with no work lost."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from kill_anything import SIMULATED
from rig.checks import dead_letters, find_leaks
from rig.parts import wait_until
from rig.plan import make_lasting, make_plan
from rig.scheduler import Scheduler
from rig.stack import ChaosStack
from rig.watch import RecordWatch

pytestmark = pytest.mark.timeout(240)

MOST_S = 5.0


async def test_services_that_start_before_nats_and_redis_wait_for_them(tmp_path: Path) -> None:
    stack = ChaosStack(tmp_path, SIMULATED)
    try:
        await stack.prepare()
        for service in stack.services.values():
            await asyncio.to_thread(service.start)
        for service in stack.services.values():
            await wait_until(lambda part=service: part.is_alive, 30, f"{service.name} is alive without NATS")
        await asyncio.sleep(3.0)
        assert stack.deaths == []
        assert not any([await asyncio.to_thread(lambda part=part: part.is_ready) for part in stack.services.values()])
        await asyncio.to_thread(stack.nats.start)
        await asyncio.sleep(2.0)
        await asyncio.to_thread(stack.valkey.start)
        await stack.wait_whole()
        async with stack.bus() as bus:
            scheduler = Scheduler(bus, make_plan(random.Random(31), 8, 2.0, 4, 4, []))
            async with scheduler.at_work():
                assert await scheduler.wait_finished(60), scheduler.unfinished
                assert await find_leaks(stack, bus) == []
        assert stack.deaths == []
    finally:
        await stack.stop()


async def test_sigterm_ends_each_service_within_five_seconds_and_loses_no_work(tmp_path: Path) -> None:
    stack = ChaosStack(tmp_path, SIMULATED)
    took: dict[str, float] = {}
    try:
        await stack.start()
        async with stack.bus() as bus, RecordWatch(bus) as record:
            scheduler = Scheduler(bus, make_plan(random.Random(32), 60, 30.0, 4, 4, []))
            async with scheduler.at_work():
                for name, service in stack.services.items():
                    await asyncio.sleep(1.0)
                    took[name], status = await asyncio.to_thread(service.terminate)
                    assert status == 0, f"{name} ended with status {status}"
                    await asyncio.to_thread(service.start)
                assert await scheduler.wait_finished(120), scheduler.unfinished
                assert await find_leaks(stack, bus) == []
            print("seconds from SIGTERM to the end:", {name: round(seconds, 2) for name, seconds in took.items()})
            assert max(took.values()) < MOST_S, took
            assert scheduler.tally.given_back == 0, scheduler.tally.reasons
            assert record.violations == []
            assert await dead_letters(bus) == []
    finally:
        await stack.stop()


@pytest.mark.parametrize("is_frozen", [False, True], ids=["dead", "frozen"])
async def test_sigterm_ends_services_within_five_seconds_also_while_nats_is(tmp_path: Path, is_frozen: bool) -> None:
    stack = ChaosStack(tmp_path, SIMULATED)
    try:
        await stack.start()
        async with stack.bus() as bus:
            lasting = make_lasting(4, 0.0)
            scheduler = Scheduler(bus, lasting + make_plan(random.Random(33), 30, 6.0, 4, 2, []))
            async with scheduler.at_work():
                runs = {job.lives[0].spec.run for job in lasting}
                await wait_until(lambda: runs <= scheduler.attached().keys(), 60, "jobs are attached")
                nats = stack.part("nats-server")
                await asyncio.to_thread(nats.pause if is_frozen else nats.kill)
                ends = await asyncio.gather(*(asyncio.to_thread(part.terminate) for part in stack.services.values()))
                assert max(seconds for seconds, _ in ends) < MOST_S, dict(zip(stack.services, ends, strict=True))
                await asyncio.to_thread(nats.resume if is_frozen else nats.start)
                for part in stack.services.values():
                    await asyncio.to_thread(part.start)
                scheduler.end_all()
                assert await scheduler.wait_finished(90), scheduler.unfinished
                assert await find_leaks(stack, bus) == []
    finally:
        await stack.stop()
