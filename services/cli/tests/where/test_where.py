"""Which Railweave a command talks to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from railweave.cli.exits import CommandFailed
from railweave.cli.where import STATE_DIRECTORY, Context, ProcessEntry, find_context, settings_for, start_ticks


def write_context(directory: Path, *, pid: int | None = None, started: int | None = None) -> None:
    own = os.getpid() if pid is None else pid
    state = directory / STATE_DIRECTORY
    state.mkdir(parents=True)
    entry = ProcessEntry(name="supervisor", pid=own, started=started if started is not None else start_ticks(own) or 0)
    Context(
        run="rwtest", directory=str(state), nats="nats://127.0.0.1:14222", redis="redis://127.0.0.1:16379/0",
        processes=(entry,),
    ).write(state)  # fmt: skip


def servers(start: Path, nats: str | None = None, **environ: str) -> tuple[str, ...]:
    return settings_for(nats, None, environ=environ, start=start).nats.servers


def test_without_anything_it_is_the_default(tmp_path: Path) -> None:
    assert servers(tmp_path) == ("nats://127.0.0.1:4222",)


def test_the_running_stack_above_the_working_directory_is_found(tmp_path: Path) -> None:
    write_context(tmp_path)
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert servers(below) == ("nats://127.0.0.1:14222",)


def test_a_stack_that_does_not_run_any_more_is_not_talked_to(tmp_path: Path) -> None:
    write_context(tmp_path, started=1)
    assert find_context(tmp_path) is None
    assert servers(tmp_path) == ("nats://127.0.0.1:4222",)


def test_a_pid_that_is_somebody_elses_by_now_is_not_the_stack(tmp_path: Path) -> None:
    write_context(tmp_path, pid=os.getppid(), started=(start_ticks(os.getppid()) or 0) + 1)
    assert find_context(tmp_path) is None


def test_flag_beats_environment_beats_stack(tmp_path: Path) -> None:
    write_context(tmp_path)
    environ = {"RAILWEAVE_NATS__SERVERS": "nats://10.0.0.1:4222"}
    assert servers(tmp_path, **environ) == ("nats://10.0.0.1:4222",)
    assert servers(tmp_path, "nats://10.0.0.2:4222", **environ) == ("nats://10.0.0.2:4222",)


def test_half_a_context_is_no_context(tmp_path: Path) -> None:
    (tmp_path / STATE_DIRECTORY).mkdir()
    (tmp_path / STATE_DIRECTORY / "context.json").write_text('{"version": 1, "run":')
    assert find_context(tmp_path) is None


def test_a_setting_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="servrs"):
        settings_for(None, None, environ={"RAILWEAVE_NATS__SERVRS": "x"}, start=tmp_path)


def test_a_process_has_a_start_and_one_that_is_gone_has_none() -> None:
    assert start_ticks(os.getpid())
    assert start_ticks(2**22 + 1) is None
