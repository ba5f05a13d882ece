"""The service on a real broker: from an ask to both proposals."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from railweave.cache.service import CacheService, CacheSettings, create
from railweave.contracts.envelope import Event, decode_event, encode_event
from railweave.contracts.proposal import DataProposal, NodesProposal
from railweave.contracts.reasons import ReasonCode
from railweave.contracts.types import NodeName
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus
from railweave.runtime.cluster import Change
from railweave.runtime.host import run_services
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.service_api import RequestError
from railweave.runtime.settings import load_settings
from railweave_testing.buses import connected
from railweave_testing.clusters import GIB, ClusterBuilder, ask, cached

PATIENCE_S = 20.0


@pytest.fixture
async def bus(fresh_nats_server: LocalNatsServer) -> AsyncIterator[Bus]:
    async with connected(fresh_nats_server) as made:
        await bootstrap(made)
        yield made


@contextlib.asynccontextmanager
async def serving(server: LocalNatsServer) -> AsyncIterator[CacheService]:
    settings = load_settings(flags=[f"nats.servers={server.url}", "redis.enabled=false"], environ={})
    made: list[CacheService] = []

    def factory(found: Any) -> CacheService:
        made.append(create(found))
        return made[0]

    stop = asyncio.Event()
    running = asyncio.create_task(run_services([factory], settings, stop=stop, handle_signals=False))
    try:
        yield await _ready(made)
    finally:
        stop.set()
        assert await running == 0


async def _ready(made: list[CacheService]) -> CacheService:
    async with asyncio.timeout(PATIENCE_S):
        while not made or not made[0].ready:  # noqa: ASYNC110 - what is awaited has no event
            await asyncio.sleep(0.01)
    return made[0]


async def stored(bus: Bus, subject: str) -> Event:
    async with asyncio.timeout(PATIENCE_S):
        while (message := await bus.read_last("PROPOSALS", subject)) is None:  # noqa: ASYNC110 - it is on a server
            await asyncio.sleep(0.01)
    return decode_event(message).data


async def test_an_ask_gets_nodes_and_a_plan_for_their_data(bus: Bus, fresh_nats_server: LocalNatsServer) -> None:
    cluster = ClusterBuilder()
    cluster.node("a")
    cluster.node("b", datasets=[cached("c4", 300 * GIB)])
    async with serving(fresh_nats_server) as service:
        for event in cluster.told:
            await bus.publish(encode_event(event))
        await _known(service, 2)
        await bus.publish(encode_event(ask("one", gpus=2, datasets=[f"c4@1={300 * GIB}"])))
        nodes = await stored(bus, "rw.proposal.nodes.slurm-a.one")
        data = await stored(bus, "rw.proposal.data.slurm-a.one")
        assert isinstance(nodes, NodesProposal)
        assert isinstance(data, DataProposal)
        assert nodes.nodes == ("b",)
        assert data.nodes[0].use == ("c4@1",)
        assert nodes.based_on["NODES"] == 4

        # What was proposed is kept in mind: the next two jobs find six GPUs left there, then none.
        await bus.publish(encode_event(ask("two", gpus=6, datasets=["c4@1"])))
        second = await stored(bus, "rw.proposal.nodes.slurm-a.two")
        assert isinstance(second, NodesProposal)
        assert second.nodes == ("b",)
        await bus.publish(encode_event(ask("three", gpus=6, datasets=["c4@1"])))
        third = await stored(bus, "rw.proposal.nodes.slurm-a.three")
        assert isinstance(third, NodesProposal)
        assert third.nodes == ("a",)

        answer = await bus.request("rw.query.cache.scores", b'{"cluster": "slurm-a", "job": "three"}', 5.0)
        (kind,) = json.loads(answer.data)["kinds"]
        assert [row["node"] for row in kind["nodes"]] == ["a"]
        assert kind["failed"] == {"gpus": 1}
        refused = await bus.request("rw.query.cache.scores", b"{}", 5.0)
        assert (refused.headers or {})["Nats-Service-Error-Code"] == "400"


async def test_what_was_asked_while_the_service_was_away_is_answered_when_it_is_back(
    bus: Bus, fresh_nats_server: LocalNatsServer
) -> None:
    cluster = ClusterBuilder()
    cluster.node("a", gpus=4)
    for event in cluster.told:
        await bus.publish(encode_event(event))
    await bus.publish(encode_event(ask("one", gpus=8)))
    async with serving(fresh_nats_server):
        nodes = await stored(bus, "rw.proposal.nodes.slurm-a.one")
    assert isinstance(nodes, NodesProposal)
    assert nodes.never
    assert nodes.reasons[0].code is ReasonCode.EXCEEDS_CLUSTER_CAPACITY


async def _known(service: CacheService, nodes: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        view = service._view
        assert view is not None
        while sum(node.storage is not None for node in view.state.nodes.values()) < nodes:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_weights_under_which_data_would_not_decide_are_refused() -> None:
    settings = load_settings(flags=["cache.keep_free_permille=50"], environ={})
    assert settings.section(CacheSettings).config().keep_free_permille == 50
    with pytest.raises(Exception, match="has_data must be more than"):
        load_settings(flags=["cache.weights.locality=20"], environ={})


def test_scores_of_an_unknown_job_are_refused() -> None:
    service = CacheService(CacheSettings())
    with pytest.raises(RequestError, match="no ask of slurm-a/x lately"):
        service.scores(b'{"cluster": "slurm-a", "job": "x"}', ClusterBuilder().state)


def test_nothing_is_kept_for_a_dry_run() -> None:
    cluster = ClusterBuilder()
    cluster.node("n1", gpus=2)
    service = CacheService(CacheSettings())
    service.take(Change(nodes={NodeName("n1")}), cluster.state)
    for name, is_dry in (("dry", True), ("real", False), ("late", False)):
        asked = ask(name, gpus=2).model_copy(update={"dry_run": is_dry})
        (made, *_) = service.answer(asked, cluster.state, 0.0)
        assert bool(made.reasons) == (name == "late"), name
