"""A bus on the broker of the whole run; tests that stop a broker take `fresh_nats_server` and connect themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from railweave.runtime.bus import Bus
from railweave.runtime.local_servers import LocalNatsServer
from railweave_testing.buses import connected


@pytest.fixture
async def bus(nats_server: LocalNatsServer) -> AsyncIterator[Bus]:
    async with connected(nats_server) as connection:
        yield connection
