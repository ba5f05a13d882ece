"""A TCP proxy that cuts a connection at the moment a test names: before the server hears, or before it answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class CuttingProxy:
    """Between a NATS client and `port`."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.port = 0
        self.cut_reply_to: bytes | None = None
        """A request with these bytes is forwarded, and the connection is cut instead of what the server says next."""
        self.cut_before: bytes | None = None
        """A request with these bytes is not forwarded; the connection is cut."""
        self.was_cut = asyncio.Event()
        self.lets_in = asyncio.Event()
        """Cleared: who connects has to wait."""
        self.lets_in.set()
        self._writers: set[asyncio.StreamWriter] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[CuttingProxy]:
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
            await self.lets_in.wait()
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(up_writer)
            deaf = asyncio.Event()
            try:
                await asyncio.gather(
                    self._requests(reader, up_writer, deaf), self._replies(up_reader, writer, up_writer, deaf)
                )
            finally:
                self._writers -= {writer, up_writer}
                writer.transport.abort()
                up_writer.transport.abort()

    async def _requests(self, reader: asyncio.StreamReader, up: asyncio.StreamWriter, deaf: asyncio.Event) -> None:
        while chunk := await reader.read(65536):
            if self.cut_before is not None and self.cut_before in chunk:
                self.cut_before = None
                self.was_cut.set()
                break
            if self.cut_reply_to is not None and self.cut_reply_to in chunk:
                self.cut_reply_to = None
                deaf.set()
            up.write(chunk)
            await up.drain()
        up.transport.abort()

    async def _replies(
        self,
        up: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_writer: asyncio.StreamWriter,
        deaf: asyncio.Event,
    ) -> None:
        while chunk := await up.read(65536):
            if deaf.is_set():
                self.was_cut.set()
                break
            writer.write(chunk)
            await writer.drain()
        writer.transport.abort()
        up_writer.transport.abort()
