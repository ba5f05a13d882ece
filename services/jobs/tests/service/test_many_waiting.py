"""More submissions than the broker delivers unacknowledged, and what is said of other jobs behind them."""

from __future__ import annotations

import pytest
from plane import LAB, Agents, job, plane, until

from railweave.contracts.envelope import encode_event
from railweave.contracts.job import JobEnded, JobSubmitted, Outcome
from railweave.contracts.types import Attempt, JobName
from railweave.runtime.bus import Bus, BusSettings
from railweave.runtime.local_servers import LocalNatsServer

pytestmark = pytest.mark.timeout(90)

MANY = 1500


@pytest.mark.parametrize("name", ["0", str(MANY - 1)])
async def test_an_end_comes_through_1500_submissions_that_nobody_answers(
    fresh_nats_server: LocalNatsServer, name: str
) -> None:
    url = fresh_nats_server.url
    # The services are down: none of these jobs has got an answer when one of them ends.
    async with plane(fresh_nats_server, around=(Agents,), flags=("jobs.ask_timeout_s=600",)) as publisher:
        async with await Bus.connect(BusSettings(servers=(url,))) as bus:
            submitted = [encode_event(JobSubmitted.of(job(str(number)))) for number in range(MANY)]
            for start in range(0, MANY, 500):
                await bus.publish_many(submitted[start : start + 500])
        ended = JobEnded(cluster=LAB, job=JobName(name), attempt=Attempt(1), outcome=Outcome.CANCELLED)
        await publisher.ended(ended)
        await until(url, name, "released")
