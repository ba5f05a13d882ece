"""Appending many guarded messages: a leading part is stored or all, in order, and only where the fence holds."""

from __future__ import annotations

import asyncio

import pytest

from railweave.runtime.bus import Bus
from railweave.runtime.errors import NotStored, OutcomeUnknown, StaleFence
from railweave.runtime.local_servers import LocalNatsServer
from railweave_testing.buses import connected, eventually, own_stream


async def test_all_are_stored_in_order_and_the_last_sequence_is_given(bus: Bus) -> None:
    stream = await own_stream(bus, allow_atomic=True)
    assert await bus.append(stream.name, stream.messages(2505), expected_last=0) == 2505
    for sequence in (1, 1000, 1001, 2000, 2505):
        stored = await bus.read(stream.name, sequence)
        assert stored is not None
        assert stored.body == f"k{sequence - 1}".encode()


async def test_stream_without_batches_takes_them_one_by_one(bus: Bus) -> None:
    stream = await own_stream(bus)
    assert await bus.append(stream.name, stream.messages(50), expected_last=0) == 50
    stored = await bus.read(stream.name, 50)
    assert stored is not None
    assert "Nats-Batch-Id" not in stored.headers


async def test_pipeline_of_guarded_writes_would_store_behind_another_writer(bus: Bus) -> None:
    """Why an append is none: the first is refused, and the stream ends where the second expects it to."""
    stream = await own_stream(bus)
    await bus.publish(stream.message("other"))
    replies = [
        await bus.replies.send(stream.subject("k"), b"x", {"Nats-Expected-Last-Sequence": str(expected)})
        for expected in (0, 1, 2)
    ]
    answers = [(await reply.result(2.0)).data for reply in replies]
    assert b"10071" in answers[0]
    assert b'"seq":2' in answers[1]


@pytest.mark.parametrize(("count", "is_atomic"), [(5, True), (50, True), (50, False)])
async def test_stale_fence_stores_nothing(bus: Bus, count: int, is_atomic: bool) -> None:
    stream = await own_stream(bus, allow_atomic=is_atomic)
    await bus.append(stream.name, stream.messages(3), expected_last=0)
    with pytest.raises(StaleFence) as refused:
        await bus.append(stream.name, stream.messages(count, "late"), expected_last=2)
    assert (refused.value.expected, refused.value.actual, refused.value.stored_up_to) == (2, 3, None)
    assert (await bus.stream_state(stream.name)).last_sequence == 3


@pytest.mark.parametrize(("count", "is_atomic"), [(12, True), (2900, True), (300, False)])
async def test_writer_that_comes_between_cuts_the_append_and_never_mixes(
    bus: Bus, nats_server: LocalNatsServer, count: int, is_atomic: bool
) -> None:
    stream = await own_stream(bus, allow_atomic=is_atomic)
    async with connected(nats_server) as other:
        appending = asyncio.create_task(bus.append(stream.name, stream.messages(count), expected_last=0))
        await asyncio.sleep(0.002)
        intruder = await other.publish(stream.message("intruder", "!"))
        try:
            await appending
            cut_at = count
        except StaleFence as cut:
            cut_at = cut.stored_up_to or 0
        assert intruder.sequence == cut_at + 1
        assert (await bus.stream_state(stream.name)).last_sequence == cut_at + 1


async def test_tombstone_with_a_ttl_goes_away_by_itself(bus: Bus) -> None:
    stream = await own_stream(bus, per_subject=1, allow_msg_ttl=True)
    await bus.append(stream.name, [stream.message("k", "tombstone", Nats_TTL="1s")], expected_last=0)
    await asyncio.sleep(1.6)
    assert await bus.read_last(stream.name, stream.subject("k")) is None
    assert (await bus.stream_state(stream.name)).last_sequence == 1


async def test_broker_killed_in_the_middle_leaves_a_leading_part(fresh_nats_server: LocalNatsServer) -> None:
    async with connected(fresh_nats_server) as bus:
        stream = await own_stream(bus, allow_atomic=True)
        appending = asyncio.create_task(bus.append(stream.name, stream.messages(20_000), expected_last=0))
        await asyncio.sleep(0.3)
        await asyncio.to_thread(fresh_nats_server.kill)
        with pytest.raises(OutcomeUnknown):
            await appending
        await asyncio.to_thread(fresh_nats_server.start)
        last = (await bus.stream_state(stream.name, deadline_s=10)).last_sequence
        assert 0 < last < 20_000
        stored = await bus.read(stream.name, last)
        assert stored is not None
        assert stored.body == f"k{last - 1}".encode()
        assert await bus.append(stream.name, stream.messages(3), expected_last=last) == last + 3


async def test_broker_away_from_the_start_is_known_not_to_have_stored(fresh_nats_server: LocalNatsServer) -> None:
    async with connected(fresh_nats_server) as bus:
        stream = await own_stream(bus)
        await asyncio.to_thread(fresh_nats_server.kill)
        await eventually(lambda: not bus.is_up)
        with pytest.raises(NotStored):
            await bus.append(stream.name, stream.messages(3), expected_last=0)
