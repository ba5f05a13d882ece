"""A command imports what it needs and no more: what `up` stands on would double the time in which `jobs` starts."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from railweave.cli.later import Entry
from railweave.cli.main import COMMANDS

NOWHERE = ("--nats", "nats://127.0.0.1:9")
PROBE = """
import json, sys
from railweave.cli.main import main
try:
    main()
except SystemExit:
    pass
service_logs = sys.modules.get("structlog")
print()
print(json.dumps({"modules": sorted(sys.modules), "quiet": service_logs is None or service_logs.is_configured()}))
"""
SERVICES = tuple(f"railweave.{part}" for part in ("jobs", "topology", "nic", "gpu", "cache", "node_agent"))
OF_SERVICES = (*SERVICES, "railweave.runtime.netlink", "pyroute2", "redis", "prometheus_client", "structlog", "uvloop")
OF_A_CONNECTION = ("railweave.contracts", "railweave.runtime", "nats", "pydantic", "yaml", "asyncio")

JOB = '{"cluster":"lab","job":"1","attempt":1,"workers":[{"count":1,"gpus":1}]}'
EVENT = '{"type":"railweave.tenant.v1","data":{"tenant":"nlp","generation":1}}'
ASKING = [
    ["submit", "-"],
    ["submit", "-", "--wait", "prepared"],
    ["jobs"],
    ["job", "lab/1"],
    ["why", "lab/1"],
    ["cancel", "lab/1"],
    ["started", "lab/1"],
    ["watch"],
    ["nodes"],
    ["node", "node-1"],
    ["node", "drain", "node-1"],
    ["publish", "-"],
    ["deadletters"],
]
FOLDING = [["fabric"], ["gpus"], ["datasets"], ["tenants"], ["doctor"]]


def probed(*arguments: str, cwd: Path) -> tuple[list[str], bool]:
    """The modules that are there after a command, and whether services could not have logged into its output."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("RAILWEAVE_")}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environ,
        timeout=60,
        input=EVENT if "publish" in arguments else JOB,
    )
    said = json.loads(done.stdout.splitlines()[-1])
    return said["modules"], said["quiet"]


def among(modules: list[str], unwanted: tuple[str, ...]) -> list[str]:
    return [name for name in modules if any(name == part or name.startswith(f"{part}.") for part in unwanted)]


def test_an_unknown_command_imports_no_service(tmp_path: Path) -> None:
    modules, _ = probed("nonsense", cwd=tmp_path)
    assert among(modules, (*OF_SERVICES, "railweave.cli.commands")) == []


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]], ids=" ".join)
def test_the_list_of_commands_imports_none_of_them(arguments: list[str], tmp_path: Path) -> None:
    modules, _ = probed(*arguments, cwd=tmp_path)
    assert among(modules, (*OF_SERVICES, *OF_A_CONNECTION, "railweave.cli.commands")) == []


@pytest.mark.parametrize("arguments", ASKING, ids=" ".join)
def test_what_asks_a_service_imports_none(arguments: list[str], tmp_path: Path) -> None:
    modules, _ = probed(*NOWHERE, *arguments, cwd=tmp_path)
    assert "nats" in modules, "it got as far as the connection"
    assert among(modules, OF_SERVICES) == []


@pytest.mark.parametrize("arguments", FOLDING, ids=" ".join)
def test_what_folds_the_streams_keeps_the_logs_of_services_out_of_its_output(
    arguments: list[str], tmp_path: Path
) -> None:
    modules, is_quiet = probed(*NOWHERE, *arguments, cwd=tmp_path)
    assert "structlog" in modules
    assert is_quiet
    assert among(modules, SERVICES) == []


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_the_list_says_of_a_command_what_the_command_says_of_itself(entry: Entry) -> None:
    command = entry.load()
    assert command.name == entry.name
    assert inspect.cleandoc(command.help).partition("\n\n")[0].replace("\n", " ") == entry.help
