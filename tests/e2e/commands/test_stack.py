"""The local stack as a program: up, down, up again, killed, and started before its servers."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from railweave.cli.exits import Exit
from railweave.cli.stack.design import AGENT, PLANE, Layout, Shape, design
from railweave.runtime.local_servers import LocalNatsServer, LocalValkeyServer
from railweave.runtime.spawn import port_to_try
from railweave_testing.command_line import Up, command, eventually

pytestmark = pytest.mark.timeout(180)

Make = Callable[..., Up]


def test_it_ends_within_five_seconds_and_a_new_one_knows_what_was(fresh_stack: Make) -> None:
    up = fresh_stack("--simulated")
    up.start()
    up.command("submit", up.job("kept"), "--wait", "prepared", "--timeout", "20")
    for number in range(20):
        up.command("submit", up.job(f"in-flight-{number}"))
    before = up.context
    status, took_s = up.end(signal.SIGTERM)
    assert status == 0
    assert took_s < 5.0
    assert not up.context.is_running
    up.start()
    assert up.context.nats == before.nats, "clients find it where it was"
    assert up.command("job", "lab/kept", "--json").document["row"]["state"] in {"placed", "prepared"}

    def all_known() -> bool:
        return all(up.command("job", f"lab/in-flight-{number}").code == 0 for number in range(20))

    eventually(all_known)
    assert up.end(signal.SIGINT)[0] == 0


def test_a_second_one_in_the_same_directory_is_refused(stack: Up) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "railweave.cli.main", "up", "--simulated"],
        cwd=stack.directory, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == Exit.USAGE
    assert "railweave down" in done.stderr


def test_what_redis_forgets_is_there_again_soon(stack: Up) -> None:
    stack.command("submit", stack.job("remembered"), "--wait", "prepared", "--timeout", "20")
    eventually(lambda: "lab/remembered" in stack.command("jobs").out)
    with contextlib.closing(redis.Redis.from_url(stack.context.redis)) as client:
        client.flushall()
    eventually(lambda: "lab/remembered" in stack.command("jobs").out, 20.0)
    stack.command("cancel", "lab/remembered")


@pytest.mark.long
def test_one_process_for_each_service(fresh_stack: Make) -> None:
    up = fresh_stack("--simulated", "--processes")
    up.start()
    assert len({entry.pid for entry in up.context.processes}) == 9
    assert up.command("submit", up.job("spread"), "--wait", "prepared", "--timeout", "30").code == 0
    status, took_s = up.end()
    assert status == 0
    assert took_s < 5.0


@pytest.mark.long
def test_a_part_that_dies_ends_the_stack_with_an_error(fresh_stack: Make) -> None:
    up = fresh_stack("--simulated", "--processes")
    up.start()
    nic = next(entry for entry in up.context.processes if entry.name == "nic")
    os.kill(nic.pid, signal.SIGKILL)
    assert up._process is not None
    assert up._process.wait(timeout=30) == Exit.FAILED
    assert "nic ended" in (up.directory / "up.txt").read_text()


@contextlib.contextmanager
def hosted(directory: Path, nats: str, valkey: str) -> Iterator[Path]:
    """All services in one process on servers that may not be there."""
    made = design("rwtest", Shape(simulated=True), Layout.ONE, directory)
    assert made.fabric_text is not None
    (directory / "fabric.yaml").write_text(made.fabric_text)
    import yaml

    (directory / "settings.yaml").write_text(yaml.safe_dump(dict(made.settings)))
    announce = directory / "health"
    command = [sys.executable, "-m", "railweave.cli.stack.hosting", "--config", str(directory / "settings.yaml")]
    command += ["--nats", nats, "--redis", valkey, "--announce", str(announce), *PLANE, AGENT]
    with (directory / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield announce
            process.terminate()
            begun = time.monotonic()
            assert process.wait(timeout=20) == 0
            assert time.monotonic() - begun < 5.0
        finally:
            process.kill()


def answers(health: str, path: str) -> int:
    try:
        with urllib.request.urlopen(f"{health}{path}", timeout=2) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_services_that_start_before_nats_and_redis_wait_for_them(tmp_path: Path) -> None:
    nats_port, valkey_port = port_to_try(), port_to_try()
    urls = f"nats://127.0.0.1:{nats_port}", f"redis://127.0.0.1:{valkey_port}/0"
    with hosted(tmp_path, *urls) as announce:
        eventually(announce.exists, 60.0)
        health = announce.read_text()
        assert answers(health, "/healthz") == 200
        assert answers(health, "/readyz") == 503
        with (
            LocalNatsServer(tmp_path / "nats", port=nats_port),
            LocalValkeyServer(tmp_path / "valkey", port=valkey_port),
        ):
            eventually(lambda: answers(health, "/readyz") == 200, 30.0)
            job = '{"cluster":"lab","job":"early","attempt":1,"workers":[{"count":1,"gpus":1}]}'
            said = command("--nats", urls[0], "submit", "-", "--wait", "prepared", "--timeout", "20", text=job)
            assert said.code == 0
