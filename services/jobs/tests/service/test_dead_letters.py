"""What cannot be right is a dead letter with its field, on a real broker, and the service goes on."""

from __future__ import annotations

import json
from pathlib import Path

import nats
import pytest
from plane import LAB, job, plane

from railweave.contracts.client import wait_prepared
from railweave.contracts.wire import CONTENT_TYPE
from railweave.runtime.deadletters import DeadEntry, DeadLetters
from railweave.runtime.local_servers import LocalNatsServer
from railweave_testing.buses import connected, eventually

pytestmark = pytest.mark.timeout(60)

EXAMPLE = json.loads(
    (Path(__file__).parents[4] / "contracts" / "examples" / "railweave.job.submitted.v1.json").read_text()
)[0]
SUBJECT = "rw.job.submitted.lab.1234"


def body(**data: object) -> bytes:
    """The smallest job, with some of it changed; None takes a field away."""
    told = {key: value for key, value in (EXAMPLE["body"]["data"] | data).items() if value is not None}
    return json.dumps(EXAMPLE["body"] | {"data": told}).encode()


MALFORMED = [
    ("not JSON", SUBJECT, b"{", "body"),
    ("no event", SUBJECT, b"[1]", "type"),
    ("unknown type", SUBJECT, b'{"type": "railweave.job.abducted.v1"}', "type"),
    ("no attempt", SUBJECT, body(attempt=None), "data.attempt"),
    ("no workers", SUBJECT, body(workers=[]), "data.workers"),
    ("GPUs as text", SUBJECT, body(workers=[{"count": 1, "gpus": "8"}]), "data.workers[0].gpus"),
    ("another's subject", "rw.job.submitted.lab.9", body(), "subject"),
    ("an answer of ours", "rw.job.submitted.lab.1", b'{"type": "railweave.job.placed.v1"}', "specversion"),
]


async def letters(server: LocalNatsServer, count: int) -> list[DeadEntry]:
    """The dead letters of the jobs service, once there are so many."""
    async with connected(server) as bus:
        dead = DeadLetters(bus, "jobs")
        for _ in range(400):
            found = await dead.entries()
            if len(found) >= count:
                return found
            ticks = iter((False, False, True))
            await eventually(lambda: next(ticks))  # noqa: B023 - used at once
    raise AssertionError(f"expected {count} dead letters, found {found}")


async def test_malformed_events_are_dead_letters_with_their_field_and_jobs_go_on(
    fresh_nats_server: LocalNatsServer,
) -> None:
    async with plane(fresh_nats_server) as publisher:
        client = await nats.connect(fresh_nats_server.url)
        for number, (_, subject, raw, _) in enumerate(MALFORMED):
            headers = {"Content-Type": CONTENT_TYPE, "Nats-Msg-Id": f"bad-{number}"}
            await client.jetstream().publish(subject, raw, headers=headers)
        await client.close()
        await publisher.submit(job("good"))
        await wait_prepared(fresh_nats_server.url, LAB, "good", 1, timeout=20)
        found = await letters(fresh_nats_server, len(MALFORMED))
    fields = {entry.original_sequence: entry.field for entry in found}
    assert fields == {number: field for number, (_, _, _, field) in enumerate(MALFORMED, 1)}
    assert all(entry.cause for entry in found)


async def test_an_attempt_that_goes_back_and_nodes_that_do_not_fit_are_dead_letters(
    fresh_nats_server: LocalNatsServer,
) -> None:
    async with plane(fresh_nats_server) as publisher:
        await publisher.submit(job("1", attempt=2, workers=2))
        await wait_prepared(fresh_nats_server.url, LAB, "1", 2, timeout=20)
        await publisher.submit(job("1", attempt=1))
        about = {"cluster": "lab", "job": "1", "attempt": 2, "revision": 1}
        await publisher.update({**about, "nodes": {"node_list": ["n0"]}})
        found = await letters(fresh_nats_server, 2)
        assert {entry.field for entry in found} == {"data.attempt", "data.nodes.node_list"}
        await publisher.submit(job("2"))
        await wait_prepared(fresh_nats_server.url, LAB, "2", 1, timeout=20)
