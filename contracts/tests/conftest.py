"""A broker with the streams, and a bare connection that plays Railweave's part."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from railweave.contracts import Event, encode_event, envelope
from railweave.contracts.memo import Memo
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.local_servers import LocalNatsServer
from railweave_testing.buses import connected, eventually

_number = itertools.count(1)


@pytest.fixture(autouse=True)
def _nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests encode must be read from its bytes, not from memory."""
    monkeypatch.setattr(envelope, "memo", Memo(most_bytes=0))


class Railweave:
    """Says what Railweave's services would say."""

    def __init__(self, server: LocalNatsServer, client: Client) -> None:
        self.server = server
        self.client = client
        self.js = client.jetstream(timeout=2)
        self.cluster = f"c{next(_number)}-{uuid.uuid4().hex[:8]}"
        """Of this test alone."""

    @property
    def url(self) -> str:
        return self.server.url

    async def say(self, event: Event) -> int:
        """Store an event as the services do; returns its sequence."""
        message = encode_event(event)
        stored = await self.js.publish(message.subject, message.body, headers=dict(message.headers))
        return int(stored.seq)

    def job(self, name: str = "1234", **more: Any) -> dict[str, Any]:
        """The smallest job, in this test's cluster."""
        return {"cluster": self.cluster, "job": name, "attempt": 1, "workers": [{"count": 1, "gpus": 1}], **more}

    async def stored(self, subject: str) -> int:
        """How many messages of JOBS are on a subject."""
        info = await self.js.stream_info("JOBS", subjects_filter=subject)
        return sum((info.state.subjects or {}).values())

    async def restart(self, pause_s: float = 0.0) -> None:
        """Kill the broker and start it again on its store; returns when this connection is back."""
        self.server.kill()
        await eventually(lambda: not self.client.is_connected)
        await asyncio.sleep(pause_s)
        self.server.restart()
        await eventually(lambda: bool(self.client.is_connected))

    async def answer(self, subject: str, reply: Callable[[bytes], tuple[bytes, dict[str, str] | None]]) -> None:
        """Answer questions on a subject until the connection ends."""

        async def handle(message: Any) -> None:
            body, headers = reply(message.data)
            await self.client.publish(message.reply, body, headers=headers)

        await self.client.subscribe(subject, cb=handle)
        await self.client.flush()
        await self.client.flush()


@contextlib.asynccontextmanager
async def playing_on(server: LocalNatsServer) -> AsyncIterator[Railweave]:
    async with connected(server) as bus:
        await bootstrap(bus)
    client = await nats.connect(server.url, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=_forget)
    try:
        yield Railweave(server, client)
    finally:
        await client.close()


async def _forget(error: Exception) -> None:
    """Tests kill the broker on purpose."""


@pytest.fixture
async def railweave(nats_server: LocalNatsServer) -> AsyncIterator[Railweave]:
    async with playing_on(nats_server) as player:
        yield player


@pytest.fixture
async def fresh_railweave(fresh_nats_server: LocalNatsServer) -> AsyncIterator[Railweave]:
    """On a broker that the test may kill."""
    async with playing_on(fresh_nats_server) as player:
        yield player
