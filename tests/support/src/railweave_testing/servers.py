"""Real nats-server and valkey-server for a test, in directories that go away, also those of a killed run.

with running_nats() as nats:
    nats.url, nats.kill(), nats.restart(), nats.pause(), nats.copy_store(...)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from railweave.runtime.local_servers import LocalNatsServer, LocalValkeyServer

_PREFIX: Final = "rw-"
_LOCK: Final = "owner.lock"
_NEW_S: Final = 60.0


@contextlib.contextmanager
def running_nats(
    *, sync_interval: str = "2m", extra_config: str = "", port: int | None = None
) -> Iterator[LocalNatsServer]:
    """A nats-server with JetStream and an empty store, stopped and removed at the end.

    Args:
        sync_interval: as for LocalNatsServer; `always` to lose nothing with the machine.
        extra_config: text at the end of its configuration.
        port: None for a free one.
    """
    with scratch_directory() as directory:
        server = LocalNatsServer(directory / "nats", port=port, sync_interval=sync_interval, extra_config=extra_config)
        server.directory.mkdir()
        try:
            server.start()
            yield server
        finally:
            # Nothing of the store is wanted any more.
            server.kill()


@contextlib.contextmanager
def running_valkey(
    *, is_durable: bool = False, extra_config: str = "", port: int | None = None
) -> Iterator[LocalValkeyServer]:
    """A valkey-server with nothing in it, stopped and removed at the end.

    Args:
        is_durable: whether what it holds survives `kill` and `restart`.
        extra_config: lines at the end of its configuration.
        port: None for a free one.
    """
    with scratch_directory() as directory:
        server = LocalValkeyServer(directory / "valkey", port=port, is_durable=is_durable, extra_config=extra_config)
        server.directory.mkdir()
        try:
            server.start()
            yield server
        finally:
            server.kill()


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """A directory with a path short enough for unix sockets, removed at the end.

    A run that was killed leaves its own behind; the next one removes it, known by a lock that nobody holds.
    """
    _remove_abandoned(Path(tempfile.gettempdir()))
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = os.open(directory / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def _remove_abandoned(root: Path) -> None:
    for lock_path in root.glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError):
            # Between its making and its lock a directory looks abandoned.
            if time.time() - lock_path.stat().st_mtime < _NEW_S:
                continue
            lock = os.open(lock_path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock_path.parent, ignore_errors=True)
            finally:
                os.close(lock)
