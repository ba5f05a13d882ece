"""Stacks for the tests of the command."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from railweave_testing.command_line import Up, eventually, running


@pytest.fixture(scope="module")
def shared_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A simulated stack that the tests of a module share: 4 nodes with 4 GPUs."""
    with running(tmp_path_factory.mktemp("stack"), ["--simulated"]) as up:
        yield up


@pytest.fixture
def stack(shared_stack: Up) -> Iterator[Up]:
    """The shared stack; what a test leaves there is ended, so that the next one finds it empty, in whatever order."""
    yield shared_stack
    cancelled: set[str] = set()

    def is_empty() -> bool:
        rows = shared_stack.command("jobs", "--json").document["jobs"]
        names = {f"{row['cluster']}/{row['job']}" for row in rows}
        for name in names - cancelled:
            shared_stack.command("cancel", name, "--reason", "its test is over")
        cancelled.update(names)
        return not names

    eventually(is_empty)


@pytest.fixture
def fresh_stack(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    """Makes stacks of this test alone: `fresh_stack("--simulated")`; not started."""
    with contextlib.ExitStack() as ending:

        def make(*options: str) -> Up:
            up = Up(tmp_path / "own", *options)
            ending.callback(up.close)
            return up

        yield make
