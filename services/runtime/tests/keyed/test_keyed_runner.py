"""One key at a time, other keys beside it, bounded, and gone when cancelled."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import pytest

from railweave.runtime.keyed import KeyedRunner, KeyedRunnerClosed


async def test_work_of_one_key_is_done_in_order_and_never_twice_at_once() -> None:
    done: dict[str, list[int]] = defaultdict(list)
    busy: set[str] = set()
    rng = random.Random(1)

    async def work(key: str, item: int) -> None:
        assert key not in busy
        busy.add(key)
        await asyncio.sleep(rng.random() / 500)
        busy.remove(key)
        done[key].append(item)

    async with KeyedRunner(work, concurrency=4) as runner:
        for item in range(200):
            await runner.submit(f"job-{item % 7}", item)
    assert sum(map(len, done.values())) == 200
    assert all(items == sorted(items) for items in done.values())


async def test_a_slow_key_does_not_hold_up_others() -> None:
    release = asyncio.Event()
    done: list[str] = []

    async def work(key: str, _item: None) -> None:
        if key == "slow":
            await release.wait()
        done.append(key)

    async with KeyedRunner(work, concurrency=2) as runner:
        await runner.submit("slow", None)
        for number in range(5):
            await runner.submit(f"quick-{number}", None)
        await asyncio.sleep(0.02)
        assert len(done) == 5
        release.set()


async def test_no_more_keys_at_once_than_allowed() -> None:
    now = most = 0

    async def work(_key: int, _item: None) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.001)
        now -= 1

    async with KeyedRunner(work, concurrency=3) as runner:
        for key in range(30):
            await runner.submit(key, None)
    assert most == 3


async def test_coalescing_keeps_only_the_newest_waiting_item() -> None:
    seen: list[int] = []
    go = asyncio.Event()

    async def work(_key: str, item: int) -> None:
        seen.append(item)
        await go.wait()

    async with KeyedRunner(work, coalesce=True) as runner:
        await runner.submit("node", 0)
        await asyncio.sleep(0)
        for item in range(1, 100):
            await runner.submit("node", item)
        assert runner.waiting == 1
        go.set()
    assert seen == [0, 99]


async def test_a_full_runner_makes_submitters_wait() -> None:
    go = asyncio.Event()
    count = 0

    async def work(_key: int, _item: int) -> None:
        nonlocal count
        await go.wait()
        count += 1

    async with KeyedRunner(work, concurrency=1, capacity=2) as runner:
        await runner.submit(0, 0)
        await asyncio.sleep(0)
        assert runner.submit_nowait(1, 0)
        assert runner.submit_nowait(2, 0)
        assert not runner.submit_nowait(3, 0)
        waiting = asyncio.ensure_future(runner.submit(3, 0))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        go.set()
        await waiting
    assert count == 4


async def test_a_waiting_key_may_be_replaced_although_the_runner_is_full() -> None:
    go = asyncio.Event()
    seen: list[int] = []

    async def work(_key: int, item: int) -> None:
        await go.wait()
        seen.append(item)

    async with KeyedRunner(work, concurrency=1, capacity=1, coalesce=True) as runner:
        await runner.submit(0, 0)
        await asyncio.sleep(0)
        assert runner.submit_nowait(1, 1)
        assert runner.submit_nowait(1, 2)
        go.set()
    assert seen == [0, 2]


async def test_a_failure_is_told_and_the_key_goes_on() -> None:
    failed: list[tuple[str, int, str]] = []
    done: list[int] = []

    async def work(_key: str, item: int) -> None:
        if item == 1:
            raise ValueError("no")
        done.append(item)

    async with KeyedRunner(work, on_error=lambda key, item, error: failed.append((key, item, str(error)))) as runner:
        for item in range(3):
            await runner.submit("k", item)
    assert failed == [("k", 1, "no")]
    assert done == [0, 2]


async def test_leaving_waits_for_what_is_queued_and_takes_no_more() -> None:
    done: list[int] = []

    async def work(_key: str, item: int) -> None:
        await asyncio.sleep(0.001)
        done.append(item)

    async with KeyedRunner(work) as runner:
        for item in range(5):
            await runner.submit("k", item)
    assert done == [0, 1, 2, 3, 4]
    with pytest.raises(KeyedRunnerClosed):
        await runner.submit("k", 5)
    with pytest.raises(KeyedRunnerClosed):
        runner.submit_nowait("k", 5)


async def test_quiet_means_nothing_is_queued_or_in_progress() -> None:
    async def work(_key: int, _item: None) -> None:
        await asyncio.sleep(0.001)

    async with KeyedRunner(work) as runner:
        for key in range(10):
            await runner.submit(key, None)
        await runner.wait_quiet()
        assert (runner.waiting, runner.busy_keys) == (0, 0)


@pytest.mark.parametrize("turns", range(12))
async def test_cancelled_at_any_moment_everything_ends_and_nobody_is_left_waiting(turns: int) -> None:
    begun: list[int] = []
    ended: list[int] = []

    async def work(_key: int, item: int) -> None:
        begun.append(item)
        try:
            await asyncio.sleep(0)
            await asyncio.sleep(3600)
        finally:
            ended.append(item)

    runner = KeyedRunner(work, concurrency=2, capacity=3)

    async def own() -> None:
        async with runner:
            for item in range(10):
                await runner.submit(item % 4, item)

    task = asyncio.ensure_future(own())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 2)
    assert sorted(begun) == sorted(ended)
    await asyncio.wait_for(runner.wait_quiet(), 1)
    assert runner.busy_keys == 0


@pytest.mark.parametrize(("concurrency", "capacity"), [(0, 1), (1, 0)])
def test_bounds_must_leave_room(concurrency: int, capacity: int) -> None:
    async def work(_key: int, _item: int) -> None:
        return

    with pytest.raises(ValueError, match="at least 1"):
        KeyedRunner(work, concurrency=concurrency, capacity=capacity)
