"""The leader lease: one holder as a rule, a quick change when it steps down, a safe one when it dies."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus
from railweave.runtime.lease import LeaderLease
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.streams import LEASES, STREAMS
from railweave_testing.buses import connected, eventually, frozen

_TTL_S = 1.0


async def _make_leases(bus: Bus) -> None:
    await bootstrap(bus, streams=[spec for spec in STREAMS if spec.name == LEASES], consumers=[])


@pytest.fixture
async def leases(bus: Bus) -> Bus:
    await _make_leases(bus)
    return bus


def _name(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name}-{time.monotonic_ns()}"


async def test_first_becomes_the_holder_and_the_second_waits(leases: Bus, request: pytest.FixtureRequest) -> None:
    name = _name(request)
    first, second = (LeaderLease(leases, name, holder, _TTL_S) for holder in ("one", "two"))
    async with first:
        await asyncio.wait_for(first.wait_acquired(), 2)
        async with second:
            await asyncio.sleep(2.0 * _TTL_S)
            assert first.is_held
            assert not second.is_held
            assert second.current_holder == "one"


async def test_release_lets_the_standby_take_over_at_its_next_poll(leases: Bus, request: pytest.FixtureRequest) -> None:
    name = _name(request)
    first, second = (LeaderLease(leases, name, holder, 30.0) for holder in ("one", "two"))
    async with second_after(first, second):
        await first.__aexit__(None, None, None)
        started = time.monotonic()
        await asyncio.wait_for(second.wait_acquired(), 5)
        assert time.monotonic() - started < 1.5, "a poll, not the 30 s of the TTL"
        assert not first.is_held


async def test_holder_that_dies_is_followed_after_its_ttl_and_not_before(
    leases: Bus, request: pytest.FixtureRequest
) -> None:
    name = _name(request)
    first, second = (LeaderLease(leases, name, holder, _TTL_S) for holder in ("one", "two"))
    running = asyncio.create_task(first.run())
    await asyncio.wait_for(first.wait_acquired(), 2)
    async with second:
        await asyncio.sleep(0.5)
        running.cancel()  # as a crash would: no release
        await asyncio.gather(running, return_exceptions=True)
        died = time.monotonic()
        await asyncio.wait_for(second.wait_acquired(), 5)
        assert time.monotonic() - died > 0.5 * _TTL_S
        assert time.monotonic() - died < 2.0 * _TTL_S
        assert not first.is_held, "by its own clock, without having been told"


async def test_renewing_keeps_it_beyond_the_ttl(leases: Bus, request: pytest.FixtureRequest) -> None:
    """Row 22: a KV lease renewed by `update()` loses its TTL and becomes immortal, or dies in use."""
    lost: list[float] = []
    lease = LeaderLease(leases, _name(request), "one", _TTL_S, on_lost=lambda: lost.append(time.monotonic()))
    async with lease:
        await asyncio.wait_for(lease.wait_acquired(), 2)
        for _ in range(22):
            await asyncio.sleep(0.1)
            assert lease.is_held
        assert lost == []
    assert len(lost) == 1


async def test_never_two_holders_at_once_over_many_changes(
    leases: Bus, nats_server: LocalNatsServer, request: pytest.FixtureRequest
) -> None:
    name = _name(request)
    async with connected(nats_server) as other:
        candidates = [
            LeaderLease(bus, name, f"c{number}", 0.6) for number, bus in enumerate((leases, other, leases, other))
        ]
        runs = [asyncio.create_task(candidate.run()) for candidate in candidates]
        holders: set[str] = set()
        until = time.monotonic() + 3.5
        kill_at = time.monotonic() + 0.5
        while time.monotonic() < until:
            held = [candidate for candidate in candidates if candidate.is_held]
            assert len(held) <= 1
            if held and time.monotonic() > kill_at:
                place = candidates.index(held[0])
                holders.add(held[0].holder)
                runs[place].cancel()  # a crash
                candidates[place] = LeaderLease(leases, name, f"{held[0].holder}'", 0.6)
                runs[place] = asyncio.create_task(candidates[place].run())
                kill_at = time.monotonic() + 0.5
            await asyncio.sleep(0.01)
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
    assert len(holders) >= 2


async def test_holder_cut_off_from_the_broker_steps_down_by_its_own_clock(
    fresh_nats_server: LocalNatsServer, request: pytest.FixtureRequest
) -> None:
    async with connected(fresh_nats_server, request_timeout_s=0.3) as bus:
        await _make_leases(bus)
        lease = LeaderLease(bus, _name(request), "one", _TTL_S)
        async with lease:
            await asyncio.wait_for(lease.wait_acquired(), 2)
            async with frozen(fresh_nats_server):
                paused = time.monotonic()
                await asyncio.wait_for(lease.wait_lost(), 5)
                assert time.monotonic() - paused < 2.0 * _TTL_S
            await asyncio.wait_for(lease.wait_acquired(), 5)


@pytest.mark.long
async def test_broker_killed_and_restarted_leaves_the_holder_in_place(
    fresh_nats_server: LocalNatsServer, request: pytest.FixtureRequest
) -> None:
    async with connected(fresh_nats_server) as bus, connected(fresh_nats_server) as other:
        await _make_leases(bus)
        name = _name(request)
        async with LeaderLease(bus, name, "one", 3.0) as first:
            await asyncio.wait_for(first.wait_acquired(), 2)
            async with LeaderLease(other, name, "two", 3.0) as second:
                await asyncio.sleep(1.2)
                await asyncio.to_thread(fresh_nats_server.kill)
                await asyncio.to_thread(fresh_nats_server.start)
                await asyncio.sleep(3.5)
                assert [first.is_held, second.is_held].count(True) == 1


async def test_store_put_back_or_emptied_ends_in_one_holder(
    fresh_nats_server: LocalNatsServer, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with connected(fresh_nats_server) as bus, connected(fresh_nats_server) as other:
        await _make_leases(bus)
        name = _name(request)
        async with LeaderLease(bus, name, "one", _TTL_S) as first:
            await asyncio.wait_for(first.wait_acquired(), 2)
            async with LeaderLease(other, name, "two", _TTL_S) as second:
                await asyncio.sleep(0.5)
                await asyncio.to_thread(fresh_nats_server.kill)
                await asyncio.to_thread(fresh_nats_server.empty_store)
                await asyncio.to_thread(fresh_nats_server.start)
                await bus.wait_up(10)
                await _make_leases(bus)
                await eventually(lambda: [first.is_held, second.is_held].count(True) == 1, 6)
                await asyncio.sleep(1.5 * _TTL_S)
                assert [first.is_held, second.is_held].count(True) == 1


async def test_held_runs_a_tenure_and_gives_it_back(leases: Bus, request: pytest.FixtureRequest) -> None:
    name = _name(request)
    told: list[str] = []
    lease = LeaderLease(
        leases, name, "one", _TTL_S, on_acquired=lambda: told.append("acquired"), on_lost=lambda: told.append("lost")
    )
    async with lease.held() as tenure:
        assert tenure.is_held
    assert told == ["acquired", "lost"]
    async with LeaderLease(leases, name, "two", 30.0).held() as tenure:
        assert tenure.is_held


def second_after(first: LeaderLease, second: LeaderLease) -> _InOrder:
    return _InOrder(first, second)


class _InOrder:
    """Both run, the first is the holder; the caller ends the first."""

    def __init__(self, first: LeaderLease, second: LeaderLease) -> None:
        self._first = first
        self._second = second

    async def __aenter__(self) -> None:
        await self._first.__aenter__()
        await asyncio.wait_for(self._first.wait_acquired(), 2)
        await self._second.__aenter__()
        await asyncio.sleep(1.2)

    async def __aexit__(self, *_: object) -> None:
        await self._second.__aexit__(None, None, None)
