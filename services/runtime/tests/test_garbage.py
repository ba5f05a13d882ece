"""What is there when a process is ready is not looked through for garbage any more."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from railweave.runtime import garbage
from railweave.runtime.garbage import settle_when


@pytest.fixture(autouse=True)
def _collector_as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


async def test_nothing_is_set_aside_before_the_process_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_POLL_S", 0.01)
    gc.unfreeze()
    is_ready = False
    settling = asyncio.create_task(settle_when(lambda: is_ready))
    await asyncio.sleep(0.05)
    assert gc.get_freeze_count() == 0
    is_ready = True
    await settling
    assert gc.get_freeze_count() > 1000
    assert gc.get_threshold()[0] > 700


async def test_cycles_made_later_are_still_found() -> None:
    await settle_when(lambda: True)
    loop: list[object] = []
    loop.append(loop)
    del loop
    assert gc.collect() >= 1
