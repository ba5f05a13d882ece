"""Following a stream: what is told, in which order, and when it is said to be all (rule R13)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from railweave.contracts.wire import StoredMessage
from railweave.runtime.bus import Bus
from railweave.runtime.local_servers import LocalNatsServer
from railweave_testing.buses import Heard, OwnStream, connected, eventually, own_stream
from railweave_testing.servers import running_nats


async def _record(bus: Bus) -> OwnStream:
    return await own_stream(bus, per_subject=1, allow_atomic=True, allow_msg_ttl=True)


async def test_snapshot_is_the_latest_of_each_subject_then_every_change(bus: Bus) -> None:
    stream = await own_stream(bus)
    await bus.publish_many([stream.message("a", "1"), stream.message("a", "2"), stream.message("b", "1")])
    heard = Heard()
    async with bus.follow(stream.name, [], heard.on_messages, on_reset=heard.on_reset) as follower:
        await follower.wait_ready(5)
        assert len(heard.messages) == 2
        stored = await bus.publish(stream.message("a", "3"))
        await follower.wait_applied(stored.sequence, 5)
        await bus.publish(stream.message("a", "4"))
        await eventually(lambda: len(heard.messages) == 4)
    assert heard.latest[stream.subject("a")] == "4"
    assert heard.sequences == sorted(heard.sequences)
    assert heard.resets == []


async def test_start_all_tells_everything_and_new_nothing_old(bus: Bus) -> None:
    stream = await own_stream(bus)
    await bus.publish_many([stream.message("a", str(number)) for number in range(5)])
    everything, new = Heard(), Heard()
    async with (
        bus.follow(stream.name, [], everything.on_messages, on_reset=everything.on_reset, start="all") as first,
        bus.follow(stream.name, [], new.on_messages, on_reset=new.on_reset, start="new") as second,
    ):
        await first.wait_ready(5)
        await second.wait_ready(5)
        stored = await bus.publish(stream.message("a", "5"))
        await first.wait_applied(stored.sequence, 5)
        await second.wait_applied(stored.sequence, 5)
    assert everything.sequences == [1, 2, 3, 4, 5, 6]
    assert new.sequences == [6]


async def test_filters_choose_subjects(bus: Bus) -> None:
    stream = await own_stream(bus)
    await bus.publish_many([stream.message(f"{kind}.{number}") for kind in ("a", "b", "c") for number in range(2)])
    one, two = Heard(), Heard()
    wanted = [stream.subject("a.*"), stream.subject("c.>")]
    async with (
        bus.follow(stream.name, wanted[:1], one.on_messages, on_reset=one.on_reset) as first,
        bus.follow(stream.name, wanted, two.on_messages, on_reset=two.on_reset) as second,
    ):
        await first.wait_ready(5)
        await second.wait_ready(5)
    assert sorted(one.latest) == [stream.subject("a.0"), stream.subject("a.1")]
    assert len(two.latest) == 4


async def test_empty_stream_is_ready_at_once(bus: Bus) -> None:
    stream = await own_stream(bus)
    heard = Heard()
    async with bus.follow(stream.name, [], heard.on_messages, on_reset=heard.on_reset) as follower:
        await follower.wait_ready(2)
        assert follower.stream_created == (await bus.stream_state(stream.name)).created
    assert heard.messages == []


async def test_stream_that_nothing_of_matches_is_ready_at_once_and_applied_to_its_end(bus: Bus) -> None:
    stream = await own_stream(bus)
    await bus.publish_many(stream.messages(5))
    heard = Heard()
    none = [stream.subject("none.>")]
    async with bus.follow(stream.name, none, heard.on_messages, on_reset=heard.on_reset) as follower:
        await follower.wait_ready(2)
        assert follower.applied_sequence == 5
        stored = await bus.publish(stream.message("k.9"))
        await follower.wait_applied(stored.sequence, 2)
    assert heard.messages == []


async def test_snapshot_is_whole_whatever_is_written_meanwhile(bus: Bus, nats_server: LocalNatsServer) -> None:
    """Row 18: nats-py's `keys()` gave a partial set in 3 of 15 rounds. 2,000 subjects and a busy writer, 5 rounds."""
    stream = await own_stream(bus, per_subject=1)
    await bus.publish_many(stream.messages(2000))
    stop = asyncio.Event()

    async def write() -> None:
        async with connected(nats_server) as other:
            number = 0
            while not stop.is_set():
                await other.publish_many(
                    stream.message(f"k.{place % 2000}", f"again{place}") for place in range(number, number + 1400, 7)
                )
                number += 1400

    writer = asyncio.create_task(write())
    try:
        for _ in range(5):
            heard = Heard()
            async with bus.follow(stream.name, [], heard.on_messages, on_reset=heard.on_reset) as follower:
                await follower.wait_ready(10)
                assert len(heard.latest) == 2000
    finally:
        stop.set()
        await writer


async def test_slices_are_as_large_as_what_has_come(bus: Bus) -> None:
    """Handing over one by one would cost a view more than folding does."""
    stream = await own_stream(bus)
    await bus.publish_many(stream.messages(3000))
    heard = Heard()
    async with bus.follow(stream.name, [], heard.on_messages, on_reset=heard.on_reset) as follower:
        await follower.wait_ready(10)
    assert len(heard.messages) == 3000
    assert len(heard.slices) < 300


async def test_batch_is_told_when_its_last_message_has_come(bus: Bus) -> None:
    """Message by message, as a reader that is quick enough sees it."""
    record = await _record(bus)
    heard = Heard()
    async with bus.follow(record.name, [], heard.on_messages, on_reset=heard.on_reset) as follower:
        await follower.wait_ready(5)
        last = 0
        for number in range(30):
            last = await bus.commit(
                record.name, record.messages(40, f"b{number}"), expected_last=last, batch_id=str(number)
            )
        await follower.wait_applied(last, 5)
    for part in heard.slices:
        assert len(part) % 40 == 0
        assert "Nats-Batch-Commit" in part[-1].headers


async def test_filter_that_leaves_out_the_commit_is_told_the_batch_all_the_same(bus: Bus) -> None:
    """An agent follows its own node's placements; the batch ends on another's."""
    record = await _record(bus)
    heard = Heard()
    mine = [record.subject("k.1"), record.subject("k.2")]
    async with bus.follow(record.name, mine, heard.on_messages, on_reset=heard.on_reset) as follower:
        await follower.wait_ready(5)
        last = await bus.commit(record.name, record.messages(9), expected_last=0, batch_id="b1")
        await eventually(lambda: bool(heard.messages), 1.0)
        assert heard.sequences == [2, 3]
        assert len([part for part in heard.slices if part]) == 1
        await follower.wait_applied(last, 2)


async def test_batch_whose_commit_was_superseded_is_told_when_a_later_message_comes(bus: Bus) -> None:
    record = await _record(bus)
    batch = [record.message("a"), record.message("b"), record.message("last")]
    heard = Heard()
    last = await bus.commit(record.name, batch, expected_last=0, batch_id="b1")
    await bus.commit(record.name, [record.message("last", "newer")], expected_last=last, batch_id="b2")
    async with bus.follow(record.name, [], heard.on_messages, on_reset=heard.on_reset, start="all") as follower:
        await follower.wait_ready(5)
    assert heard.sequences == [1, 2, 4]


async def test_batch_that_is_still_being_stored_is_held_back(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream ends inside the batch, as a reader sees it that is quicker than the server stores."""
    record = await _record(bus)
    inside = StoredMessage(record.name, "t.x", 3, datetime.now(UTC), {"Nats-Batch-Id": "b1"}, b"")

    async def stream_that_ends_inside(*_: object, **__: object) -> StoredMessage:
        return inside

    heard = Heard()
    mine = [record.subject("k.0"), record.subject("k.1")]
    async with bus.follow(record.name, mine, heard.on_messages, on_reset=heard.on_reset) as follower:
        await follower.wait_ready(5)
        with monkeypatch.context() as patched:
            patched.setattr(bus.api, "message", stream_that_ends_inside)
            await bus.commit(record.name, record.messages(5), expected_last=0, batch_id="b1")
            await asyncio.sleep(0.3)
            assert heard.messages == []
            assert follower.applied_sequence == 0
        await eventually(lambda: heard.sequences == [1, 2], 1.0)


async def test_batch_whose_commit_has_expired_does_not_keep_a_snapshot_waiting(bus: Bus) -> None:
    record = await _record(bus)
    batch = [record.message("a"), record.message("gone", Nats_TTL="1s")]
    await bus.commit(record.name, batch, expected_last=0, batch_id="b1")
    await asyncio.sleep(1.6)
    heard = Heard()
    async with bus.follow(record.name, [], heard.on_messages, on_reset=heard.on_reset) as follower:
        await follower.wait_ready(0.5)
        assert heard.sequences == [1]


async def test_waiting_for_what_never_comes_ends_at_its_timeout(bus: Bus) -> None:
    stream = await own_stream(bus)
    heard = Heard()
    async with bus.follow(stream.name, [], heard.on_messages, on_reset=heard.on_reset) as follower:
        await follower.wait_ready(5)
        with pytest.raises(TimeoutError):
            await follower.wait_applied(99, 0.3)


async def test_stream_that_is_made_later_is_followed_then(bus: Bus) -> None:
    stream = await own_stream(bus)
    config = (await bus.api.stream_info(stream.name))["config"]
    await bus.api.call(f"STREAM.DELETE.{stream.name}")
    heard = Heard()
    async with bus.follow(stream.name, [], heard.on_messages, on_reset=heard.on_reset) as follower:
        with pytest.raises(TimeoutError):
            await follower.wait_ready(0.3)
        await bus.api.call(f"STREAM.CREATE.{stream.name}", config)
        await bus.publish(stream.message("k"))
        await follower.wait_ready(5)
        await eventually(lambda: heard.sequences == [1])
    assert heard.resets == []


async def test_view_that_raises_ends_the_follower_with_its_error(bus: Bus) -> None:
    """A fold must not raise; where it does, going on without the message would be worse."""
    stream = await own_stream(bus)

    def fold(_: object) -> None:
        raise LookupError("fold")

    heard = Heard()
    async with bus.follow(stream.name, [], fold, on_reset=heard.on_reset) as follower:
        await follower.wait_ready(5)
        await bus.publish(stream.message("k"))
        with pytest.raises(LookupError, match="fold"):
            await follower.wait_applied(1, 5)


async def test_consumer_is_removed_when_the_follower_ends(bus: Bus) -> None:
    stream = await own_stream(bus)
    heard = Heard()
    async with bus.follow(stream.name, [], heard.on_messages, on_reset=heard.on_reset) as follower:
        await follower.wait_ready(5)
        assert (await bus.api.stream_info(stream.name))["state"]["consumer_count"] == 1
    assert (await bus.api.stream_info(stream.name))["state"]["consumer_count"] == 0


async def test_node_follows_its_own_subjects_with_the_narrowest_rights() -> None:
    """The filter is in the request's subject, so that a node is given its own alone."""
    permissions = """
    accounts { PLANE { jetstream: enabled, users: [
      {user: operator, password: o}
      {user: node, password: n, permissions {
        publish: ["$JS.API.STREAM.INFO.%(s)s", "$JS.API.CONSUMER.CREATE.%(s)s.*.t.n.k.1",
                  "$JS.API.CONSUMER.MSG.NEXT.%(s)s.*", "_INBOX.node.>"],
        subscribe: ["_INBOX.node.>"] } }
    ] } }"""
    with running_nats(extra_config=permissions % {"s": "RIGHTS"}) as server:
        async with (
            connected(server, user="operator", password="o") as operator,
            connected(server, user="node", password="n", inbox_prefix="_INBOX.node") as node,
        ):
            await operator.api.call(
                "STREAM.CREATE.RIGHTS", {"name": "RIGHTS", "subjects": ["t.n.>"], "allow_atomic": True}
            )
            record = OwnStream("RIGHTS", "n")
            last = await operator.commit(record.name, record.messages(5), expected_last=0, batch_id="b1")
            heard, forbidden = Heard(), Heard()
            async with node.follow(
                record.name, [record.subject("k.1")], heard.on_messages, on_reset=heard.on_reset
            ) as follower:
                await follower.wait_ready(5)
                await operator.commit(record.name, record.messages(5), expected_last=last, batch_id="b2")
                await eventually(lambda: heard.sequences == [2, 7], 5)
            async with node.follow(
                record.name, [record.subject("k.2")], forbidden.on_messages, on_reset=forbidden.on_reset
            ) as other:
                with pytest.raises(Exception, match="permissions violation"):
                    await other.wait_ready(5)
            assert forbidden.messages == []


@pytest.mark.long
async def test_follower_hears_after_a_long_silence(bus: Bus) -> None:
    """Row 19: older watch loops ended early. 30 s without a writer."""
    stream = await own_stream(bus)
    heard = Heard()
    async with bus.follow(stream.name, [], heard.on_messages, on_reset=heard.on_reset) as follower:
        await follower.wait_ready(5)
        await asyncio.sleep(30)
        await bus.publish(stream.message("k"))
        await eventually(lambda: len(heard.messages) == 1, 1.0)
