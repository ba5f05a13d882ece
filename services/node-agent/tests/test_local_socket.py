"""The local socket and the command that asks over it, against a running service on a real broker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from railweave.contracts import WireMessage, encode_event
from railweave.contracts.types import NodeName
from railweave.node_agent.command import EXIT_REFUSED, EXIT_UNREACHABLE, EXIT_USAGE, ask, main
from railweave.node_agent.service import AgentService, create
from railweave.node_agent.settings import AgentSettings
from railweave.node_agent.socket import may_ask
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus, BusSettings
from railweave.runtime.host import run_services
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.settings import load_settings


@dataclass
class Running:
    service: AgentService
    bus: Bus
    socket: Path
    directory: Path

    async def ask(self, **request: Any) -> dict[str, Any]:
        return await asyncio.to_thread(ask, self.socket, request)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def running(server: LocalNatsServer, directory: Path) -> AsyncIterator[Running]:
    """The whole service as the host runs it."""
    config = directory / "railweave.yaml"
    config.write_text(
        json.dumps(
            {
                "nats": {"servers": [server.url]},
                "redis": {"enabled": False},
                "service": {"uvloop": False},
                "agent": {
                    "directory": str(directory / "state"),
                    "socket": str(directory / "agent.sock"),
                    "file_roots": [str(directory / "sources")],
                    "nodes": [{"name": "n1", "gpus": {"count": 4}, "cache_bytes": 10_000, "scratch_bytes": 10_000}],
                },
            }
        )
    )
    settings = load_settings(config=config, environ={})
    services: list[AgentService] = []

    def factory(given: Any) -> AgentService:
        services.append(create(given))
        return services[0]

    stop = asyncio.Event()
    async with await Bus.connect(BusSettings(servers=(server.url,))) as bus:
        await bootstrap(bus)
        task = asyncio.create_task(run_services([factory], settings, stop=stop, handle_signals=False))
        try:
            async with asyncio.timeout(15):
                while not (services and services[0].ready):
                    if task.done():
                        raise RuntimeError(f"the service ended: {task.result()}")
                    await asyncio.sleep(0.02)
            yield Running(services[0], bus, directory / "agent.sock", directory)
        finally:
            stop.set()
            assert await task == 0


def _plain(make: Any, job: str = "j1", **fields: Any) -> Any:
    """A placement without VFs, for a node without a network part."""
    return make.placement(job, workers=[make.worker(vf=None, gpus=((0, 500),))], **fields)


async def _store(run: Running, placement: Any) -> None:
    message = encode_event(placement)
    await run.bus.publish(WireMessage(message.subject, message.body, message.headers))


async def test_status_journal_and_plan_of_a_real_node(
    fresh_nats_server: LocalNatsServer, short_tmp_path: Path, make: Any
) -> None:
    (short_tmp_path / "sources").mkdir()
    (short_tmp_path / "sources" / "set.bin").write_bytes(b"x" * 700)
    async with running(fresh_nats_server, short_tmp_path) as run:
        assert stat.S_IMODE(run.socket.stat().st_mode) == 0o660
        wanted = make.dataset(size=1_000, source=f"file:{short_tmp_path}/sources/set.bin")
        await _store(run, _plain(make, datasets=(wanted,), scratch=100))
        journal = run.service.agents[0].journal
        await run.until(lambda: [entry.state for entry in journal.entries.values()] == ["prepared"])
        status = await run.ask(do="status")
        (node,) = status["nodes"]
        assert node["placements"][0]["state"] == "prepared"
        assert node["cache"]["used_bytes"] == 700
        assert node["datasets"] == ["imagenet@1 (ready, 700 bytes)"]
        entries = (await run.ask(do="journal", job="c/j1"))["entries"]
        assert [step["concern"] for step in entries[0]["steps"]] == ["gpu", "data", "data"]
        assert (await run.ask(do="plan", job="c/j1"))["steps"] == []
        no = await run.ask(do="plan", job="c/other")
        assert (no["ok"], no["error"]) == (False, "ENOENT")
        await _store(run, _plain(make, state="releasing"))
        await run.until(lambda: not journal.entries)
        assert not list((short_tmp_path / "state" / "n1" / "data" / "jobs").iterdir())
        assert (await run.ask(do="status"))["nodes"][0]["datasets"] == ["imagenet@1 (ready, 700 bytes)"]


async def test_a_restarted_service_finds_everything_again(
    fresh_nats_server: LocalNatsServer, short_tmp_path: Path, make: Any
) -> None:
    async with running(fresh_nats_server, short_tmp_path) as run:
        await _store(run, _plain(make, scratch=100))
        journal = run.service.agents[0].journal
        await run.until(lambda: [entry.state for entry in journal.entries.values()] == ["prepared"])
    async with running(fresh_nats_server, short_tmp_path) as run:
        status = await run.ask(do="status")
        assert status["nodes"][0]["placements"][0]["state"] == "prepared"
        await _store(run, _plain(make, state="releasing"))
        await run.until(lambda: not run.service.agents[0].journal.entries)


async def test_requests_that_are_refused_say_why(fresh_nats_server: LocalNatsServer, short_tmp_path: Path) -> None:
    async with running(fresh_nats_server, short_tmp_path) as run:
        for request, text in (
            ({"do": "dance"}, "unknown request 'dance'"),
            ({"do": "plan"}, "expected CLUSTER/JOB"),
            ({"do": "plan", "job": "c/j", "attempt": 0}, "attempt"),
            ({"do": "status2"}, "unknown request"),
            ({"do": "journal", "node": "n9"}, "no node n9"),
            ({"do": "journal", "node": 7}, "node"),
            ({"do": "attach", "job": "c/j"}, "nothing of c/j"),
            ({"do": "attach", "job": "c/j", "attempt": 1, "workers": [{"worker": 0}]}, "one of netns and pid"),
        ):
            answer = await run.ask(**request)
            assert answer["ok"] is False
            assert text in answer["text"]

        def raw(line: bytes) -> dict[str, Any]:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(run.socket))
                connection.sendall(line)
                return json.loads(connection.makefile().readline())  # type: ignore[no-any-return]

        assert "not JSON" in (await asyncio.to_thread(raw, b"{\n"))["text"]
        assert "expected a JSON object" in (await asyncio.to_thread(raw, b"[]\n"))["text"]


async def test_a_second_agent_on_the_same_socket_does_not_start(
    fresh_nats_server: LocalNatsServer, short_tmp_path: Path
) -> None:
    from railweave.node_agent.socket import serve_socket

    async with running(fresh_nats_server, short_tmp_path) as run:
        with pytest.raises(OSError, match="another agent listens"):
            async with serve_socket(run.socket, run.service._fleet):  # type: ignore[arg-type]
                pass
    stale = short_tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(stale))
    async with serve_socket(stale, run.service._fleet):  # type: ignore[arg-type]
        assert stale.exists()
    assert not stale.exists()


async def test_the_command_shows_tables_and_json(
    fresh_nats_server: LocalNatsServer, short_tmp_path: Path, make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running(fresh_nats_server, short_tmp_path) as run:
        await _store(run, _plain(make))
        journal = run.service.agents[0].journal
        await run.until(lambda: [entry.state for entry in journal.entries.values()] == ["prepared"])
        at = ["--socket", str(run.socket)]
        assert await asyncio.to_thread(main, ["status", *at]) == 0
        assert "prepared   c/j1 attempt 1" in capsys.readouterr().out
        assert await asyncio.to_thread(main, ["journal", "c/j1", *at]) == 0
        assert "c/j1 attempt 1  prepared" in capsys.readouterr().out
        assert await asyncio.to_thread(main, ["plan", "c/j1", *at]) == 0
        assert "nothing to do" in capsys.readouterr().out
        assert await asyncio.to_thread(main, ["status", "--json", *at]) == 0
        assert json.loads(capsys.readouterr().out)["nodes"][0]["node"] == "n1"
        assert await asyncio.to_thread(main, ["plan", "c/none", *at]) == EXIT_REFUSED
        assert "ENOENT" in capsys.readouterr().err


def test_no_agent_there_is_an_exit_status_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--socket", str(tmp_path / "none.sock")]) == EXIT_UNREACHABLE
    assert "no agent answers" in capsys.readouterr().err
    for wrong in (["dance"], ["status", "--wrong"], []):
        with pytest.raises(SystemExit) as ended:
            main(wrong)
        assert ended.value.code == EXIT_USAGE


def test_help_names_the_commands_and_their_options() -> None:
    for arguments, text in (
        (["--help"], "journal"),
        (["plan", "--help"], "CLUSTER/JOB"),
        (["run", "--help"], "--config"),
    ):
        shown = subprocess.run(
            [sys.executable, "-m", "railweave.node_agent.command", *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        assert text in shown.stdout


def test_only_root_the_owner_and_the_sockets_group_may_ask(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.touch()
    assert may_ask(0, 0, path)
    assert may_ask(os.geteuid(), 12345, path)
    assert may_ask(54321, path.stat().st_gid, path)
    assert not may_ask(54321, 54321, path)


def test_without_any_node_named_it_is_the_agent_of_this_host() -> None:
    assert AgentSettings().nodes == ()
    assert AgentSettings().simulated.node_names() == ()
    with pytest.raises(ValueError, match="needs ports"):
        AgentSettings(nodes=({"name": NodeName("a"), "network": "veth"},))
