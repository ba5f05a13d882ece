"""Reading events from outside: what is refused, with which field, and what is let be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from railweave.contracts import ContractError, decode_as, decode_event, encode_event
from railweave.contracts.envelope import MAX_BODY_BYTES
from railweave.contracts.job import JobEnded, JobPending, JobSubmitted
from railweave.contracts.reasons import ReasonCode
from railweave.contracts.wire import WireMessage


def smallest(**changes: Any) -> dict[str, Any]:
    """The smallest job's `data`, with changes."""
    return {"cluster": "lab", "job": "1234", "attempt": 1, "workers": [{"count": 1, "gpus": 1}], **changes}


def document(data: Any, **changes: Any) -> dict[str, Any]:
    """The CloudEvents document that submits a job, with changes."""
    return {
        "specversion": "1.0",
        "type": "railweave.job.submitted.v1",
        "source": "/cluster/lab",
        "id": "job.submitted/lab/1234/1",
        "time": "2026-12-01T10:00:00Z",
        "data": data,
        **changes,
    }


def message(
    body: dict[str, Any] | bytes, subject: str = "rw.job.submitted.lab.1234", headers: dict[str, str] | None = None
) -> WireMessage:
    """What arrives on a subject."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return WireMessage(subject, raw, headers or {})


SMALLEST_TEXT = json.dumps(document(smallest()))


def refused(*args: Any, **kwargs: Any) -> ContractError:
    with pytest.raises(ContractError) as caught:
        decode_event(message(*args, **kwargs))
    return caught.value


def test_smallest_job_is_five_fields() -> None:
    data = smallest()
    assert len(data) + len(data["workers"][0]) - 1 == 5
    job = decode_as(JobSubmitted, message(document(data))).data
    assert (job.cluster, job.job, job.attempt, job.workers[0].count, job.workers[0].gpus) == ("lab", "1234", 1, 1, 1)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (smallest(attempt=0), "data.attempt"),
        (smallest(attempt="1"), "data.attempt"),
        (smallest(attempt=1.0), "data.attempt"),
        (smallest(attempt=True), "data.attempt"),
        (smallest(workers=[]), "data.workers"),
        (smallest(workers=[{"count": 1, "gpus": -1}]), "data.workers[0].gpus"),
        (smallest(workers=[{"count": 1}, {"gpus": 1}]), "data.workers[1].count"),
        (smallest(workers=[{"count": 1, "gpu_fraction_milli": 500}]), "data.workers[0]"),
        (smallest(workers=[{"count": 1, "gpus": 1, "gpu_fraction_milli": 1001}]), "data.workers[0].gpu_fraction_milli"),
        (smallest(nodes={"node_list": ["a", "b"]}), "data"),
        (smallest(nodes={"node_list": ["a b"]}), "data.nodes.node_list[0]"),
        (smallest(nodes={"gpu_indices": {"gpu-001": [-1]}}), "data.nodes.gpu_indices.gpu-001[0]"),
        (smallest(network={"vfs": "count=0"}), "data.network.vfs"),
        (smallest(network={"mtu": 64}), "data.network.mtu"),
        (smallest(datasets=[{"name": "c4", "source": "ftp://x"}]), "data.datasets[0].source"),
        (smallest(datasets=[{"name": "c4"}, {"name": "c4"}]), "data"),
        (smallest(datasets=[{"name": "c4", "size_bytes": -1}]), "data.datasets[0].size_bytes"),
        (smallest(labels={"a": "x\n"}), "data.labels.a"),
        (smallest(labels={"a\n": "x"}), "data.labels"),
        (smallest(labels=[]), "data.labels"),
        (smallest(cluster="-"), "data.cluster"),
        ({key: value for key, value in smallest().items() if key != "job"}, "data.job"),
        (None, "data"),
        ([], "data"),
        ("x", "data"),
    ],
)
def test_error_names_the_field_as_the_sender_wrote_it(data: Any, field: str) -> None:
    error = refused(document(data))
    assert error.field == field
    assert str(error) == f"{error.field}: {error.reason}"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"specversion": "0.3"}, "specversion"),
        ({"specversion": None}, "specversion"),
        ({"type": "railweave.job.submitted.v2"}, "type"),
        ({"type": "com.example.other"}, "type"),
        ({"type": None}, "type"),
        ({"source": ""}, "source"),
        ({"id": ""}, "id"),
        ({"id": 7}, "id"),
        ({"time": "2026-12-01T10:00:00"}, "time"),
        ({"time": 1764583200}, "time"),
        ({"datacontenttype": "text/xml"}, "datacontenttype"),
    ],
)
def test_envelope_is_checked_too(changes: dict[str, Any], field: str) -> None:
    assert refused(document(smallest(), **changes)).field == field


@pytest.mark.parametrize(
    "subject",
    ["rw.job.submitted.lab.1235", "rw.job.submitted.k8s-b.1234", "rw.job.ended.lab.1234", "rw.job.submitted.lab"],
)
def test_body_does_not_speak_for_another_subject(subject: str) -> None:
    error = refused(document(smallest()), subject)
    assert error.field == "subject"
    assert "rw.job.submitted.lab.1234" in error.reason


def test_type_in_the_header_must_be_the_body_s() -> None:
    assert refused(document(smallest()), headers={"ce-type": JobEnded.TYPE}).field == "type"
    assert refused(document(smallest()), headers={"ce-type": "com.example.other"}).field == "type"
    ended = decode_event(message(document(smallest()), headers={"CE-Type": "whatever", "ce-type": JobSubmitted.TYPE}))
    assert isinstance(ended.data, JobSubmitted)


def test_event_of_another_type_than_wanted_is_refused() -> None:
    with pytest.raises(ContractError) as caught:
        decode_as(JobEnded, message(document(smallest())))
    assert caught.value.field == "type"


def test_unknown_fields_of_a_later_minor_version_are_ignored_at_every_depth() -> None:
    data = smallest(color="blue", network={"speed": 400, "profile": "roce"}, nodes={"topology": {"shape": "ring"}})
    data["workers"][0]["tpus"] = 4
    job = decode_as(JobSubmitted, message(document(data, partitionkey="x"))).data
    assert job.network is not None
    assert job.network.profile == "roce"


def test_a_reason_of_a_later_version_keeps_its_event_readable() -> None:
    data = {"cluster": "lab", "job": "1234", "attempt": 1, "reasons": [{"code": "MoonPhase", "text": "full moon"}]}
    body = document(data, type=JobPending.TYPE)
    (reason,) = decode_as(JobPending, message(body, "rw.job.pending.lab.1234")).data.reasons
    assert (reason.code, reason.text) == (ReasonCode.UNKNOWN, "full moon")


def test_absent_content_type_and_headers_are_fine() -> None:
    assert decode_event(message(document(smallest(), datacontenttype=None))).id == "job.submitted/lab/1234/1"


def test_traceparent_of_the_header_wins() -> None:
    body = document(smallest(), traceparent="00-aa-bb-01")
    assert decode_event(message(body)).traceparent == "00-aa-bb-01"
    assert decode_event(message(body, headers={"traceparent": "00-cc-dd-01"})).traceparent == "00-cc-dd-01"


def test_name_with_quotes_spaces_and_umlauts_goes_through() -> None:
    data = smallest(job='Schüler "70B" 100%')
    subject = "rw.job.submitted.lab.Sch=C3=BCler=20=2270B=22=20100=25"
    event = decode_as(JobSubmitted, message(document(data), subject)).data
    written = encode_event(event)
    assert (event.job, written.subject) == ('Schüler "70B" 100%', subject)
    assert written.msg_id == 'job.submitted/lab/Sch%C3%BCler%20"70B"%20100%25/1'
    assert all(value.isascii() for value in written.headers.values())


@pytest.mark.parametrize(
    ("body", "field"),
    [
        pytest.param(b"", "body", id="empty"),
        pytest.param(b"null", "type", id="null"),
        pytest.param(b"[]", "type", id="list"),
        pytest.param(b"{}", "type", id="no type"),
        pytest.param(b'{"type": 7}', "type", id="type is no text"),
        pytest.param(b"\xef\xbb\xbf" + SMALLEST_TEXT.encode(), "body", id="byte order mark"),
        pytest.param(SMALLEST_TEXT.encode("utf-16"), "body", id="UTF-16"),
        pytest.param(SMALLEST_TEXT.encode()[:-1], "body", id="cut off"),
        pytest.param(SMALLEST_TEXT.encode() + b"{}", "body", id="two documents"),
        pytest.param(SMALLEST_TEXT.replace('"lab"', '"\\ud800"').encode(), "body", id="escaped lone surrogate"),
        pytest.param(SMALLEST_TEXT.encode().replace(b'"lab"', b'"\xed\xa0\x80"'), "body", id="raw lone surrogate"),
        pytest.param(SMALLEST_TEXT.encode().replace(b'"lab"', b'"\xff"'), "body", id="no UTF-8"),
        pytest.param(b"[" * 100_000, "body", id="deep"),
        pytest.param(b'{"type":' * 50_000, "body", id="deep objects"),
        pytest.param(
            SMALLEST_TEXT.replace('"count"', f'"x": {"[" * 500}{"]" * 500}, "count"').encode(),
            "body",
            id="deep in a field nobody reads",
        ),
    ],
)
@pytest.mark.parametrize("headers", [{}, {"ce-type": JobSubmitted.TYPE}], ids=["without headers", "with headers"])
def test_what_is_no_json_document_is_refused(body: bytes, field: str, headers: dict[str, str]) -> None:
    error = refused(body, headers=headers)
    if not headers:
        assert error.field == field


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e400", "1.5"])
def test_numbers_that_are_no_integers_are_refused(value: str) -> None:
    text = SMALLEST_TEXT.replace('"gpus": 1', f'"gpus": {value}')
    assert text != SMALLEST_TEXT
    assert refused(text.encode()).field == "data.workers[0].gpus"


def test_of_a_key_written_twice_the_last_one_counts_for_everything() -> None:
    twice = SMALLEST_TEXT.replace('"cluster": "lab"', '"cluster": "lab", "cluster": "k8s-b"')
    assert refused(twice.encode()).field == "subject"
    event = decode_event(message(twice.encode(), "rw.job.submitted.k8s-b.1234")).data
    assert event.event_id() == "job.submitted/k8s-b/1234/1"


def test_one_mebibyte_is_the_limit_in_both_directions() -> None:
    room = MAX_BODY_BYTES - len(SMALLEST_TEXT.encode())
    decode_event(message(SMALLEST_TEXT.encode() + b" " * room))
    error = refused(SMALLEST_TEXT.encode() + b" " * (room + 1))
    assert (error.field, str(MAX_BODY_BYTES + 1) in error.reason) == ("body", True)
    big = JobSubmitted.model_validate_json(json.dumps(smallest(labels={f"{i:0200}": "x" * 256 for i in range(2400)})))
    with pytest.raises(ContractError) as caught:
        encode_event(big)
    assert caught.value.field == "body"
