"""Documents that are only replaced by newer ones, and their indices."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from railweave.runtime.local_servers import LocalValkeyServer
from railweave.runtime.redis_store import Projected


def job(name: str, sequence: int, state: str, *, epoch: int = 1, ttl_s: float | None = None) -> Projected:
    indices = {f"job:state:{state}": float(sequence)} if state else {}
    fields = {"state": state, "sequence": sequence} if state else {}
    return Projected("job", name, epoch, sequence, fields, indices, ttl_s)


async def test_a_document_is_replaced_only_by_a_newer_one(valkey_server: LocalValkeyServer, open_memory) -> None:
    async with open_memory(valkey_server.port) as memory:
        assert await memory.apply([job("a", 5, "placed")]) == [True]
        assert await memory.apply([job("a", 5, "again"), job("a", 4, "older"), job("a", 6, "prepared")]) == [
            False,
            False,
            True,
        ]
        assert await memory.read("job", ["a", "b"]) == [{"state": "prepared", "sequence": "6"}, None]


async def test_the_indices_of_a_document_move_with_it(valkey_server: LocalValkeyServer, open_memory) -> None:
    async with open_memory(valkey_server.port) as memory:
        await memory.apply([job("a", 1, "pending"), job("b", 2, "pending")])
        await memory.apply([job("a", 3, "placed")])
        assert await memory.read_index("job:state:pending") == [("b", 2.0)]
        assert await memory.read_index("job:state:placed") == [("a", 3.0)]
        assert await memory.count_index("job:state:pending") == 1


async def test_a_removed_document_is_not_brought_back_by_an_older_message(
    valkey_server: LocalValkeyServer, open_memory
) -> None:
    async with open_memory(valkey_server.port) as memory:
        await memory.apply([job("a", 1, "pending"), job("a", 7, "")])
        assert await memory.apply([job("a", 6, "placed")]) == [False]
        assert await memory.read("job", ["a"]) == [None]
        assert await memory.read_index("job:state:pending") == []


async def test_a_higher_epoch_wins_over_any_sequence(valkey_server: LocalValkeyServer, open_memory) -> None:
    async with open_memory(valkey_server.port) as memory:
        await memory.apply([job("a", 900, "placed", epoch=1)])
        assert await memory.apply([job("a", 3, "pending", epoch=2), job("a", 901, "old", epoch=1)]) == [True, False]


async def test_sequences_are_compared_as_numbers(valkey_server: LocalValkeyServer, open_memory) -> None:
    async with open_memory(valkey_server.port) as memory:
        assert await memory.apply([job("a", 9, "x"), job("a", 10, "y"), job("a", 2, "z")]) == [True, True, False]


async def test_any_order_with_repeats_gives_the_same_documents(valkey_server: LocalValkeyServer, open_memory) -> None:
    messages = [job(name, sequence, state) for name in "abc" for sequence, state in ((1, "p"), (2, "q"), (3, "r"))]
    rng = random.Random(3)
    async with open_memory(valkey_server.port) as memory:
        for _ in range(5):
            order = messages + rng.sample(messages, 4)
            rng.shuffle(order)
            prefix = memory.key("")
            await memory.pipeline("clean", lambda pipe, p=prefix: pipe.delete(*(f"{p}job:{n}" for n in "abc")))
            await memory.apply(order)
            assert await memory.read("job", list("abc")) == [{"state": "r", "sequence": "3"}] * 3
            assert await memory.count_index("job:state:r") == 3


async def test_an_index_is_read_in_pages_from_either_end(valkey_server: LocalValkeyServer, open_memory) -> None:
    async with open_memory(valkey_server.port) as memory:
        await memory.apply([job(f"j{number}", number, "pending") for number in range(1, 8)])
        first = await memory.read_index("job:state:pending", limit=3)
        then = await memory.read_index("job:state:pending", limit=3, offset=3)
        newest = await memory.read_index("job:state:pending", limit=1, newest_first=True)
        assert [name for name, _ in itertools.chain(first, then)] == ["j1", "j2", "j3", "j4", "j5", "j6"]
        assert newest == [("j7", 7.0)]


async def test_names_of_any_kind_are_kept_apart(valkey_server: LocalValkeyServer, open_memory) -> None:
    async with open_memory(valkey_server.port) as memory:
        names = ['schüler "70B"', "a:b", "a b", "{x}", "*"]
        await memory.apply([job(name, number, "p") for number, name in enumerate(names, 1)])
        found = await memory.read("job", names)
        assert [document["sequence"] for document in found if document] == ["1", "2", "3", "4", "5"]


async def test_a_document_may_be_forgotten_after_a_time(fresh_valkey_server: LocalValkeyServer, open_memory) -> None:
    async with open_memory(fresh_valkey_server.port) as memory:
        await memory.apply([job("a", 1, "released", ttl_s=0.05)])
        await asyncio.sleep(0.1)
        assert await memory.read("job", ["a"]) == [None]


async def test_heartbeats_expire(valkey_server: LocalValkeyServer, open_memory) -> None:
    async with open_memory(valkey_server.port) as memory:
        await memory.beat("node", "gpu-001", ttl_s=30, text="boot-1")
        await memory.beat("node", "gpu-002", ttl_s=0.05)
        await asyncio.sleep(0.1)
        assert await memory.beats("node", ["gpu-001", "gpu-002", "gpu-003"]) == {"gpu-001": "boot-1"}
        assert await memory.beats("node", []) == {}


@pytest.mark.parametrize("count", [1, 1000])
async def test_documents_are_written_in_one_round_trip(
    count: int, valkey_server: LocalValkeyServer, open_memory
) -> None:
    async with open_memory(valkey_server.port) as memory:
        assert all(await memory.apply([job(f"j{n}", n + 1, "pending") for n in range(count)]))
        assert await memory.apply([]) == []
