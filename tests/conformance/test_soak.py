"""Row 32: what is used again and again does not grow."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path

import pytest

from railweave.contracts.wire import StoredMessage
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.deadletters import DeadLetters
from railweave.runtime.delivery import Delivery
from railweave.runtime.errors import NoResponders
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.streams import DEAD, STREAMS, ConsumerSpec
from railweave_testing.buses import Heard, connected, own_stream

_GROWTH_MIB = 5.0


def _resident_mib() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


@pytest.mark.long
@pytest.mark.timeout(120)
async def test_memory_subscriptions_and_consumers_stay_flat(fresh_nats_server: LocalNatsServer) -> None:
    async with connected(fresh_nats_server) as bus:
        await bootstrap(bus, streams=[spec for spec in STREAMS if spec.name == DEAD], consumers=[])
        stream = await own_stream(bus, ConsumerSpec("", "work", (), ""), per_subject=1, allow_atomic=True)

        async def handle(message: StoredMessage, delivery: Delivery) -> None: ...

        async def turn(number: int) -> None:
            heard = Heard()
            await bus.publish_many(
                [stream.message(f"k.{place}", b"x" * 500, f"{number}.{place}") for place in range(200)]
            )
            state = await bus.stream_state(stream.name)
            last = await bus.commit(
                stream.name, stream.messages(20), expected_last=state.last_sequence, batch_id=str(number)
            )
            async with bus.follow(stream.name, [], heard.on_messages, on_reset=heard.on_reset) as follower:
                await follower.wait_ready(10)
                await follower.wait_applied(last, 10)
            consumer = bus.consume(
                stream.name, "work", handle, key=lambda message: message.subject, dead_letter=DeadLetters(bus, "soak")
            )
            async with consumer:
                await consumer.wait_ready(5)
            for _ in range(20):
                with pytest.raises(NoResponders):
                    await bus.request("t.nobody", b"")

        number = 0
        while number < 60:  # what is kept for good (settled messages, buffers) is there after these
            await turn(number)
            number += 1
        before, tasks = _resident_mib(), len(asyncio.all_tasks())
        until = time.monotonic() + 40
        while time.monotonic() < until:
            await turn(number)
            number += 1
        assert _resident_mib() - before < _GROWTH_MIB
        assert len(asyncio.all_tasks()) == tasks
        assert len(bus.connection.client._subs) == 1
        assert len(bus.replies._waiting) == 0
        assert (await bus.api.stream_info(stream.name))["state"]["consumer_count"] == 1
