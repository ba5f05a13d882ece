"""What is checked in for strangers: schemas, golden messages, the AsyncAPI document, the reference page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker
from pydantic import BaseModel

from railweave.contracts import decode_event, encode_event, generate, registered_types
from railweave.contracts.catalogue.entries import EVENTS, QUERIES, STREAMS
from railweave.contracts.catalogue.examples import Example, all_examples
from railweave.contracts.wire import WireMessage

TREE = Path(__file__).parents[2]
SCHEMAS = TREE / generate.SCHEMAS
EXAMPLES = TREE / generate.EXAMPLES


def checked_in() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(EXAMPLES.glob("*.json")):
        for message in json.loads(path.read_text()):
            yield path.stem, message


def wire(message: dict[str, Any]) -> WireMessage:
    headers = {name: value for name, value in message["headers"].items() if name != "Nats-Msg-Id"}
    return WireMessage(
        message["subject"], json.dumps(message["body"]).encode(), headers, message["headers"]["Nats-Msg-Id"]
    )


MESSAGES = [pytest.param(kind, message, id=f"{kind}-{message['name']}") for kind, message in checked_in()]


def test_the_tree_is_up_to_date() -> None:
    assert generate.differences(TREE, generate.generated_files()) == []


def test_every_type_is_published_once() -> None:
    assert sorted(entry.name for entry in EVENTS) == sorted(registered_types())


@pytest.mark.parametrize(("type_name", "message"), MESSAGES)
def test_golden_message_keeps_its_schema(type_name: str, message: dict[str, Any]) -> None:
    schema = json.loads((SCHEMAS / f"{type_name}.json").read_text())
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema, format_checker=FormatChecker()).validate(message["body"])


@pytest.mark.parametrize(("type_name", "message"), MESSAGES)
def test_golden_message_is_read_and_written_back(type_name: str, message: dict[str, Any]) -> None:
    envelope = decode_event(wire(message))
    written = encode_event(envelope.data, time=envelope.time, traceparent=envelope.traceparent)
    assert type_name == envelope.data.TYPE
    assert (written.subject, written.msg_id) == (message["subject"], message["headers"]["Nats-Msg-Id"])
    assert written.headers == wire(message).headers
    assert decode_event(written) == envelope
    if message["name"] == "rich":
        assert json.loads(written.body) == message["body"]


@pytest.mark.parametrize("type_name", sorted(registered_types()))
def test_minimal_says_what_is_required_and_rich_everything(type_name: str) -> None:
    minimal, rich, *_ = all_examples()[type_name]
    required = {name for name, field in type(minimal.event).model_fields.items() if field.is_required()}
    assert minimal.event.model_fields_set == required
    assert unset_fields(rich) == [], "say them in contracts/catalogue/rich_examples.py, and run `make schemas`"


def unset_fields(example: Example) -> list[str]:
    """Fields that no part of an example sets, as `Model.field`."""
    seen: dict[type[BaseModel], set[str]] = {}

    def visit(value: Any) -> None:
        if isinstance(value, BaseModel):
            seen.setdefault(type(value), set()).update(value.model_fields_set)
            for name in type(value).model_fields:
                visit(getattr(value, name))
        elif isinstance(value, dict):
            visit(list(value.values()))
        elif isinstance(value, list | tuple):
            for item in value:
                visit(item)

    visit(example.event)
    # One of netns and pid, a part of a GPU or a MIG slice: what excludes each other is spread over examples.
    either = {"StartedWorker.netns", "StartedWorker.pid", "Claim.amount", "User.name", "Reason.node"}
    missing = {f"{model.__name__}.{name}" for model, names in seen.items() for name in set(model.model_fields) - names}
    return sorted(missing - either)


def test_schemas_refuse_what_the_models_refuse() -> None:
    schema = json.loads((SCHEMAS / "railweave.job.submitted.v1.json").read_text())
    _, message = next(found for found in checked_in() if found[0] == "railweave.job.submitted.v1")
    for data in [
        {"attempt": 0},
        {"attempt": "1"},
        {"cluster": "a b"},
        {"job": ""},
        {"workers": []},
        {"network": {"mtu": 1}},
    ]:
        body = {**message["body"], "data": {**message["body"]["data"], **data}}
        assert not Draft202012Validator(schema).is_valid(body), data


# The AsyncAPI document ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def asyncapi() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((SCHEMAS / "asyncapi.json").read_text())
    return document


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from nodes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from nodes(inner)


def resolve(document: dict[str, Any], reference: str) -> Any:
    file, _, pointer = reference.partition("#")
    found: Any = json.loads((SCHEMAS / file).read_text()) if file else document
    for part in pointer.strip("/").split("/") if pointer else []:
        found = found[part.replace("~1", "/").replace("~0", "~")]
    return found


def test_every_reference_resolves(asyncapi: dict[str, Any]) -> None:
    references = [node["$ref"] for node in nodes(asyncapi) if "$ref" in node]
    assert len(references) > 3 * len(EVENTS)
    for reference in references:
        assert resolve(asyncapi, reference)
    for path in SCHEMAS.glob("railweave.*.json"):
        schema = json.loads(path.read_text())
        for node in nodes(schema):
            if "$ref" in node:
                assert resolve(schema, node["$ref"])


def test_it_has_the_shape_that_asyncapi_3_asks_for(asyncapi: dict[str, Any]) -> None:
    assert asyncapi["asyncapi"] == "3.0.0"
    assert {"title", "version"} <= set(asyncapi["info"])
    allowed = {"asyncapi", "id", "info", "servers", "defaultContentType", "channels", "operations", "components"}
    assert {name for name in asyncapi if not name.startswith("x-")} <= allowed
    for section in asyncapi["components"].values():
        assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in section)
    for name, channel in asyncapi["channels"].items():
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name)
        in_address = set(re.findall(r"{(\w+)}", channel["address"] or ""))
        assert in_address == set(channel.get("parameters", {}))
        assert channel["messages"]
    for operation in asyncapi["operations"].values():
        assert operation["action"] in {"send", "receive"}
        channel = resolve(asyncapi, operation["channel"]["$ref"])
        of_channel = {f"{operation['channel']['$ref']}/messages/{name}" for name in channel["messages"]}
        assert {message["$ref"] for message in operation["messages"]} <= of_channel
    for message in asyncapi["components"]["messages"].values():
        assert "payload" not in message or set(message["payload"]) == {"schemaFormat", "schema"}


def test_every_event_has_its_channel_stream_and_id(asyncapi: dict[str, Any]) -> None:
    streams = asyncapi["x-jetstream-streams"]
    assert sorted(streams) == sorted(stream.name for stream in STREAMS)
    for entry in EVENTS:
        name = entry.event.__name__
        assert asyncapi["channels"][name]["address"] == entry.subject
        assert asyncapi["channels"][name]["x-jetstream-stream"] in streams
        assert asyncapi["components"]["messages"][name]["x-jetstream-msg-id"] == entry.id
        action = "receive" if entry.is_from_outside else "send"
        assert asyncapi["operations"][f"{action}{name}"]["action"] == action
    assert {entry.subject for entry in QUERIES} <= {channel["address"] for channel in asyncapi["channels"].values()}


# The command ----------------------------------------------------------------------------------------------------------


def test_check_fails_with_a_diff_where_a_file_differs_is_missing_or_stale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--out", str(tmp_path)]
    assert generate.main(arguments) == 0
    assert generate.main([*arguments, "--check"]) == 0
    changed = tmp_path / generate.EXAMPLES / "railweave.epoch.v1.json"
    changed.write_text(changed.read_text().replace("bootstrap", "boot"))
    (tmp_path / generate.SCHEMAS / "railweave.node.v1.json").unlink()
    (tmp_path / generate.SCHEMAS / "railweave.gone.v1.json").write_text("{}")
    capsys.readouterr()
    assert generate.main([*arguments, "--check"]) == 1
    said = capsys.readouterr()
    assert '-        "cause": "boot",' in said.out
    assert '+        "cause": "bootstrap",' in said.out
    assert "railweave.node.v1.json" in said.out
    assert "railweave.gone.v1.json: nothing generates it any more" in said.out
    assert "3 generated files" in said.err


def test_the_same_models_give_the_same_bytes() -> None:
    assert generate.generated_files() == generate.generated_files()


def test_a_field_is_described_by_the_docstring_below_it_under_its_name_on_the_wire() -> None:
    defined = json.loads((SCHEMAS / "railweave.placement.v1.json").read_text())["$defs"]
    assert defined["Rule"]["properties"]["from"]["description"] == "The VF's address as /32 or /128."


def test_importing_the_contracts_reads_no_source() -> None:
    """Docstrings of fields are for schemas; reading them took a third of every program's start."""
    code = "import linecache, railweave.contracts.client, railweave.contracts.query; print(sorted(linecache.cache))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
