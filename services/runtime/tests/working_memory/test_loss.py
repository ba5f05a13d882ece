"""Redis that is away, loses replies, forgets: what callers see, and what comes back."""

from __future__ import annotations

import asyncio
import importlib.util
import random
from pathlib import Path

import pytest

from railweave.runtime.local_servers import LocalValkeyServer
from railweave.runtime.metrics import Metrics
from railweave.runtime.redis_store import MemoryLoss, Projected, RedisUnavailable, WorkingMemory
from railweave.runtime.settings import RedisSettings
from railweave_testing.servers import running_valkey

_spec = importlib.util.spec_from_file_location("flaky_proxy", Path(__file__).with_name("flaky_proxy.py"))
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
FlakyProxy = _module.FlakyProxy


async def until(condition, within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


async def count(memory: WorkingMemory, name: str) -> str | None:
    return (await memory.pipeline("get", lambda pipe: pipe.get(memory.key(name))))[0]


async def flush(memory: WorkingMemory) -> None:
    await memory.pipeline("flush", lambda pipe: pipe.flushall())


async def test_a_lost_reply_does_not_count_twice(valkey_server: LocalValkeyServer, open_memory) -> None:
    """redis-py 8 repeats a command up to ten times by default, also INCR (notes 3.1)."""
    async with (
        FlakyProxy(valkey_server.port).running() as proxy,
        open_memory(proxy.port, prefix="lost-incr:") as memory,
        open_memory(valkey_server.port, prefix="lost-incr:") as other,
    ):
        proxy.swallow_reply_to = b"INCR"
        with pytest.raises(RedisUnavailable):
            await memory.pipeline("count", lambda pipe: pipe.incr(memory.key("counter")))
        assert proxy.swallowed == 1
        await asyncio.sleep(0.3)
        assert await count(other, "counter") == "1"


async def test_a_lost_reply_to_a_guarded_write_may_simply_be_repeated(
    valkey_server: LocalValkeyServer, open_memory
) -> None:
    document = Projected("job", "a", 1, 1, {"n": 1})
    async with FlakyProxy(valkey_server.port).running() as proxy, open_memory(proxy.port) as memory:
        proxy.swallow_reply_to = b"EVALSHA"
        with pytest.raises(RedisUnavailable):
            await memory.apply([document])
        assert await memory.wait_available(5)
        assert await memory.apply([document]) == [False]
        assert await memory.read("job", ["a"]) == [{"n": "1"}]


async def test_a_server_that_does_not_answer_is_given_up_in_time(valkey_server: LocalValkeyServer, open_memory) -> None:
    async with FlakyProxy(valkey_server.port).running() as proxy, open_memory(proxy.port) as memory:
        proxy.flowing.clear()
        begun = asyncio.get_running_loop().time()
        with pytest.raises(RedisUnavailable):
            await memory.beat("node", "a", ttl_s=10)
        assert asyncio.get_running_loop().time() - begun < 1.0
        proxy.flowing.set()
        assert await memory.wait_available(5)


async def test_cancelled_at_random_moments_no_reply_goes_to_another_call(
    valkey_server: LocalValkeyServer, open_memory
) -> None:
    """redis-py #2579, #2624, #2665: a cancelled call left its reply in the socket for the next one."""
    rng = random.Random(5)
    async with open_memory(valkey_server.port, max_connections=2) as memory:
        await memory.pipeline("set", lambda pipe: pipe.mset({memory.key("foo"): "foo", memory.key("bar"): "bar"}))
        for _ in range(300):
            call = asyncio.ensure_future(count(memory, "foo"))
            await asyncio.sleep(rng.random() * 0.0006)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            assert await count(memory, "bar") == "bar"


async def test_cancelled_calls_give_their_connections_back(valkey_server: LocalValkeyServer, open_memory) -> None:
    async with open_memory(valkey_server.port, max_connections=2) as memory:
        for _ in range(20):
            calls = [asyncio.ensure_future(count(memory, "foo")) for _ in range(4)]
            await asyncio.sleep(0)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        assert await asyncio.wait_for(count(memory, "foo"), 2) is None


async def test_before_there_is_a_server_calls_fail_at_once_and_it_is_found_when_it_comes(
    fresh_valkey_server: LocalValkeyServer, open_memory, metrics: Metrics
) -> None:
    fresh_valkey_server.kill()
    async with open_memory(fresh_valkey_server.port, wait=False) as memory:
        with pytest.raises(RedisUnavailable, match="beat"):
            await memory.beat("node", "a", ttl_s=10)
        assert not memory.check().ok
        assert not memory.check().required
        fresh_valkey_server.restart()
        assert await memory.wait_available(5)
        await memory.beat("node", "a", ttl_s=10)
        assert memory.check().ok
        assert metrics.registry.get_sample_value("railweave_redis_available") == 1.0


async def test_while_it_is_away_calls_fail_without_waiting(fresh_valkey_server: LocalValkeyServer, open_memory) -> None:
    async with open_memory(fresh_valkey_server.port) as memory:
        fresh_valkey_server.kill()
        with pytest.raises(RedisUnavailable):
            await memory.beat("node", "a", ttl_s=10)
        begun = asyncio.get_running_loop().time()
        for _ in range(100):
            with pytest.raises(RedisUnavailable):
                await memory.beat("node", "a", ttl_s=10)
        assert asyncio.get_running_loop().time() - begun < 0.2


async def test_an_emptied_server_is_found_out_and_told(fresh_valkey_server: LocalValkeyServer, open_memory) -> None:
    losses: list[MemoryLoss] = []
    async with open_memory(fresh_valkey_server.port) as memory:
        memory.on_loss(losses.append)
        await memory.mark_rebuilt("jobs")
        assert not await memory.needs_rebuild("jobs")
        await flush(memory)
        await until(lambda: losses)
        assert losses == [MemoryLoss.EMPTIED]
        assert await memory.needs_rebuild("jobs")
        await asyncio.sleep(0.3)
        assert losses == [MemoryLoss.EMPTIED]


async def test_every_process_is_told_of_a_loss_also_those_that_did_not_see_it_empty(
    fresh_valkey_server: LocalValkeyServer, open_memory
) -> None:
    one_told: list[MemoryLoss] = []
    other_told: list[MemoryLoss] = []
    async with (
        open_memory(fresh_valkey_server.port, prefix="p:") as one,
        open_memory(fresh_valkey_server.port, prefix="p:") as other,
    ):
        one.on_loss(one_told.append)
        other.on_loss(other_told.append)
        await flush(one)
        await until(lambda: one_told and other_told)
    assert one_told == other_told == [MemoryLoss.EMPTIED]


async def test_a_server_restarted_without_its_data_is_told(fresh_valkey_server: LocalValkeyServer, open_memory) -> None:
    losses: list[MemoryLoss] = []
    async with open_memory(fresh_valkey_server.port) as memory:
        memory.on_loss(losses.append)
        fresh_valkey_server.restart()
        await until(lambda: losses)
        assert losses == [MemoryLoss.EMPTIED]


async def test_a_server_restarted_with_its_data_may_have_lost_the_last_second_and_is_told(
    open_memory,
) -> None:
    losses: list[MemoryLoss] = []
    with running_valkey(is_durable=True) as server:
        async with open_memory(server.port) as memory:
            memory.on_loss(losses.append)
            await memory.mark_rebuilt("jobs")
            server.restart()
            await until(lambda: losses)
            assert losses == [MemoryLoss.RESTARTED]
            assert not await memory.needs_rebuild("jobs")


async def test_a_frozen_server_is_away_and_then_back(fresh_valkey_server: LocalValkeyServer, open_memory) -> None:
    losses: list[MemoryLoss] = []
    async with open_memory(fresh_valkey_server.port) as memory:
        memory.on_loss(losses.append)
        fresh_valkey_server.pause()
        try:
            await until(lambda: not memory.available)
        finally:
            fresh_valkey_server.resume()
        assert await memory.wait_available(5)
        assert losses == []


async def test_a_refusal_is_told_and_the_server_is_not_thought_away(
    valkey_server: LocalValkeyServer, open_memory
) -> None:
    async with open_memory(valkey_server.port) as memory:
        await memory.beat("node", "a", ttl_s=10)
        with pytest.raises(RedisUnavailable, match="wrong kind of value"):
            await memory.pipeline("push", lambda pipe: pipe.lpush(memory.key("beat", "node", "a"), 1))
        assert memory.available


async def test_scripts_forgotten_by_the_server_are_loaded_again(
    fresh_valkey_server: LocalValkeyServer, open_memory
) -> None:
    async with open_memory(fresh_valkey_server.port) as memory:
        await memory.pipeline("flush", lambda pipe: pipe.script_flush())
        try:
            await memory.apply([Projected("job", "a", 1, 1, {"n": 1})])
        except RedisUnavailable:
            assert await memory.wait_available(5)
            await memory.apply([Projected("job", "a", 1, 1, {"n": 1})])
        assert await memory.read("job", ["a"]) == [{"n": "1"}]


async def test_a_wrong_password_is_away_with_its_reason(open_memory) -> None:
    with running_valkey(extra_config="requirepass right") as server:
        async with open_memory(server.port, wait=False, user="default", password="hunter2") as memory:
            await until(lambda: "not tried" not in memory.check().detail)
            assert "invalid username-password pair" in memory.check().detail
            assert "hunter2" not in memory.check().detail
        async with open_memory(server.port, password="right") as memory:
            assert memory.available


async def test_a_unix_socket_is_as_good(short_tmp_path: Path, metrics: Metrics) -> None:
    path = short_tmp_path / "valkey.sock"
    with running_valkey(extra_config=f"unixsocket {path}"):
        memory = WorkingMemory(RedisSettings(url=f"unix://{path}?db=0"), metrics)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(memory.run(stop))
            assert await memory.wait_available(5)
            await memory.beat("node", "a", ttl_s=10)
            stop.set()
        await memory.close()
