"""Waits between attempts and between rounds."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railweave.runtime.backoff import Backoff, BackoffPolicy
from railweave.runtime.clock import SetClock, SystemClock
from railweave.runtime.periodic import run_periodically, wait_for_event


@given(attempt=st.integers(0, 10_000), seed=st.integers())
def test_a_wait_is_positive_and_never_above_the_cap(attempt: int, seed: int) -> None:
    policy = BackoffPolicy(first_s=0.1, cap_s=5.0, jitter=0.5)
    assert 0.05 <= policy.wait_s(attempt, random.Random(seed)) <= 5.0


def test_without_jitter_waits_double_up_to_the_cap() -> None:
    backoff = Backoff(BackoffPolicy(first_s=1, cap_s=5, factor=2, jitter=0))
    assert [backoff.next_s() for _ in range(5)] == [1, 2, 4, 5, 5]
    backoff.reset()
    assert backoff.next_s() == 1


def test_the_same_seed_waits_alike() -> None:
    one, other = (Backoff(rng=random.Random(7)) for _ in range(2))
    assert [one.next_s() for _ in range(9)] == [other.next_s() for _ in range(9)]


@pytest.mark.parametrize("numbers", [{"first_s": 0}, {"first_s": 2, "cap_s": 1}, {"factor": 0.5}, {"jitter": 2}])
def test_numbers_that_describe_no_wait_are_refused(numbers: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="backoff needs"):
        BackoffPolicy(**numbers)


async def test_rounds_come_until_stopped_also_after_one_that_fails() -> None:
    stop = asyncio.Event()
    rounds = 0

    async def work() -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            raise ValueError("one bad round")
        if rounds == 5:
            stop.set()

    await asyncio.wait_for(run_periodically(work, every_s=0.001, stop=stop, at_once=True), 5)
    assert rounds == 5


async def test_a_nudge_brings_the_next_round_now() -> None:
    stop, nudge = asyncio.Event(), asyncio.Event()
    rounds = 0

    async def work() -> None:
        nonlocal rounds
        rounds += 1

    task = asyncio.ensure_future(run_periodically(work, every_s=3600, stop=stop, nudge=nudge))
    for expected in (1, 2):
        nudge.set()
        await asyncio.sleep(0.01)
        assert rounds == expected
    stop.set()
    await asyncio.wait_for(task, 1)


async def test_pauses_are_spread_so_that_a_thousand_agents_do_not_ask_at_once() -> None:
    pauses = {round(60 * (1 + 0.2 * (2 * random.Random(seed).random() - 1)), 3) for seed in range(100)}
    assert len(pauses) > 90
    assert min(pauses) >= 48
    assert max(pauses) <= 72


async def test_stopping_ends_a_pause_at_once() -> None:
    stop = asyncio.Event()

    async def work() -> None:
        return

    task = asyncio.ensure_future(run_periodically(work, every_s=3600, stop=stop))
    await asyncio.sleep(0.01)
    stop.set()
    await asyncio.wait_for(task, 1)


async def test_waiting_for_an_event_says_whether_it_came() -> None:
    event = asyncio.Event()
    assert not await wait_for_event(event, 0.01)
    event.set()
    assert await wait_for_event(event, 0.01)


def test_a_set_clock_moves_only_when_told() -> None:
    clock = SetClock()
    before = clock.now()
    clock.advance(90)
    assert (clock.now() - before).total_seconds() == clock.monotonic() == 90
    assert SystemClock().now().tzinfo is not None
