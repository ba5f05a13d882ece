"""The topology service on a real broker: the file becomes records, and stays what it is through everything."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from railweave.contracts.envelope import decode_event, encode_event
from railweave.contracts.fabric import FabricLeaf, FabricNode
from railweave.contracts.proposal import FabricProposal, NodesProposal
from railweave.contracts.types import NodeName
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus, BusSettings
from railweave.runtime.host import run_services
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.settings import load_settings
from railweave.topology import changes
from railweave.topology.service import APPLY_SUBJECT, PLAN_SUBJECT, SHOW_SUBJECT, TopologyService, create
from railweave_testing.clusters import ask

PATIENCE_S = 20.0

FABRIC = """\
version: 1
spines:
  - name: spine1
leaves:
  - name: leaf[1-2]
    uplinks: spine1
nodes:
  - {name: "n[1-2]", leaf: leaf1, rails: 0-1}
  - {name: "n[3-4]", leaf: leaf2, rails: 0-1}
"""


@pytest.fixture
async def bus(fresh_nats_server: LocalNatsServer) -> AsyncIterator[Bus]:
    async with await Bus.connect(BusSettings(servers=(fresh_nats_server.url,))) as connected:
        await bootstrap(connected)
        yield connected


@contextlib.asynccontextmanager
async def running(url: str, file: Path, *flags: str) -> AsyncIterator[TopologyService]:
    """The service in a host of its own, ready."""
    settings = load_settings(
        flags=[f"nats.servers={url}", "redis.enabled=false", f"topology.fabric_file={file}", *flags], environ={}
    )
    made: list[TopologyService] = []

    def factory(given: Any) -> TopologyService:
        made.append(create(given))
        return made[0]

    stop = asyncio.Event()
    hosted = asyncio.create_task(run_services([factory], settings, stop=stop, handle_signals=False))
    try:
        await until(lambda: bool(made) and made[0].ready)
        yield made[0]
    finally:
        stop.set()
        assert await asyncio.wait_for(hosted, PATIENCE_S) == 0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def records(bus: Bus) -> dict[str, FabricNode | FabricLeaf]:
    """Every record of the fabric, by subject."""
    found: dict[str, FabricNode | FabricLeaf] = {}
    sequence = 1
    while (message := await bus.read_next("FABRIC", "rw.fabric.>", from_sequence=sequence)) is not None:
        data = decode_event(message).data
        assert isinstance(data, FabricNode | FabricLeaf)
        found[message.subject] = data
        sequence = message.sequence + 1
    return found


async def asked(bus: Bus, subject: str, **question: object) -> dict[str, Any]:
    answer = await bus.request(subject, json.dumps(question).encode(), timeout_s=PATIENCE_S)
    if not answer.data:
        return {"error": (answer.headers or {}).get("Nats-Service-Error")}
    found: dict[str, Any] = json.loads(answer.data)
    return found


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


async def test_the_file_becomes_records_and_a_restart_writes_nothing(
    fresh_nats_server: LocalNatsServer, bus: Bus, tmp_path: Path
) -> None:
    file = write(tmp_path / "fabric.yaml", FABRIC)
    async with running(fresh_nats_server.url, file):
        found = await records(bus)
    assert len(found) == 6
    node = found["rw.fabric.node.n2"]
    assert isinstance(node, FabricNode)
    assert [(str(at.leaf), int(at.rail), int(at.slot)) for at in node.attachments] == [("leaf1", 0, 1), ("leaf1", 1, 1)]
    last = (await bus.stream_state("FABRIC")).last_sequence
    async with running(fresh_nats_server.url, file):
        assert (await bus.stream_state("FABRIC")).last_sequence == last
        shown = await asked(bus, SHOW_SUBJECT)
    assert shown["error"] is None
    assert [vlan["ports"] for leaf in shown["leaves"] for vlan in leaf["vlans"]] == [2, 2, 2, 2]


async def test_a_changed_file_is_planned_then_applied_and_keeps_what_was_given(
    fresh_nats_server: LocalNatsServer, bus: Bus, tmp_path: Path
) -> None:
    file = write(tmp_path / "fabric.yaml", FABRIC)
    async with running(fresh_nats_server.url, file):
        before = await records(bus)
        write(file, FABRIC.replace('"n[1-2]"', '"n[0-2]"'))
        planned = await asked(bus, PLAN_SUBJECT)
        assert await records(bus) == before
        assert [(row["node"], row.get("old")) for row in planned["nodes"]] == [("n0", None)]
        await asked(bus, APPLY_SUBJECT)
        after = await records(bus)
    assert {subject: after[subject] for subject in before} == before
    newcomer = after["rw.fabric.node.n0"]
    assert isinstance(newcomer, FabricNode)
    assert {int(at.slot) for at in newcomer.attachments} == {2}


async def test_a_plan_that_was_seen_is_applied_and_no_other(
    fresh_nats_server: LocalNatsServer, bus: Bus, tmp_path: Path
) -> None:
    file = write(tmp_path / "fabric.yaml", FABRIC)
    async with running(fresh_nats_server.url, file):
        write(file, FABRIC.replace('"n[1-2]"', '"n[0-2]"'))
        seen = (await asked(bus, PLAN_SUBJECT))["plan"]
        assert (await asked(bus, PLAN_SUBJECT))["plan"] == seen, "the same plan has the same name"
        write(file, FABRIC.replace('"n[1-2]"', '"n[0-3]"').replace('"n[3-4]"', '"n4"'))
        before = await records(bus)
        refused = await asked(bus, APPLY_SUBJECT, plan=seen)
        assert "plan again" in refused["error"]
        assert await records(bus) == before
        again = await asked(bus, PLAN_SUBJECT)
        assert again["plan"] != seen
        applied = await asked(bus, APPLY_SUBJECT, plan=again["plan"])
        assert applied["counts"] == again["counts"]
        assert applied["counts"]["nodes_new"] == 1
        assert (await asked(bus, PLAN_SUBJECT))["total"] == 0


async def test_a_plan_past_a_messages_size_comes_in_parts(
    fresh_nats_server: LocalNatsServer, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "PART_BYTES", 2000)
    file = write(tmp_path / "fabric.yaml", FABRIC)
    async with running(fresh_nats_server.url, file):
        write(file, FABRIC.replace('"n[1-2]"', '"n[1-2],m[1-20]"'))
        part = await asked(bus, PLAN_SUBJECT)
        assert [row["leaf"] for row in part["leaves"]] == ["leaf1"], "its subnets grow"
        names = [row["node"] for row in part["nodes"]]
        assert 0 < len(names) < part["total"] - 1 == 20
        while len(names) < 20:
            part = await asked(bus, PLAN_SUBJECT, plan=part["plan"], start=1 + len(names))
            assert part["nodes"]
            names += [row["node"] for row in part["nodes"]]
        assert names == sorted({f"m{number}" for number in range(1, 21)})
        assert "plan again" in (await asked(bus, PLAN_SUBJECT, plan="another", start=1))["error"]
        assert "start" in (await asked(bus, PLAN_SUBJECT, start=-1))["error"]


async def test_a_hangup_reads_the_file_again(fresh_nats_server: LocalNatsServer, bus: Bus, tmp_path: Path) -> None:
    file = write(tmp_path / "fabric.yaml", FABRIC)
    async with running(fresh_nats_server.url, file):
        write(file, FABRIC.replace('"n[1-2]"', '"n[0-2]"'))
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(PATIENCE_S):
            while "rw.fabric.node.n0" not in await records(bus):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_a_broken_file_changes_nothing_and_is_told(
    fresh_nats_server: LocalNatsServer, bus: Bus, tmp_path: Path
) -> None:
    file = write(tmp_path / "fabric.yaml", FABRIC)
    async with running(fresh_nats_server.url, file):
        before = await records(bus)
        write(file, FABRIC.replace("leaf: leaf2", "leaf: leaf3"))
        refused = await asked(bus, APPLY_SUBJECT)
    assert refused["error"] == "fabric.yaml:9: node n3 rail 0: there is no leaf 'leaf3'"
    assert await records(bus) == before
    async with running(fresh_nats_server.url, file):
        shown = await asked(bus, SHOW_SUBJECT)
    assert "there is no leaf 'leaf3'" in shown["error"]
    assert len(shown["nodes"]) == 4


async def test_a_pool_too_small_is_refused_with_the_numbers_before_anything_is_written(
    fresh_nats_server: LocalNatsServer, bus: Bus, tmp_path: Path
) -> None:
    file = write(tmp_path / "fabric.yaml", FABRIC)
    async with running(fresh_nats_server.url, file, "topology.pools=10.0.0.0/26"):
        refused = await asked(bus, APPLY_SUBJECT)
    assert "4 new subnets need 256 addresses" in refused["refused"]["text"]
    assert refused["refused"]["numbers"] == {
        "needed_subnets": 4,
        "needed_addresses": 256,
        "free_addresses": 64,
        "pool_addresses": 64,
    }
    assert await records(bus) == {}


async def test_two_instances_write_the_same_records_once(
    fresh_nats_server: LocalNatsServer, bus: Bus, tmp_path: Path
) -> None:
    file = write(tmp_path / "fabric.yaml", FABRIC)
    async with running(fresh_nats_server.url, file), running(fresh_nats_server.url, file):
        found = await records(bus)
    assert len(found) == 6
    assert (await bus.stream_state("FABRIC")).last_sequence == 6


async def test_records_that_were_lost_are_written_again_as_they_were(
    fresh_nats_server: LocalNatsServer, bus: Bus, tmp_path: Path
) -> None:
    file = write(tmp_path / "fabric.yaml", FABRIC)
    async with running(fresh_nats_server.url, file):
        # A history that reading the file alone would not give: n9 came and went, n1 came back behind it.
        write(file, FABRIC.replace('"n[1-2]"', '"n[2,9]"'))
        await asked(bus, APPLY_SUBJECT)
        write(file, FABRIC)
        await asked(bus, APPLY_SUBJECT)
        before = await records(bus)
        await bus.api.call("STREAM.DELETE.FABRIC")
        await bootstrap(bus)
        async with asyncio.timeout(PATIENCE_S):
            while len(await records(bus)) < len(before):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert await records(bus) == before


async def test_an_ask_is_answered_from_the_records(
    fresh_nats_server: LocalNatsServer, bus: Bus, tmp_path: Path
) -> None:
    file = write(tmp_path / "fabric.yaml", FABRIC)
    wanted = ask("j", workers=2, network={})
    async with running(fresh_nats_server.url, file):
        await bus.publish(encode_event(wanted))
        nodes = NodesProposal(
            cluster=wanted.cluster,
            job=wanted.job,
            attempt=wanted.attempt,
            round=wanted.round,
            nodes=(NodeName("n1"), NodeName("n3")),
        )
        await bus.publish(encode_event(nodes))
        async with asyncio.timeout(PATIENCE_S):
            while (message := await bus.read_last("PROPOSALS", "rw.proposal.fabric.slurm-a.j")) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    found = decode_event(message).data
    assert isinstance(found, FabricProposal)
    assert (found.mode, found.reasons) == ("rail", ())
