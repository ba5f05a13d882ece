"""A local stack as a user starts it, and the command as he types it: for tests of whole paths."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from railweave.cli.exits import CommandFailed
from railweave.cli.main import app
from railweave.cli.where import STATE_DIRECTORY, Context, read_context

READY_S = 90.0


@dataclass(frozen=True, slots=True)
class Said:
    """What a command ended with and printed."""

    code: int
    out: str
    error: CommandFailed | None

    @property
    def document(self) -> Any:
        """The JSON it printed."""
        return json.loads(self.out)


class Up:
    """`railweave up` as a process, in a directory of its own."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        self.options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def context(self) -> Context:
        """What it says of itself."""
        found = read_context(self.directory / STATE_DIRECTORY)
        assert found is not None
        return found

    @property
    def pid(self) -> int:
        """Of the supervisor."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it says that it is ready."""
        self.directory.mkdir(parents=True, exist_ok=True)
        environ = {key: value for key, value in os.environ.items() if not key.startswith("RAILWEAVE_")}
        with (self.directory / "up.txt").open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "railweave.cli.main", "up", *self.options],
                cwd=self.directory, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environ,
            )  # fmt: skip
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            context = read_context(self.directory / STATE_DIRECTORY)
            if context is not None and context.is_ready and context.is_running:
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"the stack did not come up:\n{(self.directory / 'up.txt').read_text()}")

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        """Signal it and wait; its status, and how many seconds it took."""
        assert self._process is not None
        begun = time.monotonic()
        self._process.send_signal(number)
        status = self._process.wait(timeout=30)
        return status, time.monotonic() - begun

    def close(self) -> None:
        """End it, whatever state it is in."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=10)
            self._process.kill()
            self._process.wait()

    def command(self, *arguments: str, text: str | None = None) -> Said:
        """Run a command on it, in this process."""
        context = self.context
        return command("--nats", context.nats, *arguments, text=text, environ={"RAILWEAVE_REDIS__URL": context.redis})

    def job(self, name: str, **fields: Any) -> str:
        """The file of a job of one worker with one GPU, unless `fields` say otherwise."""
        document = {"cluster": "lab", "job": name, "attempt": 1, "workers": [{"count": 1, "gpus": 1}]} | fields
        path = self.directory / f"{name}.json"
        path.write_text(json.dumps(document))
        return str(path)


def command(*arguments: str, text: str | None = None, environ: Mapping[str, str] | None = None) -> Said:
    """Run the command in this process: the same code as the console script's, without its start-up time."""
    result = CliRunner().invoke(app, list(arguments), input=text, env=environ)
    error = result.exception if isinstance(result.exception, CommandFailed) else None
    if result.exception is not None and error is None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Said(int(error.code) if error is not None else result.exit_code, result.stdout, error)


def eventually(holds: Callable[[], bool], timeout_s: float = 15.0) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)


@contextlib.contextmanager
def running(directory: Path, options: Sequence[str]) -> Iterator[Up]:
    """A stack, ended at the end."""
    up = Up(directory, *options)
    try:
        up.start()
        yield up
    finally:
        up.close()
