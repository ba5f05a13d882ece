"""A working memory over a real server, contacted."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest

from railweave.runtime.metrics import Metrics
from railweave.runtime.redis_store import WorkingMemory
from railweave.runtime.settings import RedisSettings

Open = Callable[..., AbstractAsyncContextManager[WorkingMemory]]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(process_metrics=False)


@pytest.fixture
def open_memory(metrics: Metrics) -> Open:
    @contextlib.asynccontextmanager
    async def opened(
        port: int, *, wait: bool = True, prefix: str | None = None, **more: object
    ) -> AsyncIterator[WorkingMemory]:
        settings = RedisSettings(
            **{  # type: ignore[arg-type]
                "url": f"redis://127.0.0.1:{port}/0",
                "prefix": prefix or f"t{uuid.uuid4().hex[:8]}:",
                "check_interval_s": 0.1,
                "timeout_s": 0.5,
                "connect_timeout_s": 0.5,
                **more,
            }
        )
        memory = WorkingMemory(settings, metrics)
        stop = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(memory.run(stop))
                try:
                    if wait:
                        assert await memory.wait_available(5)
                    yield memory
                finally:
                    stop.set()
        finally:
            # In the host's order: nothing is under way any more.
            await memory.close()

    return opened
