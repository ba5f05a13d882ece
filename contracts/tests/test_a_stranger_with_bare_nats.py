"""An integrator in any language: the broker, the published schemas and examples, and no line of ours.

Publishes with nats-py as it is and reads with jsonschema alone. Only Railweave's side of the talk uses our code.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from jsonschema import Draft202012Validator
from nats.js import JetStreamContext

from railweave.contracts import StoredMessage, decode_event
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.local_servers import LocalNatsServer
from railweave_testing.buses import connected

PUBLISHED = Path(__file__).parents[1]
NAMES = ["1234", "0000:3b:00.0", "node1.rack2", 'Schüler "70B" 100%', "作业/7"]


def schema(name: str) -> Draft202012Validator:
    return Draft202012Validator(json.loads((PUBLISHED / "schemas" / f"{name}.json").read_text()))


def golden(type_name: str, name: str) -> dict[str, Any]:
    messages = json.loads((PUBLISHED / "examples" / f"{type_name}.json").read_text())
    found: dict[str, Any] = next(message for message in messages if message["name"] == name)
    return found


def token(name: str) -> str:
    """As docs/reference/events.md says it."""
    return "".join(
        chr(byte) if re.match(rb"[A-Za-z0-9_-]", bytes([byte])) else f"={byte:02X}" for byte in name.encode()
    )


def part(name: str) -> str:
    """A part of an id, as docs/reference/events.md says it."""
    return "".join(c if "!" <= c <= "~" and c not in "/%" else "".join(f"%{b:02X}" for b in c.encode()) for c in name)


@pytest.fixture
async def js(fresh_nats_server: LocalNatsServer) -> AsyncIterator[JetStreamContext]:
    async with connected(fresh_nats_server) as bus:
        await bootstrap(bus)
    client = await nats.connect(fresh_nats_server.url)
    yield client.jetstream()
    await client.close()


@pytest.mark.parametrize("job", NAMES)
async def test_job_written_by_hand_is_what_railweave_reads(js: JetStreamContext, job: str) -> None:
    event_id = f"job.submitted/lab/{part(job)}/1"
    document = {
        "specversion": "1.0",
        "type": "railweave.job.submitted.v1",
        "source": "/cluster/lab",
        "id": event_id,
        "time": "2026-12-01T10:00:00Z",
        "data": {"cluster": "lab", "job": job, "attempt": 1, "workers": [{"count": 1, "gpus": 1}]},
    }
    schema("railweave.job.submitted.v1").validate(document)
    subject = f"rw.job.submitted.lab.{token(job)}"
    for is_repeat in (False, True):
        stored = await js.publish(subject, json.dumps(document).encode(), headers={"Nats-Msg-Id": event_id})
        assert (stored.stream, bool(stored.duplicate)) == ("JOBS", is_repeat)

    raw = await js.get_msg("JOBS", seq=1)
    message = StoredMessage("JOBS", raw.subject or "", 1, raw.time, raw.headers or {}, raw.data or b"")  # type: ignore[arg-type]
    envelope = decode_event(message)
    assert (envelope.id, envelope.data.event_id(), envelope.data.subject()) == (event_id, event_id, subject)


@pytest.mark.parametrize("type_name", ["railweave.placement.v1", "railweave.job.placed.v1", "railweave.job.pending.v1"])
async def test_answer_is_read_with_its_schema_alone(js: JetStreamContext, type_name: str) -> None:
    message = golden(type_name, "rich")
    await js.publish(message["subject"], json.dumps(message["body"]).encode(), headers=message["headers"])

    subscription = await js.subscribe(message["subject"], ordered_consumer=True)
    received = await subscription.next_msg(timeout=5)
    document = json.loads(received.data)
    schema(document["type"]).validate(document)
    assert received.headers is not None
    assert (document["id"], document["type"]) == (received.headers["ce-id"], received.headers["ce-type"])
    await subscription.unsubscribe()


async def test_every_golden_message_goes_to_the_stream_its_schema_names(js: JetStreamContext) -> None:
    paths = sorted((PUBLISHED / "examples").glob("*.json"))
    assert len(paths) > 30
    for path in paths:
        wanted = json.loads((PUBLISHED / "schemas" / path.name).read_text())["x-jetstream-stream"]
        for message in json.loads(path.read_text()):
            stored = await js.publish(
                message["subject"], json.dumps(message["body"]).encode(), headers=message["headers"]
            )
            assert (stored.stream, bool(stored.duplicate)) == (wanted, False)
