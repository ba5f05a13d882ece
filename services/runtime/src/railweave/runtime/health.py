"""Health and metrics over HTTP, on loopback unless told otherwise: /healthz, /readyz, /metrics.

Live means the event loop answers and no liveness check says no: a supervisor restarts what is not. Ready means
every readiness check says yes: traffic and rollouts wait for it. The server is a few lines on asyncio streams
because that is all it must be; a request has bounds in size and time, and what is malformed is answered and closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass

import structlog

from railweave.runtime.metrics import CONTENT_TYPE, Metrics

_log = structlog.stdlib.get_logger(__name__)

_MAX_REQUEST_BYTES = 8192
_REQUEST_TIMEOUT_S = 2.0
_MAX_CONNECTIONS = 64

_PHRASES = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check found. `required` false: shown, but does not make the process unready (Redis)."""

    ok: bool
    detail: str = ""
    required: bool = True


Check = Callable[[], CheckResult]


class Health:
    """The checks of a process, by name. A check is a quick look at known state: it does no I/O and does not wait."""

    def __init__(self) -> None:
        self._live: dict[str, Check] = {}
        self._ready: dict[str, Check] = {}

    def add_liveness(self, name: str, check: Check) -> None:
        """A check that, failing, asks for a restart."""
        self._live[name] = check

    def add_readiness(self, name: str, check: Check) -> None:
        """A check that, failing, says "not yet" or "not now"."""
        self._ready[name] = check

    def live(self) -> tuple[bool, dict[str, CheckResult]]:
        """Whether the process is live, and each check."""
        return _run(self._live)

    def ready(self) -> tuple[bool, dict[str, CheckResult]]:
        """Whether the process is ready, and each check. Without any check it is not: nothing has started."""
        ok, results = _run(self._ready)
        return ok and bool(results), results


def _run(checks: Mapping[str, Check]) -> tuple[bool, dict[str, CheckResult]]:
    results = {}
    for name, check in checks.items():
        try:
            results[name] = check()
        except Exception as error:  # noqa: BLE001 - a check that fails is a failed check
            results[name] = CheckResult(ok=False, detail=f"check failed: {type(error).__name__}: {error}")
    return all(result.ok for result in results.values() if result.required), results


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    allow: str | None = None

    def encode(self, *, with_body: bool) -> bytes:
        head = [
            f"HTTP/1.1 {self.status} {_PHRASES[self.status]}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "Cache-Control: no-store",
            "Connection: close",
        ]
        if self.allow:
            head.append(f"Allow: {self.allow}")
        return ("\r\n".join(head) + "\r\n\r\n").encode("ascii") + (self.body if with_body else b"")


def _text(status: int, text: str = "", *, allow: str | None = None) -> _Response:
    return _Response(status, (text or _PHRASES[status]).encode() + b"\n", allow=allow)


@dataclass(frozen=True, slots=True)
class HealthServer:
    """A running health server: where it listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """Its address, without a path."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


@contextlib.asynccontextmanager
async def serve_health(
    health: Health, metrics: Metrics, *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[HealthServer]:
    """Serve while inside.

    Raises:
        OSError: the address cannot be bound.
    """
    connections: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(connections) >= _MAX_CONNECTIONS:
            writer.close()
            return
        connections.add(writer)
        try:
            async with asyncio.timeout(2 * _REQUEST_TIMEOUT_S):
                answer, with_body = await _answer(reader, health, metrics)
                writer.write(answer.encode(with_body=with_body))
                await writer.drain()
        except (OSError, TimeoutError):
            pass  # The asker went away or does not read; there is nobody to tell.
        finally:
            connections.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, host, port, limit=_MAX_REQUEST_BYTES, backlog=_MAX_CONNECTIONS)
    try:
        bound = server.sockets[0].getsockname()
        yield HealthServer(host=str(bound[0]), port=int(bound[1]))
    finally:
        server.close()
        for writer in list(connections):
            writer.transport.abort()
        await server.wait_closed()


async def _answer(reader: asyncio.StreamReader, health: Health, metrics: Metrics) -> tuple[_Response, bool]:
    try:
        async with asyncio.timeout(_REQUEST_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
    except TimeoutError:
        return _text(408), True
    except asyncio.LimitOverrunError:
        return _text(431), True
    except asyncio.IncompleteReadError:
        return _text(400), True
    line = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(line) != 3 or not line[2].startswith("HTTP/1."):
        return _text(400), True
    method, target, _ = line
    if method not in ("GET", "HEAD"):
        return _text(405, allow="GET, HEAD"), True
    try:
        response = _route(target.split("?", 1)[0], health, metrics)
    except Exception:  # noqa: BLE001 - logged, and answered
        _log.exception("health request failed", path=target)
        response = _text(500)
    return response, method == "GET"


def _route(path: str, health: Health, metrics: Metrics) -> _Response:
    if path == "/healthz":
        return _report(*health.live(), "live")
    if path == "/readyz":
        return _report(*health.ready(), "ready")
    if path == "/metrics":
        return _Response(200, metrics.exposition(), CONTENT_TYPE)
    return _text(404, "try /healthz, /readyz or /metrics")


def _report(ok: bool, results: Mapping[str, CheckResult], word: str) -> _Response:
    document = {word: ok, "checks": {name: asdict(result) for name, result in sorted(results.items())}}
    return _Response(200 if ok else 503, json.dumps(document).encode() + b"\n", "application/json")
