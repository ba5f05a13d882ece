"""Answering requests the way NATS tools expect (ADR-32): a service can be listed, pinged and asked for statistics.

Own code and not nats.micro: that one handles one request at a time per endpoint, and uses what newer Pythons deprecate.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.nuid import NUID

from railweave.runtime.connection import Connection
from railweave.runtime.errors import BusError, BusUnavailable

_log = logging.getLogger("railweave.service_api")
_QUEUE = "q"  # the default of ADR-32
_BACKLOG = 1024
_NUID = NUID()


class RequestError(Exception):
    """Raised by a handler: the answer is this error. `code` is HTTP-like."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(description)
        self.code = code
        self.description = description


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked."""

    subject: str
    body: bytes
    headers: Mapping[str, str]


RequestHandler = Callable[[Request], Awaitable[bytes]]


@dataclass(slots=True)
class _Endpoint:
    name: str
    subject: str
    handler: RequestHandler
    limit: asyncio.Semaphore
    requests: int = 0
    errors: int = 0
    last_error: str = ""
    processing_ns: int = 0
    in_flight: set[asyncio.Task[None]] = field(default_factory=set)


class ServiceApi:
    """One service instance. Add endpoints, then `async with` it; leaving finishes what is in flight."""

    def __init__(
        self,
        connection: Connection,
        barrier: Callable[[], Awaitable[None]],
        name: str,
        version: str,
        description: str,
    ) -> None:
        self.name = name
        self.version = version
        self.description = description
        self.instance = _NUID.next().decode()
        self._connection = connection
        self._barrier = barrier
        self._endpoints: list[_Endpoint] = []
        self._subscriptions: list[Subscription] = []
        self._started = datetime.now(UTC)

    def endpoint(self, name: str, subject: str, handler: RequestHandler, *, concurrency: int = 16) -> None:
        """Answer requests on `subject` by what `handler` returns; one instance of the service gets each request."""
        self._endpoints.append(_Endpoint(name, subject, handler, asyncio.Semaphore(concurrency)))

    async def __aenter__(self) -> Self:
        client = self._connection.client
        self._started = datetime.now(UTC)
        for endpoint in self._endpoints:
            self._subscriptions.append(await client.subscribe(endpoint.subject, _QUEUE, self._take(endpoint)))
        for verb, answer in (("PING", self._ping), ("INFO", self._info), ("STATS", self._stats)):
            for subject in (f"$SRV.{verb}", f"$SRV.{verb}.{self.name}", f"$SRV.{verb}.{self.name}.{self.instance}"):
                self._subscriptions.append(await client.subscribe(subject, cb=self._control(answer)))
        await self._heard_of()
        return self

    async def _heard_of(self) -> None:
        """Wait until a server has the subscriptions; one that goes away meanwhile gets them again when it is back."""
        while True:
            try:
                await self._barrier()
                return
            except BusUnavailable:
                await self._connection.wait_up()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        subscriptions, self._subscriptions = self._subscriptions, []
        await self._take_no_more(subscriptions)
        in_flight = [task for endpoint in self._endpoints for task in endpoint.in_flight]
        if in_flight:
            _, late = await asyncio.wait(in_flight, timeout=4.0)
            for task in late:
                task.cancel()

    async def _take_no_more(self, subscriptions: Sequence[Subscription]) -> None:
        """Unsubscribe, but take what the server has handed to us: its askers would wait in vain."""
        try:
            await self._connection.take_no_more(subscriptions, self._barrier)
        except BusError as error:
            _log.debug("%s stops without the last requests: %s", self.name, error)
        if not self._connection.client.is_closed:
            for subscription in subscriptions:
                await subscription.unsubscribe()

    def _take(self, endpoint: _Endpoint) -> Callable[[Msg], Awaitable[None]]:
        async def take(message: Msg) -> None:
            if len(endpoint.in_flight) >= _BACKLOG:
                endpoint.errors += 1
                await self._refuse(message, 503, "too many requests are waiting")
                return
            task = asyncio.get_running_loop().create_task(self._answer(endpoint, message))
            endpoint.in_flight.add(task)
            task.add_done_callback(endpoint.in_flight.discard)

        return take

    async def _answer(self, endpoint: _Endpoint, message: Msg) -> None:
        async with endpoint.limit:
            started = time.perf_counter_ns()
            endpoint.requests += 1
            try:
                answer = await endpoint.handler(Request(message.subject, message.data, message.headers or {}))
                await self._reply(message, answer, None)
            except RequestError as error:
                await self._failed(endpoint, message, error.code, error.description)
            except Exception as error:  # noqa: BLE001 - a handler's fault is the asker's answer, and our log
                _log.exception("answering %s failed", message.subject)
                await self._failed(endpoint, message, 500, f"{type(error).__name__}: {error}")
            finally:
                endpoint.processing_ns += time.perf_counter_ns() - started

    async def _failed(self, endpoint: _Endpoint, message: Msg, code: int, description: str) -> None:
        endpoint.errors += 1
        endpoint.last_error = f"{code}:{description}"
        await self._refuse(message, code, description)

    async def _refuse(self, message: Msg, code: int, description: str) -> None:
        headers = {"Nats-Service-Error": " ".join(description.split()), "Nats-Service-Error-Code": str(code)}
        await self._reply(message, b"", headers)

    async def _reply(self, message: Msg, body: bytes, headers: dict[str, str] | None) -> None:
        if not message.reply:
            return
        try:
            await self._connection.publish(message.reply, body, "", headers)
        except BusError as error:
            _log.debug("no answer to %s: %s", message.subject, error)  # the asker repeats

    def _control(self, answer: Callable[[], dict[str, Any]]) -> Callable[[Msg], Awaitable[None]]:
        async def respond(message: Msg) -> None:
            await self._reply(message, json.dumps(self._identity() | answer()).encode(), None)

        return respond

    def _identity(self) -> dict[str, Any]:
        return {"name": self.name, "id": self.instance, "version": self.version, "metadata": {}}

    @staticmethod
    def _ping() -> dict[str, Any]:
        return {"type": "io.nats.micro.v1.ping_response"}

    def _info(self) -> dict[str, Any]:
        return {
            "type": "io.nats.micro.v1.info_response",
            "description": self.description,
            "endpoints": [
                {"name": e.name, "subject": e.subject, "queue_group": _QUEUE, "metadata": {}} for e in self._endpoints
            ],
        }

    def _stats(self) -> dict[str, Any]:
        return {
            "type": "io.nats.micro.v1.stats_response",
            "started": self._started.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "endpoints": [
                {
                    "name": e.name,
                    "subject": e.subject,
                    "queue_group": _QUEUE,
                    "num_requests": e.requests,
                    "num_errors": e.errors,
                    "last_error": e.last_error,
                    "processing_time": e.processing_ns,
                    "average_processing_time": e.processing_ns // e.requests if e.requests else 0,
                }
                for e in self._endpoints
            ],
        }
