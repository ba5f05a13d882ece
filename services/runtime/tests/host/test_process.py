"""A service as a process: its command line, its signals, its exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from railweave.runtime.launch import main
from railweave.runtime.local_servers import LocalNatsServer

Start = Callable[..., subprocess.Popen[str]]

PRELUDE = """
import asyncio, sys, time
from railweave.runtime import launch, service
class Probe:
    name, ready = "probe", True
    async def run(self, ctx):
        print("running", type(asyncio.get_running_loop()).__module__, flush=True)
        await self.work(ctx)
        print("finished", flush=True)
"""

ENDING = """
launch.find_service = lambda name: lambda settings: Probe()
raise SystemExit(launch.main("probe"))
"""

POLITE = """
    async def work(self, ctx):
        await ctx.stop.wait()
        await asyncio.sleep(0.2)
        await ctx.bus.barrier()
"""


@pytest.fixture
def start(tmp_path: Path, nats_server: LocalNatsServer):
    running: list[subprocess.Popen[str]] = []

    def started(work: str, *arguments: str, url: str | None = None, **environment: str) -> subprocess.Popen[str]:
        program = tmp_path / "probe.py"
        program.write_text(PRELUDE + textwrap.indent(textwrap.dedent(work), "    ") + ENDING)
        process = subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error",
                str(program),
                "--set",
                f"nats.servers={url or nats_server.url}",
                "--set",
                "redis.enabled=false",
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        running.append(process)
        return process

    yield started
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_running(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("running"):
        raise AssertionError(process.communicate())
    return line


def end(process: subprocess.Popen[str], number: signal.Signals) -> tuple[str, list[str]]:
    begun = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=10)
    assert time.monotonic() - begun < 5
    assert process.returncode == 0
    return out, [json.loads(line)["event"] for line in err.splitlines()]


def test_sigterm_ends_it_in_order(start: Start) -> None:
    process = start(POLITE)
    assert "uvloop" in wait_running(process)
    out, events = end(process, signal.SIGTERM)
    assert "finished" in out
    assert events[-3:] == ["asked to stop", "stopping", "stopped"]


def test_sigint_too_with_asyncio_and_json_logs_whatever_the_file_says(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "railweave.yaml"
    config.write_text("log: {format: console}\nservice: {uvloop: false}\n")
    process = start(POLITE, "--config", str(config), "--json-logs")
    assert "asyncio" in wait_running(process)
    _, events = end(process, signal.SIGINT)
    assert events[-1] == "stopped"


def test_a_second_signal_ends_it_at_once(start: Start) -> None:
    process = start("async def work(self, ctx):\n    await asyncio.sleep(3600)\n")
    wait_running(process)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=2)
    assert process.returncode == 128 + signal.SIGTERM


def test_what_hangs_the_loop_itself_ends_at_the_deadline(start: Start) -> None:
    process = start(
        "async def work(self, ctx):\n    await ctx.stop.wait()\n    time.sleep(3600)\n",
        "--set",
        "service.stop_deadline_s=1",
    )
    wait_running(process)
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=5)
    assert process.returncode == 1
    assert time.monotonic() - begun < 3


def test_a_signal_while_it_waits_for_the_broker_ends_it(start: Start) -> None:
    process = start(POLITE, url="nats://127.0.0.1:1")
    assert process.stderr is not None
    while "waiting for NATS" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=5)
    assert process.returncode == 0


def test_a_service_that_fails_exits_with_1_and_says_why(start: Start) -> None:
    process = start("async def work(self, ctx):\n    raise ValueError('two leaves of one name')\n")
    _, err = process.communicate(timeout=10)
    assert process.returncode == 1
    (line,) = [json.loads(line) for line in err.splitlines() if "service failed" in line]
    assert line["failed_service"] == "probe"
    assert "two leaves of one name" in line["exception"]


def test_a_setting_that_cannot_be_used_exits_with_2_and_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv=["--set", "nats.servres=x"]) == 2
    assert "settings: unknown setting nats.servres; did you mean nats.servers?" in capsys.readouterr().err


def test_the_environment_names_settings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RAILWEAVE_LOG__LEVEL", "nonsense")
    assert main(argv=[]) == 2
    assert "RAILWEAVE_LOG__LEVEL" in capsys.readouterr().err


def test_an_unknown_service_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("weather", argv=[]) == 2
    assert "no service 'weather'" in capsys.readouterr().err


@pytest.mark.parametrize(("flag", "expected"), [("--help", "--set KEY=VALUE"), ("--version", "railweave-jobs ")])
def test_it_explains_itself(flag: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main("jobs", argv=[flag])
    assert ended.value.code == 0
    assert expected in capsys.readouterr().out
