"""When the jobs service says that it is ready: when it places jobs, or stands by for one that does."""

from __future__ import annotations

import asyncio

import pytest
from plane import job, plane

from railweave.contracts.client import wait_prepared
from railweave.jobs.service import JobsService, create
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.process import run_services
from railweave.runtime.settings import Settings, load_settings

pytestmark = pytest.mark.timeout(60)


class Made:
    """Makes the service, and keeps it to look at."""

    def __init__(self) -> None:
        self.service: JobsService | None = None

    def __call__(self, settings: Settings) -> JobsService:
        self.service = create(settings)
        return self.service

    @property
    def is_ready(self) -> bool:
        return self.service is not None and self.service.ready

    async def wait_ready(self) -> None:
        async with asyncio.timeout(20):
            while not self.is_ready:  # noqa: ASYNC110 - no event tells it
                await asyncio.sleep(0.01)


async def test_a_cold_start_is_not_ready_before_it_places_jobs(fresh_nats_server: LocalNatsServer) -> None:
    url, made = fresh_nats_server.url, Made()
    async with plane(fresh_nats_server, flags=["jobs.orphan_grace_s=1.5"], jobs=made) as publisher:
        await publisher.submit(job("1"))
        preparing = asyncio.ensure_future(wait_prepared(url, "lab", "1", 1, timeout=20))
        while not made.is_ready:
            assert not preparing.done(), "it placed a job and was not ready"
            await asyncio.sleep(0.01)
        async with asyncio.timeout(1.0):
            await preparing


async def test_a_standby_is_ready_while_another_is_active(fresh_nats_server: LocalNatsServer) -> None:
    first, second = Made(), Made()
    async with plane(fresh_nats_server, jobs=first):
        await first.wait_ready()
        settings = load_settings(
            flags=[f"nats.servers={fresh_nats_server.url}", "redis.enabled=false", "service.http_port=0"], environ={}
        )
        stop = asyncio.Event()
        running = asyncio.ensure_future(run_services([second], settings, stop=stop, handle_signals=False))
        await second.wait_ready()
        stop.set()
        assert await running == 0
