"""What a running jobs service says of itself on /metrics, of a real broker."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from functools import partial

import pytest
from plane import LAB, job, plane, until

from railweave.contracts.client import wait_prepared
from railweave.contracts.wire import WireMessage
from railweave.jobs import service
from railweave.runtime.bus import Bus, BusSettings
from railweave.runtime.health import HealthServer
from railweave.runtime.lag import watch_lag
from railweave.runtime.local_servers import LocalNatsServer

pytestmark = pytest.mark.timeout(60)


def scrape(url: str) -> dict[str, float]:
    """The samples by name with labels, as the text has them."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=5.0) as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r"^(railweave_\S+) (\S+)$", text, re.MULTILINE)}


def empty_fetches(found: dict[str, float]) -> float:
    """Requests for messages that nothing came for within their two seconds."""
    return sum(value for name, value in found.items() if name.startswith("railweave_fetch_empty_total"))


async def test_every_gauge_of_a_plane_at_work_is_filled(
    fresh_nats_server: LocalNatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "watch_lag", partial(watch_lag, every_s=0.2))
    url = fresh_nats_server.url
    health: list[HealthServer] = []
    async with plane(fresh_nats_server, nodes=2, on_started=health.append) as publisher:
        await publisher.submit(job("holds", workers=2, gpus=2))
        await wait_prepared(url, LAB, "holds", 1, timeout=20)
        await publisher.submit(job("waits", workers=1, gpus=2))
        await until(url, "waits", "pending")
        async with await Bus.connect(BusSettings(servers=(url,))) as bus:
            await bus.publish(WireMessage("rw.job.submitted.lab.bad", b"{}", {}, "bad"))
        found: dict[str, float] = {}
        async with asyncio.timeout(20):
            while found.get('railweave_dead_letters_stored{service="jobs"}') != 1.0 or not empty_fetches(found):
                await asyncio.sleep(0.1)
                found = await asyncio.to_thread(scrape, health[0].url)
    assert found['railweave_consumer_pending{consumer="jobs"}'] == 0.0
    assert found['railweave_consumer_unacknowledged{consumer="jobs"}'] == 0.0
    assert found["railweave_oldest_unplaced_job_age_seconds"] > 0.0
    assert found['railweave_generation_behind{kind="placement",service="jobs"}'] == 0.0
    assert found['railweave_jobs{state="pending"}'] == 1.0
    assert found['railweave_build_info{version="0.1.0"}'] == 1.0
    assert found['railweave_publish_duration_seconds_count{outcome="stored",stream="PLACEMENTS"}'] >= 2
    assert found['railweave_publish_duration_seconds_count{outcome="stored",stream="JOBS"}'] >= 2
    handled = "railweave_handler_duration_seconds_count"
    assert found[handled + '{outcome="ok",service="jobs",type="submitted"}'] == 2
    assert found[handled + '{outcome="rejected",service="jobs",type="submitted"}'] == 1
    assert found[handled + '{outcome="ok",service="first-free",type="propose"}'] >= 1
    assert found[handled + '{outcome="refused",service="first-free",type="propose"}'] >= 1
