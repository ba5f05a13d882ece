"""The journal, over both stores: what was written is there after a crash, and nothing else."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from railweave.contracts.inventory import Failure, Step
from railweave.contracts.job import StartedWorker
from railweave.contracts.placement import Fence
from railweave.node_agent.gpu import Reserve
from railweave.node_agent.journal import BURIED_KEPT, Journal, JournalBroken, MemoryStore, Store, Use
from railweave.node_agent.journal_sqlite import FORMAT_VERSION, SqliteStore
from railweave.node_agent.model import Buried, Entry, EntryState, JournaledStep, Phase

BODIES = {"gpu": lambda value: Reserve(**value), "network": lambda value: Reserve(**value)}


@pytest.fixture(params=["memory", "sqlite"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Store]:
    """The same store again, as a new process would open it."""
    memory = MemoryStore()
    opened: list[SqliteStore] = []

    def open_again() -> Store:
        if request.param == "memory":
            return memory
        opened.append(SqliteStore(tmp_path / "journal.sqlite", BODIES))
        return opened[-1]

    return open_again


def _entry(make: Any, job: str = "j1", **fields: Any) -> Entry:
    step = JournaledStep("gpu", Phase.PREPARE, Reserve("GPU-1", 500))
    entry = Entry(make.key(job), make.placement(job), Fence(1, 7), EntryState.PREPARING, (step,))
    return replace(entry, **fields)


async def test_everything_written_is_there_after_a_crash(reopen: Callable[[], Store], make: Any) -> None:
    journal = Journal(reopen())
    await journal.open("boot-1")
    full = _entry(
        make,
        state=EntryState.UNDOING,
        failure=Failure(step="s", error="EBUSY", text="t"),
        timings=(Step(name="n", milliseconds=3),),
        evicted=frozenset({"a@1"}),
        namespaces={0: StartedWorker(worker=0, pid=77)},
        undone_at=Fence(1, 9),
    )
    odd = _entry(make, 'schüler "70B" 100%/..')
    await journal.save(full)
    await journal.save(odd, uses={"a@1": Use(3, 7)})
    await journal.bury(make.key("j9"), Buried(None, Fence(2, 1)))
    again = Journal(reopen())
    assert not await again.open("boot-1")
    assert again.entries == {full.key: full, odd.key: odd}
    assert again.buried == {make.key("j9"): Buried(None, Fence(2, 1))}
    assert again.uses == {"a@1": Use(3, 7)}
    assert again.fence_seen == Fence(2, 1)
    await again.close()
    await journal.close()


async def test_an_entry_takes_the_place_of_what_was_buried_and_back(reopen: Callable[[], Store], make: Any) -> None:
    journal = Journal(reopen())
    await journal.open("b")
    await journal.bury(make.key(), Buried(None, Fence(1, 1)))
    await journal.save(_entry(make))
    assert not journal.buried
    await journal.bury(make.key(), Buried(None, Fence(1, 8)))
    again = Journal(reopen())
    await again.open("b")
    assert not again.entries
    assert list(again.buried) == [make.key()]
    await again.close()
    await journal.close()


async def test_what_is_buried_is_bounded_and_the_oldest_goes_first(reopen: Callable[[], Store], make: Any) -> None:
    journal = Journal(reopen())
    await journal.open("b")
    await asyncio.gather(*(journal.bury(make.key(f"j{n}"), Buried(None, Fence(1, n))) for n in range(BURIED_KEPT)))
    await journal.bury(make.key("one more"), Buried(None, Fence(1, BURIED_KEPT)))
    assert len(journal.buried) == BURIED_KEPT
    assert make.key("j0") not in journal.buried
    await journal.close()


async def test_revisions_are_reserved_so_that_none_is_used_twice(reopen: Callable[[], Store]) -> None:
    seen: list[int] = []
    for _ in range(3):
        journal = Journal(reopen())
        await journal.open("b")
        seen += [await journal.next_revision() for _ in range(3)]
        await journal.close()
    assert sorted(set(seen)) == seen


async def test_a_new_boot_loses_what_the_kernel_held(reopen: Callable[[], Store], make: Any) -> None:
    journal = Journal(reopen())
    await journal.open("boot-1", lost_by_boot=["network"])
    steps = (
        JournaledStep("network", Phase.PREPARE, Reserve("vf", 1)),
        JournaledStep("gpu", Phase.PREPARE, Reserve("GPU-1", 500)),
    )
    await journal.save(_entry(make, "stands", state=EntryState.ATTACHED, steps=steps))
    await journal.save(_entry(make, "failed", state=EntryState.FAILED, steps=steps))
    await journal.save(_entry(make, "undoing", state=EntryState.UNDOING, steps=steps))
    again = Journal(reopen())
    assert await again.open("boot-2", lost_by_boot=["network"])
    assert {key.job: (entry.state, len(entry.steps)) for key, entry in again.entries.items()} == {
        "stands": (EntryState.PREPARING, 1),
        "failed": (EntryState.FAILED, 1),
        "undoing": (EntryState.UNDOING, 1),
    }
    assert not await Journal(reopen()).open("boot-2", lost_by_boot=["network"])
    await again.close()
    await journal.close()


async def test_writes_that_wait_share_a_transaction(tmp_path: Path, make: Any) -> None:
    store = SqliteStore(tmp_path / "j.sqlite", BODIES)
    journal = Journal(store)
    await journal.open("b")
    batches: list[int] = []
    stored = store._store
    store._store = lambda changes: (batches.append(len(changes)), stored(changes))[1]  # type: ignore[method-assign]
    async with asyncio.TaskGroup() as group:
        for number in range(50):
            group.create_task(journal.save(_entry(make, f"j{number}")))
    assert sum(batches) == 50
    assert len(batches) <= 3
    await journal.close()


async def test_a_caller_who_is_cancelled_does_not_take_the_writes_of_others_along(tmp_path: Path, make: Any) -> None:
    journal = Journal(SqliteStore(tmp_path / "j.sqlite", BODIES))
    await journal.open("b")
    first = asyncio.ensure_future(journal.save(_entry(make, "first")))
    second = asyncio.ensure_future(journal.save(_entry(make, "second")))
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert make.key("second") in journal.entries
    await journal.close()


async def test_the_file_is_the_owners_alone_and_says_its_format(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    store = SqliteStore(path, BODIES)
    await store.load()
    assert path.stat().st_mode & 0o777 == 0o600
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (FORMAT_VERSION,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
    await store.close()


async def test_a_journal_of_another_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version={FORMAT_VERSION + 1}")
    connection.close()
    store = SqliteStore(path, BODIES)
    with pytest.raises(JournalBroken, match="run the agent that wrote it"):
        await store.load()
    await store.close()


async def test_a_file_that_is_no_journal_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "j.sqlite"
    path.write_bytes(b"something else" * 100)
    store = SqliteStore(path, BODIES)
    with pytest.raises(JournalBroken, match="left as it is"):
        await store.load()
    assert path.read_bytes() == b"something else" * 100
    await store.close()


async def test_a_journal_that_cannot_be_written_changes_nothing_on_the_node(new_rig: Any, make: Any) -> None:
    class Full(MemoryStore):
        is_full = False

        async def write(self, change: Any) -> None:
            if self.is_full:
                raise JournalBroken("database or disk is full")
            await super().write(change)

    store = Full()
    rig = new_rig()
    await rig.start(store=store)
    store.is_full = True
    await rig.tell(make.placement())
    assert not rig.table.uses
    assert [job for job, _ in rig.later] == [make.key().job_key]
    store.is_full = False
    await rig.agent.reconcile(make.key().job_key)
    assert rig.state() is EntryState.PREPARED
