"""The jobs service on a real nats-server: a job goes from submitted to released, and every refusal says why."""

from __future__ import annotations

import pytest
from plane import LAB, job, plane, until

from railweave.contracts.client import JobWasRejected, wait_prepared
from railweave.contracts.envelope import encode_event
from railweave.contracts.job import JobEnded, JobStarted, NetworkWanted, Outcome
from railweave.contracts.proposal import Ask
from railweave.contracts.types import Attempt, JobName, Round
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus, BusSettings
from railweave.runtime.local_servers import LocalNatsServer

pytestmark = pytest.mark.timeout(60)

ONE = {"cluster": LAB, "job": JobName("1"), "attempt": Attempt(1)}


async def test_a_job_goes_from_submitted_to_attached_to_released(fresh_nats_server: LocalNatsServer) -> None:
    url = fresh_nats_server.url
    async with plane(fresh_nats_server) as publisher:
        await publisher.submit(job("1", workers=3, gpus=2, network=NetworkWanted()))
        prepared = await wait_prepared(url, LAB, "1", 1, timeout=20)
        assert len(prepared.nodes) == 3
        await publisher.started(JobStarted(**ONE))
        await until(url, "1", "attached")
        await publisher.ended(JobEnded(**ONE, outcome=Outcome.SUCCEEDED))
        await until(url, "1", "released")


async def test_what_can_never_be_met_is_rejected_at_once(fresh_nats_server: LocalNatsServer) -> None:
    async with plane(fresh_nats_server) as publisher:
        await publisher.submit(job("1", workers=9))
        with pytest.raises(JobWasRejected):
            await wait_prepared(fresh_nats_server.url, LAB, "1", 1, timeout=20)


async def test_a_job_that_waits_is_placed_when_what_it_lacks_is_freed(fresh_nats_server: LocalNatsServer) -> None:
    url = fresh_nats_server.url
    async with plane(fresh_nats_server, nodes=2) as publisher:
        await publisher.submit(job("1", workers=2, gpus=2))
        await wait_prepared(url, LAB, "1", 1, timeout=20)
        await publisher.submit(job("2", workers=1, gpus=2))
        await until(url, "2", "pending")
        await publisher.ended(JobEnded(**ONE, outcome=Outcome.CANCELLED))
        await wait_prepared(url, LAB, "2", 1, timeout=20)


async def test_an_ask_that_an_earlier_committer_stored_already_is_asked_anew(
    fresh_nats_server: LocalNatsServer,
) -> None:
    """The broker drops a repeated id for two minutes: the ask was not heard, and its job waited for the timeout."""
    wanted = job("1")
    about = {"cluster": wanted.cluster, "job": wanted.job, "attempt": wanted.attempt}
    # Its answers were for that committer: nobody answers it again.
    earlier = Ask(**about, round=Round(1), spec=wanted, concerns=())
    async with await Bus.connect(BusSettings(servers=(fresh_nats_server.url,))) as bus:
        await bootstrap(bus)
        await bus.publish(encode_event(earlier))
    async with plane(fresh_nats_server, flags=("jobs.ask_timeout_s=600",)) as publisher:
        await publisher.submit(wanted)
        prepared = await wait_prepared(fresh_nats_server.url, LAB, "1", 1, timeout=20)
        assert prepared.round == 2
