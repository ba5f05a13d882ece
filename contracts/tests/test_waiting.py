"""submit_and_wait and wait_prepared: the answer, or why there will be none, or how far it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_core import to_json

from railweave.contracts import Event, registered_types
from railweave.contracts.client import (
    JobPublisher,
    JobWasRejected,
    JobWasReleased,
    StillWaiting,
    wait_prepared,
)
from railweave.contracts.job import JobAttached, JobPlaced, JobPrepared, JobReleased

REASON = {"code": "InsufficientGpus", "text": "wants 8 GPUs, 6 are free"}


def answer(railweave: Any, kind: str, **more: Any) -> Event:
    """An event about job 1234 of this test's cluster."""
    needed: dict[str, dict[str, Any]] = {
        "submitted": {"workers": [{"count": 1}]},
        "pending": {"reasons": [REASON]},
        "rejected": {"reasons": [REASON]},
        "placed": {"nodes": ["gpu-001"], "workers": [], "commit": "c-1"},
        "prepared": {"nodes": ["gpu-001"]},
        "attached": {"nodes": ["gpu-001"]},
        "releasing": {"reasons": [REASON]},
        "ended": {"outcome": "failed"},
    }
    data = {"cluster": railweave.cluster, "job": "1234", "attempt": 1, **needed.get(kind, {}), **more}
    return registered_types()[f"railweave.job.{kind}.v1"].model_validate_json(to_json(data))


async def say(railweave: Any, *kinds: str, **more: Any) -> None:
    for kind in kinds:
        await railweave.say(answer(railweave, kind, **more))


@pytest.mark.parametrize(
    ("until", "kind"),
    [("placed", JobPlaced), ("prepared", JobPrepared), ("attached", JobAttached), ("released", JobReleased)],
)
async def test_submitted_job_is_waited_for(railweave: Any, until: Any, kind: type[Event]) -> None:
    async with JobPublisher(railweave.url) as jobs:
        waiting = asyncio.create_task(jobs.submit_and_wait(railweave.job(), until, timeout=10))
        await asyncio.sleep(0.1)
        await say(railweave, "pending", "placed", "prepared", "attached", "releasing", "released")
        assert type(await waiting) is kind


async def test_rejection_is_raised_with_its_reasons(railweave: Any) -> None:
    async with JobPublisher(railweave.url) as jobs:
        waiting = asyncio.create_task(jobs.submit_and_wait(railweave.job(), timeout=10))
        await asyncio.sleep(0.1)
        await say(railweave, "rejected")
        with pytest.raises(JobWasRejected, match="wants 8 GPUs, 6 are free") as caught:
            await waiting
    assert [reason.code for reason in caught.value.reasons] == ["InsufficientGpus"]


async def test_release_is_raised_with_the_reasons_told_before(railweave: Any) -> None:
    await say(railweave, "submitted", "placed", "releasing", "released")
    with pytest.raises(JobWasReleased, match="InsufficientGpus"):
        await wait_prepared(railweave.client, railweave.cluster, "1234", 1, 5)


async def test_release_that_is_proposed_again_is_waited_through(railweave: Any) -> None:
    await say(railweave, "submitted", "placed", "prepared", "releasing")
    waiting = asyncio.create_task(wait_prepared(railweave.url, railweave.cluster, "1234", 1, 10))
    await asyncio.sleep(0.3)
    assert not waiting.done()  # the prepared of the round that is being released does not count
    await say(railweave, "released", requeued=True)
    await say(railweave, "placed", "prepared", round=2)
    assert (await waiting).round == 2


async def test_timeout_says_how_far_it_is_and_why(railweave: Any) -> None:
    await say(railweave, "submitted", "pending")
    with pytest.raises(TimeoutError, match=r"not prepared after 0\.4 s, it is pending") as caught:
        await wait_prepared(railweave.url, railweave.cluster, "1234", 1, 0.4)
    assert isinstance(caught.value, StillWaiting)
    assert (caught.value.state, caught.value.reasons[0].code) == ("pending", "InsufficientGpus")


async def test_job_nobody_submitted_yet_can_be_waited_for(railweave: Any) -> None:
    with pytest.raises(StillWaiting, match="not submitted"):
        await wait_prepared(railweave.url, railweave.cluster, "1234", 1, 0.4)
    waiting = asyncio.create_task(wait_prepared(railweave.url, railweave.cluster, "1234", 1, 10))
    await asyncio.sleep(0.2)
    await say(railweave, "submitted", "placed", "prepared")
    await waiting


async def test_answer_that_is_there_already_comes_at_once(railweave: Any) -> None:
    await say(railweave, "submitted", "placed", "prepared", "attached")
    async with asyncio.timeout(2):
        assert (await wait_prepared(railweave.url, railweave.cluster, "1234", 1, 60)).nodes == ("gpu-001",)


async def test_old_run_under_the_same_name_is_not_taken_for_the_new_one(railweave: Any) -> None:
    await say(railweave, "submitted", "placed", "prepared", "releasing", "released")
    await say(railweave, "submitted", "pending")
    with pytest.raises(StillWaiting, match="pending"):
        await wait_prepared(railweave.url, railweave.cluster, "1234", 1, 0.4)


async def test_other_attempts_uids_and_jobs_are_not_taken_for_it(railweave: Any) -> None:
    await say(railweave, "submitted")
    await say(railweave, "prepared", attempt=2)
    await say(railweave, "prepared", uid="another")
    await say(railweave, "prepared", job="12345")
    with pytest.raises(StillWaiting, match="submitted"):
        await wait_prepared(railweave.url, railweave.cluster, "1234", 1, 0.4)
    assert (await wait_prepared(railweave.url, railweave.cluster, "1234", 1, 5, uid="another")).uid == "another"


async def test_submission_said_twice_does_not_undo_an_answer(railweave: Any) -> None:
    await say(railweave, "submitted", "placed", "prepared", "submitted")
    await wait_prepared(railweave.url, railweave.cluster, "1234", 1, 5)


async def test_message_nobody_can_read_does_not_stop_the_wait(railweave: Any) -> None:
    await say(railweave, "submitted")
    await railweave.js.publish(f"rw.job.pending.{railweave.cluster}.1234", b"{")
    await say(railweave, "prepared")
    await wait_prepared(railweave.url, railweave.cluster, "1234", 1, 5)


async def test_wait_goes_on_over_a_broker_that_is_killed_and_comes_back(fresh_railweave: Any) -> None:
    async with JobPublisher(fresh_railweave.url) as jobs:
        waiting = asyncio.create_task(jobs.submit_and_wait(fresh_railweave.job(), timeout=30))
        await asyncio.sleep(0.4)
        await fresh_railweave.restart(pause_s=0.3)
        await say(fresh_railweave, "prepared")
        async with asyncio.timeout(2):
            await waiting
