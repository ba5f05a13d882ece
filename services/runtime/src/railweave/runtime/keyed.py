"""One key at a time: work for different keys side by side, work for one key in order and never twice at once.

Used wherever order matters per job, node or dataset but not across them. The runner owns its tasks through a
TaskGroup; leaving it waits for what is queued, cancelling it cancels everything. It retries nothing: the caller's
function decides what a failure means.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from types import TracebackType
from typing import Generic, Self, TypeVar

import structlog

K = TypeVar("K", bound=Hashable)
W = TypeVar("W")

_log = structlog.stdlib.get_logger(__name__)


class KeyedRunnerClosed(RuntimeError):
    """Work was handed to a runner that has begun to stop."""


class KeyedRunner(Generic[K, W]):
    """Runs `work(key, item)` for submitted items.

    Args:
        work: what to do. An exception is passed to `on_error` (default: logged) and the key goes on.
        concurrency: how many keys are worked on at once.
        capacity: how many items may wait over all keys; `submit` then waits (backpressure).
        coalesce: keep only the newest waiting item of a key. For level-triggered work, where the item says
            "look again", one look after the last change is enough.
        on_error: called with key, item and the exception.
    """

    def __init__(
        self,
        work: Callable[[K, W], Awaitable[None]],
        *,
        concurrency: int = 16,
        capacity: int = 10_000,
        coalesce: bool = False,
        on_error: Callable[[K, W, Exception], None] | None = None,
    ) -> None:
        if concurrency < 1 or capacity < 1:
            msg = f"concurrency and capacity must be at least 1, got {concurrency} and {capacity}"
            raise ValueError(msg)
        self._work = work
        self._coalesce = coalesce
        self._on_error = on_error or _log_error
        self._running = asyncio.Semaphore(concurrency)
        self._capacity = capacity
        self._queues: dict[K, deque[W]] = {}
        self._waiting = 0
        self._room = asyncio.Condition()
        self._tasks = asyncio.TaskGroup()
        self._open = False
        self._quiet = asyncio.Event()
        self._quiet.set()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        async with self._room:
            self._room.notify_all()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            # A task cancelled before its first step never cleans up after itself.
            self._queues.clear()
            self._waiting = 0
            self._quiet.set()

    @property
    def waiting(self) -> int:
        """Items submitted and not yet begun."""
        return self._waiting

    @property
    def busy_keys(self) -> int:
        """Keys with work waiting or in progress."""
        return len(self._queues)

    async def submit(self, key: K, item: W) -> None:
        """Queue `item` behind what `key` already has; waits while the runner is full.

        Raises:
            KeyedRunnerClosed: the runner was not entered or is stopping.
        """
        while self._open and self._waiting >= self._capacity and not self._replaces(key):
            async with self._room:
                await self._room.wait()
        self._put(key, item)

    def submit_nowait(self, key: K, item: W) -> bool:
        """Queue `item` if there is room, from code that cannot wait; says whether it was taken.

        Raises:
            KeyedRunnerClosed: the runner was not entered or is stopping.
        """
        if self._open and self._waiting >= self._capacity and not self._replaces(key):
            return False
        self._put(key, item)
        return True

    async def wait_quiet(self) -> None:
        """Wait until nothing is queued or in progress."""
        await self._quiet.wait()

    def _replaces(self, key: K) -> bool:
        return self._coalesce and bool(self._queues.get(key))

    def _put(self, key: K, item: W) -> None:
        if not self._open:
            msg = "the keyed runner takes no more work"
            raise KeyedRunnerClosed(msg)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = deque()
            self._quiet.clear()
            self._tasks.create_task(self._drain(key, queue))
        if self._coalesce and queue:
            queue.clear()
            self._waiting -= 1
        queue.append(item)
        self._waiting += 1

    async def _drain(self, key: K, queue: deque[W]) -> None:
        try:
            while queue:
                async with self._running:
                    item = queue.popleft()
                    self._waiting -= 1
                    await self._tell_room()
                    try:
                        await self._work(key, item)
                    except Exception as error:  # noqa: BLE001 - the owner's `on_error` gets it
                        self._on_error(key, item, error)
        finally:
            # Cancelled in the middle: what still waits for this key is dropped with the runner.
            self._waiting -= len(queue)
            queue.clear()
            self._queues.pop(key, None)
            if not self._queues:
                self._quiet.set()

    async def _tell_room(self) -> None:
        if self._waiting + 1 >= self._capacity:
            async with self._room:
                self._room.notify_all()


def _log_error(key: Hashable, _item: object, error: Exception) -> None:
    _log.error("keyed work failed", key=str(key), exc_info=error)
