"""From records to the software fabric, and the driver that makes it."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from railweave.contracts.envelope import decode_event
from railweave.contracts.fabric import FabricLeaf, FabricReport
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus, BusSettings
from railweave.runtime.host import run_services
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.netlink import LinuxKernel
from railweave.runtime.settings import load_settings
from railweave.topology.inventory import Inventory, replan
from railweave.topology.linux_fabric import LinuxFabric
from railweave.topology.service import create
from railweave.topology.software import software_fabric
from railweave.topology.topograph import read_topograph
from railweave_testing.fabrics import config, fabric, regular

PATIENCE_S = 30.0

TIERS = """\
switches:
  core: {switches: [spine-1, spine-2]}
  spine-1: {switches: [leaf-1]}
  spine-2: {switches: [leaf-2]}
blocks:
- {switch: leaf-1, nodes: [n1]}
- {switch: leaf-2, nodes: [n2]}
"""


def planned(graph: object, **settings: object) -> Inventory:
    found = replan(Inventory(), graph, config(**settings), lambda _node: False)  # type: ignore[arg-type]
    assert isinstance(found, Inventory)
    return found


def test_every_vlan_has_its_gateway_and_every_leaf_its_spine() -> None:
    graph = fabric(regular(["leaf1", "leaf2"], 2, 2))
    found = software_fabric("rw1", planned(graph, pools6=("fd00:1::/48",)).leaves, graph)
    assert [leaf.name for leaf in found.leaves] == ["leaf1", "leaf2"]
    first = found.leaves[0].vlans[0]
    assert (first.vlan, first.gateway, first.gateway6) == (100, "10.0.0.1/27", "fd00:1::1/64")
    assert [(link.leaf, link.spine) for link in found.links] == [("leaf1", "spine1"), ("leaf2", "spine1")]
    assert all(link.leaf_address6 for link in found.links)


def test_tiers_in_between_are_one_in_software() -> None:
    graph = read_topograph(TIERS, "model.yaml", rails=1)
    found = software_fabric("rw1", planned(graph).leaves, graph)
    assert [spine.name for spine in found.spines] == ["core"]
    assert [(link.leaf, link.spine) for link in found.links] == [("leaf-1", "core"), ("leaf-2", "core")]


def test_leaves_that_carry_nothing_are_not_made() -> None:
    graph = fabric(regular(["leaf1"], 2, 1))
    before = planned(graph)
    smaller = fabric(regular(["leaf2"], 2, 1))
    after = replan(before, smaller, config(), lambda _node: False)
    assert isinstance(after, Inventory)
    assert [leaf.name for leaf in software_fabric("rw1", after.leaves, smaller).leaves] == ["leaf2"]


@pytest.fixture
def run_name() -> Iterator[str]:
    name = f"rwt{secrets.token_hex(3)}"
    yield name
    LinuxFabric(LinuxKernel(), name).remove_blocking()


@pytest.mark.kernel
@pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")
async def test_the_service_makes_the_fabric_and_reports_every_leaf(
    fresh_nats_server: LocalNatsServer, tmp_path: Path, run_name: str
) -> None:
    file = tmp_path / "fabric.yaml"
    file.write_text(
        "version: 1\nspines: [{name: spine1}]\nleaves: [{name: 'leaf[1-2]', uplinks: spine1}]\n"
        "nodes:\n  - {name: n1, leaf: leaf1, rails: 0-1}\n  - {name: n2, leaf: leaf2, rails: 0-1}\n"
    )
    settings = load_settings(
        flags=[
            f"nats.servers={fresh_nats_server.url}",
            "redis.enabled=false",
            f"topology.fabric_file={file}",
            "topology.driver=linux",
            f"topology.run={run_name}",
        ],
        environ={},
    )
    stop = asyncio.Event()
    async with await Bus.connect(BusSettings(servers=(fresh_nats_server.url,))) as bus:
        await bootstrap(bus)
        hosted = asyncio.create_task(run_services([create], settings, stop=stop, handle_signals=False))
        try:
            async with asyncio.timeout(PATIENCE_S):
                while (message := await bus.read_last("FABRIC", "rw.fabricreport.leaf2")) is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            report = decode_event(message).data
            assert isinstance(report, FabricReport)
            assert report.applied, report.text
            here, there = [await _gateways(bus, leaf) for leaf in ("leaf1", "leaf2")]
            for source, target in itertools.product(here, there):
                # From subnet to subnet: the way leads over the spine.
                assert await asyncio.to_thread(_answers, f"{run_name}-leaf1", source, target)
        finally:
            stop.set()
            assert await asyncio.wait_for(hosted, PATIENCE_S) == 0


async def _gateways(bus: Bus, leaf: str) -> list[str]:
    record = await bus.read_last("FABRIC", f"rw.fabric.leaf.{leaf}")
    assert record is not None
    found = decode_event(record).data
    assert isinstance(found, FabricLeaf)
    return [vlan.gateway for vlan in found.vlans]


def _answers(netns: str, source: str, target: str) -> bool:
    """Whether an address is reached from another one inside a namespace."""
    command = ["ip", "netns", "exec", netns, "ping", "-c1", "-W2", "-I", source, target]
    return subprocess.run(command, capture_output=True).returncode == 0
