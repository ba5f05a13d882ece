"""Golden events of schedulers, bent: each is taken or refused with the field named, and never breaks anything."""

from __future__ import annotations

import copy
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from desk import START, Desk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from railweave.contracts.envelope import encode_event
from railweave.contracts.inventory import ReportState
from railweave.contracts.wire import StoredMessage
from railweave.jobs.active import job_input
from railweave.jobs.committer import JobInput
from railweave.runtime.errors import Reject

EXAMPLES = Path(__file__).parents[4] / "contracts" / "examples"
SAID = ("submitted", "updated", "started", "ended")

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["", "\x00", "\ud800", "n" * 300, "../etc", "*", ">", "a.b", "1e3", "0", -1, 0, 2**31, 2**63]),
    st.lists(st.integers(0, 3), max_size=3),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=3),
)


def examples() -> list[tuple[str, dict[str, Any]]]:
    return [
        (item["subject"], item)
        for name in SAID
        for item in json.loads((EXAMPLES / f"railweave.job.{name}.v1.json").read_text())
    ]


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON document."""
    found = [path] if path else []
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in items:
        found += places(value, (*path, key))
    return found


@st.composite
def bent(draw: st.DrawFn) -> StoredMessage:
    """An example with some values replaced, taken away or added, or its bytes damaged."""
    subject, example = draw(st.sampled_from(examples()))
    body = copy.deepcopy(example["body"])
    for _ in range(draw(st.integers(0, 3))):
        path = draw(st.sampled_from(places(body)))
        parent = body
        for key in path[:-1]:
            parent = parent[key]
        what = draw(st.sampled_from(["replace", "remove", "add", "copy"]))
        if what == "replace":
            parent[path[-1]] = draw(VALUES)
        elif what == "copy":
            other = draw(st.sampled_from(places(body)))
            value: Any = body
            for key in other:
                value = value[key]
            parent[path[-1]] = copy.deepcopy(value)
        elif what == "remove":
            del parent[path[-1]]
        elif isinstance(parent, dict):
            parent[draw(st.text(max_size=5))] = draw(VALUES)
        if not places(body):
            break
    raw = json.dumps(body).encode()
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(raw)))
        raw = raw[:at] + draw(st.binary(max_size=3)) + raw[at + draw(st.integers(0, 3)) :]
    headers = {key: value for key, value in example["headers"].items() if draw(st.integers(0, 9))}
    if draw(st.integers(0, 19)) == 0:
        subject = draw(st.sampled_from(["rw.job.submitted.lab", "rw.job.ended.x.y", "rw.job.submitted.=ZZ.1"]))
    return StoredMessage("JOBS", subject, draw(st.integers(1, 2**40)), START + timedelta(seconds=1), headers, raw)


def take(desk: Desk, message: StoredMessage) -> str | None:
    """What the committer's shell does with a message; the field where it is refused."""
    try:
        envelope = job_input(message)
    except Reject as rejected:
        return rejected.field if rejected.reason else ""
    refused = len(desk.refused)
    desk.tell(JobInput(envelope.data, message.sequence, message.stored_at))
    return desk.refused[-1].field if len(desk.refused) > refused else None


@pytest.mark.timeout(180)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example])
@given(st.lists(bent(), min_size=1, max_size=4))
def test_a_bent_event_is_taken_or_refused_with_its_field(messages: list[StoredMessage]) -> None:
    desk = Desk(nodes=2)
    for message in messages:
        field = take(desk, message)
        assert field != ""
    for _ in range(3):
        desk.propose()
        desk.wait(1)
        for job in list(desk.book.jobs.values()):
            for node in job.placements:
                desk.report(str(job.run.job), ReportState.PREPARED, [node])
    # What was taken can be stored, published and read back by the next committer.
    for event in [*desk.said, *desk.asks, *(item.event for item in desk.record.values())]:
        encode_event(event)
    jobs = {key for key, job in desk.book.jobs.items() if job.stored}
    desk.activate()
    assert set(desk.book.jobs) == jobs


@pytest.mark.parametrize(("subject", "example"), examples())
def test_golden_events_are_taken(subject: str, example: dict[str, Any]) -> None:
    raw = json.dumps(example["body"]).encode()
    assert take(Desk(), StoredMessage("JOBS", subject, 1, START, example["headers"], raw)) is None


@pytest.mark.parametrize(("subject", "example"), examples())
def test_without_a_required_field_the_field_is_named(subject: str, example: dict[str, Any]) -> None:
    for field in ("cluster", "job", "attempt"):
        body = copy.deepcopy(example["body"])
        del body["data"][field]
        message = StoredMessage("JOBS", subject, 1, START, example["headers"], json.dumps(body).encode())
        assert take(Desk(), message) == f"data.{field}"


@pytest.mark.parametrize(("subject", "example"), examples())
def test_a_body_that_speaks_of_another_job_is_refused(subject: str, example: dict[str, Any]) -> None:
    body = copy.deepcopy(example["body"])
    body["data"]["job"] = "somebody-elses"
    message = StoredMessage("JOBS", subject, 1, START, example["headers"], json.dumps(body).encode())
    assert take(Desk(), message) == "subject"


def test_an_answer_of_ours_is_not_taken_for_a_schedulers_event() -> None:
    body = json.loads((EXAMPLES / "railweave.job.placed.v1.json").read_text())[0]
    message = StoredMessage("JOBS", body["subject"], 1, START, body["headers"], json.dumps(body["body"]).encode())
    assert take(Desk(), message) == "type"


@pytest.mark.parametrize(("kind", "limit"), [("submitted", 256), ("updated", 256), ("started", 512)])
def test_an_event_that_would_not_fit_its_head_is_refused(kind: str, limit: int) -> None:
    item = json.loads((EXAMPLES / f"railweave.job.{kind}.v1.json").read_text())[0]
    body = item["body"] | {"note": "x" * limit * 1024}
    message = StoredMessage("JOBS", item["subject"], 1, START, item["headers"], json.dumps(body).encode())
    assert take(Desk(), message) == "body"
