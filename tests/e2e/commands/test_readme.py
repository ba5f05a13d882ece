"""The scripts of README run as they stand there, against a stack as README starts it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from railweave_testing.command_line import Up

pytestmark = pytest.mark.timeout(120)

README = Path(__file__).parents[3] / "README.md"
SAID = "nats://127.0.0.1:4222"


def scripts() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)


def test_one_script_publishes_a_job_and_the_other_sees_its_placement(stack: Up) -> None:
    publish, follow = (code.replace(SAID, stack.context.nats) for code in scripts())
    done = subprocess.run([sys.executable, "-c", publish], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("start the workers on node-"), done.stderr
    with subprocess.Popen([sys.executable, "-u", "-c", follow], stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline().split()[1:] == ["1234", "desired"]
        following.terminate()
    stack.command("cancel", "lab/1234")


def test_every_command_that_readme_names_exists() -> None:
    from railweave.cli.reference import text

    page = text()
    named = set(re.findall(r"^railweave ([a-z]+)", README.read_text(), re.MULTILINE))
    assert named
    assert all(f"## `railweave {name}" in page for name in named)
