"""A cache and scratch in memory, for simulated nodes: capacity, fetches that take time, failures on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from railweave.contracts.inventory import DatasetState, Space
from railweave.contracts.placement import PlacedDataset
from railweave.contracts.types import Bytes
from railweave.node_agent.applier import Interrupted, Watch
from railweave.node_agent.data.model import Cached, DataFailed, JobSpace
from railweave.node_agent.model import EntryKey


class MemorySpace:
    """Datasets by name, nothing behind them.

    Args:
        cache_bytes, scratch_bytes: capacities.
        fetch_s: how long the fetch of so many bytes takes; default: no time, without giving way to other work.
    """

    def __init__(
        self, cache_bytes: int, scratch_bytes: int, *, fetch_s: Callable[[int], float] = lambda size: 0.0
    ) -> None:
        self._cache_bytes = cache_bytes
        self._scratch_bytes = scratch_bytes
        self._fetch_s = fetch_s
        self._ready: dict[str, Cached] = {}
        self._coming: dict[str, Cached] = {}
        self._waiters: dict[str, int] = {}
        self._jobs: dict[EntryKey, JobSpace] = {}
        self._failures: list[DataFailed] = []
        self._version = 1
        self.bytes_fetched = 0
        self.evictions = 0

    def fail_next_fetch(self, failure: DataFailed) -> None:
        """Let the next fetch fail."""
        self._failures.append(failure)

    def seed(self, cached: Cached) -> None:
        """Put a dataset there, as if fetched before."""
        self._ready[cached.dataset] = cached
        self._version += 1

    @property
    def version(self) -> int:
        """Changes whenever a dataset comes or goes."""
        return self._version

    @property
    def jobs(self) -> frozenset[EntryKey]:
        """Jobs that have a directory."""
        return frozenset(self._jobs)

    async def open(self) -> None:
        """A crash leaves nothing on its way."""
        self._coming.clear()
        self._waiters.clear()

    def cached(self, dataset: str) -> Cached | None:
        """A ready dataset."""
        return self._ready.get(dataset)

    def datasets(self) -> Sequence[Cached]:
        """All that are ready or on their way."""
        return (*self._ready.values(), *self._coming.values())

    def spaces(self) -> tuple[Space, Space]:
        """Capacities and what is used of them."""
        scratch = sum(job.scratch_bytes or 0 for job in self._jobs.values())
        return (
            Space.model_construct(total_bytes=Bytes(self._cache_bytes), used_bytes=Bytes(self._used())),
            Space.model_construct(total_bytes=Bytes(self._scratch_bytes), used_bytes=Bytes(scratch)),
        )

    def _used(self) -> int:
        return sum(item.bytes for item in self._ready.values()) + sum(item.bytes for item in self._coming.values())

    async def fetch(self, want: PlacedDataset, watch: Watch) -> Cached:
        """Have it after the time it takes."""
        dataset = want.dataset
        ready = self._ready.get(dataset)
        if ready is not None:
            return ready
        if self._failures:
            raise self._failures.pop(0)
        size = int(want.bytes)
        if dataset not in self._coming:
            free = self._cache_bytes - self._used()
            if size > free:
                raise DataFailed("ENOSPC", f"{dataset} needs {size} bytes, {free} of {self._cache_bytes} are free")
            self._coming[dataset] = Cached(
                str(want.name), str(want.version), size, 1, DatasetState.FETCHING, want.source, want.digest
            )
        seconds = self._fetch_s(size)
        if seconds > 0:
            await self._pass_time(dataset, seconds, watch)
        if dataset in self._coming:
            coming = self._coming.pop(dataset)
            self._ready[dataset] = Cached(
                coming.name, coming.version, size, coming.files, DatasetState.READY, coming.source, coming.digest
            )
            self.bytes_fetched += size
            self._version += 1
        return self._ready[dataset]

    async def _pass_time(self, dataset: str, seconds: float, watch: Watch) -> None:
        self._waiters[dataset] = self._waiters.get(dataset, 0) + 1
        try:
            async with asyncio.timeout(seconds):
                await watch.wait()
        except TimeoutError:
            self._leave(dataset)
            return
        except BaseException:
            self._leave(dataset, is_wanted=False)
            raise
        self._leave(dataset, is_wanted=False)
        raise Interrupted

    def _leave(self, dataset: str, *, is_wanted: bool = True) -> None:
        left = self._waiters[dataset] = self._waiters[dataset] - 1
        if left == 0:
            del self._waiters[dataset]
            if not is_wanted:
                self._coming.pop(dataset, None)

    async def evict(self, dataset: str) -> bool:
        """Forget it."""
        if self._ready.pop(dataset, None) is None:
            return False
        self._version += 1
        self.evictions += 1
        return True

    async def arrange(self, key: EntryKey, wanted: JobSpace) -> None:
        """Remember what the job is shown."""
        for item in wanted.datasets:
            if item.dataset not in self._ready:
                raise DataFailed("ENOENT", f"{item.dataset} is not in the cache")
        taken = sum(job.scratch_bytes or 0 for other, job in self._jobs.items() if other != key)
        if taken + (wanted.scratch_bytes or 0) > self._scratch_bytes:
            raise DataFailed(
                "ENOSPC", f"scratch: {wanted.scratch_bytes} bytes wanted, {self._scratch_bytes - taken} free"
            )
        self._jobs[key] = wanted

    async def is_arranged(self, key: EntryKey, wanted: JobSpace) -> bool:
        """Whether that is what the job is shown."""
        return self._jobs.get(key) == wanted

    async def clear(self, key: EntryKey) -> None:
        """Forget what the job is shown."""
        self._jobs.pop(key, None)

    async def close(self) -> None:
        """Nothing is under way in memory."""
