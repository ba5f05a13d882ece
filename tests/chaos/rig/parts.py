"""The processes of a stack, each of which may be killed, frozen, asked to end and started again."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from railweave.runtime.local_servers import LocalServer
from railweave.runtime.spawn import spawn


class Part(ABC):
    """One process. Everything here blocks but for a moment only."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kills = 0

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """None while it does not run."""

    @abstractmethod
    def start(self) -> None:
        """Start it; does nothing where it runs."""

    @abstractmethod
    def kill(self) -> None:
        """kill -9."""

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            os.kill(self.pid, number)

    @property
    def rss_mib(self) -> float:
        """What it has in memory; 0 while it does not run."""
        pid = self.pid
        if pid is None:
            return 0.0
        with contextlib.suppress(OSError):
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            return pages * 4096 / 2**20
        return 0.0


class ServerPart(Part):
    """nats-server or valkey-server."""

    def __init__(self, server: LocalServer) -> None:
        super().__init__(server.PROGRAM)
        self.server = server

    @property
    def pid(self) -> int | None:
        return self.server.pid if self.server.is_running else None

    def start(self) -> None:
        self.server.start()

    def kill(self) -> None:
        self.kills += self.server.is_running
        self.server.kill()


class ServicePart(Part):
    """A service, or a process of agents, hosted as `railweave up --processes` does it.

    Args:
        name: unique in the stack.
        program: the arguments of Python behind `-m`, before the hosting program's own.
        service: its name among the entry points.
        config: its settings file.
        urls: of NATS and Redis.
        directory: for its health address and log.
    """

    def __init__(
        self, name: str, program: Sequence[str], service: str, config: Path, urls: tuple[str, str], directory: Path
    ) -> None:
        super().__init__(name)
        self.service = service
        self.log_path = directory / "log" / f"{name}.log"
        self._announce = directory / f"{name}.health"
        self._directory = directory
        self._command = [
            sys.executable, *program, "--config", str(config), "--nats", urls[0], "--redis", urls[1],
            "--announce", str(self._announce), service,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ended = False
        self.deaths: list[str] = []
        """Ends that nobody asked for."""

    @property
    def pid(self) -> int | None:
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if running and self._process is not None else None

    def start(self) -> None:
        if self.pid is not None:
            return
        self.note_death()
        self._is_ended = False
        self._announce.unlink(missing_ok=True)
        with self.log_path.open("ab") as log:
            self._process = spawn(self._command, directory=self._directory, output=log.fileno())

    def kill(self) -> None:
        if self._process is not None:
            self.note_death()
            self._is_ended = True
            self.kills += self._process.poll() is None
            self._process.kill()
            self._process.wait()

    def note_death(self) -> None:
        """Take down that it ended by itself, if it did."""
        if self._process is not None and self._process.poll() is not None and not self._is_ended:
            self._is_ended = True
            died = f"{self.name} ended by itself with status {self._process.returncode}"
            self.deaths.append(f"{died}: {self._last_words()}")

    def _last_words(self) -> str:
        """The end of its log, where it says why; the directory may be gone when somebody asks."""
        if not self.log_path.exists():
            return "no log"
        lines = self.log_path.read_text(errors="replace").splitlines()[-40:]
        signs = ("the process ends", '"level": "error"', "Error")
        telling = [line for line in lines if any(sign in line for sign in signs)]
        return " | ".join((telling or lines)[-3:])[-3000:]

    @property
    def status(self) -> int | None:
        """How it ended by itself; None while it runs."""
        return None if self._process is None else self._process.poll()

    def terminate(self, patience_s: float = 10.0) -> tuple[float, int]:
        """SIGTERM; the seconds it took and the exit status. Past the patience it is killed."""
        assert self._process is not None
        self.note_death()
        self._is_ended = True
        begun = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.kill()
            status = -9
        return time.monotonic() - begun, status

    # What it says of itself

    @property
    def health(self) -> str | None:
        return self._announce.read_text() if self.pid is not None and self._announce.exists() else None

    @property
    def is_alive(self) -> bool:
        """Whether it says so itself; it need not be ready for that."""
        return self._get("/healthz") is not None

    @property
    def is_ready(self) -> bool:
        return self._get("/readyz") is not None

    def gauge(self, name: str) -> float:
        """The sum of a gauge over its labels; 0 where it has none."""
        text = self._get("/metrics") or ""
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{")))
        return sum(float(value) for _, value in lines)

    def _get(self, path: str) -> str | None:
        health = self.health
        if health is None:
            return None
        try:
            with urllib.request.urlopen(f"{health}{path}", timeout=3.0) as answer:
                return str(answer.read().decode())
        except (OSError, urllib.error.HTTPError):
            return None


async def wait_until(holds: Callable[[], object], timeout_s: float, what: str) -> None:
    """Ask again and again, in a thread; AssertionError after `timeout_s`."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        done = await asyncio.to_thread(holds)
        if inspect.isawaitable(done):
            done = await done
        if done:
            return
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        await asyncio.sleep(0.1)
