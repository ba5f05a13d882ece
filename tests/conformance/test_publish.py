"""Publishing: stored once, refused by name, or known to be unknown."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from railweave.contracts.wire import WireMessage
from railweave.runtime.bus import Bus
from railweave.runtime.errors import NotStored, OutcomeUnknown, PublishRefused, StaleFence
from railweave.runtime.local_servers import LocalNatsServer
from railweave_testing.buses import OwnStream, connected, frozen, own_stream


async def test_repeat_under_the_same_id_is_stored_once(bus: Bus) -> None:
    stream = await own_stream(bus)
    first = await bus.publish(stream.message("k", "a", "id-1"))
    again = await bus.publish(stream.message("k", "a", "id-1"))
    assert (first.stream, first.sequence, first.duplicate) == (stream.name, 1, False)
    assert (again.sequence, again.duplicate) == (1, True)


async def test_same_id_on_another_subject_of_the_stream_is_dropped_too(bus: Bus) -> None:
    """Finding 8: the window is per stream, so the event's type is part of its id."""
    stream = await own_stream(bus)
    await bus.publish(stream.message("a", "a", "id-1"))
    assert (await bus.publish(stream.message("b", "b", "id-1"))).duplicate


async def test_duplicate_window_survives_a_killed_broker(fresh_nats_server: LocalNatsServer) -> None:
    async with connected(fresh_nats_server) as bus:
        stream = await own_stream(bus)
        await bus.publish(stream.message("k", "a", "id-1"))
        await asyncio.sleep(0.4)  # what was acknowledged just before a kill may be lost (finding 2)
        await asyncio.to_thread(fresh_nats_server.kill)
        await asyncio.to_thread(fresh_nats_server.start)
        assert (await bus.publish(stream.message("k", "a", "id-1"))).duplicate


async def test_stream_that_is_not_there_yet_is_waited_for(bus: Bus) -> None:
    """Row 12: plain nats-py raises NoStreamResponseError at once."""
    stream = await own_stream(bus)
    config = (await bus.api.stream_info(stream.name))["config"]
    await bus.api.call(f"STREAM.DELETE.{stream.name}")
    publishing = asyncio.create_task(bus.publish(stream.message("k", "a", "id-1"), stream=stream.name))
    await asyncio.sleep(0.3)
    assert not publishing.done()
    await bus.api.call(f"STREAM.CREATE.{stream.name}", config)
    async with asyncio.timeout(3):
        stored = await publishing
    assert (stored.sequence, stored.duplicate) == (1, False)
    assert (await bus.stream_state(stream.name)).messages == 1


async def test_stream_that_never_comes_is_told_after_the_deadline_as_not_stored(bus: Bus) -> None:
    with pytest.raises(NotStored):
        await bus.publish(WireMessage("t.no.such.stream", b"x", {}, "id-1"), deadline_s=0.5)


async def test_publish_over_a_killed_and_restarted_broker_is_stored_once(fresh_nats_server: LocalNatsServer) -> None:
    async with connected(fresh_nats_server) as bus:
        stream = await own_stream(bus)
        await bus.publish(stream.message("before", "a", "id-0"))
        await asyncio.sleep(0.3)
        await asyncio.to_thread(fresh_nats_server.kill)
        publishing = [asyncio.create_task(bus.publish(stream.message("k", "a", "id-1"))) for _ in range(5)]
        await asyncio.sleep(0.3)
        await asyncio.to_thread(fresh_nats_server.start)
        stored = await asyncio.gather(*publishing)
        assert sorted(one.duplicate for one in stored) == [False, True, True, True, True]
        assert (await bus.stream_state(stream.name)).last_sequence == 2


async def test_every_acknowledged_message_of_a_stream_of_kills_is_there_once(
    fresh_nats_server: LocalNatsServer,
) -> None:
    """Repeating after every unknown outcome, under the same id, until all are acknowledged in quiet."""
    async with connected(fresh_nats_server, request_timeout_s=0.5) as bus:
        stream = await own_stream(bus)
        messages = [stream.message(f"k.{number}", str(number), f"id-{number}") for number in range(1500)]
        publishing = asyncio.create_task(bus.publish_many(messages, deadline_s=20))
        for _ in range(2):
            await asyncio.sleep(0.08)
            await asyncio.to_thread(fresh_nats_server.kill)
            await asyncio.to_thread(fresh_nats_server.start)
        await publishing
        await bus.publish_many(messages)  # a kill may lose what was acknowledged in its last moment
        bodies = set()
        state = await bus.stream_state(stream.name)
        assert state.messages == len(messages)
        for sequence in range(state.first_sequence, state.last_sequence + 1):
            found = await bus.read(stream.name, sequence)
            assert found is not None
            bodies.add(found.body)
        assert len(bodies) == len(messages)


async def test_frozen_broker_makes_the_outcome_unknown_at_the_deadline(fresh_nats_server: LocalNatsServer) -> None:
    async with connected(fresh_nats_server, request_timeout_s=0.3) as bus:
        stream = await own_stream(bus)
        async with frozen(fresh_nats_server):
            with pytest.raises(OutcomeUnknown) as unknown:
                await bus.publish(stream.message("k", "a", "id-1"), deadline_s=0.8)
            assert not isinstance(unknown.value, NotStored)
        # It was in fact stored, once, for all its tries; the repeat is known as one.
        assert (await bus.publish(stream.message("k", "a", "id-1"))).duplicate
        assert (await bus.stream_state(stream.name)).messages == 1


async def test_message_without_an_id_is_not_repeated_once_it_may_be_stored(
    fresh_nats_server: LocalNatsServer,
) -> None:
    async with connected(fresh_nats_server, request_timeout_s=0.3) as bus:
        stream = await own_stream(bus)
        async with frozen(fresh_nats_server):
            with pytest.raises(OutcomeUnknown):
                await bus.publish(stream.message("k"), deadline_s=5)
        # JetStream stores behind the connection's back: a write of our own to the same stream comes after it.
        assert (await bus.publish(stream.message("after", "x", "id-after"))).sequence == 2


async def test_wrong_stream_is_refused_at_once_in_a_pipeline_too(bus: Bus) -> None:
    """Row 11: nats-py's publish_async never tells; the future hangs."""
    stream = await own_stream(bus)
    async with asyncio.timeout(2):
        with pytest.raises(PublishRefused) as refused:
            await bus.publish(stream.message("k", "a", "id-1"), stream="ANOTHER")
        with pytest.raises(PublishRefused):
            await bus.publish_many([stream.message("k", Nats_Expected_Stream="ANOTHER") for _ in range(100)])
    assert refused.value.code == 10060


async def test_table_names_the_stream_of_our_subjects(bus: Bus) -> None:
    """A stream that grabbed our subjects by mistake does not swallow our events."""
    token = "jobcopy"
    name = f"GRAB_{token}"
    await bus.api.call(f"STREAM.CREATE.{name}", {"name": name, "subjects": ["rw.job.grabbed.>"], "storage": "memory"})
    try:
        with pytest.raises(PublishRefused):
            await bus.publish(WireMessage("rw.job.grabbed.a.1", b"x", {}, "id-1"))
    finally:
        await bus.api.call(f"STREAM.DELETE.{name}")


async def test_payload_past_the_limit_is_refused_and_the_connection_lives(bus: Bus) -> None:
    stream = await own_stream(bus)
    with pytest.raises(PublishRefused, match="the server takes"):
        await bus.publish(stream.message("k", b"x" * 1024 * 1024))
    assert (await bus.publish(stream.message("k", b"x" * 1_000_000))).sequence == 1


async def test_many_are_all_stored_and_told_in_the_order_given(bus: Bus) -> None:
    stream = await own_stream(bus)
    messages = [stream.message(f"k.{number}", str(number), f"id-{number}") for number in range(500)]
    stored = await bus.publish_many(itertools.chain(messages, messages[:3]))
    assert len(stored) == 503
    for place in (0, 250, 499):
        found = await bus.read(stream.name, stored[place].sequence)
        assert found is not None
        assert found.body == str(place).encode()
    assert [one.sequence for one in stored[500:]] == [one.sequence for one in stored[:3]]


async def test_first_refusal_of_many_is_raised_as_it_is(bus: Bus) -> None:
    stream = await own_stream(bus)
    messages = [*stream.messages(10), stream.message("bad", Nats_Expected_Stream="ANOTHER")]
    with pytest.raises(PublishRefused):
        await bus.publish_many(messages)


async def test_put_holds_only_against_the_subjects_last_message(bus: Bus) -> None:
    """Rows 23 and 24: one typed conflict, for a subject that is there and for one that is not."""
    stream = await own_stream(bus, per_subject=1)
    first = await bus.put(stream.name, stream.message("k", "1"), expected_subject_last=0)
    with pytest.raises(StaleFence) as refused:
        await bus.put(stream.name, stream.message("k", "2"), expected_subject_last=0)
    assert refused.value.actual == first
    assert await bus.put(stream.name, stream.message("k", "2"), expected_subject_last=first) == first + 1


async def test_of_two_puts_at_once_exactly_one_holds(bus: Bus, nats_server: LocalNatsServer) -> None:
    """Row 23."""
    stream = await own_stream(bus, per_subject=1)
    async with connected(nats_server) as other:
        last = 0
        for _ in range(30):
            outcomes = await asyncio.gather(
                bus.put(stream.name, stream.message("k", "a"), expected_subject_last=last),
                other.put(stream.name, stream.message("k", "b"), expected_subject_last=last),
                return_exceptions=True,
            )
            held = [outcome for outcome in outcomes if isinstance(outcome, int)]
            assert len(held) == 1
            assert sum(isinstance(outcome, StaleFence) for outcome in outcomes) == 1
            last = held[0]


async def test_reads_come_whole_with_headers_time_and_body(bus: Bus) -> None:
    stream = await own_stream(bus)
    await bus.publish(stream.message("k", "grün ✓", "id-1", traceparent="00-ab-cd-01"))
    last = await bus.read_last(stream.name, stream.subject("k"))
    assert last == await bus.read(stream.name, 1)
    assert last is not None
    assert (last.body.decode(), last.headers["traceparent"], last.headers["Nats-Msg-Id"]) == (
        "grün ✓",
        "00-ab-cd-01",
        "id-1",
    )
    assert await bus.read_last(stream.name, stream.subject("other")) is None
    assert await bus.read(stream.name, 2) is None
    assert await bus.read_next(stream.name, stream.subject(">"), from_sequence=1) == last


async def test_stream_made_again_starts_at_one_and_is_told_apart_by_its_creation(bus: Bus) -> None:
    """Why the record's fence is (epoch, sequence) and not the sequence alone."""
    stream = await own_stream(bus)
    await bus.publish_many(stream.messages(3))
    before = await bus.stream_state(stream.name)
    config = (await bus.api.stream_info(stream.name))["config"]
    await bus.api.call(f"STREAM.DELETE.{stream.name}")
    await bus.api.call(f"STREAM.CREATE.{stream.name}", config)
    after = await bus.stream_state(stream.name)
    assert (before.last_sequence, after.last_sequence) == (3, 0)
    assert after.created > before.created


async def test_soak_of_requests_and_empty_pulls_keeps_memory_flat(bus: Bus) -> None:
    """Row 32, short: what is waited for is forgotten when it is over."""
    stream = OwnStream("NONE", "none")
    for _ in range(200):
        with pytest.raises(OutcomeUnknown):
            await bus.publish(stream.message("k", "x", "id"), deadline_s=0.001)
    assert len(bus.replies._waiting) == 0
