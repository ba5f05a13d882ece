"""PlacementSubscriber and JobFollower: what is now, then every change, over whatever happens to the broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_core import to_json

from railweave.contracts import ContractError, registered_types
from railweave.contracts.client import JobFollower, PlacementSubscriber, Refused
from railweave.contracts.placement import Placement

SOON_S = 5.0


def placement(railweave: Any, job: str = "1", node: str = "gpu-001", **more: Any) -> Placement:
    data = {
        "cluster": railweave.cluster,
        "job": job,
        "attempt": 1,
        "node": node,
        "state": "desired",
        "epoch": 1,
        "round": 1,
        "commit": "c-1",
        **more,
    }
    return Placement.model_validate_json(to_json(data))


async def place(railweave: Any, job: str = "1", node: str = "gpu-001", **more: Any) -> int:
    sequence: int = await railweave.say(placement(railweave, job, node, **more))
    return sequence


async def seen(subscriber: Any, count: int, timeout_s: float = SOON_S) -> list[tuple[str, str, str]]:
    """The next `count` placements as (job, node, state)."""
    async with asyncio.timeout(timeout_s):
        updates = [await anext(subscriber) for _ in range(count)]
    return [(str(u.placement.job), str(u.placement.node), str(u.placement.state)) for u in updates]


async def is_silent(subscriber: Any) -> bool:
    try:
        async with asyncio.timeout(0.4):
            await anext(subscriber)
    except TimeoutError:
        return True
    return False


async def test_it_starts_with_what_is_desired_now_and_goes_on_with_every_change(railweave: Any) -> None:
    await place(railweave, "1")
    await place(railweave, "2")
    await place(railweave, "2", state="releasing")
    await place(railweave, "3", state="released")
    async with PlacementSubscriber(railweave.url, cluster=railweave.cluster) as placements:
        assert await seen(placements, 2) == [("1", "gpu-001", "desired"), ("2", "gpu-001", "releasing")]
        assert placements.is_caught_up or await is_silent(placements)
        sequence = await place(railweave, "1", state="released", epoch=2)
        update = await anext(placements)
        assert (update.placement.state, update.fence) == ("released", (2, sequence))
        assert update.stored_at.tzinfo is not None
        await place(railweave, "4", state="released")  # never shown, so its end is of no interest
        await place(railweave, "5")
        assert await seen(placements, 1) == [("5", "gpu-001", "desired")]


async def test_filters_by_node_job_and_cluster_alone_and_together(railweave: Any) -> None:
    node = f"node1.{railweave.cluster}"  # a name that needs the codec
    await place(railweave, "1", node)
    await place(railweave, "1", "gpu-002")
    await place(railweave, 'Schüler "70B"', node)
    one, two, three = ("1", node, "desired"), ("1", "gpu-002", "desired"), ('Schüler "70B"', node, "desired")
    for wanted, names in [
        ([one, three], {"node": node}),
        ([one, two], {"cluster": railweave.cluster, "job": "1"}),
        ([one, two, three], {"cluster": railweave.cluster}),
        ([three], {"job": 'Schüler "70B"', "node": node}),
        ([one], {"cluster": railweave.cluster, "job": "1", "node": node}),
    ]:
        async with PlacementSubscriber(railweave.client, **names) as placements:
            assert await seen(placements, len(wanted)) == wanted
            assert await is_silent(placements)


async def test_it_resumes_behind_a_sequence_with_releases(railweave: Any) -> None:
    first = await place(railweave, "1")
    await place(railweave, "2")
    await place(railweave, "1", state="released")
    async with PlacementSubscriber(railweave.url, cluster=railweave.cluster, start_after=first) as placements:
        assert await seen(placements, 2) == [("2", "gpu-001", "desired"), ("1", "gpu-001", "released")]


async def test_resume_point_of_a_stream_that_was_lost_starts_anew(fresh_railweave: Any) -> None:
    await place(fresh_railweave, "1")
    async with PlacementSubscriber(fresh_railweave.url, start_after=10_000) as placements:
        assert await seen(placements, 1) == [("1", "gpu-001", "desired")]


async def test_taker_that_gives_up_waiting_loses_nothing(railweave: Any) -> None:
    async with PlacementSubscriber(railweave.url, cluster=railweave.cluster) as placements:
        for number in range(30):
            waiting = asyncio.create_task(anext(placements))
            await asyncio.sleep(0.001 * (number % 7))
            waiting.cancel()
            await asyncio.wait([waiting])
            if not waiting.cancelled():
                pytest.fail("nothing was there to take")
        await place(railweave, "1")
        assert await seen(placements, 1) == [("1", "gpu-001", "desired")]


async def test_message_nobody_can_read_is_skipped(railweave: Any) -> None:
    async with PlacementSubscriber(railweave.url, cluster=railweave.cluster) as placements:
        await railweave.js.publish(f"rw.placement.gpu-001.{railweave.cluster}.1.1", b"{")
        await railweave.js.publish(
            f"rw.placement.gpu-001.{railweave.cluster}.1.2", b'{"type": "railweave.placement.v9"}'
        )
        await place(railweave, "2")
        assert await seen(placements, 1) == [("2", "gpu-001", "desired")]


async def test_a_thousand_placements_come_in_order_each_once(railweave: Any) -> None:
    for number in range(0, 1000, 100):
        await asyncio.gather(*(place(railweave, f"{number + i}") for i in range(100)))
    async with PlacementSubscriber(railweave.url, cluster=railweave.cluster) as placements:
        async with asyncio.timeout(20):
            updates = [await anext(placements) for _ in range(1000)]
        assert await is_silent(placements)
    sequences = [update.fence.sequence for update in updates]
    assert sequences == sorted(set(sequences))


async def test_killed_broker_costs_under_two_seconds_and_no_placement(fresh_railweave: Any) -> None:
    async with PlacementSubscriber(fresh_railweave.url) as placements:
        await place(fresh_railweave, "1")
        assert await seen(placements, 1) == [("1", "gpu-001", "desired")]
        for number in range(2, 5):
            taking = asyncio.create_task(seen(placements, 1, 30))
            await fresh_railweave.restart(pause_s=0.3)
            await place(fresh_railweave, f"{number}")
            async with asyncio.timeout(2):
                assert await taking == [(f"{number}", "gpu-001", "desired")]


async def test_frozen_broker_is_waited_for(fresh_railweave: Any) -> None:
    async with PlacementSubscriber(fresh_railweave.url) as placements:
        fresh_railweave.server.pause()
        await asyncio.sleep(2)
        fresh_railweave.server.resume()
        await place(fresh_railweave, "1")
        assert await seen(placements, 1) == [("1", "gpu-001", "desired")]


async def test_stream_that_was_made_anew_is_told_from_its_start(fresh_railweave: Any) -> None:
    for number in range(5):
        await place(fresh_railweave, f"{number}")
    async with PlacementSubscriber(fresh_railweave.url) as placements:
        await seen(placements, 5)
        await fresh_railweave.js.delete_stream("PLACEMENTS")
        await fresh_railweave.js.add_stream(name="PLACEMENTS", subjects=["rw.placement.>"], max_msgs_per_subject=1)
        await place(fresh_railweave, "new")
        assert await seen(placements, 1) == [("new", "gpu-001", "desired")]


async def test_consumer_that_an_operator_deletes_is_made_again(fresh_railweave: Any) -> None:
    async with PlacementSubscriber(fresh_railweave.url) as placements:
        await place(fresh_railweave, "1")
        await seen(placements, 1)
        for consumer in await fresh_railweave.js.consumers_info("PLACEMENTS"):
            await fresh_railweave.js.delete_consumer("PLACEMENTS", consumer.name)
        await place(fresh_railweave, "2")
        assert await seen(placements, 1) == [("2", "gpu-001", "desired")]


async def test_nothing_is_left_on_the_broker(fresh_railweave: Any) -> None:
    for _ in range(3):
        async with PlacementSubscriber(fresh_railweave.url), JobFollower(fresh_railweave.client):
            pass
    left = [info for stream in ("PLACEMENTS", "JOBS") for info in await fresh_railweave.js.consumers_info(stream)]
    assert [info.name for info in left if not info.config.durable_name] == []


async def test_malformed_names_and_missing_streams_are_said_on_entry(fresh_railweave: Any) -> None:
    with pytest.raises(ContractError) as caught:
        PlacementSubscriber(fresh_railweave.url, node="a b")
    assert caught.value.field == "node"
    await fresh_railweave.js.delete_stream("PLACEMENTS")
    subscriber = PlacementSubscriber(fresh_railweave.client, patience_s=0.3)
    with pytest.raises(Refused, match="stream not found"):
        await subscriber.__aenter__()


# Jobs -----------------------------------------------------------------------------------------------------------------


async def say(railweave: Any, kind: str, job: str = "1", **more: Any) -> int:
    data = {"cluster": railweave.cluster, "job": job, "attempt": 1, **more}
    event = registered_types()[f"railweave.job.{kind}.v1"].model_validate_json(to_json(data))
    sequence: int = await railweave.say(event)
    return sequence


async def kinds(follower: Any, count: int) -> list[tuple[str, str]]:
    async with asyncio.timeout(SOON_S):
        updates = [await anext(follower) for _ in range(count)]
    return [(str(update.event.job), update.event.EVENT) for update in updates]


async def test_job_s_life_is_told_in_order(railweave: Any) -> None:
    await say(railweave, "submitted", workers=[{"count": 1}])
    await say(railweave, "submitted", job="2", workers=[{"count": 1}])
    placed = await say(railweave, "prepared", nodes=["gpu-001"])
    async with JobFollower(railweave.url, cluster=railweave.cluster, job="1") as follower:
        assert await kinds(follower, 2) == [("1", "submitted"), ("1", "prepared")]
        await say(railweave, "ended", outcome="succeeded")
        assert await kinds(follower, 1) == [("1", "ended")]
    async with JobFollower(railweave.url, cluster=railweave.cluster, start_after=placed) as follower:
        assert await kinds(follower, 1) == [("1", "ended")]


async def test_new_tells_only_what_comes_even_over_a_restart(fresh_railweave: Any) -> None:
    await say(fresh_railweave, "submitted", workers=[{"count": 1}])
    async with JobFollower(fresh_railweave.url, start="new") as follower:
        taking = asyncio.create_task(kinds(follower, 1))
        await asyncio.sleep(0.2)
        await fresh_railweave.restart()
        await say(fresh_railweave, "submitted", job="2", workers=[{"count": 1}])
        assert await taking == [("2", "submitted")]
