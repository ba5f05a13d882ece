"""The service on a real broker: it joins the ask and its nodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from railweave.contracts.envelope import Event, decode_event, encode_event
from railweave.contracts.proposal import Concern, GpuProposal, NodesProposal
from railweave.contracts.types import NodeName
from railweave.gpu.service import GpuService, GpuSettings, create, describe_node
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus
from railweave.runtime.host import run_services
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.service_api import RequestError
from railweave.runtime.settings import load_settings
from railweave_testing.buses import connected
from railweave_testing.clusters import ClusterBuilder, ask

PATIENCE_S = 20.0


@pytest.fixture
async def bus(fresh_nats_server: LocalNatsServer) -> AsyncIterator[Bus]:
    async with connected(fresh_nats_server) as made:
        await bootstrap(made)
        yield made


async def stored(bus: Bus, subject: str) -> Event:
    async with asyncio.timeout(PATIENCE_S):
        while (message := await bus.read_last("PROPOSALS", subject)) is None:  # noqa: ASYNC110 - it is on a server
            await asyncio.sleep(0.01)
    return decode_event(message).data


async def test_a_round_is_answered_when_its_nodes_are_there(bus: Bus, fresh_nats_server: LocalNatsServer) -> None:
    cluster = ClusterBuilder()
    cluster.node("n1", gpus=4)
    for event in cluster.told:
        await bus.publish(encode_event(event))
    settings = load_settings(flags=[f"nats.servers={fresh_nats_server.url}", "redis.enabled=false"], environ={})
    made: list[GpuService] = []

    def factory(found: Any) -> GpuService:
        made.append(create(found))
        return made[0]

    stop = asyncio.Event()
    running = asyncio.create_task(run_services([factory], settings, stop=stop, handle_signals=False))
    try:
        taken: list[int] = []
        for job in ("one", "two"):
            asked = ask(job, gpus=2)
            await bus.publish(encode_event(asked))
            nodes = NodesProposal(
                cluster=asked.cluster, job=asked.job, attempt=asked.attempt, round=asked.round, nodes=(NodeName("n1"),)
            )
            await bus.publish(encode_event(nodes))
            proposal = await stored(bus, f"rw.proposal.gpu.slurm-a.{job}")
            assert isinstance(proposal, GpuProposal)
            taken += [share.gpu for worker in proposal.workers for share in worker.gpus]
        assert sorted(taken) == [0, 1, 2, 3]
        answer = await bus.request("rw.query.gpu.node", b'{"node": "n1"}', 5.0)
        assert [gpu["free_milli"] for gpu in json.loads(answer.data)["gpus"]] == [1000] * 4
    finally:
        stop.set()
        assert await running == 0


def test_a_node_is_described_with_who_has_what() -> None:
    cluster = ClusterBuilder()
    cluster.node("n1", gpus=2)
    cluster.place("old", "n1", gpus=[(1, 400)])
    first, second = describe_node(b'{"node": "n1"}', cluster.state).gpus
    assert (first.free_milli, first.used_by) == (1000, ())
    assert second.free_milli == 600
    assert [(use.holder, use.milli) for use in second.used_by] == [("slurm-a/old", 400)]
    for body, code in ((b"{}", 400), (b'{"node": "ghost"}', 404)):
        with pytest.raises(RequestError) as refused:
            describe_node(body, cluster.state)
        assert refused.value.code == code


def test_an_unknown_policy_is_refused_with_those_there_are() -> None:
    with pytest.raises(Exception, match="expected one of best-fit"):
        load_settings(flags=["gpu.policy=worst-fit"], environ={})
    assert GpuSettings().policy == "best-fit"


def test_nothing_is_kept_for_a_dry_run() -> None:
    """It took GPUs from real jobs for five seconds, who were told no and then waited half a minute."""
    cluster = ClusterBuilder()
    cluster.node("n1", gpus=2)
    service = GpuService(GpuSettings())
    for name, is_dry in (("dry", True), ("real", False), ("late", False)):
        asked = ask(name, gpus=2).model_copy(update={"dry_run": is_dry})
        nodes = NodesProposal(
            cluster=asked.cluster, job=asked.job, attempt=asked.attempt, round=asked.round, nodes=(NodeName("n1"),)
        )
        made = service.answer(asked, {Concern.NODES: nodes}, cluster.state, 0.0)
        assert bool(made.reasons) == (name == "late"), name
