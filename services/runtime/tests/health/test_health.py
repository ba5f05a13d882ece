"""The health server, asked rightly and wrongly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from railweave.runtime import health as health_module
from railweave.runtime.health import CheckResult, Health, HealthServer, serve_health
from railweave.runtime.metrics import Metrics


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
async def server(health: Health, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HealthServer]:
    monkeypatch.setattr(health_module, "_REQUEST_TIMEOUT_S", 0.2)
    async with serve_health(health, Metrics(process_metrics=False)) as running:
        yield running


async def ask(server: HealthServer, raw: bytes, *, finish: bool = False) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        writer.write(raw)
        if finish:
            writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 5)
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), body


async def get(server: HealthServer, path: str) -> tuple[int, bytes]:
    return await ask(server, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


async def test_a_process_is_live_while_its_loop_answers(server: HealthServer) -> None:
    assert (await get(server, "/healthz"))[0] == 200


async def test_a_failing_liveness_check_asks_for_a_restart(server: HealthServer, health: Health) -> None:
    health.add_liveness("watchdog", lambda: CheckResult(False, "no round for 60 s"))
    status, body = await get(server, "/healthz")
    assert status == 503
    assert json.loads(body)["checks"]["watchdog"]["detail"] == "no round for 60 s"


async def test_a_process_that_has_started_nothing_is_not_ready(server: HealthServer) -> None:
    assert (await get(server, "/readyz"))[0] == 503


async def test_ready_means_every_required_check_says_yes(server: HealthServer, health: Health) -> None:
    nats_up = False
    health.add_readiness("nats", lambda: CheckResult(nats_up))
    health.add_readiness("redis", lambda: CheckResult(False, "away", required=False))
    assert (await get(server, "/readyz"))[0] == 503
    nats_up = True
    status, body = await get(server, "/readyz?verbose=1")
    assert status == 200
    assert json.loads(body)["checks"]["redis"] == {"ok": False, "detail": "away", "required": False}


async def test_a_check_that_raises_is_a_failed_check(server: HealthServer, health: Health) -> None:
    health.add_readiness("broken", lambda: CheckResult(bool(1 / 0)))
    status, body = await get(server, "/readyz")
    assert status == 503
    assert "ZeroDivisionError" in json.loads(body)["checks"]["broken"]["detail"]


async def test_metrics_are_in_prometheus_format(server: HealthServer) -> None:
    status, body = await get(server, "/metrics")
    assert status == 200
    assert b"# TYPE railweave_handler_duration_seconds histogram" in body


async def test_head_has_no_body(server: HealthServer) -> None:
    assert await ask(server, b"HEAD /healthz HTTP/1.1\r\n\r\n") == (200, b"")


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"POST /healthz HTTP/1.1\r\n\r\n", 405),
        (b"GET /secret HTTP/1.1\r\n\r\n", 404),
        (b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", 404),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /healthz\r\n\r\n", 400),
        (b"GET /healthz SPDY/3\r\n\r\n", 400),
        (b"\x16\x03\x01\x00\xff\xff\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 10000 + b"\r\n\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\n", 408),
        (b"", 408),
    ],
)
async def test_what_is_wrong_is_answered_and_closed(server: HealthServer, raw: bytes, status: int) -> None:
    assert (await ask(server, raw))[0] == status


async def test_a_request_cut_off_is_answered_as_malformed(server: HealthServer) -> None:
    assert (await ask(server, b"GET /hea", finish=True))[0] == 400


async def test_many_silent_askers_do_not_shut_out_the_next(server: HealthServer) -> None:
    silent = [await asyncio.open_connection(server.host, server.port) for _ in range(80)]
    await asyncio.sleep(0.5)
    try:
        assert (await get(server, "/healthz"))[0] == 200
    finally:
        for _, writer in silent:
            writer.close()


async def test_leaving_closes_connections_at_once(health: Health) -> None:
    async with asyncio.timeout(2):
        async with serve_health(health, Metrics(process_metrics=False)) as server:
            reader, writer = await asyncio.open_connection(server.host, server.port)
            await asyncio.sleep(0.05)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()


async def test_it_listens_on_loopback_unless_told_otherwise(server: HealthServer) -> None:
    assert server.host == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.port}"
