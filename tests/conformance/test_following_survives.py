"""Following goes on over what breaks, and says when what it told is void."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus
from railweave.runtime.history import ResetCause
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.streams import StreamSpec
from railweave_testing.buses import CountingObserver, Heard, OwnStream, connected, eventually, frozen, own_stream

_SETTLED_S = 0.4  # what is acknowledged less than this before a kill may be lost (finding 2)


async def test_message_published_after_a_kill_and_restart_is_heard_within_two_seconds(
    fresh_nats_server: LocalNatsServer,
) -> None:
    """Rows 2 and 17: a waiting fetch was blind for 6.7 s, a watch for 19 s."""
    async with connected(fresh_nats_server) as bus:
        stream = await own_stream(bus)
        await bus.publish_many(stream.messages(20))
        heard = Heard()
        async with bus.follow(stream.name, [], heard.on_messages, on_reset=heard.on_reset) as follower:
            await follower.wait_ready(5)
            await asyncio.sleep(_SETTLED_S)
            await asyncio.to_thread(fresh_nats_server.kill)
            await asyncio.to_thread(fresh_nats_server.start)
            started = time.monotonic()
            await bus.publish(stream.message("after", "a", "id-after"))
            await eventually(lambda: stream.subject("after") in heard.latest, 5)
            assert time.monotonic() - started < 2.0
        assert heard.resets == []
        assert heard.sequences == list(range(1, 22)), "something was told twice or not at all"


async def test_frozen_broker_only_delays(fresh_nats_server: LocalNatsServer) -> None:
    async with connected(fresh_nats_server, ping_interval_s=0.3, connect_timeout_s=0.5) as bus:
        stream = await own_stream(bus)
        heard = Heard()
        async with bus.follow(stream.name, [], heard.on_messages, on_reset=heard.on_reset) as follower:
            await follower.wait_ready(5)
            async with frozen(fresh_nats_server):
                await asyncio.sleep(2.0)
            await bus.publish(stream.message("after", "a", "id-after"), deadline_s=10)
            await eventually(lambda: stream.subject("after") in heard.latest, 5)
        assert heard.resets == []


async def test_short_freeze_that_nobody_noticed_loses_nothing(fresh_nats_server: LocalNatsServer) -> None:
    async with connected(fresh_nats_server) as bus:
        stream = await own_stream(bus)
        heard = Heard()
        async with bus.follow(stream.name, [], heard.on_messages, on_reset=heard.on_reset) as follower:
            await follower.wait_ready(5)
            async with frozen(fresh_nats_server):
                await asyncio.sleep(0.6)
            await bus.publish_many(stream.messages(50))
            await eventually(lambda: len(heard.messages) == 50, 5)
        assert heard.sequences == list(range(1, 51))


async def test_consumer_taken_away_is_made_again_behind_the_last_message(bus: Bus) -> None:
    stream = await own_stream(bus)
    heard = Heard()
    async with bus.follow(stream.name, [], heard.on_messages, on_reset=heard.on_reset) as follower:
        await follower.wait_ready(5)
        await bus.publish_many(stream.messages(5))
        await eventually(lambda: len(heard.messages) == 5)
        names = (await bus.api.call(f"CONSUMER.NAMES.{stream.name}"))["consumers"]
        await bus.api.call(f"CONSUMER.DELETE.{stream.name}.{names[0]}")
        await bus.publish_many(stream.messages(5, "more"))
        await eventually(lambda: len(heard.messages) == 10, 3)
    assert sorted(heard.sequences) == list(range(1, 11))
    assert heard.resets == []


async def test_gap_in_the_deliveries_is_noticed_and_filled(bus: Bus) -> None:
    """A message lost on the way shows in the consumer's own numbering."""
    stream = await own_stream(bus)
    heard = Heard()
    async with bus.follow(stream.name, [], heard.on_messages, on_reset=heard.on_reset) as follower:
        await follower.wait_ready(5)
        await bus.publish_many(stream.messages(5))
        await eventually(lambda: len(heard.messages) == 5)
        follower._consumer_sequence += 1  # as if one more had been delivered and lost
        await bus.publish_many(stream.messages(5, "more"))
        await eventually(lambda: len(heard.messages) == 10, 3)
    assert heard.sequences == list(range(1, 11))


async def test_stream_made_again_is_told_anew_with_its_cause(bus: Bus) -> None:
    """Row 34: its sequences start over, so what was told is void."""
    stream = await own_stream(bus, per_subject=1)
    await bus.publish_many(stream.messages(5, "old"))
    heard = Heard()
    async with bus.follow(stream.name, [], heard.on_messages, on_reset=heard.on_reset) as follower:
        await follower.wait_ready(5)
        before = follower.stream_created
        config = (await bus.api.stream_info(stream.name))["config"]
        await bus.api.call(f"STREAM.DELETE.{stream.name}")
        await bus.api.call(f"STREAM.CREATE.{stream.name}", config)
        await bus.publish_many(stream.messages(8, "new"))
        await eventually(lambda: len(heard.messages) == 8, 5)
        await follower.wait_ready(5)
        assert follower.stream_created != before
    assert heard.resets == [ResetCause.RECREATED]
    assert all("new" in subject for subject in heard.latest)


async def test_store_put_back_to_an_older_copy_is_told_as_gone_back(
    fresh_nats_server: LocalNatsServer, tmp_path: Path
) -> None:
    async with connected(fresh_nats_server) as bus:
        stream = await own_stream(bus, per_subject=1)
        heard = Heard()
        async with bus.follow(stream.name, [], heard.on_messages, on_reset=heard.on_reset) as follower:
            await follower.wait_ready(5)
            await bus.publish_many(stream.messages(5, "kept"))
            await asyncio.sleep(_SETTLED_S)
            await asyncio.to_thread(fresh_nats_server.copy_store, tmp_path / "copy")
            await bus.publish_many(stream.messages(5, "lost"))
            await eventually(lambda: len(heard.messages) == 10)
            await asyncio.to_thread(fresh_nats_server.kill)
            await asyncio.to_thread(fresh_nats_server.restore_store, tmp_path / "copy")
            await asyncio.to_thread(fresh_nats_server.start)
            await eventually(lambda: heard.resets == [ResetCause.WENT_BACK], 5)
            await follower.wait_ready(5)
            assert sorted(heard.latest) == [stream.subject(f"kept.{number}") for number in range(5)]
            await bus.publish(stream.message("after"))
            await eventually(lambda: len(heard.messages) == 6, 5)


async def test_store_put_back_and_written_to_past_what_was_seen_is_told_apart(
    fresh_nats_server: LocalNatsServer, tmp_path: Path
) -> None:
    """The stream is longer than what was seen of it and yet another: the message at the last sequence differs."""
    async with connected(fresh_nats_server) as writer, connected(fresh_nats_server) as bus:
        stream = await own_stream(writer)
        heard = Heard()
        async with bus.follow(stream.name, [], heard.on_messages, on_reset=heard.on_reset) as follower:
            await follower.wait_ready(5)
            await writer.publish_many(stream.messages(5, "kept"))
            await asyncio.sleep(_SETTLED_S)
            await asyncio.to_thread(fresh_nats_server.copy_store, tmp_path / "copy")
            await writer.publish_many(stream.messages(5, "lost"))
            await eventually(lambda: len(heard.messages) == 10)
            bus.connection.client.failures = 6  # it comes back later than the writer
            await asyncio.to_thread(fresh_nats_server.kill)
            await asyncio.to_thread(fresh_nats_server.restore_store, tmp_path / "copy")
            await asyncio.to_thread(fresh_nats_server.start)
            await writer.publish_many(stream.messages(20, "other"))
            await eventually(lambda: len(heard.resets) == 1, 10)
            await eventually(lambda: len(heard.messages) == 25, 5)
        assert heard.resets == [ResetCause.HISTORY_DIFFERS]
        assert not any("lost" in subject for subject in heard.latest)


async def test_empty_store_is_told_when_the_stream_is_made_again(fresh_nats_server: LocalNatsServer) -> None:
    spec = StreamSpec("EMPTIED", ("t.emptied.>",), "", per_subject=1)
    stream = OwnStream("EMPTIED", "emptied")
    async with connected(fresh_nats_server) as bus:
        await bootstrap(bus, streams=[spec], consumers=[])
        await bus.publish_many(stream.messages(5, "old"), deadline_s=5)
        heard = Heard()
        async with bus.follow(stream.name, [], heard.on_messages, on_reset=heard.on_reset) as follower:
            await follower.wait_ready(5)
            await asyncio.to_thread(fresh_nats_server.kill)
            await asyncio.to_thread(fresh_nats_server.empty_store)
            await asyncio.to_thread(fresh_nats_server.start)
            await bus.wait_up(10)
            await asyncio.sleep(0.5)
            assert heard.resets == [], "an absent stream says nothing: it may be on its way"
            await bootstrap(bus, streams=[spec], consumers=[])
            await bus.publish_many(stream.messages(2, "new"))
            await eventually(lambda: len(heard.messages) == 2, 10)
        assert heard.resets == [ResetCause.RECREATED]


async def test_last_message_superseded_while_another_broker_took_over_is_uncertain(
    fresh_nats_server: LocalNatsServer,
) -> None:
    """It cannot be told from a restored store, so everything is told again: right, though sometimes for nothing."""
    async with connected(fresh_nats_server) as writer, connected(fresh_nats_server) as bus:
        stream = await own_stream(writer, per_subject=1)
        await writer.publish_many(stream.messages(5))
        await writer.publish(stream.message("k.4", "again"))
        heard = Heard()
        async with bus.follow(stream.name, [], heard.on_messages, on_reset=heard.on_reset) as follower:
            await follower.wait_ready(5)
            await asyncio.sleep(_SETTLED_S)
            bus.connection.client.failures = 6  # it comes back later than the writer
            await asyncio.to_thread(fresh_nats_server.kill)
            await asyncio.to_thread(fresh_nats_server.start)
            await writer.publish(stream.message("k.4", "and again", "id-again"))
            await eventually(lambda: heard.latest.get(stream.subject("k.4")) == "and again", 10)
        assert heard.resets == [ResetCause.UNCERTAIN]
        assert len(heard.latest) == 5


async def test_reconnect_storm_leaks_no_consumers(fresh_nats_server: LocalNatsServer) -> None:
    """A 100-node storm elsewhere left 587 consumers. Here 20 followers, 3 kills."""
    observer = CountingObserver()
    async with connected(fresh_nats_server, observer=observer) as bus:
        stream = await own_stream(bus)
        heard = [Heard() for _ in range(20)]
        async with asyncio.TaskGroup() as group:
            followers = [bus.follow(stream.name, [], one.on_messages, on_reset=one.on_reset) for one in heard]
            tasks = [group.create_task(follower.run()) for follower in followers]
            for follower in followers:
                await follower.wait_ready(10)
            for number in range(3):
                await asyncio.sleep(_SETTLED_S)
                await asyncio.to_thread(fresh_nats_server.kill)
                await asyncio.to_thread(fresh_nats_server.start)
                await bus.publish(stream.message(f"k.{number}", "x", f"id-{number}"))
                await eventually(lambda number=number: all(len(one.messages) == number + 1 for one in heard), 10)  # type: ignore[misc]
            info = await bus.api.stream_info(stream.name)
            assert info["state"]["consumer_count"] == 20
            for task in tasks:
                task.cancel()
        assert len(bus.connection.client._subs) == 1, "an inbox was left behind"


@pytest.mark.long
async def test_no_message_is_missed_or_told_twice_while_the_broker_is_killed_again_and_again(
    fresh_nats_server: LocalNatsServer,
) -> None:
    """Writers repeat, followers resume; where a kill took acknowledged writes back, the follower resets."""
    async with connected(fresh_nats_server, request_timeout_s=0.5) as bus:
        stream = await own_stream(bus)
        heard = Heard()
        messages = [stream.message(f"k.{number}", str(number), f"id-{number}") for number in range(30_000)]
        async with bus.follow(stream.name, [], heard.on_messages, on_reset=heard.on_reset, start="all") as follower:
            await follower.wait_ready(5)
            publishing = asyncio.create_task(bus.publish_many(messages, deadline_s=60))
            for _ in range(6):
                await asyncio.sleep(0.7)
                await asyncio.to_thread(fresh_nats_server.kill)
                await asyncio.to_thread(fresh_nats_server.start)
            await publishing
            await bus.publish_many(messages, deadline_s=60)
            last = (await bus.stream_state(stream.name)).last_sequence
            await follower.wait_applied(last, 20)
        assert len(set(heard.sequences)) == len(heard.sequences), "told twice"
        assert {message.body for message in heard.messages} == {message.body for message in messages}
