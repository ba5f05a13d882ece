"""The reference page of the events (docs/reference/events.md), made from the models."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
from collections.abc import Iterator
from typing import Any

from railweave.contracts.catalogue.entries import EVENTS, STREAMS, EventEntry
from railweave.contracts.catalogue.examples import Example, examples_of
from railweave.contracts.catalogue.schemas import event_schema
from railweave.contracts.codec import encode_token
from railweave.contracts.reasons import ReasonCode

_NAMES = ("88121", "0000:3b:00.0", "node1.rack2", 'Schüler "70B" 100%', "a=b", "gpu_0-1", "k8s/ns/job", "作业")

_HEAD = """\
# Events

<!-- Made by `make schemas` from the models in contracts/. Do not edit. -->

Everything Railweave hears and says is an event on NATS JetStream. Schemas: `contracts/schemas/`, one JSON Schema
2020-12 for each type, and `asyncapi.json`. Golden messages of every type: `contracts/examples/`. From Python:
[publish](../integrate/publish.md), [follow](../integrate/follow.md).

## The envelope

The body is one CloudEvents 1.0 document in structured JSON, at most 1 MiB of UTF-8 without a byte order mark. `data` is
what the tables below describe. Readers ignore fields they do not know. A change that an old reader could not read is a
new type.

| field | |
| --- | --- |
| `specversion` | `1.0` |
| `type` | with the major version, `railweave.job.submitted.v1` |
| `source` | who says so: `/cluster/<cluster>`, `/node/<node>`, `/railweave/<service>`, `/platform`, `/operator` |
| `id` | computable by hand from what the event says (below) |
| `time` | RFC 3339 with an offset; we write UTC, `Z` |
| `traceparent` | W3C trace context; default none. A header of this name wins |

Headers: `Nats-Msg-Id` is the id, so that a repeat is stored once. `Content-Type: application/cloudevents+json`, `ce-id`
and `ce-type` repeat the envelope for tools; they may be left out. Atomic batches of the record carry no `Nats-Msg-Id`.

The names in the subject must be those in `data`: a scheduler may have rights on its own cluster's subjects alone.

## Names in subjects

A name is one token: letters, digits, `_` and `-` stay, every other byte of its UTF-8 form becomes `=` and two
upper-case hex digits. `=` is always escaped, so the way back is unique.

| name | token |
| --- | --- |
"""

_SHELL = """
In a shell:

```bash
token() {
    local LC_ALL=C out= c i
    for ((i = 0; i < ${#1}; i++)); do
        c=${1:i:1}
        case $c in
            [A-Za-z0-9_-]) ;;
            *) printf -v c '=%02X' $(($(printf %d "'$c") & 255)) ;;
        esac
        out+=$c
    done
    printf '%s\\n' "$out"
}
```

## Ids

An id is the event's kind and what tells it from others of its kind, joined by `/`. In a part, `/`, `%`, white space and
all outside printable ASCII are percent-encoded; everything else stays as it is. `/uid` is there where the event has a
`uid`. The same event said twice has the same id, and JetStream stores it once (within the stream's duplicate window).

"""

_PUBLISH = """
Publishing the smallest job from a shell:

```bash
{command}
```

"""


def events_page() -> str:
    """The whole page."""
    return "".join(_sections())


def _sections() -> Iterator[str]:
    yield _HEAD
    for name in _NAMES:
        yield f"| `{name}` | `{encode_token(name)}` |\n"
    yield _SHELL
    yield "| type | id |\n| --- | --- |\n"
    for entry in EVENTS:
        example = examples_of(entry.name)[1]
        yield f"| `{entry.name}` | `{entry.id}`<br>`{example.message.msg_id}` |\n"
    smallest, _, unicode_name, *_ = examples_of("railweave.job.submitted.v1")
    yield f"\nA name that needs both: subject `{unicode_name.message.subject}`, id `{unicode_name.message.msg_id}`.\n"
    yield _PUBLISH.format(command=nats_pub(smallest))
    yield "## Streams\n\n| stream | subjects | what | keeps |\n| --- | --- | --- | --- |\n"
    for stream in STREAMS:
        kept = "all" if stream.per_subject < 0 else "the latest of each subject"
        age = f", for {_duration(stream.max_age_s)}" if stream.max_age_s else ""
        subjects = ", ".join(f"`{subject}`" for subject in stream.subjects)
        yield f"| {stream.name} | {subjects} | {stream.purpose} | {kept}{age} |\n"
    yield "\n## Written by schedulers, platforms and operators\n"
    yield from (_event(entry) for entry in EVENTS if entry.is_from_outside)
    yield "\n## Written by Railweave\n"
    yield from (_event(entry) for entry in EVENTS if not entry.is_from_outside)
    yield '\n## Reasons\n\nEvery "no" carries reasons; the codes are closed, the numbers are in `numbers`.\n\n'
    yield "| code | meaning |\n| --- | --- |\n"
    docs = _member_docs()
    for code in ReasonCode:
        yield f"| `{code}` | {docs[code]} |\n"


def nats_pub(example: Example) -> str:
    """The command that publishes an example with the `nats` tool."""
    body = json.dumps(example.document()["body"], ensure_ascii=False, separators=(",", ":")).replace("'", "'\\''")
    return f"nats pub -H 'Nats-Msg-Id:{example.message.msg_id}' {example.message.subject} \\\n  '{body}'"


def _event(entry: EventEntry) -> str:
    schema = event_schema(entry)
    definitions = schema["$defs"]
    data = definitions[schema["properties"]["data"]["$ref"].rpartition("/")[2]]
    lines = [
        f"\n### {entry.name}\n\n{(entry.event.__doc__ or '').strip()}\n\n",
        f"Subject `{entry.subject}`, id `{entry.id}`, stream {entry.stream}, written by {entry.writer}.\n\n",
    ]
    lines += _fields(data, definitions)
    return "".join(lines)


def _fields(data: dict[str, Any], definitions: dict[str, Any]) -> Iterator[str]:
    yield "| field | type | default | |\n| --- | --- | --- | --- |\n"
    yield from _rows("", data, definitions, ())


def _rows(prefix: str, data: dict[str, Any], definitions: dict[str, Any], inside: tuple[str, ...]) -> Iterator[str]:
    required = set(data.get("required", ()))
    for name, field in data.get("properties", {}).items():
        path = f"{prefix}{name}"
        default = "required" if name in required else _default(field.get("default"))
        text = str(field.get("description", "")).split("\n")[0]
        yield f"| `{path}` | {_type(field, definitions)} | {default} | {_cell(text)} |\n"
        nested, is_list = _nested(field)
        # A whole job or placement inside another event has a table of its own.
        if nested is not None and nested not in inside and nested not in {"JobSpec", "Placement", "Reason"}:
            inner = definitions[nested]
            if "properties" in inner:
                dots = f"{path}[]." if is_list else f"{path}."
                yield from _rows(dots, inner, definitions, (*inside, nested))
    if not prefix and not data.get("properties"):
        yield "| | | | |\n"


def _default(value: Any) -> str:
    if value is None:
        return "none"
    # Those of an object are in the rows below it.
    return "as below" if isinstance(value, dict) and value else f"`{json.dumps(value, ensure_ascii=False)}`"


def _nested(field: dict[str, Any]) -> tuple[str | None, bool]:
    for option in field.get("anyOf", [field]):
        if "$ref" in option:
            return option["$ref"].rpartition("/")[2], False
        if "$ref" in option.get("items", {}):
            return option["items"]["$ref"].rpartition("/")[2], True
    return None, False


def _type(field: dict[str, Any], definitions: dict[str, Any]) -> str:
    options = [option for option in field.get("anyOf", [field]) if option.get("type") != "null"]
    return " or ".join(_one_type(option, definitions) for option in options)


def _one_type(field: dict[str, Any], definitions: dict[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        target = definitions[name]
        if "enum" in target and len(target["enum"]) <= 8:
            return _values(target["enum"])
        return f"{target.get('type', 'object')} {name}"
    if "enum" in field:
        return _values(field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    kind = str(field.get("type", "any"))
    if kind == "array":
        inner = field.get("items")
        return f"list of {_one_type(inner, definitions)}" if inner else "list"
    if kind == "object":
        inner = field.get("additionalProperties")
        return f"map to {_one_type(inner, definitions)}" if isinstance(inner, dict) else "object"
    low, high = field.get("minimum"), field.get("maximum")
    if kind == "integer" and low is not None:
        return f"integer {low}..{high}" if high is not None and high < 2**53 else f"integer from {low}"
    return kind


def _duration(seconds: int) -> str:
    days, hours = divmod(seconds // 3600, 24)
    return f"{days} days" if days else "an hour" if hours == 1 else f"{hours} hours"


def _values(values: list[Any]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _member_docs() -> dict[ReasonCode, str]:
    """The docstring below each member, which Python itself does not keep."""
    body = ast.parse(inspect.getsource(ReasonCode)).body[0]
    found: dict[ReasonCode, str] = {}
    statements = body.body if isinstance(body, ast.ClassDef) else []
    for first, second in itertools.pairwise(statements):
        if isinstance(first, ast.Assign) and isinstance(first.targets[0], ast.Name) and isinstance(second, ast.Expr):
            found[ReasonCode[first.targets[0].id]] = str(ast.literal_eval(second.value))
    return found
