"""The atomic batch (ADR-50) as the committer relies on it; the bullets of the notes on the committer."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from railweave.contracts.wire import WireMessage
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus
from railweave.runtime.errors import (
    ApiError,
    BatchTooLarge,
    NotStored,
    OutcomeUnknown,
    PublishRefused,
    StaleFence,
    StreamBusy,
)
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.streams import StreamSpec
from railweave_testing.buses import OwnStream, connected, frozen, own_stream

first_or_later = pytest.mark.parametrize("committed_before", [False, True], ids=["first batch", "later batch"])
"""Only the first batch on a server waits for its opening; a later one is sent whole at once."""


async def _record(bus: Bus) -> OwnStream:
    return await own_stream(bus, per_subject=1, allow_atomic=True, allow_msg_ttl=True)


async def _commit_somewhere(bus: Bus) -> None:
    record = await _record(bus)
    await bus.commit(record.name, record.messages(2), expected_last=0, batch_id="before")


async def test_reply_names_the_last_sequence_of_the_batch(bus: Bus) -> None:
    record = await _record(bus)
    assert await bus.commit(record.name, record.messages(9), expected_last=0, batch_id="b1") == 9
    assert await bus.commit(record.name, record.messages(3), expected_last=9, batch_id="b2") == 12


async def test_batch_headers_are_stored_so_that_a_reader_sees_where_it_ends(bus: Bus) -> None:
    record = await _record(bus)
    await bus.commit(record.name, record.messages(3), expected_last=0, batch_id="b1")
    stored = [await bus.read(record.name, sequence) for sequence in (1, 2, 3)]
    assert [message.headers["Nats-Batch-Id"] for message in stored if message] == ["b1"] * 3
    assert [message.headers["Nats-Batch-Sequence"] for message in stored if message] == ["1", "2", "3"]
    assert ["Nats-Batch-Commit" in message.headers for message in stored if message] == [False, False, True]


async def test_committer_one_sequence_behind_stores_nothing(bus: Bus) -> None:
    record = await _record(bus)
    await bus.commit(record.name, record.messages(4), expected_last=0, batch_id="b1")
    with pytest.raises(StaleFence) as refused:
        await bus.commit(record.name, record.messages(4), expected_last=3, batch_id="b2")
    assert (refused.value.expected, refused.value.actual) == (3, 4)
    assert (await bus.stream_state(record.name)).last_sequence == 4


async def test_committer_ahead_of_the_stream_stores_nothing(bus: Bus) -> None:
    record = await _record(bus)
    with pytest.raises(StaleFence):
        await bus.commit(record.name, record.messages(4), expected_last=7, batch_id="b1")
    assert (await bus.stream_state(record.name)).last_sequence == 0


async def test_of_two_committers_at_once_exactly_one_is_stored(nats_server: LocalNatsServer, bus: Bus) -> None:
    """Each round both believe in their lease; the fence decides."""
    record = await _record(bus)
    async with connected(nats_server) as other:
        last = 0
        for round_number in range(20):
            outcomes = await asyncio.gather(
                bus.commit(record.name, record.messages(5, "a"), expected_last=last, batch_id=f"a{round_number}"),
                other.commit(record.name, record.messages(7, "b"), expected_last=last, batch_id=f"b{round_number}"),
                return_exceptions=True,
            )
            stored = [outcome for outcome in outcomes if isinstance(outcome, int)]
            assert len(stored) == 1, outcomes
            assert sum(isinstance(outcome, StaleFence) for outcome in outcomes) == 1
            state = await bus.stream_state(record.name)
            assert state.last_sequence == stored[0]
            last = stored[0]


async def test_single_message_goes_as_a_guarded_plain_write(bus: Bus) -> None:
    record = await _record(bus)
    assert await bus.commit(record.name, record.messages(1), expected_last=0, batch_id="b1") == 1
    with pytest.raises(StaleFence):
        await bus.commit(record.name, record.messages(1), expected_last=0, batch_id="b1")
    stored = await bus.read(record.name, 1)
    assert stored is not None
    assert "Nats-Batch-Id" not in stored.headers


async def test_ids_are_left_out_so_that_a_repeat_does_not_fail_the_batch(bus: Bus) -> None:
    record = await _record(bus)
    seen = record.message("k.0", msg_id="seen")
    await bus.publish(seen)
    assert await bus.commit(record.name, [seen, record.message("k.1")], expected_last=1, batch_id="b1") == 3


async def test_an_id_already_seen_would_refuse_the_whole_batch(bus: Bus) -> None:
    """Why ids are left out: error 10201."""
    record = await _record(bus)
    await bus.publish(record.message("k.0", msg_id="seen"))
    batch = [record.message("k.1"), record.message("k.0", Nats_Msg_Id="seen")]
    with pytest.raises(PublishRefused) as refused:
        await bus.commit(record.name, batch, expected_last=1, batch_id="b1")
    assert refused.value.code == 10201
    assert (await bus.stream_state(record.name)).last_sequence == 1


async def test_last_of_the_same_subject_twice_in_a_batch_wins(bus: Bus) -> None:
    record = await _record(bus)
    batch = [record.message("k", "first"), record.message("other"), record.message("k", "second")]
    await bus.commit(record.name, batch, expected_last=0, batch_id="b1")
    stored = await bus.read_last(record.name, record.subject("k"))
    assert stored is not None
    assert stored.body == b"second"
    assert (await bus.stream_state(record.name)).messages == 2


async def test_batch_past_a_thousand_is_refused_before_anything_is_sent(bus: Bus) -> None:
    record = await _record(bus)
    with pytest.raises(BatchTooLarge):
        await bus.commit(record.name, record.messages(1001), expected_last=0, batch_id="b1")
    assert await bus.commit(record.name, record.messages(1000), expected_last=0, batch_id="b2") == 1000


async def test_server_counts_past_a_thousand_too(bus: Bus) -> None:
    """10199, as notes say; seen through the bare protocol."""
    record = await _record(bus)
    answer = await _bare_batch(bus, record, 1001)
    assert b"10199" in answer


async def test_message_past_the_payload_limit_is_refused_and_the_connection_lives(bus: Bus) -> None:
    record = await _record(bus)
    batch = [record.message("k.0"), record.message("k.1", b"x" * (1024 * 1024))]
    with pytest.raises(PublishRefused, match="the server takes"):
        await bus.commit(record.name, batch, expected_last=0, batch_id="b1")
    assert await bus.commit(record.name, record.messages(2), expected_last=0, batch_id="b2") == 2


async def test_gap_in_a_batch_refuses_it_whole(bus: Bus) -> None:
    """10176: a message of the batch was lost on the way."""
    record = await _record(bus)
    answer = await _bare_batch(bus, record, 5, leave_out=3)
    assert b"10176" in answer
    assert (await bus.stream_state(record.name)).last_sequence == 0


async def test_uncommitted_batch_is_invisible(bus: Bus) -> None:
    record = await _record(bus)
    await _open_batch(bus, record, "never-committed")
    await bus.barrier()
    assert (await bus.stream_state(record.name)).messages == 0
    assert await bus.commit(record.name, record.messages(2), expected_last=0, batch_id="b1") == 2


@first_or_later
async def test_fifty_first_open_batch_is_told_as_busy_and_stores_nothing(
    fresh_nats_server: LocalNatsServer, committed_before: bool
) -> None:
    """A publisher that died with a batch open blocks a place for ten seconds; 10210 is backoff, not failure."""
    async with connected(fresh_nats_server) as bus:
        if committed_before:
            await _commit_somewhere(bus)
        record = await _record(bus)
        for number in range(50):
            await _open_batch(bus, record, f"open-{number}")
        with pytest.raises(StreamBusy):
            await bus.commit(record.name, record.messages(2), expected_last=0, batch_id="b1")
        assert (await bus.stream_state(record.name)).messages == 0


@pytest.mark.long
async def test_abandoned_batches_give_their_places_back_after_ten_seconds(fresh_nats_server: LocalNatsServer) -> None:
    async with connected(fresh_nats_server) as bus:
        record = await _record(bus)
        for number in range(50):
            await _open_batch(bus, record, f"open-{number}")
        async with asyncio.timeout(20):
            while True:
                try:
                    assert await bus.commit(record.name, record.messages(2), expected_last=0, batch_id="b1") == 2
                    return
                except StreamBusy:
                    await asyncio.sleep(0.5)


async def test_deletes_and_expiry_do_not_move_the_last_sequence(bus: Bus) -> None:
    record = await _record(bus)
    tombstone = record.message("gone", "tombstone", Nats_TTL="1s")
    last = await bus.commit(record.name, [record.message("k"), tombstone], expected_last=0, batch_id="b1")
    await asyncio.sleep(1.6)
    assert await bus.read_last(record.name, record.subject("gone")) is None
    await bus.api.call(f"STREAM.MSG.DELETE.{record.name}", {"seq": 1, "no_erase": True})
    assert (await bus.stream_state(record.name)).last_sequence == last
    assert await bus.commit(record.name, record.messages(2), expected_last=last, batch_id="b2") == last + 2


@first_or_later
async def test_stream_without_atomic_batches_refuses_and_stores_nothing(bus: Bus, committed_before: bool) -> None:
    if committed_before:
        await _commit_somewhere(bus)
    plain = await own_stream(bus)
    with pytest.raises(PublishRefused):
        await bus.commit(plain.name, plain.messages(3), expected_last=0, batch_id="b1")
    assert (await bus.stream_state(plain.name)).messages == 0


async def test_full_stream_that_discards_new_refuses_the_batch_whole(bus: Bus) -> None:
    """10077; nothing of it is stored."""
    name = f"F{uuid.uuid4().hex[:8]}"
    own = OwnStream(name, name)
    config = StreamSpec(name, (own.subject(">"),), "", allow_atomic=True).config(replicas=1, storage="file")
    await bus.api.call(f"STREAM.CREATE.{name}", config | {"max_msgs": 3, "discard": "new"})
    with pytest.raises(PublishRefused) as refused:
        await bus.commit(name, own.messages(5), expected_last=0, batch_id="b1")
    assert refused.value.code == 10077
    assert (await bus.stream_state(name)).messages == 0


async def test_mirror_cannot_take_batches(bus: Bus) -> None:
    """10198 is in the notes; what matters is that JetStream says no when the mirror is made."""
    record = await _record(bus)
    with pytest.raises(ApiError):
        await bus.api.call(
            "STREAM.CREATE.MIRRORED",
            {"name": "MIRRORED", "storage": "file", "mirror": {"name": record.name}, "allow_atomic": True},
        )


async def test_acknowledged_batches_survive_a_killed_broker_and_none_is_partial(
    fresh_nats_server: LocalNatsServer,
) -> None:
    """Kill -9 while batches flow: what is there afterwards are whole batches."""
    async with connected(fresh_nats_server, request_timeout_s=1.0) as bus:
        await bootstrap(bus, streams=[_SPEC], consumers=[])
        record = OwnStream(_SPEC.name, "killed")
        last = 0
        for round_number in range(3):
            killer = asyncio.create_task(_kill_soon(fresh_nats_server, 0.05 + 0.02 * round_number))
            try:
                for number in range(1000):
                    batch = record.messages(9, f"r{round_number}b{number}")
                    last = await bus.commit(
                        record.name, batch, expected_last=last, batch_id=f"{round_number}.{number}", deadline_s=2.0
                    )
            except (OutcomeUnknown, StaleFence):
                pass
            await killer
            await bus.wait_up(10)
            state = await bus.stream_state(record.name, deadline_s=10)
            assert state.last_sequence % 9 == 0, "a batch is there in part"
            last = state.last_sequence
        assert last > 0


async def test_commit_while_the_broker_is_away_is_known_not_to_be_stored(fresh_nats_server: LocalNatsServer) -> None:
    async with connected(fresh_nats_server) as bus:
        record = await _record(bus)
        await asyncio.to_thread(fresh_nats_server.kill)
        with pytest.raises(NotStored):
            await bus.commit(record.name, record.messages(3), expected_last=0, batch_id="b1", deadline_s=1.0)
        await asyncio.to_thread(fresh_nats_server.start)
        await bus.wait_up(10)
        assert (await bus.stream_state(record.name, deadline_s=10)).last_sequence == 0


async def test_commit_to_a_frozen_broker_ends_at_its_deadline(fresh_nats_server: LocalNatsServer) -> None:
    async with connected(fresh_nats_server) as bus:
        record = await _record(bus)
        async with frozen(fresh_nats_server), asyncio.timeout(5):
            with pytest.raises(OutcomeUnknown):
                await bus.commit(record.name, record.messages(3), expected_last=0, batch_id="b1", deadline_s=0.5)
        # The first message was in the socket: the batch stays open, is never committed, and blocks no later one.
        assert await bus.commit(record.name, record.messages(2), expected_last=0, batch_id="b2") == 2


_SPEC = StreamSpec("KILLED", ("t.killed.>",), "", per_subject=1, allow_atomic=True)


async def _kill_soon(server: LocalNatsServer, after_s: float) -> None:
    await asyncio.sleep(after_s)
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)


async def _open_batch(bus: Bus, record: OwnStream, batch_id: str) -> None:
    first = record.message("open")
    headers = {"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": "1"}
    await bus.replies.ask(first.subject, first.body, 2.0, headers)


async def _bare_batch(bus: Bus, record: OwnStream, size: int, leave_out: int = 0) -> bytes:
    """A batch by the bare protocol, without what the bus checks first; gives the last answer."""
    batch_id = uuid.uuid4().hex
    answer = b""
    for number in range(1, size + 1):
        if number == leave_out:
            continue
        headers = {"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(number)}
        message = WireMessage(record.subject(f"k.{number}"), b"x")
        if number in {1, size}:
            headers |= {"Nats-Batch-Commit": "1"} if number == size else {}
            answer = (await bus.replies.ask(message.subject, message.body, 2.0, headers)).data
        else:
            await bus.connection.publish(message.subject, message.body, "", headers)
    return answer
