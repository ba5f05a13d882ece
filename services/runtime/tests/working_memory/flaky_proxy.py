"""A TCP proxy that loses what a test tells it to lose."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class FlakyProxy:
    """Between a client and `port`: forwards until told to swallow replies, then closes the client's connection."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.port = 0
        self.swallow_reply_to: bytes | None = None
        """When a request has these bytes it is forwarded, and the connection is cut instead of its reply."""
        self.flowing = asyncio.Event()
        """Cleared: requests are forwarded, replies held back."""
        self.flowing.set()
        self.swallowed = 0
        self._writers: set[asyncio.StreamWriter] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FlakyProxy]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(OSError):
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(up_writer)
            lost = asyncio.Event()
            try:
                await asyncio.gather(self._requests(reader, up_writer, lost), self._replies(up_reader, writer, lost))
            finally:
                self._writers -= {writer, up_writer}
                writer.transport.abort()
                up_writer.transport.abort()

    async def _requests(self, reader: asyncio.StreamReader, up: asyncio.StreamWriter, lost: asyncio.Event) -> None:
        while chunk := await reader.read(65536):
            if self.swallow_reply_to is not None and self.swallow_reply_to in chunk:
                self.swallow_reply_to = None
                lost.set()
            up.write(chunk)
            await up.drain()
        up.transport.abort()

    async def _replies(self, up: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: asyncio.Event) -> None:
        while chunk := await up.read(65536):
            if lost.is_set():
                self.swallowed += 1
                break
            await self.flowing.wait()
            writer.write(chunk)
            await writer.drain()
        writer.transport.abort()
