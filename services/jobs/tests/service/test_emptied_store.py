"""A store that was emptied under a running service."""

from __future__ import annotations

import asyncio

import pytest
from plane import job, plane

from railweave.runtime.bus import Bus
from railweave.runtime.connection import BusSettings
from railweave.runtime.errors import StreamMissing
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.streams import LEASES, PLACEMENTS

pytestmark = pytest.mark.timeout(60)


async def test_nobody_made_the_streams_again_because_the_lease_was_in_one_of_them(
    fresh_nats_server: LocalNatsServer,
) -> None:
    async with plane(fresh_nats_server) as publisher:
        await publisher.submit(job("1"))
        fresh_nats_server.kill()
        fresh_nats_server.empty_store()
        await asyncio.to_thread(fresh_nats_server.start)
        async with await Bus.connect(BusSettings(servers=(fresh_nats_server.url,))) as bus, asyncio.timeout(20):
            while True:
                try:
                    await bus.stream_state(LEASES)
                    # The new record begins with its epoch: somebody is active on it.
                    if await bus.read_last(PLACEMENTS, "rw.epoch") is not None:
                        break
                except StreamMissing:
                    pass
                await asyncio.sleep(0.1)
