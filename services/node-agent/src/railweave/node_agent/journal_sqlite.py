"""The journal on disk: sqlite in WAL mode with `synchronous=FULL`, so that what was written survives the
machine.

One thread owns the connection. Changes that wait while it writes are stored together in one transaction: many
placements at once cost one fsync, not one each. The file says which version of the format it is in (`PRAGMA
user_version`).
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from railweave.contracts.inventory import Failure, Step
from railweave.contracts.job import StartedWorker
from railweave.contracts.placement import Fence, Placement
from railweave.contracts.types import Attempt, ClusterName, JobName, RunUid
from railweave.node_agent.journal import Change, Image, JournalBroken, Use
from railweave.node_agent.model import Buried, Entry, EntryKey, EntryState, JournaledStep, Phase

FORMAT_VERSION = 1

_SCHEMA = """
CREATE TABLE entries (
  cluster TEXT NOT NULL, job TEXT NOT NULL, attempt INTEGER NOT NULL, document TEXT NOT NULL,
  PRIMARY KEY (cluster, job, attempt)
) WITHOUT ROWID;
CREATE TABLE buried (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  cluster TEXT NOT NULL, job TEXT NOT NULL, attempt INTEGER NOT NULL,
  uid TEXT, epoch INTEGER NOT NULL, sequence INTEGER NOT NULL,
  UNIQUE (cluster, job, attempt)
);
CREATE TABLE uses (dataset TEXT PRIMARY KEY, uses INTEGER NOT NULL, last_used INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""

BodyCodec = Mapping[str, Callable[[Mapping[str, Any]], Any]]
"""By concern: how a step is read back."""


class SqliteStore:
    """The journal in a file of its own.

    Args:
        path: the file; its directory must exist and be this agent's alone.
        bodies: how each applier's steps are read back.
    """

    def __init__(self, path: Path, bodies: BodyCodec) -> None:
        self._path = path
        self._bodies = bodies
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="railweave-journal")
        self._connection: sqlite3.Connection | None = None
        self._waiting: list[tuple[Change, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def load(self) -> Image:
        """Open the file, making it where there is none, and read everything."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._load)

    async def write(self, change: Change) -> None:
        """Store a change durably, together with others that wait."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((change, done))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.get_running_loop().create_task(self._write_waiting(), name="journal")
        # Shielded: a caller who is cancelled must not take the writes of others with it.
        await asyncio.shield(done)

    async def close(self) -> None:
        """Write what waits and close the file."""
        if self._writer is not None:
            await asyncio.gather(self._writer, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    async def _write_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            taken, self._waiting = self._waiting, []
            failure: Exception | None = None
            try:
                await loop.run_in_executor(self._thread, self._store, [change for change, _ in taken])
            except JournalBroken as broken:
                failure = broken
            for _, done in taken:
                if done.done():
                    continue
                if failure is None:
                    done.set_result(None)
                else:
                    done.set_exception(failure)
                    done.exception()  # whoever waits gets it; nobody may

    # In the thread

    def _load(self) -> Image:
        try:
            self._connection = connection = _open(self._path)
            return _read(connection, self._bodies)
        except (sqlite3.Error, OSError, ValueError, KeyError, TypeError) as error:
            raise JournalBroken(
                f"journal {self._path}: {type(error).__name__}: {error}; the node is left as it is. Repair the file, or"
                " move it away and release what this node holds by hand"
            ) from error

    def _store(self, changes: Sequence[Change]) -> None:
        connection = self._connection
        if connection is None:
            raise JournalBroken(f"journal {self._path} is not open")
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                for change in changes:
                    _write(connection, change)
                connection.execute("COMMIT")
            except BaseException:
                connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise JournalBroken(f"journal {self._path}: {error}; nothing is changed until it can be written") from error

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _open(path: Path) -> sqlite3.Connection:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    os.close(descriptor)
    # Only the store's one thread uses it; which one that is changes over a restart of the executor.
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version == 0:
            connection.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={FORMAT_VERSION}; COMMIT;")
        elif version != FORMAT_VERSION:
            text = f"it is in format {version}, this agent reads {FORMAT_VERSION}; run the agent that wrote it"
            raise ValueError(text)  # noqa: TRY301 - closes the connection on its way
    except BaseException:
        connection.close()
        raise
    return connection


def _read(connection: sqlite3.Connection, bodies: BodyCodec) -> Image:
    image = Image()
    for (document,) in connection.execute("SELECT document FROM entries"):
        entry = _entry_from_json(json.loads(document), bodies)
        image.entries[entry.key] = entry
    rows = connection.execute("SELECT cluster, job, attempt, uid, epoch, sequence FROM buried ORDER BY number")
    for cluster, job, attempt, uid, epoch, sequence in rows:
        key = EntryKey(ClusterName(cluster), JobName(job), Attempt(attempt))
        image.buried[key] = Buried(None if uid is None else RunUid(uid), Fence(epoch, sequence))
    for dataset, uses, last_used in connection.execute("SELECT dataset, uses, last_used FROM uses"):
        image.uses[dataset] = Use(uses, last_used)
    meta = dict(connection.execute("SELECT name, value FROM meta").fetchall())
    epoch, _, sequence = meta.get("fence_seen", "0/0").partition("/")
    image.fence_seen = Fence(int(epoch), int(sequence))
    image.revision_ceiling = int(meta.get("revision_ceiling", "0"))
    image.boot_id = meta.get("boot_id", "")
    return image


def _write(connection: sqlite3.Connection, change: Change) -> None:
    if change.entry is not None:
        key = _row(change.entry.key)
        connection.execute("DELETE FROM buried WHERE cluster=? AND job=? AND attempt=?", key)
        document = json.dumps(entry_to_json(change.entry), ensure_ascii=False, separators=(",", ":"))
        connection.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", (*key, document))
    if change.bury is not None:
        key, buried = _row(change.bury[0]), change.bury[1]
        connection.execute("DELETE FROM entries WHERE cluster=? AND job=? AND attempt=?", key)
        connection.execute("DELETE FROM buried WHERE cluster=? AND job=? AND attempt=?", key)
        connection.execute(
            "INSERT INTO buried (cluster, job, attempt, uid, epoch, sequence) VALUES (?, ?, ?, ?, ?, ?)",
            (*key, buried.uid, *buried.fence),
        )
    for forgotten in change.forget:
        connection.execute("DELETE FROM buried WHERE cluster=? AND job=? AND attempt=?", _row(forgotten))
    for dataset, use in change.uses.items():
        if use is None:
            connection.execute("DELETE FROM uses WHERE dataset=?", (dataset,))
        else:
            connection.execute("INSERT OR REPLACE INTO uses VALUES (?, ?, ?)", (dataset, *use))
    meta: dict[str, str] = {}
    if change.fence_seen is not None:
        meta["fence_seen"] = f"{change.fence_seen.epoch}/{change.fence_seen.sequence}"
    if change.revision_ceiling is not None:
        meta["revision_ceiling"] = str(change.revision_ceiling)
    if change.boot_id is not None:
        meta["boot_id"] = change.boot_id
    connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(meta.items()))


def _row(key: EntryKey) -> tuple[str, str, int]:
    return (str(key.cluster), str(key.job), int(key.attempt))


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """An entry as the file and the local socket show it."""
    return {
        "placement": entry.placement.model_dump(mode="json", exclude_none=True),
        "fence": list(entry.fence),
        "state": str(entry.state),
        "steps": [
            {"concern": step.concern, "phase": str(step.phase), "body": step.body.to_json()} for step in entry.steps
        ],
        "failure": None if entry.failure is None else entry.failure.model_dump(mode="json"),
        "timings": [timing.model_dump(mode="json") for timing in entry.timings],
        "evicted": sorted(entry.evicted),
        "namespaces": [worker.model_dump(mode="json") for worker in entry.namespaces.values()],
        "undone_at": None if entry.undone_at is None else list(entry.undone_at),
    }


def _entry_from_json(value: Mapping[str, Any], bodies: BodyCodec) -> Entry:
    # As JSON text: strict models take strings for enumerations and lists for tuples only from there.
    placement = Placement.model_validate_json(json.dumps(value["placement"]))
    namespaces = [StartedWorker.model_validate(worker) for worker in value["namespaces"]]
    return Entry(
        key=EntryKey.of(placement),
        placement=placement,
        fence=Fence(*value["fence"]),
        state=EntryState(value["state"]),
        steps=tuple(
            JournaledStep(step["concern"], Phase(step["phase"]), bodies[step["concern"]](step["body"]))
            for step in value["steps"]
        ),
        failure=None if value["failure"] is None else Failure.model_validate(value["failure"]),
        timings=tuple(Step.model_validate(timing) for timing in value["timings"]),
        evicted=frozenset(value["evicted"]),
        namespaces={worker.worker: worker for worker in namespaces},
        undone_at=None if value["undone_at"] is None else Fence(*value["undone_at"]),
    )
