"""The connection: there when the broker is, back when it comes back, and never deaf without noticing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from railweave.contracts.wire import WireMessage
from railweave.runtime.bus import Bus, BusSettings
from railweave.runtime.errors import BusClosed, BusUnavailable, NoResponders, PermissionRefused, PublishRefused
from railweave.runtime.local_servers import LocalNatsServer
from railweave_testing.buses import CountingObserver, connected, eventually, frozen, own_stream
from railweave_testing.servers import running_nats

_USERS = """
accounts {
  PLANE {
    jetstream: enabled
    users: [
      {user: operator, password: o}
      {user: node, password: n, permissions {
        publish: ["t.allowed", "_INBOX.node.>"], subscribe: ["_INBOX.node.>"]
      }}
    ]
  }
}
"""


async def test_service_started_before_the_broker_becomes_ready(tmp_path: Path) -> None:
    """Row 16: plain nats-py raises NoServersError."""
    server = LocalNatsServer(tmp_path / "nats")
    server.directory.mkdir()
    await asyncio.to_thread(server.start)
    await asyncio.to_thread(server.stop)
    connecting = asyncio.create_task(Bus.connect(BusSettings(servers=(server.url,))))
    await asyncio.sleep(0.7)
    assert not connecting.done()
    await asyncio.to_thread(server.start)
    try:
        async with asyncio.timeout(5):
            bus = await connecting
        assert bus.is_up
        await bus.close()
    finally:
        await asyncio.to_thread(server.kill)


async def test_patience_that_ends_is_told(tmp_path: Path) -> None:
    with pytest.raises(BusUnavailable, match="no NATS server at"):
        await Bus.connect(BusSettings(servers=("nats://127.0.0.1:9",), connect_patience_s=0.3))


async def test_connecting_can_be_given_up_at_any_moment(fresh_nats_server: LocalNatsServer) -> None:
    """SIGTERM while NATS is awaited; nothing is left behind (an unclosed socket would be a warning, so an error)."""
    for step in range(20):
        connecting = asyncio.create_task(Bus.connect(BusSettings(servers=(fresh_nats_server.url,))))
        await asyncio.sleep(step * 0.0003)
        connecting.cancel()
        (outcome,) = await asyncio.gather(connecting, return_exceptions=True)
        if isinstance(outcome, Bus):
            await outcome.close()
    fresh_nats_server.pause()
    try:
        connecting = asyncio.create_task(Bus.connect(BusSettings(servers=(fresh_nats_server.url,))))
        await asyncio.sleep(0.2)
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
    finally:
        fresh_nats_server.resume()
    await asyncio.sleep(0.05)
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert not any("bus" in name for name in names)
    assert len(asyncio.all_tasks()) == 1, names


@pytest.mark.parametrize("down_s", [0.2, pytest.param(12.0, marks=pytest.mark.long)])
async def test_broker_that_was_away_is_found_again_however_long(
    fresh_nats_server: LocalNatsServer, down_s: float
) -> None:
    """Row 15: plain nats-py closes for ever after its attempts are used up."""
    observer = CountingObserver()
    async with connected(fresh_nats_server, observer=observer) as bus:
        await asyncio.to_thread(fresh_nats_server.kill)
        await eventually(lambda: not bus.is_up)
        await asyncio.sleep(down_s)
        await asyncio.to_thread(fresh_nats_server.start)
        started = time.monotonic()
        await bus.wait_up(10)
        assert time.monotonic() - started < 2.5
        await bus.stream_state((await own_stream(bus)).name)
    assert observer.counts["reconnects"] == 1


async def test_frozen_broker_is_noticed_and_found_again(fresh_nats_server: LocalNatsServer) -> None:
    """Row 14: pings notice; closing the old link does not wait for the dead peer."""
    async with connected(fresh_nats_server, ping_interval_s=0.3, connect_timeout_s=0.5) as bus:
        # Bytes the frozen broker will not read, which a plain close would wait for.
        async with frozen(fresh_nats_server):
            with contextlib.suppress(BusUnavailable):
                for _ in range(40):
                    await bus.connection.publish("t.nobody", b"x" * 500_000, "", None)
            await eventually(lambda: not bus.is_up, 5.0)
        await bus.wait_up(5)
        await bus.barrier()


@pytest.mark.long
async def test_twenty_seconds_of_frozen_broker_with_the_settings_of_production(
    fresh_nats_server: LocalNatsServer,
) -> None:
    """Row 14, as written: reconnected less than 30 s after."""
    async with connected(fresh_nats_server) as bus:
        async with frozen(fresh_nats_server):
            await asyncio.sleep(20)
        await bus.wait_up(30)
        await bus.barrier(30)


async def test_ping_loop_that_died_is_made_up_for_by_the_watchdog(fresh_nats_server: LocalNatsServer) -> None:
    """Row 14: the watchdog does not depend on nats-py noticing."""
    observer = CountingObserver()
    async with connected(fresh_nats_server, observer=observer, ping_interval_s=0.2) as bus:
        ping_loop = bus.connection.client._ping_interval_task
        assert ping_loop is not None
        ping_loop.cancel()
        await eventually(lambda: observer.counts["reconnects"] == 1, 5.0)
        assert observer.counts["nats_errors:HalfOpen"] == 1
        await bus.barrier()


async def test_nothing_said_while_the_broker_was_away_is_said_later(fresh_nats_server: LocalNatsServer) -> None:
    """A write that failed must not be stored behind its caller's back after the reconnect."""
    async with connected(fresh_nats_server) as bus:
        stream = await own_stream(bus)
        await asyncio.to_thread(fresh_nats_server.kill)
        await eventually(lambda: not bus.is_up)
        with pytest.raises(BusUnavailable):
            await bus.connection.publish(stream.subject("ghost"), b"ghost", "", None)
        await asyncio.to_thread(fresh_nats_server.start)
        await bus.wait_up(10)
        await bus.barrier()
        assert (await bus.stream_state(stream.name, deadline_s=10)).messages == 0


async def test_request_is_told_at_once_when_the_broker_goes_away(fresh_nats_server: LocalNatsServer) -> None:
    async with connected(fresh_nats_server) as bus:
        await bus.connection.client.subscribe("t.silent")
        await bus.barrier()
        asking = asyncio.create_task(bus.request("t.silent", b"", timeout_s=30))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(fresh_nats_server.kill)
        with pytest.raises(BusUnavailable) as lost:
            async with asyncio.timeout(2):
                await asking
        assert lost.value.was_sent


async def test_request_nobody_answers_is_told_as_that(bus: Bus) -> None:
    with pytest.raises(NoResponders):
        await bus.request("t.nobody.at.all", b"")


async def test_barrier_loses_no_first_message_where_flush_does(bus: Bus, nats_server: LocalNatsServer) -> None:
    """Row 1: with one `flush()` 4.6 % of first messages were lost, as its PING overtakes the SUB."""
    lost = 0
    async with connected(nats_server) as other:
        for number in range(300):
            came = asyncio.Event()

            async def take(_: object, came: asyncio.Event = came) -> None:
                came.set()

            subscription = await bus.connection.client.subscribe(f"t.barrier.{number}", cb=take)
            await bus.barrier()
            await other.connection.publish(f"t.barrier.{number}", b"x", "", None)
            try:
                async with asyncio.timeout(0.6):
                    await came.wait()
            except TimeoutError:
                lost += 1
            await subscription.unsubscribe()
    assert lost == 0


@pytest.mark.long
async def test_barrier_loses_nothing_in_three_thousand(bus: Bus, nats_server: LocalNatsServer) -> None:
    """Row 1, as written."""
    for _ in range(10):
        await test_barrier_loses_no_first_message_where_flush_does(bus, nats_server)


async def test_cancelled_flush_ends_only_its_own_task(bus: Bus) -> None:
    """Row 30: in plain nats-py the PONG for a cancelled flush ends the read loop, silently."""
    for _ in range(20):
        flushing = asyncio.create_task(bus.connection.client.flush())
        await asyncio.sleep(0)
        flushing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await flushing
    async with asyncio.timeout(2):
        await bus.barrier()


async def test_cancelled_request_leaves_later_ones_their_own_answers(bus: Bus) -> None:
    stream = await own_stream(bus)
    await bus.publish_many([stream.message(f"k.{number}", str(number)) for number in range(20)])
    for number in range(1, 20):
        reading = asyncio.create_task(bus.read(stream.name, number))
        await asyncio.sleep(0.0001 * number)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        found = await bus.read(stream.name, number + 1)
        assert found is not None
        assert found.body == str(number).encode()


async def test_forbidden_publish_is_told_at_once_and_by_name() -> None:
    """Finding 9: plain nats-py ends in a timeout; the reason only reaches the error callback, in lower case."""
    with running_nats(extra_config=_USERS) as server:
        async with connected(server, user="node", password="n", inbox_prefix="_INBOX.node") as bus:
            async with asyncio.timeout(1):
                with pytest.raises(PublishRefused, match=r"t\.Forbidden"):
                    await bus.publish(WireMessage("t.Forbidden", b"x"))
            async with asyncio.timeout(1):
                with pytest.raises(PermissionRefused):
                    await bus.stream_state("JOBS")
            await bus.barrier()


async def test_connection_the_server_closes_for_good_is_told_to_the_process() -> None:
    """Row 15: what ends the process, so that its supervisor starts it again."""
    closed = asyncio.Event()
    with running_nats(extra_config=_USERS) as server:
        settings = BusSettings(servers=(server.url,), user="operator", password="o")
        bus = await Bus.connect(settings, on_closed=closed.set)
        # What nats-py does on any error of the server's but a permission or a stale connection.
        await bus.connection.client._process_err("'user authentication expired'")
        async with asyncio.timeout(2):
            await closed.wait()
        with pytest.raises(BusClosed):
            await bus.publish(WireMessage("t.x", b"x"))
        await bus.close()


async def test_closing_ourselves_is_not_told_as_a_failure(nats_server: LocalNatsServer) -> None:
    told: list[bool] = []
    bus = await Bus.connect(BusSettings(servers=(nats_server.url,)), on_closed=lambda: told.append(True))
    await bus.close()
    await bus.close()
    assert told == []
    with pytest.raises(BusClosed):
        await bus.wait_up()


_WORKER = """
import asyncio, signal, sys
from railweave.contracts.wire import StoredMessage
from railweave.runtime.bus import Bus, BusSettings
from railweave.runtime.deadletters import DeadLetters

async def main():
    bus = await Bus.connect(BusSettings(servers=(sys.argv[1],)))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async def handle(message, delivery):
        print("began", flush=True)
        await asyncio.sleep(0.5)
    consumer = bus.consume(sys.argv[2], "work", handler := handle, key=lambda m: m.subject,
                           dead_letter=DeadLetters(bus, "test"))
    async with consumer:
        await stop.wait()
    await bus.close()

asyncio.run(main())
"""


async def test_sigterm_with_three_in_flight_ends_in_time_and_nothing_is_delivered_again(
    fresh_nats_server: LocalNatsServer,
) -> None:
    """Rows 29 and 33: plain `drain()` loses acks, and an interrupt kills nats-py's loops."""
    from railweave.runtime.streams import ConsumerSpec

    async with connected(fresh_nats_server) as bus:
        stream = await own_stream(bus, ConsumerSpec("", "work", (), "", ack_wait_s=2))
        await bus.publish_many(stream.messages(3))
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _WORKER, fresh_nats_server.url, stream.name, stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        assert worker.stdout is not None
        for _ in range(3):
            assert await worker.stdout.readline() == b"began\n"
        started = time.monotonic()
        worker.send_signal(signal.SIGTERM)
        assert await worker.wait() == 0
        assert time.monotonic() - started < 5
        info = await bus.api.call(f"CONSUMER.INFO.{stream.name}.work")
        assert (info["num_ack_pending"], info["num_redelivered"], info["num_pending"]) == (0, 0, 0)
