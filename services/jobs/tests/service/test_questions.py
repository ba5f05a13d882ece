"""Questions to the jobs service, on a real broker and a real Valkey: lists, one job, why, nodes, dry runs, counts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TypeVar

import pytest
from plane import LAB, FirstFree, job, plane, until
from pydantic import BaseModel
from redis.asyncio import Redis

from railweave.contracts import query
from railweave.contracts.client import JobPublisher, QueryFailed, wait_prepared
from railweave.contracts.client.link import Link
from railweave.contracts.client.questions import ask
from railweave.contracts.job import JobEnded, Outcome
from railweave.contracts.placement import JobState
from railweave.contracts.reasons import ReasonCode
from railweave.contracts.types import Attempt, JobName
from railweave.contracts.wire import StoredMessage
from railweave.runtime.bus import Bus
from railweave.runtime.local_servers import LocalNatsServer, LocalValkeyServer
from railweave_testing.buses import eventually

pytestmark = pytest.mark.timeout(90)

M = TypeVar("M", bound=BaseModel)
SUBJECTS = {
    query.JobsQuery: (query.JOBS_SUBJECT, query.JobsAnswer),
    query.NodesQuery: (query.NODES_SUBJECT, query.NodesAnswer),
    query.CountsQuery: (query.COUNTS_SUBJECT, query.CountsAnswer),
}


def redis_flags(valkey: LocalValkeyServer) -> list[str]:
    return ["redis.enabled=true", f"redis.url={valkey.url}", "redis.check_interval_s=0.2"]


@contextlib.asynccontextmanager
async def three_jobs(nats: LocalNatsServer, valkey: LocalValkeyServer) -> AsyncIterator[tuple[JobPublisher, Link]]:
    """Two nodes; `1` has one of them, `2` waits for both, `3` can never run."""
    async with plane(nats, nodes=2, flags=redis_flags(valkey)) as publisher, Link(nats.url) as link:
        await publisher.submit(job("1", gpus=2, tenant="t"))
        await wait_prepared(nats.url, LAB, "1", 1, timeout=20)
        await publisher.submit(job("2", workers=2, gpus=2, priority=4))
        await until(nats.url, "2", "pending")
        await publisher.submit(job("3", workers=9))
        await until(nats.url, "3", "rejected")
        yield publisher, link


async def listed(link: Link, **asked: object) -> list[str]:
    question = query.JobsQuery.model_validate(asked, strict=False)
    answer = await ask(link, query.JOBS_SUBJECT, question, query.JobsAnswer)
    return [str(row.job) for row in answer.jobs]


async def heard(link: Link, *jobs: str, **asked: object) -> None:
    """Wait until the read model has these jobs: it follows the record."""
    found: list[str] | None = None
    for _ in range(200):
        with contextlib.suppress(QueryFailed):
            found = await listed(link, **asked)
        if found == list(jobs):
            return
        await eventually_later()
    raise AssertionError(f"expected {jobs}, found {found}")


async def eventually_later() -> None:
    ticks = iter((False, False, True))
    await eventually(lambda: next(ticks))


async def test_questions_are_answered(
    fresh_nats_server: LocalNatsServer, fresh_valkey_server: LocalValkeyServer
) -> None:
    async with three_jobs(fresh_nats_server, fresh_valkey_server) as (publisher, link):
        await heard(link, "1", "2", "3")
        await _lists_are_narrowed(link)
        await _one_job_is_told_whole(link)
        await _why_is_told(link)
        await _nodes_are_told(link)
        await _a_dry_run_changes_nothing(publisher, link)
        await _what_cannot_be_answered_says_so(link)
        counts = await ask(link, query.COUNTS_SUBJECT, query.CountsQuery(), query.CountsAnswer)
        assert (counts.commits, counts.rejected, counts.orphans) == (1, 1, 0)
        assert counts.live == {JobState.PREPARED: 1, JobState.PENDING: 1}


async def _lists_are_narrowed(link: Link) -> None:
    assert await listed(link, states=["pending"]) == ["2"]
    assert await listed(link, states=["pending", "rejected"]) == ["2", "3"]
    assert await listed(link, tenant="t") == ["1"]
    assert await listed(link, node="n0") == ["1"]
    assert await listed(link, reason="InsufficientGpus") == ["2", "3"]
    assert await listed(link, cluster="elsewhere") == []
    assert await listed(link, node="n0", tenant="default") == []
    pages, after = [], None
    while True:
        answer = await ask(link, query.JOBS_SUBJECT, query.JobsQuery(limit=1, after=after), query.JobsAnswer)
        assert answer.total == 3
        pages += [str(row.job) for row in answer.jobs]
        if (after := answer.next) is None:
            break
    assert pages == ["1", "2", "3"]


async def _one_job_is_told_whole(link: Link) -> None:
    detail = await ask(link, query.JOB_SUBJECT, query.JobQuery(cluster=LAB, job=JobName("1")), query.JobDetail)
    assert (detail.row.state, detail.row.nodes, detail.row.gpus) == (JobState.PREPARED, ("n0",), 2)
    assert [(item.worker, item.node, len(item.gpus)) for item in detail.placed] == [(0, "n0", 2)]
    assert [(item.node, str(item.state)) for item in detail.progress] == [("n0", "prepared")]
    assert set(detail.times) == {JobState.PLACED, JobState.PREPARED}


async def _why_is_told(link: Link) -> None:
    why = await ask(link, query.WHY_SUBJECT, query.JobQuery(cluster=LAB, job=JobName("2")), query.Why)
    assert why.headline.startswith("PENDING InsufficientGpus, ")
    assert (why.position, why.queue_length, why.wants) == (1, 1, "2 worker x 2 GPUs")
    why = await ask(link, query.WHY_SUBJECT, query.JobQuery(cluster=LAB, job=JobName("3")), query.Why)
    assert (why.row.state, why.reasons[0].code) == (JobState.REJECTED, ReasonCode.INSUFFICIENT_GPUS)


async def _nodes_are_told(link: Link) -> None:
    answer = await ask(link, query.NODES_SUBJECT, query.NodesQuery(), query.NodesAnswer)
    assert [(row.node, row.gpus, row.free_gpus, row.jobs) for row in answer.nodes] == [
        ("n0", 2, 0, ("lab/1",)),
        ("n1", 2, 2, ()),
    ]
    one = await ask(link, query.NODES_SUBJECT, query.NodesQuery(node="n1"), query.NodesAnswer)
    assert [row.node for row in one.nodes] == ["n1"]


async def _a_dry_run_changes_nothing(publisher: JobPublisher, link: Link) -> None:
    assert (await publisher.dry_run(job("9", gpus=2))).would_place == ("n1",)
    refused = await publisher.dry_run(job("9", workers=2, gpus=2))
    assert (refused.would_place, refused.reasons[0].code, refused.never) == (None, ReasonCode.INSUFFICIENT_GPUS, False)
    assert (await publisher.dry_run(job("9", workers=9))).never
    assert await listed(link) == ["1", "2", "3"]


async def _what_cannot_be_answered_says_so(link: Link) -> None:
    nobody = query.JobQuery(cluster=LAB, job=JobName("nobody"))
    with pytest.raises(QueryFailed, match="no job lab/nobody"):
        await ask(link, query.JOB_SUBJECT, nobody, query.JobDetail)
    with pytest.raises(QueryFailed, match="after: expected `next`"):
        await ask(link, query.JOBS_SUBJECT, query.JobsQuery(after="x"), query.JobsAnswer)
    with pytest.raises(QueryFailed, match="cluster"):
        await ask(link, query.WHY_SUBJECT, query.JobsQuery(), query.Why)


async def test_a_job_of_many_nodes_is_told_in_as_many_readings_as_one_of_a_single_node(
    fresh_nats_server: LocalNatsServer, fresh_valkey_server: LocalValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    read_last = Bus.read_last

    async def counted(bus: Bus, stream: str, subject: str, **how: float) -> StoredMessage | None:
        read.append(subject)
        return await read_last(bus, stream, subject, **how)

    monkeypatch.setattr(Bus, "read_last", counted)
    nats = fresh_nats_server
    async with plane(nats, nodes=12, flags=redis_flags(fresh_valkey_server)) as publisher, Link(nats.url) as link:
        await publisher.submit(job("1", workers=12, gpus=2))
        await wait_prepared(nats.url, LAB, "1", 1, timeout=20)
        asked = query.JobQuery(cluster=LAB, job=JobName("1"))
        read.clear()
        detail = await ask(link, query.JOB_SUBJECT, asked, query.JobDetail)
        assert [item.worker for item in detail.placed] == list(range(12))
        assert {str(item.state) for item in detail.progress} == {"prepared"}
        assert tuple(item.node for item in detail.progress) == detail.row.nodes
        why = await ask(link, query.WHY_SUBJECT, asked, query.Why)
        assert why.row.state is JobState.PREPARED
        assert [subject for subject in read if not subject.startswith("rw.lease.")] == ["rw.head.lab.1"] * 2


async def test_a_job_whose_node_is_gone_says_so(
    fresh_nats_server: LocalNatsServer, fresh_valkey_server: LocalValkeyServer
) -> None:
    nats = fresh_nats_server
    # No agent reports: n0 is waited for. Only n1 has a heartbeat.
    flags = redis_flags(fresh_valkey_server)
    async with plane(nats, nodes=2, flags=flags, around=(FirstFree,)) as publisher, Link(nats.url) as link:
        await publisher.submit(job("1"))
        await until(nats.url, "1", "placed")
        asked = query.JobQuery(cluster=LAB, job=JobName("1"))
        assert not (await ask(link, query.WHY_SUBJECT, asked, query.Why)).reasons, "nobody has a heartbeat"
        async with Redis.from_url(fresh_valkey_server.url) as redis:
            await redis.set("rw:beat:agent:n1", "2026-12-01T10:00:00+00:00")
            (reason,) = (await ask(link, query.WHY_SUBJECT, asked, query.Why)).reasons
            assert (reason.code, reason.node) == (ReasonCode.AGENT_UNREACHABLE, "n0")
            await redis.set("rw:beat:agent:n0", "2026-12-01T10:00:00+00:00")
        assert not (await ask(link, query.WHY_SUBJECT, asked, query.Why)).reasons


async def test_the_read_model_is_written_anew_when_redis_was_emptied(
    fresh_nats_server: LocalNatsServer, fresh_valkey_server: LocalValkeyServer
) -> None:
    async with three_jobs(fresh_nats_server, fresh_valkey_server) as (publisher, link):
        await heard(link, "1", "2", "3")
        async with Redis.from_url(fresh_valkey_server.url) as redis:
            await redis.flushall()
        await heard(link, "1", "2", "3")
        await publisher.ended(JobEnded(cluster=LAB, job=JobName("1"), attempt=Attempt(1), outcome=Outcome.FAILED))
        await wait_prepared(fresh_nats_server.url, LAB, "2", 1, timeout=20)
        await heard(link, "2", states=["prepared"])


async def test_jobs_go_on_and_are_told_one_by_one_while_redis_is_away(
    fresh_nats_server: LocalNatsServer, fresh_valkey_server: LocalValkeyServer
) -> None:
    async with three_jobs(fresh_nats_server, fresh_valkey_server) as (publisher, link):
        fresh_valkey_server.kill()
        await publisher.ended(JobEnded(cluster=LAB, job=JobName("1"), attempt=Attempt(1), outcome=Outcome.FAILED))
        await wait_prepared(fresh_nats_server.url, LAB, "2", 1, timeout=20)
        with pytest.raises(QueryFailed, match="the read model is not available"):
            await listed(link)
        why = await ask(link, query.WHY_SUBJECT, query.JobQuery(cluster=LAB, job=JobName("2")), query.Why)
        assert why.row.state is JobState.PREPARED
        fresh_valkey_server.restart()
        await heard(link, "1", "2", "3")
