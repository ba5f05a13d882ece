"""The local stack in the kernel: real namespaces, VFs, rules; and what is left of it, which is nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from railweave.runtime.netlink import LinuxKernel
from railweave_testing.command_line import Up, eventually

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root"),
]

Make = Callable[..., Up]


def namespaces(run: str) -> list[str]:
    return [name for name in LinuxKernel().netns_names() if name.startswith(f"{run}-")]


@pytest.fixture
def worker() -> Iterator[str]:
    """A worker's namespace, as a container runtime makes it."""
    name = f"rwtw{os.getpid()}"
    kernel = LinuxKernel()
    kernel.create_netns(name)
    yield name
    kernel.delete_netns(name)


def test_a_worker_gets_its_rails_and_rules_and_loses_them_when_the_job_ends(fresh_stack: Make, worker: str) -> None:
    up = fresh_stack("--nodes", "2", "--rails", "2", "--vfs", "2")
    up.start()
    run = up.context.run
    assert len(namespaces(run)) == 5, "2 nodes, 2 leaves, a spine"
    assert up.command("submit", up.job("real", network={}), "--wait", "prepared", "--timeout", "30").code == 0
    up.command("started", "lab/real", "--netns", f"0=/run/netns/{worker}")
    eventually(lambda: up.command("job", "lab/real", "--json").document["row"]["state"] == "attached", 30.0)
    with LinuxKernel().open(f"/run/netns/{worker}") as inside:
        assert {link.name for link in inside.links()} == {"lo", "rail0", "rail1"}
        assert [rule.table for rule in inside.rules()] == [1000, 1001]
    up.command("cancel", "lab/real")
    eventually(lambda: up.command("job", "lab/real", "--json").document["row"]["state"] == "released", 30.0)
    with LinuxKernel().open(f"/run/netns/{worker}") as inside:
        assert [link.name for link in inside.links()] == ["lo"]
        assert not inside.rules()
    status, took_s = up.end()
    assert status == 0
    assert took_s < 5.0
    assert namespaces(run) == []


@pytest.mark.long
def test_what_a_killed_stack_leaves_is_swept_by_down(fresh_stack: Make) -> None:
    up = fresh_stack("--nodes", "2", "--rails", "1", "--vfs", "1")
    up.start()
    run = up.context.run
    up.end(signal.SIGKILL)
    assert namespaces(run)
    done = subprocess.run(
        [sys.executable, "-m", "railweave.cli.main", "down"],
        cwd=up.directory,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "swept" in done.stdout
    assert namespaces(run) == []


@pytest.mark.long
def test_the_demo_passes_all_its_checks_and_leaves_nothing(tmp_path: Path) -> None:
    before = LinuxKernel().netns_names()
    command = [sys.executable, "-m", "railweave.cli.main", "demo"]
    with (
        (tmp_path / "told").open("wb") as told,
        subprocess.Popen(command, cwd=tmp_path, stdout=told, stderr=told) as demo,
    ):
        try:
            status = demo.wait(timeout=200)
        finally:
            # Not killed: it takes down what it made.
            demo.terminate()
    text = (tmp_path / "told").read_text()
    assert status == 0, text
    assert "FAILED" not in text
    run = re.search(r"(rw[0-9a-f]{4})-train-1", text)
    assert run is not None
    assert [name for name in LinuxKernel().netns_names() if name not in before and name.startswith(run[1])] == []
