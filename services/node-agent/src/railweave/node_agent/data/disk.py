"""Cache and scratch on a real disk (layout.py says where things are).

What is in the cache is what has a manifest there: that is found out anew at every start, and the journal only adds
how often it was used. A dataset appears by one rename and disappears by one; nobody ever sees half of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from railweave.contracts.inventory import DatasetState, Space
from railweave.contracts.placement import PlacedDataset
from railweave.contracts.types import Bytes
from railweave.node_agent.applier import Interrupted, Watch
from railweave.node_agent.data import layout
from railweave.node_agent.data.fetching import Budget, Cancel, FetchCancelled, FetchOptions, fetch
from railweave.node_agent.data.model import Cached, DataFailed, JobSpace
from railweave.node_agent.model import EntryKey

T = TypeVar("T")

_JOB = "job.json"
_CLOSING_S = 2.0


@dataclass(slots=True)
class _Flight:
    """A fetch under way, and how many wait for it."""

    coming: Cached
    cancel: Cancel = field(default_factory=Cancel)
    waiters: int = 0
    task: asyncio.Task[Cached] | None = None


class DiskSpace:
    """The data directory of one node.

    Args:
        root: this agent's alone; made where it is missing.
        cache_bytes, scratch_bytes: how much of the filesystem is ours; None: all of it.
        options: how sources are read.
        concurrency: fetches at a time.
    """

    def __init__(
        self,
        root: Path,
        *,
        cache_bytes: int | None = None,
        scratch_bytes: int | None = None,
        options: FetchOptions | None = None,
        concurrency: int = 4,
    ) -> None:
        self._root = root
        self._cache, self._tmp, self._trash, self._jobs = (root / n for n in ("cache", "tmp", "trash", "jobs"))
        self._cache_bytes = cache_bytes
        self._scratch_bytes = scratch_bytes
        self._options = options or FetchOptions()
        self._fetchers = ThreadPoolExecutor(concurrency, thread_name_prefix="railweave-fetch")
        self._disk = ThreadPoolExecutor(2, thread_name_prefix="railweave-disk")
        self._ready: dict[str, Cached] = {}
        self._flights: dict[str, _Flight] = {}
        self._scratch: dict[EntryKey, int] = {}
        self._filesystem: os.statvfs_result | None = None
        self._version = 1

    async def _on_disk(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._disk, work)
        except OSError as error:
            raise _failed(error) from error

    # What is there

    @property
    def version(self) -> int:
        """Changes whenever a dataset comes or goes."""
        return self._version

    async def open(self) -> None:
        """Read the manifests; sweep fetches and evictions that a crash cut short."""
        self._ready = await self._on_disk(self._scan)
        self._version += 1

    def _scan(self) -> dict[str, Cached]:
        for directory in (self._root, self._cache, self._tmp, self._trash, self._jobs):
            directory.mkdir(mode=0o755, exist_ok=True)
        for swept in (self._tmp, self._trash):
            for left in swept.iterdir():
                layout.remove_tree(left)
        ready: dict[str, Cached] = {}
        for directory in self._cache.iterdir():
            cached = layout.read_manifest(directory)
            if cached is None:
                self._throw_away(directory)  # ours by its place, and nothing that anybody could use
            else:
                ready[cached.dataset] = cached
        self._filesystem = os.statvfs(self._root)
        return ready

    def cached(self, dataset: str) -> Cached | None:
        """A ready dataset."""
        return self._ready.get(dataset)

    def datasets(self) -> Sequence[Cached]:
        """All that are ready or on their way."""
        return (*self._ready.values(), *(flight.coming for flight in self._flights.values()))

    def spaces(self) -> tuple[Space, Space]:
        """The spaces, as large as configured or as the filesystem; used: what manifests and claims say."""
        filesystem = self._filesystem
        whole = filesystem.f_blocks * filesystem.f_frsize if filesystem is not None else 0
        # Some filesystems (btrfs) have no inode limit and say 0 (juicefs#6247).
        inodes = filesystem.f_files if filesystem is not None and filesystem.f_files else None
        free_inodes = filesystem.f_favail if filesystem is not None and inodes is not None else None

        def space(limit: int | None, used: int) -> Space:
            total = whole if limit is None else limit
            return Space(total_bytes=Bytes(total), used_bytes=Bytes(used), total_inodes=inodes, free_inodes=free_inodes)

        return space(self._cache_bytes, self._used()), space(self._scratch_bytes, sum(self._scratch.values()))

    def _used(self) -> int:
        return sum(cached.bytes for cached in self.datasets())

    # Fetching

    async def fetch(self, want: PlacedDataset, watch: Watch) -> Cached:
        """Have a dataset ready; one fetch for all who want it at the same time."""
        dataset = want.dataset
        while True:
            ready = self._ready.get(dataset)
            if ready is not None:
                return ready
            flight = self._flights.get(dataset)
            if flight is None:
                flight = self._depart(want)
            try:
                return await self._wait_for(flight, watch)
            except FetchCancelled:
                # The last one who wanted it left just before we came: once more, for us.
                watch.check()

    def _depart(self, want: PlacedDataset) -> _Flight:
        limit = int(want.bytes)
        total = int(self.spaces()[0].total_bytes)
        free = total - self._used()
        if limit > free:
            raise DataFailed("ENOSPC", f"{want.dataset} needs {limit} bytes, {free} of {total} are free")
        coming = Cached(str(want.name), str(want.version), limit, 0, DatasetState.FETCHING, want.source, want.digest)
        flight = self._flights[want.dataset] = _Flight(coming)
        flight.task = asyncio.get_running_loop().create_task(self._fly(want, flight), name=f"fetch {want.dataset}")
        return flight

    async def _wait_for(self, flight: _Flight, watch: Watch) -> Cached:
        task = flight.task
        if task is None:
            raise FetchCancelled
        flight.waiters += 1
        interrupted = asyncio.ensure_future(watch.wait())
        try:
            await asyncio.wait((task, interrupted), return_when=asyncio.FIRST_COMPLETED)
        finally:
            interrupted.cancel()
            flight.waiters -= 1
            if flight.waiters == 0 and not task.done():
                flight.cancel.set()
        if task.done():
            return task.result()
        raise Interrupted

    async def _fly(self, want: PlacedDataset, flight: _Flight) -> Cached:
        loop = asyncio.get_running_loop()
        try:
            cached = await loop.run_in_executor(self._fetchers, self._fetch, want, flight.cancel)
            self._ready[want.dataset] = cached
            self._version += 1
            return cached
        finally:
            del self._flights[want.dataset]

    def _fetch(self, want: PlacedDataset, cancel: Cancel) -> Cached:
        """Fetch, check, publish; in a thread. Nothing is left of what fails."""
        if cancel.is_set():
            raise FetchCancelled
        key = layout.dataset_key(want.dataset)
        temporary = self._tmp / f"{key}.{secrets.token_hex(8)}"
        try:
            temporary.mkdir(mode=0o755)
            content = temporary / layout.CONTENT
            content.mkdir()
            budget = Budget(want.dataset, int(want.bytes), cancel)
            files = fetch(want.source or "", content, budget, self._options)
            digest = layout.content_digest(files)
            if want.digest is not None and want.digest != digest:
                raise DataFailed("EBADMSG", f"{want.dataset}: its digest is {digest}, expected {want.digest}")
            size = sum(file.size for file in files)
            cached = Cached(str(want.name), str(want.version), size, len(files), source=want.source, digest=digest)
            layout.make_read_only(content)
            layout.write_manifest(temporary, cached, files)
            for current, _, _ in os.walk(temporary):
                layout.sync_directory(Path(current))
            if cancel.is_set():
                raise FetchCancelled
            self._publish(temporary, self._cache / key)
            self._filesystem = os.statvfs(self._root)
            return cached
        except OSError as error:
            raise _failed(error) from error
        finally:
            with contextlib.suppress(OSError):
                layout.remove_tree(temporary)

    def _publish(self, temporary: Path, place: Path) -> None:
        if os.path.lexists(place):
            self._throw_away(place)  # without a manifest, else it would not have been fetched
        os.rename(temporary, place)
        layout.sync_directory(self._cache)

    # Evicting

    async def evict(self, dataset: str) -> bool:
        """Rename it away, then unlink it."""
        cached = self._ready.pop(dataset, None)
        if cached is None:
            return False
        self._version += 1
        try:
            await self._on_disk(lambda: self._throw_away(self._cache / layout.dataset_key(dataset)))
        except DataFailed:
            if await self._on_disk((self._cache / layout.dataset_key(dataset)).exists):
                self._ready[dataset] = cached
            raise
        return True

    def _throw_away(self, directory: Path) -> None:
        trash = self._trash / secrets.token_hex(8)
        try:
            os.rename(directory, trash)
        except FileNotFoundError:
            return
        layout.sync_directory(directory.parent)
        layout.remove_tree(trash)
        self._filesystem = os.statvfs(self._root)

    # What a job is shown

    async def arrange(self, key: EntryKey, wanted: JobSpace) -> None:
        """Make the job's directory."""
        for item in wanted.datasets:
            if item.dataset not in self._ready:
                raise DataFailed("ENOENT", f"{item.dataset} is not in the cache")
        taken = sum(size for other, size in self._scratch.items() if other != key)
        total = int(self.spaces()[1].total_bytes)
        if taken + (wanted.scratch_bytes or 0) > total:
            text = f"scratch: {wanted.scratch_bytes} bytes wanted, {total - taken} of {total} free"
            raise DataFailed("ENOSPC", text)
        await self._on_disk(lambda: self._arrange(self.job_path(key), key, wanted))
        self._scratch[key] = wanted.scratch_bytes or 0

    def job_path(self, key: EntryKey) -> Path:
        """Where a job's directory is, made or not."""
        return self._jobs / layout.job_directory(key)

    def _arrange(self, directory: Path, key: EntryKey, wanted: JobSpace) -> None:
        links = layout.link_names(wanted.datasets)
        shown = directory / "datasets"
        for made in (directory, shown):
            made.mkdir(mode=0o755, exist_ok=True)
        for name in os.listdir(shown):
            if name not in links.values():
                os.unlink(shown / name)
        for dataset, name in links.items():
            target = self._link_target(dataset)
            if not _leads_to(shown / name, target):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(shown / name)
                os.symlink(target, shown / name)
        if wanted.scratch_bytes is not None:
            self._make_scratch(directory / "scratch", wanted)
        text = json.dumps(_described(key, wanted, links), ensure_ascii=False, indent=1)
        fresh = directory / f".{_JOB}.{secrets.token_hex(4)}"
        layout.write_durably(fresh, text)
        os.rename(fresh, directory / _JOB)
        layout.sync_directory(directory)
        layout.sync_directory(self._jobs)

    def _link_target(self, dataset: str) -> str:
        return f"../../../cache/{layout.dataset_key(dataset)}/{layout.CONTENT}"

    def _make_scratch(self, scratch: Path, wanted: JobSpace) -> None:
        scratch.mkdir(mode=0o700, exist_ok=True)
        if wanted.uid is not None and os.geteuid() == 0:
            os.chown(scratch, wanted.uid, wanted.gid if wanted.gid is not None else -1, follow_symlinks=False)
        else:
            os.chmod(scratch, 0o1777)  # noqa: S103 - whose it is was not said

    async def is_arranged(self, key: EntryKey, wanted: JobSpace) -> bool:
        """Whether the job's directory is as it must be."""

        def look() -> bool:
            directory = self.job_path(key)
            links = layout.link_names(wanted.datasets)
            try:
                described = json.loads((directory / _JOB).read_text("utf-8"))
            except (OSError, ValueError):
                return False
            shown = directory / "datasets"
            is_linked = all(_leads_to(shown / name, self._link_target(dataset)) for dataset, name in links.items())
            has_scratch = wanted.scratch_bytes is None or (directory / "scratch").is_dir()
            return described == _described(key, wanted, links) and is_linked and has_scratch

        is_so = await self._on_disk(look)
        if is_so:
            self._scratch[key] = wanted.scratch_bytes or 0
        return is_so

    async def clear(self, key: EntryKey) -> None:
        """Remove the job's directory with its scratch."""

        def remove() -> None:
            directory = self.job_path(key)
            if os.path.lexists(directory):
                trash = self._trash / secrets.token_hex(8)
                os.rename(directory, trash)
                layout.sync_directory(self._jobs)
                layout.remove_tree(trash)

        await self._on_disk(remove)
        self._scratch.pop(key, None)

    async def close(self) -> None:
        """Cancel fetches under way and end the threads."""
        tasks = [flight.task for flight in self._flights.values() if flight.task is not None]
        for flight in self._flights.values():
            flight.cancel.set()
        if tasks:
            # One that is connecting to a dead host cannot be called back; it publishes nothing any more.
            await asyncio.wait(tasks, timeout=_CLOSING_S)
        for task in tasks:
            if task.done() and not task.cancelled():
                task.exception()  # told to whoever waited
        self._fetchers.shutdown(wait=False)
        self._disk.shutdown(wait=False)


def _described(key: EntryKey, wanted: JobSpace, links: dict[str, str]) -> dict[str, Any]:
    """The job's own view of its directory, for programs: real names, without any mangling."""
    datasets = [
        {"name": str(item.name), "version": str(item.version), "path": f"datasets/{links[item.dataset]}"}
        for item in wanted.datasets
    ]
    run = {"cluster": str(key.cluster), "job": str(key.job), "attempt": int(key.attempt)}
    return {**run, "datasets": datasets, "scratch_bytes": wanted.scratch_bytes}


def _leads_to(link: Path, target: str) -> bool:
    try:
        return os.readlink(link) == target
    except OSError:
        return False


def _failed(error: OSError) -> DataFailed:
    name = errno.errorcode.get(error.errno or 0, type(error).__name__)
    where = f"{error.filename}: " if error.filename else ""
    return DataFailed(name, f"{where}{error.strerror or error}")
