"""One server as a child process, with its directory, its port and its store: start, stop, kill, freeze, copy, restore.

What all local servers have in common; the servers themselves are in `local_servers`. Everything here blocks for up to
seconds: inside an event loop call it with `asyncio.to_thread(server.start)`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final, Self

from railweave.runtime.spawn import LOOPBACK, port_to_try, spawn

_PORT_TRIES: Final = 20
_POLL_S: Final = 0.005
_LOG_TAIL_BYTES: Final = 2_048


class LocalServerError(Exception):
    """A local server could not be started, stopped or changed; says which and what to do."""


class ServerBinaryMissingError(LocalServerError):
    """The server's program is not installed."""


class ServerStartError(LocalServerError):
    """The server ended or was not ready in time; the message ends with the last lines of its log."""


class LocalServer(ABC):
    """One server process with its directory and its port, both kept over `restart`.

    States: new -> running <-> paused, running -> stopped -> running. The server dies with this process, also when
    this process is killed.
    """

    PROGRAM: ClassVar[str]
    _READY_LINE: ClassVar[bytes]
    _PORT_TAKEN_LINES: ClassVar[tuple[bytes, ...]]

    def __init__(self, directory: Path, *, port: int | None = None, binary: Path | None = None) -> None:
        """Prepare a server that keeps everything in `directory`; nothing runs before `start`.

        Args:
            directory: made when missing, never removed.
            port: a fixed TCP port; None takes a free one at the first start and keeps it.
            binary: the program; None finds the one of the Python package, then the one on PATH.
        """
        self.directory = directory.absolute()
        self.log_path = self.directory / "server.log"
        self._port = port
        self._binary = binary
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.RLock()

    @property
    def port(self) -> int:
        """The TCP port on 127.0.0.1.

        Raises:
            LocalServerError: it was never started, so no port is chosen yet.
        """
        if self._port is None:
            raise LocalServerError(f"{self.PROGRAM} in {self.directory} has no port yet: start it first")
        return self._port

    @property
    def pid(self) -> int:
        """The process id of the running server.

        Raises:
            LocalServerError: it does not run.
        """
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """Whether the process is there; a paused one is."""
        return self._process is not None and self._process.poll() is None

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients connect to."""

    @property
    @abstractmethod
    def store(self) -> Path:
        """The directory that holds what the server stores."""

    def start(self, *, timeout_s: float = 30.0) -> None:
        """Start and wait until clients are accepted; does nothing when it runs already.

        Raises:
            ServerBinaryMissingError: the program is not installed.
            ServerStartError: it ended, or was not ready within `timeout_s`.
        """
        with self._lock:
            if self.is_running:
                return
            deadline = time.monotonic() + timeout_s
            for attempt in range(_PORT_TRIES):
                if self._started_on(self._port or port_to_try(), deadline):
                    return
                # A port that was ours a moment ago comes back when whoever borrowed it lets go; a random one that is
                # taken is simply the wrong one.
                if self._port is not None:
                    time.sleep(0.1 * (attempt + 1))
                if time.monotonic() > deadline:
                    break
            raise self._start_error("found no free port" if self._port is None else f"port {self._port} is taken")

    def stop(self, *, timeout_s: float = 10.0) -> None:
        """Stop in an orderly way (SIGTERM), by force after `timeout_s`; does nothing when it does not run."""
        with self._lock:
            process = self._process
            if process is None:
                return
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.send_signal(signal.SIGCONT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout_s)
            self._end(process)

    def kill(self) -> None:
        """End it at once (SIGKILL), as a crash would; does nothing when it does not run."""
        with self._lock:
            if self._process is not None:
                self._end(self._process)

    def restart(self, *, timeout_s: float = 30.0) -> None:
        """Start again with the same port and store; an orderly stop comes first where it still runs.

        Raises:
            ServerStartError: as `start`.
        """
        with self._lock:
            self.stop()
            self.start(timeout_s=timeout_s)

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open and nothing answers."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused one go on."""
        self._running().send_signal(signal.SIGCONT)

    def copy_store(self, destination: Path) -> None:
        """Copy the store as it is at one instant; a running server is frozen meanwhile.

        What the server held in memory only is not in the copy, just as after a crash.

        Raises:
            FileExistsError: `destination` is there already.
        """
        with self._lock:
            if not self.is_running:
                shutil.copytree(self.store, destination)
                return
            self.pause()
            try:
                shutil.copytree(self.store, destination)
            finally:
                self.resume()

    def restore_store(self, source: Path) -> None:
        """Put the store back to a copy made by `copy_store`.

        Raises:
            LocalServerError: the server runs.
        """
        self.empty_store()
        shutil.copytree(source, self.store, dirs_exist_ok=True)

    def empty_store(self) -> None:
        """Remove everything the server stored.

        Raises:
            LocalServerError: the server runs.
        """
        with self._lock:
            if self.is_running:
                raise LocalServerError(f"{self.PROGRAM} (pid {self.pid}) runs: stop it before its store is replaced")
            shutil.rmtree(self.store, ignore_errors=True)
            self.store.mkdir(parents=True, exist_ok=True)

    def log_tail(self) -> str:
        """The last lines of the server's log."""
        try:
            with self.log_path.open("rb") as log:
                log.seek(max(0, self.log_path.stat().st_size - _LOG_TAIL_BYTES))
                return log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def _write_config(self, port: int) -> Sequence[str]:
        """Write the configuration for `port` into the directory and give the arguments of the program."""

    @abstractmethod
    def _find_binary(self) -> Path:
        """The program, or ServerBinaryMissingError."""

    def _running(self) -> subprocess.Popen[bytes]:
        process = self._process
        if process is None or process.poll() is not None:
            raise LocalServerError(f"{self.PROGRAM} in {self.directory} does not run")
        return process

    def _started_on(self, port: int, deadline: float) -> bool:
        """Whether it accepts clients on `port`; False when another process has the port."""
        self.store.mkdir(parents=True, exist_ok=True)
        binary = self._binary or self._find_binary()
        arguments = self._write_config(port)
        with self.log_path.open("ab") as log:
            log_start = log.tell()
            process = spawn([str(binary), *arguments], directory=self.directory, output=log.fileno())
        self._process = process
        _RUNNING.add(self)
        while True:
            # Asked before the log is read: what the process wrote before it ended is then in the log.
            has_ended = process.poll() is not None
            written = self._log_since(log_start)
            if self._READY_LINE in written and _accepts(port):
                self._port = port
                return True
            if has_ended:
                self._end(process)
                if any(line in written for line in self._PORT_TAKEN_LINES):
                    return False
                raise self._start_error(f"ended with status {process.returncode}")
            if time.monotonic() > deadline:
                self._end(process)
                raise self._start_error("was not ready in time")
            time.sleep(_POLL_S)

    def _log_since(self, start: int) -> bytes:
        with self.log_path.open("rb") as log:
            log.seek(start)
            return log.read()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.kill()
        process.wait()
        self._process = None
        _RUNNING.discard(self)

    def _start_error(self, what: str) -> ServerStartError:
        return ServerStartError(f"{self.PROGRAM} in {self.directory} {what}; its log ends:\n{self.log_tail()}")


_RUNNING: Final[set[LocalServer]] = set()
os.register_at_fork(after_in_child=_RUNNING.clear)


@atexit.register
def _kill_what_runs() -> None:
    for server in list(_RUNNING):
        server.kill()


def _accepts(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=1.0).close()
    except OSError:
        return False
    return True
