"""Requests and their answers, the way NATS tools expect them (ADR-32)."""

from __future__ import annotations

import asyncio
import json
import time
import uuid

import pytest

from railweave.runtime.bus import Bus
from railweave.runtime.errors import NoResponders
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.service_api import Request, RequestError
from railweave_testing.buses import connected


async def test_service_answers_and_can_be_pinged_and_asked_for_statistics(
    bus: Bus, nats_server: LocalNatsServer
) -> None:
    name = f"svc-{uuid.uuid4().hex[:8]}"

    async def double(request: Request) -> bytes:
        return request.body * 2

    service = bus.service(name, "0.1.0", description="doubles")
    service.endpoint("double", f"t.{name}.double", double)
    async with connected(nats_server) as asker:
        async with service:
            answer = await asker.request(f"t.{name}.double", b"ab")
            assert answer.data == b"abab"
            ping = json.loads((await asker.request(f"$SRV.PING.{name}", b"")).data)
            assert (ping["name"], ping["type"]) == (name, "io.nats.micro.v1.ping_response")
            info = json.loads((await asker.request(f"$SRV.INFO.{name}.{service.instance}", b"")).data)
            assert info["endpoints"][0]["subject"] == f"t.{name}.double"
            stats = json.loads((await asker.request(f"$SRV.STATS.{name}", b"")).data)
            assert stats["endpoints"][0]["num_requests"] == 1
        with pytest.raises(NoResponders):
            await asker.request(f"t.{name}.double", b"ab")


async def test_first_request_after_starting_is_answered(bus: Bus, nats_server: LocalNatsServer) -> None:
    """Row 1: ready means that the server has the subscriptions."""

    async def echo(request: Request) -> bytes:
        return request.body

    async with connected(nats_server) as asker:
        for number in range(50):
            service = bus.service("echo", "0.1.0")
            service.endpoint("echo", f"t.echo.{number}", echo)
            async with service:
                assert (await asker.request(f"t.echo.{number}", b"x")).data == b"x"


async def test_errors_are_told_to_the_asker_and_counted(bus: Bus) -> None:
    async def fail(request: Request) -> bytes:
        if request.body == b"known":
            raise RequestError(404, "no such\r\njob")
        raise LookupError("oops")

    service = bus.service("failing", "0.1.0")
    service.endpoint("fail", "t.failing", fail)
    async with service:
        known = await bus.request("t.failing", b"known")
        assert known.headers is not None
        assert known.headers["Nats-Service-Error-Code"] == "404"
        assert known.headers["Nats-Service-Error"] == "no such job"
        unknown = await bus.request("t.failing", b"unknown")
        assert unknown.headers is not None
        assert unknown.headers["Nats-Service-Error-Code"] == "500"
        stats = json.loads((await bus.request("$SRV.STATS.failing", b"")).data)
        assert stats["endpoints"][0]["num_errors"] == 2
        assert "LookupError" in stats["endpoints"][0]["last_error"]


async def test_slow_request_does_not_hold_up_the_others(bus: Bus) -> None:
    """Row 27: nats.micro answers one at a time."""

    async def wait(request: Request) -> bytes:
        await asyncio.sleep(0.2)
        return b""

    service = bus.service("slow", "0.1.0")
    service.endpoint("slow", "t.slow", wait)
    async with service:
        started = time.monotonic()
        await asyncio.gather(*(bus.request("t.slow", b"") for _ in range(8)))
        assert time.monotonic() - started < 0.8


async def test_each_request_is_answered_by_one_instance(bus: Bus, nats_server: LocalNatsServer) -> None:
    answered: list[str] = []

    async with connected(nats_server) as other:
        services = []
        for name, connection in (("one", bus), ("two", other)):

            async def answer(request: Request, name: str = name) -> bytes:
                answered.append(name)
                return name.encode()

            service = connection.service("shared", "0.1.0")
            service.endpoint("work", "t.shared", answer)
            services.append(service)
        async with services[0], services[1]:
            await asyncio.gather(*(bus.request("t.shared", b"") for _ in range(60)))
    assert len(answered) == 60
    assert set(answered) == {"one", "two"}


async def test_stopping_answers_what_is_in_flight(bus: Bus) -> None:
    async def wait(request: Request) -> bytes:
        await asyncio.sleep(0.2)
        return b"done"

    service = bus.service("stopping", "0.1.0")
    service.endpoint("work", "t.stopping", wait)
    async with service:
        asking = asyncio.create_task(bus.request("t.stopping", b""))
        await asyncio.sleep(0.05)
    assert (await asking).data == b"done"


async def test_stopping_under_fire_answers_or_refuses_and_leaves_nobody_waiting(
    bus: Bus, nats_server: LocalNatsServer
) -> None:
    """What the server had handed over when we unsubscribed is answered too."""

    async def echo(request: Request) -> bytes:
        return request.body

    outcomes: list[bool] = []

    async def ask(asker: Bus) -> None:
        while True:
            try:
                await asker.request("t.under.fire", b"x", timeout_s=1.0)
                outcomes.append(True)
            except NoResponders:
                outcomes.append(False)
                return

    async with connected(nats_server) as asker:
        for _ in range(20):
            service = bus.service("fire", "0.1.0")
            service.endpoint("work", "t.under.fire", echo)
            async with service:
                asking = [asyncio.create_task(ask(asker)) for _ in range(10)]
                await asyncio.sleep(0.01)
            await asyncio.gather(*asking)
    assert outcomes.count(False) == 200


async def test_service_answers_again_after_the_broker_came_back(fresh_nats_server: LocalNatsServer) -> None:
    async def echo(request: Request) -> bytes:
        return request.body

    async with connected(fresh_nats_server) as bus:
        service = bus.service("back", "0.1.0")
        service.endpoint("echo", "t.back", echo)
        async with service:
            await asyncio.to_thread(fresh_nats_server.kill)
            await asyncio.to_thread(fresh_nats_server.start)
            await bus.wait_up(10)
            assert (await bus.request("t.back", b"x")).data == b"x"


async def test_a_broker_that_dies_while_a_service_starts_ended_the_process(fresh_nats_server: LocalNatsServer) -> None:
    async def echo(request: Request) -> bytes:
        return request.body

    async with connected(fresh_nats_server) as bus:
        service = bus.service("echo", "0.1.0")
        service.endpoint("echo", "t.echo", echo)
        await asyncio.to_thread(fresh_nats_server.kill)
        starting = asyncio.ensure_future(service.__aenter__())
        await asyncio.sleep(0.3)
        await asyncio.to_thread(fresh_nats_server.start)
        await asyncio.wait_for(starting, 20)
        async with connected(fresh_nats_server) as asker:
            assert (await asker.request("t.echo", b"x")).data == b"x"
        await service.__aexit__(None, None, None)


async def test_a_broker_that_dies_with_an_announcement_half_told_hears_it_again(
    fresh_nats_server: LocalNatsServer,
) -> None:
    """It has our subscriptions in a buffer, or some of them, and never says so."""

    async def echo(request: Request) -> bytes:
        return request.body

    async with connected(fresh_nats_server) as bus:
        service = bus.service("half", "0.1.0")
        service.endpoint("echo", "t.half", echo)
        await asyncio.to_thread(fresh_nats_server.pause)
        starting = asyncio.ensure_future(service.__aenter__())
        await asyncio.sleep(0.3)
        assert not starting.done(), "nobody has heard of it"
        await asyncio.to_thread(fresh_nats_server.kill)
        await asyncio.to_thread(fresh_nats_server.start)
        await asyncio.wait_for(starting, 20)
        async with connected(fresh_nats_server) as asker:
            assert (await asker.request("t.half", b"x")).data == b"x"
            ping = json.loads((await asker.request(f"$SRV.PING.half.{service.instance}", b"")).data)
            assert ping["id"] == service.instance
        await service.__aexit__(None, None, None)
