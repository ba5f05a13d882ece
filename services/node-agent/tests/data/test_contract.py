"""What every data space does, on a real disk and in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from railweave.contracts.placement import PlacedDataset
from railweave.node_agent.applier import Interrupted, Watch
from railweave.node_agent.data import DataFailed, DataSpace, DiskSpace, JobSpace, MemorySpace
from railweave.node_agent.data.fetching import FetchOptions

CACHE = 10_000
SCRATCH = 1_000


@dataclass
class Spaces:
    """A space, and a way to open what it left again."""

    space: DataSpace
    sources: Path

    def dataset(self, name: str, size: int = 1000, version: str = "1") -> PlacedDataset:
        path = self.sources / f"{name.replace('/', '_')}.bin"
        if not path.exists():
            path.write_bytes(b"x" * size)
        return PlacedDataset(name=name, version=version, action="fetch", bytes=size, source=f"file:{path}")


@pytest.fixture(params=["memory", "disk"])
async def spaces(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Spaces]:
    sources = tmp_path / "sources"
    sources.mkdir()
    space: DataSpace
    if request.param == "memory":
        space = MemorySpace(CACHE, SCRATCH)
    else:
        options = FetchOptions(file_roots=(sources,))
        space = DiskSpace(tmp_path / "root", cache_bytes=CACHE, scratch_bytes=SCRATCH, options=options)
    await space.open()
    yield Spaces(space, sources)
    await space.close()


async def test_a_fetched_dataset_is_ready_and_counted(spaces: Spaces) -> None:
    version = spaces.space.version
    cached = await spaces.space.fetch(spaces.dataset("a"), Watch())
    assert (cached.dataset, cached.bytes, cached.files, cached.state) == ("a@1", 1000, 1, "ready")
    assert spaces.space.cached("a@1") == cached
    assert list(spaces.space.datasets()) == [cached]
    cache, scratch = spaces.space.spaces()
    assert (cache.total_bytes, cache.used_bytes) == (CACHE, 1000)
    assert (scratch.total_bytes, scratch.used_bytes) == (SCRATCH, 0)
    assert spaces.space.version > version


async def test_what_is_there_is_not_fetched_again(spaces: Spaces) -> None:
    want = spaces.dataset("a")
    first = await spaces.space.fetch(want, Watch())
    version = spaces.space.version
    assert await spaces.space.fetch(want.model_copy(update={"source": "file:/nowhere"}), Watch()) == first
    assert spaces.space.version == version


async def test_many_who_want_one_get_one(spaces: Spaces) -> None:
    want = spaces.dataset("a")
    got = await asyncio.gather(*(spaces.space.fetch(want, Watch()) for _ in range(8)))
    assert len(set(got)) == 1
    assert len(spaces.space.datasets()) == 1


async def test_no_room_is_said_with_numbers_and_leaves_nothing(spaces: Spaces) -> None:
    await spaces.space.fetch(spaces.dataset("a", 6_000), Watch())
    with pytest.raises(DataFailed, match="needs 5000 bytes, 4000 of 10000 are free") as failed:
        await spaces.space.fetch(spaces.dataset("b", 5_000), Watch())
    assert failed.value.error == "ENOSPC"
    assert [item.dataset for item in spaces.space.datasets()] == ["a@1"]


async def test_two_at_once_do_not_both_get_the_last_room(spaces: Spaces) -> None:
    wants = [spaces.dataset("a", 6_000), spaces.dataset("b", 6_000)]
    outcomes = await asyncio.gather(*(spaces.space.fetch(want, Watch()) for want in wants), return_exceptions=True)
    assert sum(isinstance(outcome, DataFailed) for outcome in outcomes) == 1
    assert spaces.space.spaces()[0].used_bytes == 6_000


async def test_evicting_frees_the_room_once(spaces: Spaces) -> None:
    await spaces.space.fetch(spaces.dataset("a", 9_000), Watch())
    version = spaces.space.version
    assert await spaces.space.evict("a@1")
    assert not await spaces.space.evict("a@1")
    assert spaces.space.version > version
    assert spaces.space.spaces()[0].used_bytes == 0
    await spaces.space.fetch(spaces.dataset("b", 9_000), Watch())


async def test_versions_of_one_name_are_two_datasets(spaces: Spaces) -> None:
    await spaces.space.fetch(spaces.dataset("a", 100, "1"), Watch())
    await spaces.space.fetch(spaces.dataset("a", 100, "2"), Watch())
    await spaces.space.evict("a@1")
    assert [item.dataset for item in spaces.space.datasets()] == ["a@2"]


async def test_a_jobs_directory_stands_until_it_is_cleared(spaces: Spaces, make: Any) -> None:
    want = spaces.dataset("a")
    await spaces.space.fetch(want, Watch())
    shown = JobSpace((want,), 400)
    assert not await spaces.space.is_arranged(make.key(), shown)
    await spaces.space.arrange(make.key(), shown)
    await spaces.space.arrange(make.key(), shown)
    assert await spaces.space.is_arranged(make.key(), shown)
    assert not await spaces.space.is_arranged(make.key(), JobSpace((want,), 300))
    assert spaces.space.spaces()[1].used_bytes == 400
    await spaces.space.clear(make.key())
    await spaces.space.clear(make.key())
    assert not await spaces.space.is_arranged(make.key(), shown)
    assert spaces.space.cached("a@1") is not None
    assert spaces.space.spaces()[1].used_bytes == 0


async def test_a_job_is_not_shown_what_is_not_there(spaces: Spaces, make: Any) -> None:
    with pytest.raises(DataFailed, match="a@1 is not in the cache"):
        await spaces.space.arrange(make.key(), JobSpace((spaces.dataset("a"),)))


async def test_scratch_is_not_promised_twice(spaces: Spaces, make: Any) -> None:
    await spaces.space.arrange(make.key("j1"), JobSpace((), 700))
    with pytest.raises(DataFailed, match="400 bytes wanted, 300"):
        await spaces.space.arrange(make.key("j2"), JobSpace((), 400))
    await spaces.space.arrange(make.key("j1"), JobSpace((), 800))


async def test_who_is_interrupted_before_it_begins_fetches_nothing_for_himself(spaces: Spaces) -> None:
    watch = Watch()
    other = spaces.space.fetch(spaces.dataset("a"), Watch())
    task = asyncio.ensure_future(other)
    await asyncio.sleep(0)
    watch.interrupt()
    with contextlib.suppress(Interrupted):  # it may also have been there already
        await spaces.space.fetch(spaces.dataset("a"), watch)
    assert (await task).dataset == "a@1"
