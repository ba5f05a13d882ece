"""Services in a process: they wait for NATS, share what is shared, and end in order."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable

import pytest

from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.health import HealthServer
from railweave.runtime.host import ServiceContext, ServiceNotFound, run_services
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.logs import configure_logging
from railweave.runtime.settings import Settings, SettingsError, load_settings

Work = Callable[[ServiceContext], Awaitable[None]]


class Probe:
    """A service that does what a test says."""

    def __init__(self, name: str, work: Work | None = None) -> None:
        self.name = name
        self.ready = False
        self.ctx: ServiceContext | None = None
        self._work = work

    async def run(self, ctx: ServiceContext) -> None:
        self.ctx = ctx
        self.ready = True
        if self._work is not None:
            await self._work(ctx)
        await ctx.stop.wait()


def settings_for(server: LocalNatsServer, *flags: str) -> Settings:
    return load_settings(environ={}, flags=[f"nats.servers={server.url}", "redis.enabled=false", *flags])


async def get(server: HealthServer, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return int(answer.split(" ")[1]), answer.partition("\r\n\r\n")[2]


async def until(condition: Callable[[], object], within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


async def run(*probes: Probe, settings: Settings, stop: asyncio.Event | None = None, **more: object) -> int:
    return await run_services(
        [lambda _, p=probe: p for probe in probes], settings, stop=stop, handle_signals=False, **more
    )  # type: ignore[arg-type]


async def test_several_services_share_one_bus_one_registry_and_one_folded_view(nats_server: LocalNatsServer) -> None:
    stop = asyncio.Event()
    views = []

    async def look(ctx: ServiceContext) -> None:
        await bootstrap(ctx.bus)
        views.append(await ctx.cluster.get())

    one, other = Probe("one", look), Probe("other", look)
    running = asyncio.ensure_future(run(one, other, settings=settings_for(nats_server), stop=stop))
    await until(lambda: len(views) == 2)
    stop.set()
    assert await running == 0
    assert one.ctx is not None
    assert other.ctx is not None
    assert one.ctx.bus is other.ctx.bus
    assert one.ctx.metrics is other.ctx.metrics
    assert views[0] is views[1]


async def test_a_view_nobody_asks_for_is_not_read(nats_server: LocalNatsServer) -> None:
    stop = asyncio.Event()
    probe = Probe("one")
    running = asyncio.ensure_future(run(probe, settings=settings_for(nats_server), stop=stop))
    await until(lambda: probe.ready)
    stop.set()
    assert await running == 0
    assert probe.ctx is not None
    assert not probe.ctx.cluster.is_used


async def test_services_wait_for_a_broker_that_is_not_there_yet_and_say_so(fresh_nats_server: LocalNatsServer) -> None:
    fresh_nats_server.kill()
    stop = asyncio.Event()
    probe = Probe("one")
    started: list[HealthServer] = []
    running = asyncio.ensure_future(
        run(probe, settings=settings_for(fresh_nats_server), stop=stop, on_started=started.append)
    )
    await until(lambda: started)
    await asyncio.sleep(0.3)
    status, body = await get(started[0], "/readyz")
    assert status == 503
    assert json.loads(body)["checks"]["nats"] == {"ok": False, "detail": "not connected", "required": True}
    assert (await get(started[0], "/healthz"))[0] == 200
    assert not probe.ready
    fresh_nats_server.restart()
    await until(lambda: probe.ready)
    assert (await get(started[0], "/readyz"))[0] == 200
    assert "railweave_nats_connected 1.0" in (await get(started[0], "/metrics"))[1]
    stop.set()
    assert await running == 0


async def test_asked_to_stop_while_waiting_for_the_broker_it_stops(fresh_nats_server: LocalNatsServer) -> None:
    fresh_nats_server.kill()
    stop = asyncio.Event()
    running = asyncio.ensure_future(run(Probe("one"), settings=settings_for(fresh_nats_server), stop=stop))
    await asyncio.sleep(0.2)
    stop.set()
    assert await asyncio.wait_for(running, 3) == 0


async def test_without_redis_services_run_and_readiness_shows_it(nats_server: LocalNatsServer) -> None:
    stop = asyncio.Event()
    probe = Probe("one")
    started: list[HealthServer] = []
    settings = settings_for(nats_server, "redis.enabled=true", "redis.url=redis://127.0.0.1:1/0")
    running = asyncio.ensure_future(run(probe, settings=settings, stop=stop, on_started=started.append))
    await until(lambda: probe.ready)
    await asyncio.sleep(0.1)
    status, body = await get(started[0], "/readyz")
    assert status == 200
    assert json.loads(body)["checks"]["redis"]["ok"] is False
    stop.set()
    assert await running == 0


async def test_a_service_that_fails_ends_the_process_after_the_others_have_finished(
    nats_server: LocalNatsServer,
) -> None:
    finished = []
    # Said here, since another test in this process may have told logging to be quiet.
    written = io.StringIO()
    configure_logging(stream=written)

    async def fail(_ctx: ServiceContext) -> None:
        await asyncio.sleep(0.05)
        raise ValueError("the fabric file has two leaves of one name")

    async def finish(ctx: ServiceContext) -> None:
        await ctx.stop.wait()
        await asyncio.sleep(0.1)
        await ctx.bus.barrier()
        finished.append("acked")

    assert await run(Probe("topology", fail), Probe("jobs", finish), settings=settings_for(nats_server)) == 1
    assert finished == ["acked"]
    said = written.getvalue()
    assert "service failed, the process ends" in said
    assert "two leaves of one name" in said


async def test_a_service_that_ends_by_itself_ends_the_process_with_an_error(nats_server: LocalNatsServer) -> None:
    class Quitter(Probe):
        async def run(self, ctx: ServiceContext) -> None:
            return

    assert await run(Quitter("one"), settings=settings_for(nats_server)) == 1


async def test_a_service_that_does_not_stop_in_time_is_cancelled(nats_server: LocalNatsServer) -> None:
    stop = asyncio.Event()

    async def hang(_ctx: ServiceContext) -> None:
        await asyncio.sleep(3600)

    probe = Probe("one", hang)
    settings = settings_for(nats_server, "service.stop_deadline_s=0.5")
    running = asyncio.ensure_future(run(probe, settings=settings, stop=stop))
    await until(lambda: probe.ready)
    stop.set()
    assert await asyncio.wait_for(running, 2) == 1


async def test_the_bus_works_until_the_last_service_has_finished(nats_server: LocalNatsServer) -> None:
    stop = asyncio.Event()
    worked = []

    async def late(ctx: ServiceContext) -> None:
        await ctx.stop.wait()
        await asyncio.sleep(0.2)
        await ctx.bus.barrier()
        worked.append(True)

    probe = Probe("one", late)
    running = asyncio.ensure_future(run(probe, Probe("other"), settings=settings_for(nats_server), stop=stop))
    await until(lambda: probe.ready)
    stop.set()
    assert await running == 0
    assert worked == [True]


async def test_cancelled_from_outside_everything_is_taken_down(nats_server: LocalNatsServer) -> None:
    probe = Probe("one")
    running = asyncio.ensure_future(run(probe, settings=settings_for(nats_server)))
    await until(lambda: probe.ready)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 3)
    assert probe.ctx is not None
    assert not probe.ctx.bus.is_up


async def test_work_until_stopped_is_cancelled_by_stop_and_its_errors_pass(nats_server: LocalNatsServer) -> None:
    stop = asyncio.Event()
    cleaned = []

    async def forever() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            cleaned.append(True)

    probe = Probe("one", lambda ctx: ctx.until_stopped(forever()))
    running = asyncio.ensure_future(run(probe, settings=settings_for(nats_server), stop=stop))
    await until(lambda: probe.ready)
    stop.set()
    assert await running == 0
    assert cleaned == [True]

    async def broken() -> None:
        raise ValueError("no")

    assert await run(Probe("two", lambda ctx: ctx.until_stopped(broken())), settings=settings_for(nats_server)) == 1


async def test_a_broker_that_closes_the_connection_for_good_ends_the_process(nats_server: LocalNatsServer) -> None:
    probe = Probe("one")
    running = asyncio.ensure_future(run(probe, settings=settings_for(nats_server)))
    await until(lambda: probe.ready)
    assert probe.ctx is not None
    await probe.ctx.bus.connection.client.close()
    assert await asyncio.wait_for(running, 5) == 1


async def test_cancelled_work_until_stopped_cleans_up_first(nats_server: LocalNatsServer) -> None:
    cleaned = []

    async def forever() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.05)
            cleaned.append(True)

    probe = Probe("one", lambda ctx: ctx.until_stopped(forever()))
    running = asyncio.ensure_future(run(probe, settings=settings_for(nats_server)))
    await until(lambda: probe.ready)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cleaned == [True]


async def test_a_port_that_is_taken_is_told_as_a_setting(nats_server: LocalNatsServer) -> None:
    settings = settings_for(nats_server, f"service.http_port={nats_server.port}")
    with pytest.raises(SettingsError, match=r"service.http_port: cannot listen on 127.0.0.1:\d+: .*in use"):
        await run(Probe("one"), settings=settings)


async def test_a_name_nobody_offers_is_refused(nats_server: LocalNatsServer) -> None:
    with pytest.raises(ServiceNotFound, match="no service 'weather'"):
        await run_services(["weather"], settings_for(nats_server), handle_signals=False)
