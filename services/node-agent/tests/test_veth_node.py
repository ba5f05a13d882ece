"""A node on a software fabric, as the service builds it: real namespaces, real broker, journal on disk."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from railweave.contracts import WireMessage, decode_event, encode_event
from railweave.contracts.inventory import NodeHardware, Report
from railweave.node_agent.service import create
from railweave.node_agent.settings import AgentSettings, GpusSettings, NodeSettings, PortSettings
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus, BusSettings
from railweave.runtime.host import run_services
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.netlink import LinuxKernel
from railweave.runtime.settings import LogSettings, NatsSettings, RedisSettings, ServiceSettings, Settings

pytestmark = pytest.mark.kernel


async def test_a_job_on_a_real_kernel_from_placement_to_released(
    fresh_nats_server: LocalNatsServer, short_tmp_path: Path, linux_world: Any, make: Any
) -> None:
    world = linux_world
    worker = world.netns("w")
    node = NodeSettings(
        name=make.node,
        network="veth",
        netns=f"/run/netns/{world.prefix}-node",
        ports=tuple(
            PortSettings(rail=rail, leaf_netns=f"/run/netns/{world.prefix}-leaf", port=f"p{rail}") for rail in (0, 1)
        ),
        vfs=2,
        gpus=GpusSettings(count=4),
    )
    section = AgentSettings(nodes=(node,), directory=short_tmp_path / "state", socket=short_tmp_path / "s")
    settings = Settings(
        nats=NatsSettings(servers=(fresh_nats_server.url,)),
        redis=RedisSettings(enabled=False),
        service=ServiceSettings(uvloop=False),
        log=LogSettings(),
        sections={"agent": section},
    )
    heard: dict[str, Any] = {}

    def take(messages: Any) -> None:
        heard.update({message.subject: decode_event(message).data for message in messages})

    async def until(condition: Any) -> None:
        async with asyncio.timeout(15):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.01)

    def is_reported(state: str) -> bool:
        report = heard.get("rw.report.n1.c.j1.1")
        return isinstance(report, Report) and report.state == state

    async def store(placement: Any) -> None:
        message = encode_event(placement)
        await bus.publish(WireMessage(message.subject, message.body, message.headers))

    stop = asyncio.Event()
    async with await Bus.connect(BusSettings(servers=(fresh_nats_server.url,))) as bus:
        await bootstrap(bus)
        async with bus.follow("NODES", [], take, on_reset=lambda cause: heard.clear()):
            task = asyncio.create_task(run_services([create], settings, stop=stop, handle_signals=False))
            try:
                await until(lambda: isinstance(heard.get("rw.inventory.n1.hardware"), NodeHardware))
                pfs = heard["rw.inventory.n1.hardware"].pfs
                assert [(pf.rail, pf.vfs, pf.link_up, pf.driver) for pf in pfs] == [
                    (0, 2, True, "veth"),
                    (1, 2, True, "veth"),
                ]
                before = world.picture()
                descriptors = len(os.listdir("/proc/self/fd"))
                await store(make.placement())
                await until(lambda: is_reported("prepared"))
                await store(make.placement(netns=worker))
                await until(lambda: is_reported("attached"))
                with LinuxKernel().open(worker) as inside:
                    assert {link.name for link in inside.links()} == {"lo", "rail0", "rail1"}
                    rules = {(rule.priority, rule.source, rule.table) for rule in inside.rules()}
                    assert rules == {(1000, "10.0.0.10/32", 1000), (1001, "10.1.0.10/32", 1001)}
                names = [step.name for step in heard["rw.report.n1.c.j1.1"].steps]
                assert any("attach network" in name and "2 VFs" in name for name in names)
                await store(make.placement(netns=worker, state="releasing"))
                await until(lambda: is_reported("undone"))
                assert world.picture() == before
                assert len(os.listdir("/proc/self/fd")) <= descriptors + 1
            finally:
                stop.set()
                assert await task == 0
