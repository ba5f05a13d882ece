"""What users write: read whole, or refused with the place that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from railweave.cli.commands.events import message_of
from railweave.cli.documents import job_in, parse_document, read_job, read_source
from railweave.cli.exits import CommandFailed, Exit

SMALLEST = {"cluster": "lab", "job": "1234", "attempt": 1, "workers": [{"count": 1, "gpus": 1}]}


def test_a_job_in_yaml_and_one_in_json_are_the_same(tmp_path: Path) -> None:
    in_yaml, in_json = tmp_path / "job.yaml", tmp_path / "job.json"
    in_yaml.write_text('cluster: lab\njob: "1234"\nattempt: 1\nworkers: [{count: 1, gpus: 1}]\n')
    in_json.write_text('{"cluster":"lab","job":"1234","attempt":1,"workers":[{"count":1,"gpus":1}]}')
    assert read_job(str(in_yaml)) == read_job(str(in_json)) == SMALLEST


def test_the_job_of_a_cloud_event_is_its_data() -> None:
    event = {"specversion": "1.0", "type": "railweave.job.submitted.v1", "data": SMALLEST}
    assert job_in(event, "job.json") == SMALLEST


def test_an_event_of_another_type_is_refused_with_the_command_that_takes_it() -> None:
    with pytest.raises(CommandFailed, match=r"railweave\.job\.ended\.v1") as caught:
        job_in({"specversion": "1.0", "type": "railweave.job.ended.v1", "data": {}}, "job.json")
    assert caught.value.code is Exit.USAGE
    assert caught.value.remedy is not None
    assert "publish" in caught.value.remedy


def test_a_broken_document_is_refused_with_its_line() -> None:
    with pytest.raises(CommandFailed) as caught:
        parse_document("cluster: lab\njob: [1,\nattempt: }", "job.yaml")
    assert caught.value.field == "line 3"


def test_an_alias_bomb_is_not_expanded() -> None:
    with pytest.raises(CommandFailed, match="aliases"):
        parse_document("a: &a [x, x]\nb: [*a, *a]\n", "job.yaml")


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just words", "42"])
def test_what_is_no_mapping_is_no_job(text: str) -> None:
    with pytest.raises(CommandFailed, match="expected a job"):
        parse_document(text, "job.yaml")


def test_a_time_stays_text_as_the_contracts_want_it() -> None:
    assert parse_document("until: 2026-12-01T10:00:00Z\n", "x")["until"] == "2026-12-01T10:00:00Z"


def test_a_missing_file_is_named() -> None:
    with pytest.raises(CommandFailed, match="no-such-file"):
        read_source("no-such-file")


def test_a_file_longer_than_an_event_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    path.write_text("x" * (1024 * 1024 + 1))
    with pytest.raises(CommandFailed, match="longer than an event"):
        read_source(str(path))


def test_a_published_event_gets_the_subject_and_id_that_follow_from_it() -> None:
    document = {
        "specversion": "1.0",
        "type": "railweave.job.submitted.v1",
        "source": "/cluster/lab",
        "id": "job.submitted/lab/1234/1",
        "time": "2026-12-01T10:00:00Z",
        "data": SMALLEST,
    }
    message = message_of(document, "job.json")
    assert message.subject == "rw.job.submitted.lab.1234"
    assert message.msg_id == "job.submitted/lab/1234/1"


def test_a_misspelt_field_of_a_published_event_is_named() -> None:
    document = {"type": "railweave.job.submitted.v1", "data": SMALLEST | {"tenent": "nlp"}}
    with pytest.raises(CommandFailed) as caught:
        message_of(document, "job.json")
    assert caught.value.field == "data.tenent"


def test_an_id_that_does_not_follow_from_the_event_is_refused() -> None:
    document = {"specversion": "1.0", "type": "railweave.job.submitted.v1", "id": "random", "data": SMALLEST}
    with pytest.raises(CommandFailed, match=r"job\.submitted/lab/1234/1"):
        message_of(document, "job.json")


def test_what_one_service_alone_writes_cannot_be_published_by_hand() -> None:
    document = {"type": "railweave.epoch.v1", "data": {"epoch": 2, "cause": "restore", "text": "x"}}
    with pytest.raises(CommandFailed, match="written by one service alone"):
        message_of(document, "epoch.json")
