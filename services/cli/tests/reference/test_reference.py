"""The page of commands is what the commands are, and the command says what is wrong and what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from railweave.cli import reference, settings_page
from railweave.cli.exits import MEANINGS, Exit

ROOT = Path(__file__).parents[4]


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("RAILWEAVE_")}
    command = [sys.executable, "-m", "railweave.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environ, timeout=30)


def test_the_page_in_the_tree_is_the_generated_one() -> None:
    assert (ROOT / reference.DEFAULT).read_text() == reference.text()


def test_every_exit_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Exit)


@pytest.mark.parametrize("command", ["up", "submit", "why", "node", "deadletters", "doctor", "bench", "demo"])
def test_every_command_of_the_design_is_on_the_page(command: str) -> None:
    assert f"## `railweave {command}`" in reference.text()


def test_without_nats_it_says_so_with_a_remedy_and_code_3(tmp_path: Path) -> None:
    done = run("--nats", "nats://127.0.0.1:9", "jobs", cwd=tmp_path)
    assert done.returncode == Exit.UNREACHABLE
    assert "railweave up" in done.stderr
    assert done.stdout == ""


def test_with_json_an_error_is_a_document(tmp_path: Path) -> None:
    done = run("job", "no-slash", "--json", cwd=tmp_path)
    assert done.returncode == Exit.USAGE
    assert json.loads(done.stderr)["error"]["field"] == "CLUSTER/JOB"


def test_node_and_a_name_is_node_show(tmp_path: Path) -> None:
    done = run("--nats", "nats://127.0.0.1:9", "node", "gpu-1", cwd=tmp_path)
    assert done.returncode == Exit.UNREACHABLE


def test_release_without_force_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    done = run("release", "lab/1", cwd=tmp_path)
    assert done.returncode == Exit.USAGE
    assert "--force" in done.stderr


def test_down_without_a_stack_says_that_there_is_none(tmp_path: Path) -> None:
    done = run("down", cwd=tmp_path)
    assert done.returncode == Exit.NOT_FOUND


def test_the_version_is_said(tmp_path: Path) -> None:
    assert run("--version", cwd=tmp_path).stdout.startswith("railweave ")


def test_the_page_of_settings_in_the_tree_is_the_generated_one() -> None:
    assert (ROOT / settings_page.DEFAULT).read_text() == settings_page.text()


@pytest.mark.parametrize("section", ["nats", "redis", "service", "log", "jobs", "topology", "gpu", "cache", "agent"])
def test_every_section_of_settings_is_on_its_page(section: str) -> None:
    assert f"\n## {section}\n" in settings_page.text()
