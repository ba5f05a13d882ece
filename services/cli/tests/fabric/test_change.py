"""`fabric plan` and `apply` against the real service on a real broker, and planning a file without either."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from railweave.cli.exits import Exit
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus, BusSettings
from railweave.runtime.host import run_services
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.settings import load_settings
from railweave.topology.service import create
from railweave_testing.command import Command, Done

FABRIC = """\
version: 1
spines: [{name: spine1}]
leaves:
  - {name: "leaf[1-2]", uplinks: spine1}
nodes:
  - {name: "n[1-2]", leaf: leaf1, rails: 0-1}
  - {name: "n[3-4]", leaf: leaf2, rails: 0-1}
"""
GROWN = FABRIC.replace('"n[1-2]"', '"n[1-3]"').replace('"n[3-4]"', '"n4"') + "  - {name: n5, leaf: leaf2, rails: 0-2}\n"
PATIENCE_S = 30.0

Ask = Callable[..., Done]


@pytest.fixture
def fabric(tmp_path: Path) -> Path:
    path = tmp_path / "fabric.yaml"
    path.write_text(FABRIC)
    return path


@pytest.fixture
def served(railweave: Command, fresh_nats_server: LocalNatsServer, fabric: Path) -> Iterator[Ask]:
    """The topology service in a thread of its own, and the command that asks it."""
    url = fresh_nats_server.url
    flags = [f"nats.servers={url}", "redis.enabled=false", f"topology.fabric_file={fabric}"]
    settings = load_settings(flags=[*flags, "topology.pools=10.0.0.0/22"], environ={})
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        async with await Bus.connect(BusSettings(servers=(url,))) as bus:
            await bootstrap(bus)
        stop = asyncio.Event()
        loops.append((asyncio.get_running_loop(), stop))
        await run_services([create], settings, stop=stop, handle_signals=False)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()

    def ask(*arguments: object) -> Done:
        return railweave("--nats", url, "fabric", *arguments)

    try:
        while ask("plan", "--json").code == Exit.UNREACHABLE or not ask("show", "--json").json["leaves"]:
            assert thread.is_alive()
        yield ask
    finally:
        if loops:
            loops[0][0].call_soon_threadsafe(loops[0][1].set)
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_plan_shows_what_would_change_and_changes_nothing(served: Ask, fabric: Path) -> None:
    assert served("plan").out == "nothing to change: what is stored is what the fabric file says\n"
    fabric.write_text(GROWN)
    planned = served("plan", "--json")
    assert planned.code == Exit.DONE
    assert planned.json["applied"] is False
    assert {name: count for name, count in planned.json["counts"].items() if count} == {
        "leaves_changed": 1,
        "nodes_new": 1,
        "nodes_changed": 1,
        "vlans_new": 1,
    }
    assert [change["node"] for change in planned.json["nodes"]] == ["n3", "n5"]
    moved, new = planned.json["nodes"]
    assert {at["leaf"] for at in moved["old"]["attachments"]} == {"leaf2"}
    assert {at["leaf"] for at in moved["new"]["attachments"]} == {"leaf1"}
    assert new["old"] is None
    said = served("plan").out
    assert "leaf2 rails 0-1 slot 0" in said
    assert "leaf1 rails 0-1 slot 2" in said
    assert "VLAN 102" in said
    assert "leaves: 1 changed; nodes: 1 new, 1 changed; VLANs: 1 new" in said
    assert len(served("show", "--json").json["nodes"]) == 4


def test_an_apply_makes_it_so_and_a_second_finds_nothing_to_do(served: Ask, fabric: Path) -> None:
    fabric.write_text(GROWN)
    applied = served("apply", "--yes", "--json")
    assert (applied.code, applied.json["applied"], applied.json["counts"]["nodes_new"]) == (Exit.DONE, True, 1)
    assert [node["node"] for node in served("show", "--json").json["nodes"]] == ["n1", "n2", "n3", "n4", "n5"]
    again = served("apply", "--yes")
    assert (again.code, again.out) == (
        Exit.DONE,
        "nothing to change: what is stored is what the fabric file says\n",
    )


def test_nothing_is_applied_that_nobody_agreed_to(served: Ask, fabric: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fabric.write_text(GROWN)
    unasked = served("apply", "--json")
    assert (unasked.code, unasked.error["field"]) == (Exit.USAGE, "--json")
    monkeypatch.setattr("typer.confirm", lambda *_args, **_options: False)
    refused = served("apply")
    assert (refused.code, "nothing was changed" in refused.err) == (Exit.FAILED, True)
    assert "nodes: 1 new, 1 changed" in refused.out, "what is asked about was shown"

    def changes_meanwhile(*_args: object, **_options: object) -> bool:
        fabric.write_text(GROWN.replace("n5", "n6"))
        return True

    monkeypatch.setattr("typer.confirm", changes_meanwhile)
    late = served("apply")
    assert (late.code, "plan again" in late.err) == (Exit.CHANGED_MEANWHILE, True)
    assert len(served("show", "--json").json["nodes"]) == 4


def test_what_cannot_be_is_refused_with_its_numbers(served: Ask, fabric: Path) -> None:
    fabric.write_text(FABRIC.replace('"n[3-4]"', '"n[3-400]"'))
    for command in (("plan",), ("apply", "--yes")):
        refused = served(*command, "--json")
        assert refused.code == Exit.ANSWER_IS_NO
        assert refused.json["refused"]["numbers"]["needed_addresses"] > 1024
        assert refused.json["applied"] is False
        said = served(*command)
        assert (said.code, "refused: " in said.out) == (Exit.ANSWER_IS_NO, True)
        assert "nothing is changed" in said.out
    fabric.write_text("version: 2\n")
    broken = served("plan", "--json")
    assert (broken.code, "fabric.yaml:1" in broken.error["message"]) == (Exit.USAGE, True)


def test_a_file_is_planned_from_nothing_without_any_service(railweave: Command, fabric: Path) -> None:
    planned = railweave("fabric", "plan", fabric, "--json")
    assert planned.code == Exit.DONE
    vlans = [vlan["subnet"] for change in planned.json["leaves"] for vlan in change["new"]["vlans"]]
    assert len(vlans) == len(set(vlans)) == 4
    assert planned.json["counts"]["vlans_new"] == 4
    table = railweave("fabric", "plan", fabric).out
    assert all(subnet in table for subnet in vlans)


def test_pools_of_the_settings_that_are_too_small_are_refused(
    railweave: Command, fabric: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAILWEAVE_TOPOLOGY__POOLS", '["10.0.0.0/26"]')
    refused = railweave("fabric", "plan", fabric, "--json")
    assert refused.code == Exit.ANSWER_IS_NO
    assert refused.json["refused"]["numbers"]["pool_addresses"] == 64


def test_without_nats_a_plan_says_so(railweave: Command) -> None:
    assert railweave("--nats", "nats://127.0.0.1:9", "fabric", "plan").code == Exit.UNREACHABLE
