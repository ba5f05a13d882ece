"""One delivered message and how it is settled: acknowledged, put off, or given up. Settling twice is no error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from railweave.contracts.wire import StoredMessage
from railweave.runtime.connection import Connection
from railweave.runtime.errors import BusUnavailable

_NANO = 1_000_000_000


class Delivery:
    """A message in hand. The consumer settles it when the handler returns or raises; or the handler takes that over.

    A handler that can only acknowledge later (when a batch that others share has been stored) calls `defer()` and
    returns; the message stays in hand, and is kept from being redelivered, until `ack`, `retry` or `terminate`.
    """

    def __init__(
        self,
        connection: Connection,
        message: StoredMessage,
        reply: str,
        attempt: int,
        on_settled: Callable[[Delivery], None],
    ) -> None:
        self.message = message
        self.attempt = attempt
        """1 for the first delivery."""
        self.is_deferred = False
        self._connection = connection
        self._reply = reply
        self._on_settled = on_settled
        self._verdict: bytes | None = None
        self._was_told = False
        self._told_in_progress = asyncio.get_running_loop().time()

    @property
    def is_redelivered(self) -> bool:
        """Whether an earlier delivery was not settled."""
        return self.attempt > 1

    @property
    def is_settled(self) -> bool:
        """Whether its end has been decided."""
        return self._verdict is not None

    @property
    def verdict(self) -> bytes | None:
        """How it was settled, as the server is told."""
        return self._verdict

    @property
    def owes_verdict(self) -> bool:
        """Whether its end was decided while the server was away."""
        return self._verdict is not None and not self._was_told

    @property
    def was_put_off(self) -> bool:
        """Whether it was given back, to be delivered again."""
        return self._verdict is not None and self._verdict.startswith(b"-NAK")

    def defer(self) -> None:
        """Keep it in hand after the handler returns: the handler's owner settles it later."""
        self.is_deferred = True

    async def ack(self) -> None:
        """Done: everything it causes is stored."""
        await self._settle(b"+ACK")

    async def retry(self, delay_s: float) -> None:
        """Have it redelivered after `delay_s` seconds (at once would burn its deliveries in milliseconds)."""
        await self._settle(b"-NAK " + json.dumps({"delay": int(max(delay_s, 0.001) * _NANO)}).encode())

    async def terminate(self, reason: str) -> None:
        """Give it up: never redelivered. The broker tells of it by an advisory that names `reason`."""
        await self._settle(b"+TERM " + reason.replace("\r", " ").replace("\n", " ")[:500].encode())

    async def in_progress(self) -> None:
        """Have the server wait another ack_wait."""
        if self._verdict is None:
            self._told_in_progress = asyncio.get_running_loop().time()
            await self._tell(b"+WPI")

    def silent_since(self, now: float) -> float:
        """Seconds since the server was last told that it is in hand; `now` on the loop's clock."""
        return now - self._told_in_progress

    def redelivered(self, reply: str) -> None:
        """The same message came again while it is in hand: answer by the newer way."""
        self._reply = reply
        self._told_in_progress = asyncio.get_running_loop().time()

    async def repeat_verdict(self) -> None:
        """Tell the server what it could not be told before."""
        if self._verdict is not None and not self._was_told:
            self._was_told = await self._tell(self._verdict)

    async def _settle(self, verdict: bytes) -> None:
        if self._verdict is not None:
            return
        self._verdict = verdict
        self._was_told = await self._tell(verdict)
        self._on_settled(self)

    async def _tell(self, what: bytes) -> bool:
        try:
            await self._connection.publish(self._reply, what, "", None)
        except BusUnavailable:
            return False
        return True
