"""Requests and their replies over one inbox: many may be in flight, and none waits for a dead connection.

nats-py's own `request` waits its full timeout when the broker goes away or refuses the subject; here both are
told to whoever waits at once. Sending and waiting are apart, so that a pipeline keeps its order.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Mapping

from nats.aio.msg import Msg

from railweave.runtime.connection import Connection
from railweave.runtime.errors import BusUnavailable, NoResponders, PermissionRefused

_VIOLATION = re.compile(r"permissions violation for (?:publish|subscription) to \"?([^\"' ]+)", re.IGNORECASE)


class Reply:
    """A reply that will come. Await `result`; forget it by `drop`."""

    __slots__ = ("_replies", "_token", "future", "subject")

    def __init__(self, replies: Replies, token: str, subject: str, future: asyncio.Future[Msg]) -> None:
        self._replies = replies
        self._token = token
        self.subject = subject
        self.future = future

    async def result(self, timeout_s: float) -> Msg:
        """Return the reply; raises NoResponders, PermissionRefused, or BusUnavailable (sent) after `timeout_s`."""
        # A bare timer: `asyncio.timeout` costs as much as sending the request.
        timer = asyncio.get_running_loop().call_later(timeout_s, self._expire, timeout_s)
        try:
            message = await self.future
        finally:
            timer.cancel()
            self.drop()
        if message.headers and message.headers.get("Status") == "503":
            raise NoResponders(self.subject)
        return message

    def _expire(self, timeout_s: float) -> None:
        if not self.future.done():
            late = BusUnavailable(f"{self.subject}: no answer within {timeout_s:g} s", was_sent=True)
            self.future.set_exception(late)
            self.future.exception()  # whoever waits gets it; nobody may any more

    def drop(self) -> None:
        """Stop waiting; a late reply is ignored."""
        self._replies.forget(self._token)


class Replies:
    """The one inbox of a connection for everything that is asked on it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._prefix = ""
        self._tokens = itertools.count()
        self._waiting: dict[str, Reply] = {}

    async def open(self) -> None:
        """Subscribe to the inbox."""
        self._prefix = self._connection.client.new_inbox() + "."
        await self._connection.client.subscribe(self._prefix + "*", cb=self._came)
        self._connection.on_disconnected.add(self._lost)
        self._connection.on_error.add(self._refused)

    async def send(self, subject: str, body: bytes, headers: Mapping[str, str] | None = None) -> Reply:
        """Send a request without waiting for its reply; raises BusUnavailable (not sent), BusClosed."""
        token = str(next(self._tokens))
        reply = Reply(self, token, subject, asyncio.get_running_loop().create_future())
        self._waiting[token] = reply
        try:
            await self._connection.publish(subject, body, self._prefix + token, dict(headers) if headers else None)
        except BaseException:
            self.forget(token)
            raise
        return reply

    async def ask(self, subject: str, body: bytes, timeout_s: float, headers: Mapping[str, str] | None = None) -> Msg:
        """Send a request and wait for its reply."""
        return await (await self.send(subject, body, headers)).result(timeout_s)

    async def echo(self, timeout_s: float) -> None:
        """Send a message to our own inbox and wait for it: everything sent before has then been taken."""
        token = str(next(self._tokens))
        reply = Reply(self, token, self._prefix + token, asyncio.get_running_loop().create_future())
        self._waiting[token] = reply
        try:
            await self._connection.publish(self._prefix + token, b"", "", None)
            await reply.result(timeout_s)
        finally:
            self.forget(token)

    def forget(self, token: str) -> None:
        """Ignore whatever comes for `token`."""
        reply = self._waiting.pop(token, None)
        if reply is not None and not reply.future.done():
            reply.future.cancel()

    async def _came(self, message: Msg) -> None:
        reply = self._waiting.pop(message.subject[len(self._prefix) :], None)
        if reply is not None and not reply.future.done():
            reply.future.set_result(message)

    def _lost(self) -> None:
        for reply in self._waiting.values():
            if not reply.future.done():
                reply.future.set_exception(
                    BusUnavailable(f"{reply.subject}: the connection was lost before the answer", was_sent=True)
                )
                reply.future.exception()  # whoever waits gets it; nobody may
        self._waiting.clear()

    def _refused(self, error: Exception) -> None:
        found = _VIOLATION.search(str(error))
        if found is None:
            return
        for token, reply in list(self._waiting.items()):
            if reply.subject.lower() == found[1].lower() and not reply.future.done():
                reply.future.set_exception(PermissionRefused(reply.subject, "permissions violation"))
                reply.future.exception()
                self._waiting.pop(token, None)
