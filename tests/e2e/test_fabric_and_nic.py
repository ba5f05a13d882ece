"""Topology and nic in one process: a fabric file and inventories in, addresses that nobody shares out."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from railweave.contracts.addressing import vf_addresses, vf_mac
from railweave.contracts.envelope import decode_event, encode_event
from railweave.contracts.inventory import NodeHardware, Pf
from railweave.contracts.proposal import Ask, FabricProposal, NicProposal, NodesProposal
from railweave.contracts.reasons import ReasonCode
from railweave.contracts.types import BootId, InterfaceName, NodeName, PciAddress, Rail
from railweave.nic.service import NODE_SUBJECT, NicService
from railweave.nic.service import create as create_nic
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus, BusSettings
from railweave.runtime.cluster import ClusterState
from railweave.runtime.host import run_services
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.settings import Settings, load_settings
from railweave.topology.service import TopologyService
from railweave.topology.service import create as create_topology
from railweave_testing.clusters import ask

PATIENCE_S = 20.0
RAILS = 4
VFS = 4
NODES = [f"n{number}" for number in range(1, 9)]

FABRIC = """\
version: 1
spines:
  - name: spine1
leaves:
  - name: leaf[1-2]
    uplinks: spine1
nodes:
  - {name: "n[1-4]", leaf: leaf1, rails: 0-3}
  - {name: "n[5-8]", leaf: leaf2, rails: 0-3}
"""


def hardware(name: str, revision: int = 1, down: Sequence[int] = ()) -> NodeHardware:
    return NodeHardware(
        node=NodeName(name),
        revision=revision,
        boot_id=BootId("boot-1"),
        agent_version="test",
        pfs=tuple(
            Pf(
                pci=PciAddress(f"0000:{0x10 + rail:02x}:00.0"),
                rail=Rail(rail),
                netdev=InterfaceName(f"eth{rail}"),
                vfs=VFS,
                link_up=rail not in down,
            )
            for rail in range(RAILS)
        ),
    )


def nodes_for(wanted: Ask, names: Sequence[str]) -> NodesProposal:
    who = {"cluster": wanted.cluster, "job": wanted.job, "attempt": wanted.attempt}
    return NodesProposal(**who, round=wanted.round, nodes=tuple(NodeName(name) for name in names))


@pytest.fixture
async def bus(fresh_nats_server: LocalNatsServer, tmp_path: Path) -> AsyncIterator[Bus]:
    """A bus on which topology and nic answer, and agents have told their hardware."""
    file = tmp_path / "fabric.yaml"
    file.write_text(FABRIC)
    settings = load_settings(
        flags=[
            f"nats.servers={fresh_nats_server.url}",
            "redis.enabled=false",
            f"topology.fabric_file={file}",
            "topology.pools6=fd00:1::/48",
        ],
        environ={},
    )
    made: list[TopologyService | NicService] = []

    def topology(given: Settings) -> TopologyService:
        made.append(create_topology(given))
        return made[-1]  # type: ignore[return-value]

    def nic(given: Settings) -> NicService:
        made.append(create_nic(given))
        return made[-1]  # type: ignore[return-value]

    stop = asyncio.Event()
    async with await Bus.connect(BusSettings(servers=(fresh_nats_server.url,))) as connected:
        await bootstrap(connected)
        await connected.publish_many(encode_event(hardware(name)) for name in NODES)
        hosted = asyncio.create_task(run_services([topology, nic], settings, stop=stop, handle_signals=False))
        try:
            async with asyncio.timeout(PATIENCE_S):
                while len(made) < 2 or not all(service.ready for service in made):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            yield connected
        finally:
            stop.set()
            assert await asyncio.wait_for(hosted, PATIENCE_S) == 0


class Answers:
    """The nic and fabric proposals as they come."""

    def __init__(self) -> None:
        self.nic: dict[str, tuple[float, NicProposal]] = {}
        self.fabric: dict[str, FabricProposal] = {}

    def take(self, messages: Sequence[object]) -> None:
        for message in messages:
            data = decode_event(message).data  # type: ignore[arg-type]
            if isinstance(data, NicProposal):
                self.nic[f"{data.job}/{int(data.round)}"] = (time.perf_counter(), data)
            elif isinstance(data, FabricProposal):
                self.fabric[f"{data.job}/{int(data.round)}"] = data

    async def of(self, job: str, round_number: int = 1) -> NicProposal:
        async with asyncio.timeout(PATIENCE_S):
            while f"{job}/{round_number}" not in self.nic:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        return self.nic[f"{job}/{round_number}"][1]


async def propose(bus: Bus, wanted: Ask, names: Sequence[str]) -> float:
    """Ask, and answer for the cache service; the time at which both were stored."""
    await bus.publish(encode_event(wanted))
    await bus.publish(encode_event(nodes_for(wanted, names)))
    return time.perf_counter()


async def test_an_ask_becomes_fabric_and_nic_proposals_with_addresses_that_nobody_shares(bus: Bus) -> None:
    answers = Answers()
    async with bus.follow("PROPOSALS", ["rw.proposal.>"], answers.take, on_reset=lambda _cause: None):
        jobs = {f"j{number}": ask(f"j{number}", workers=8, network={}) for number in range(VFS)}
        for wanted in jobs.values():
            await propose(bus, wanted, NODES)
        found = {job: await answers.of(job) for job in jobs}
        assert answers.fabric["j0/1"].mode == "rail"
    assert [found[job].workers[0].group for job in jobs] == ["g0", "g1", "g2", "g3"]
    state = await folded(bus)
    owners: dict[str, str] = {}
    for job, proposal in found.items():
        assert not proposal.reasons
        for worker in proposal.workers:
            node = state.nodes[NodeName(NODES[worker.worker])]
            assert node.fabric is not None
            for ref in worker.vfs:
                at = node.fabric.attachments[ref.pf]
                vlan = state.vlan_of(at.leaf, at.rail)
                assert vlan is not None
                held = [*vf_addresses(vlan, at.slot, ref.vf), str(vf_mac(node.fabric.ordinal, at.rail, ref.vf))]
                for thing in held:
                    assert owners.setdefault(thing, f"{job}/{worker.worker}/{ref}") == f"{job}/{worker.worker}/{ref}"
    assert len(owners) == VFS * 8 * RAILS * 3


async def test_what_is_exhausted_is_refused_with_numbers_and_given_when_it_is_back(bus: Bus) -> None:
    answers = Answers()
    await bus.publish(encode_event(hardware("n3", 2, down=range(RAILS))))
    async with bus.follow("PROPOSALS", ["rw.proposal.>"], answers.take, on_reset=lambda _cause: None):
        await propose(bus, ask("j", workers=2, network={}), ["n2", "n3"])
        refused = await answers.of("j")
        (reason,) = refused.reasons
        assert (reason.code, reason.node) == (ReasonCode.VF_GROUPS_EXHAUSTED, "n3")
        assert reason.numbers["rails_down"] == RAILS
        await bus.publish(encode_event(hardware("n3", 3)))
        last = (await bus.stream_state("NODES")).last_sequence
        for round_number in range(2, 50):
            await propose(bus, ask("j", round_number=round_number, workers=2, network={}), ["n2", "n3"])
            given = await answers.of("j", round_number)
            if given.based_on["NODES"] >= last:
                break
        assert not given.reasons


async def test_a_node_outside_the_fabric_ends_the_round_at_topology(bus: Bus) -> None:
    answers = Answers()
    async with bus.follow("PROPOSALS", ["rw.proposal.>"], answers.take, on_reset=lambda _cause: None):
        await propose(bus, ask("j", workers=1, network={}), ["elsewhere"])
        await propose(bus, ask("k", workers=1, network={}), ["n1"])
        await answers.of("k")
        async with asyncio.timeout(PATIENCE_S):
            while "j/1" not in answers.fabric:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert answers.fabric["j/1"].reasons[0].code is ReasonCode.FABRIC_UNKNOWN
    assert "j/1" not in answers.nic


async def test_a_nodes_groups_can_be_asked_for(bus: Bus) -> None:
    answer = await bus.request(NODE_SUBJECT, json.dumps({"node": "n1"}).encode())
    shown = json.loads(answer.data)
    assert shown["free_groups"] == ["g0", "g1", "g2", "g3"]
    missing = await bus.request(NODE_SUBJECT, json.dumps({"node": "n99"}).encode())
    assert (missing.headers or {})["Nats-Service-Error-Code"] == "404"


async def test_two_hops_take_milliseconds(bus: Bus) -> None:
    answers = Answers()
    spent: list[float] = []
    async with bus.follow("PROPOSALS", ["rw.proposal.>"], answers.take, on_reset=lambda _cause: None):
        for number in range(40):
            begun = await propose(bus, ask(f"t{number}", workers=8, network={"vfs": "count=1"}), NODES)
            await answers.of(f"t{number}")
            spent.append(answers.nic[f"t{number}/1"][0] - begun)
    median_ms, most_ms = statistics.median(spent) * 1000, max(spent) * 1000
    print(f"nodes stored to nic proposal seen: p50 {median_ms:.1f} ms, max {most_ms:.1f} ms")
    # Two JetStream hops are about 2 to 3 ms on two idle cores; a loaded machine gets a lot more.
    assert median_ms < 200


async def folded(bus: Bus) -> ClusterState:
    state = ClusterState()
    for stream, subject in (("FABRIC", "rw.fabric.>"), ("NODES", "rw.inventory.>")):
        sequence = 1
        while (message := await bus.read_next(stream, subject, from_sequence=sequence)) is not None:
            state.apply(message)
            sequence = message.sequence + 1
    return state
