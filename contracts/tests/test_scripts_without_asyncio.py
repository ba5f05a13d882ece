"""SyncRailweave: the same calls from plain code, on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from pydantic_core import to_json

from railweave.contracts import ContractError
from railweave.contracts.client import StillWaiting, SyncRailweave, Unreachable
from railweave.contracts.job import JobPrepared
from railweave.contracts.placement import Placement


def prepared(cluster: str) -> JobPrepared:
    return JobPrepared.model_validate_json(
        to_json({"cluster": cluster, "job": "1234", "attempt": 1, "nodes": ["gpu-001"]})
    )


def placed(cluster: str) -> Placement:
    run = {"cluster": cluster, "job": "1234", "attempt": 1}
    return Placement.model_validate_json(
        to_json({**run, "node": "gpu-001", "state": "desired", "epoch": 1, "round": 1, "commit": "c-1"})
    )


async def test_script_publishes_waits_and_follows(railweave: Any) -> None:
    await railweave.say(prepared(railweave.cluster))
    await railweave.say(placed(railweave.cluster))
    run = {"cluster": railweave.cluster, "job": "1234", "attempt": 1}

    def script() -> None:
        with SyncRailweave(railweave.url) as client:
            first = client.submit(railweave.job())
            assert client.submit(railweave.job()).sequence == first.sequence
            assert client.wait_prepared(railweave.cluster, "1234", 1, 5).nodes == ("gpu-001",)
            client.update({**run, "revision": 1, "priority": 3})
            client.started(run)
            client.ended({**run, "outcome": "succeeded"})
            client.snapshot({"cluster": railweave.cluster, "number": 1, "taken_at": "2026-12-01T10:00:00Z", "live": []})
            update = next(client.placements(cluster=railweave.cluster))
            assert (update.placement.node, update.fence.epoch) == ("gpu-001", 1)
            told = client.job_events(cluster=railweave.cluster, job="1234")
            assert [next(told).event.TYPE.split(".")[2] for _ in range(3)] == ["prepared", "submitted", "updated"]
            told.close()
            with pytest.raises(ContractError, match="there is no such field"):
                client.submit(railweave.job(gpus=1))
            with pytest.raises(StillWaiting):
                client.submit_and_wait(railweave.job(attempt=2), "attached", timeout=0.3)

    await asyncio.to_thread(script)
    assert not [thread for thread in threading.enumerate() if thread.name == "railweave-client"]


async def test_script_without_a_server_is_told_and_leaves_no_thread() -> None:
    def script() -> None:
        with pytest.raises(Unreachable), SyncRailweave("nats://127.0.0.1:1", deadline_s=0.3):
            pass

    await asyncio.to_thread(script)
    assert not [thread for thread in threading.enumerate() if thread.name == "railweave-client"]


async def test_script_that_forgets_the_with_is_told_and_iterators_may_outlive_it(railweave: Any) -> None:
    await railweave.say(placed(railweave.cluster))

    def script() -> None:
        with SyncRailweave(railweave.url) as client:
            updates = client.placements(cluster=railweave.cluster)
            next(updates)
        updates.close()
        for closed in (client, SyncRailweave(railweave.url)):
            with pytest.raises(RuntimeError, match="with SyncRailweave"):
                closed.submit(railweave.job())

    await asyncio.to_thread(script)
