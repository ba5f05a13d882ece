"""JobPublisher: stored once, or a typed error that says what to do."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import nats
import pytest

from railweave.contracts import ContractError
from railweave.contracts.client import JobPublisher, NotAnswered, NotStored, QueryFailed, Refused, Unreachable
from railweave.contracts.job import JobEnded, JobSpec, Outcome
from railweave.contracts.types import Attempt, ClusterName, JobName
from railweave_testing.servers import running_nats


async def test_event_is_stored_when_the_call_returns_and_a_repeat_counts_once(railweave: Any) -> None:
    async with JobPublisher(railweave.url) as jobs:
        first = await jobs.submit(railweave.job())
        again = await jobs.submit(JobSpec.model_validate_json(json.dumps(railweave.job())))
    assert (first.stream, first.duplicate, again.duplicate) == ("JOBS", False, True)
    assert again.sequence == first.sequence
    assert await railweave.stored(f"rw.job.submitted.{railweave.cluster}.1234") == 1


async def test_whole_life_of_a_job_is_published(railweave: Any) -> None:
    run = {"cluster": railweave.cluster, "job": "1", "attempt": 1}
    ended = JobEnded(
        cluster=ClusterName(railweave.cluster), job=JobName("1"), attempt=Attempt(1), outcome=Outcome.SUCCEEDED
    )
    async with JobPublisher(railweave.client) as jobs:
        stored = [
            await jobs.submit(railweave.job("1")),
            await jobs.update({**run, "revision": 1, "priority": 7}),
            await jobs.started({**run, "workers": [{"worker": 0, "netns": "/run/netns/a"}]}),
            await jobs.ended(ended),
            await jobs.snapshot(
                {"cluster": railweave.cluster, "number": 1, "taken_at": "2026-12-01T10:00:00Z", "live": []}
            ),
        ]
    assert [place.stream for place in stored] == ["JOBS", "JOBS", "JOBS", "JOBS", "SNAPSHOTS"]
    assert railweave.client.is_connected  # an open connection stays its owner's


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"workers": [{"count": 1, "gpu": 1}]}, "workers[0].gpu"),
        ({"datasetts": []}, "datasetts"),
        ({"attempt": "1"}, "attempt"),
        ({"job": "\ud800"}, "body"),
        ({"workers": [{"count": float("nan")}]}, "workers[0].count"),
        ({"labels": {"a": object()}}, "body"),
    ],
)
async def test_malformed_job_is_refused_before_anything_is_sent(
    railweave: Any, change: dict[str, Any], field: str
) -> None:
    async with JobPublisher(railweave.url) as jobs:
        with pytest.raises(ContractError) as caught:
            await jobs.submit(railweave.job(**change))
    assert caught.value.field == field
    assert await railweave.stored(f"rw.job.submitted.{railweave.cluster}.>") == 0


async def test_without_its_stream_nothing_is_stored_and_the_error_says_so(fresh_railweave: Any) -> None:
    await fresh_railweave.js.delete_stream("JOBS")
    async with JobPublisher(fresh_railweave.url, deadline_s=0.6) as jobs:
        with pytest.raises(NotStored, match="say it again") as caught:
            await jobs.submit(fresh_railweave.job())
    assert not caught.value.may_be_stored
    assert caught.value.event_id == f"job.submitted/{fresh_railweave.cluster}/1234/1"


async def test_stream_that_comes_back_in_time_gets_the_event_once(fresh_railweave: Any) -> None:
    await fresh_railweave.js.delete_stream("JOBS")
    async with JobPublisher(fresh_railweave.url) as jobs:
        storing = asyncio.create_task(jobs.submit(fresh_railweave.job()))
        await asyncio.sleep(0.3)
        assert not storing.done()
        await fresh_railweave.js.add_stream(name="JOBS", subjects=["rw.job.>"])
        assert not (await storing).duplicate
    assert await fresh_railweave.stored("rw.job.>") == 1


async def test_event_said_while_the_broker_is_down_is_stored_once_when_it_is_back(fresh_railweave: Any) -> None:
    async with JobPublisher(fresh_railweave.url) as jobs:
        fresh_railweave.server.kill()
        storing = asyncio.create_task(jobs.submit(fresh_railweave.job()))
        await asyncio.sleep(0.5)
        fresh_railweave.server.restart()
        await storing
    assert await fresh_railweave.stored("rw.job.>") == 1


async def test_deadline_while_the_broker_is_down_leaves_the_outcome_open(fresh_railweave: Any) -> None:
    async with JobPublisher(fresh_railweave.url, deadline_s=0.5) as jobs:
        fresh_railweave.server.pause()
        await asyncio.sleep(0.1)  # until it has stopped
        try:
            with pytest.raises(NotStored) as caught:
                await jobs.submit(fresh_railweave.job())
        finally:
            fresh_railweave.server.resume()
    assert caught.value.may_be_stored


async def test_missing_right_is_told_as_such() -> None:
    users = """
    authorization { users: [
      { user: a, password: a, permissions: { publish: ["rw.job.submitted.a.>"], subscribe: ["_INBOX.>"] } }
      { user: admin, password: admin }
    ] }
    """
    with running_nats(extra_config=users) as server:
        admin = await nats.connect(server.url, user="admin", password="admin")
        await admin.jetstream().add_stream(name="JOBS", subjects=["rw.job.>"])
        job = {"cluster": "b", "job": "1", "attempt": 1, "workers": [{"count": 1}]}
        async with JobPublisher(server.url, options={"user": "a", "password": "a"}) as jobs:
            with pytest.raises(Refused, match=r"(?i)permissions violation"):
                await jobs.submit(job)
            assert (await jobs.submit({**job, "cluster": "a"})).sequence == 1
        with pytest.raises(Unreachable, match=r"(?i)authorization"):
            await JobPublisher(server.url, deadline_s=3, options={"user": "x", "password": "x"}).__aenter__()
        await admin.close()


async def test_stream_limit_is_a_refusal(fresh_railweave: Any) -> None:
    await fresh_railweave.js.update_stream(name="JOBS", subjects=["rw.job.>"], max_msg_size=400)
    async with JobPublisher(fresh_railweave.url) as jobs:
        with pytest.raises(Refused, match="maximum allowed"):
            await jobs.submit(fresh_railweave.job())


async def test_no_server_is_said_within_the_deadline() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"nats://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(Unreachable, match="no server at"):
        await JobPublisher(url, deadline_s=0.4).__aenter__()


async def test_dry_run_answers_where_or_why_not(fresh_railweave: Any) -> None:
    def reply(question: bytes) -> tuple[bytes, dict[str, str] | None]:
        spec = json.loads(question)["spec"]
        match spec["job"]:
            case "fits":
                return b'{"would_place": ["gpu-001"], "fetch_bytes": 7, "later_field": 1}', None
            case "waits":
                return b'{"reasons": [{"code": "InsufficientGpus", "text": "0 of 1 free"}]}', None
            case "broken":
                return b"{}", None
            case _:
                return b"", {"Nats-Service-Error": "not folded yet", "Nats-Service-Error-Code": "503"}

    await fresh_railweave.answer("rw.query.jobs.dryrun", reply)
    async with JobPublisher(fresh_railweave.url) as jobs:
        fits = await jobs.dry_run(fresh_railweave.job("fits"))
        waits = await jobs.dry_run(fresh_railweave.job("waits"))
        assert (fits.would_place, fits.reasons, fits.fetch_bytes) == (("gpu-001",), (), 7)
        assert (waits.would_place, [reason.text for reason in waits.reasons]) == (None, ["0 of 1 free"])
        with pytest.raises(QueryFailed, match="not folded yet") as failed:
            await jobs.dry_run(fresh_railweave.job("other"))
        assert failed.value.code == 503
        with pytest.raises(ContractError, match="would_place"):
            await jobs.dry_run(fresh_railweave.job("broken"))
        with pytest.raises(ContractError):
            await jobs.dry_run(fresh_railweave.job(attempt=0))
    assert await fresh_railweave.stored("rw.job.>") == 0


async def test_dry_run_without_the_service_says_so(fresh_railweave: Any) -> None:
    async with JobPublisher(fresh_railweave.url) as jobs:
        with pytest.raises(NotAnswered, match="is the service running"):
            await jobs.dry_run(fresh_railweave.job())
