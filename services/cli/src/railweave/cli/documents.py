"""What users write: a job or an event in YAML or JSON, bare or as a CloudEvent."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from railweave.cli.exits import CommandFailed, Exit
from railweave.contracts.envelope import MAX_BODY_BYTES
from railweave.contracts.job import JobSubmitted

_TYPES_OF_A_JOB = frozenset({JobSubmitted.TYPE})


class _Loader(yaml.SafeLoader):
    """Safe, without aliases (a small file could stand for gigabytes), and times stay text."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.YAMLError(f"aliases (*{event.anchor}) are not taken, line {event.start_mark.line + 1}")
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_source(source: str) -> tuple[str, str]:
    """The text of a file, or of standard input for `-`, and its name for messages.

    Raises:
        CommandFailed: it cannot be read, is too long, or is not UTF-8.
    """
    name = "standard input" if source == "-" else source
    try:
        raw = sys.stdin.buffer.read(MAX_BODY_BYTES + 1) if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise CommandFailed(f"cannot read {name}: {error.strerror}", Exit.USAGE) from error
    if len(raw) > MAX_BODY_BYTES:
        raise CommandFailed(f"{name} is longer than an event may be ({MAX_BODY_BYTES:,} bytes)", Exit.USAGE)
    try:
        return raw.decode(), name
    except UnicodeDecodeError as error:
        raise CommandFailed(f"{name} is not UTF-8 at byte {error.start}", Exit.USAGE) from error


def parse_document(text: str, name: str) -> dict[str, Any]:
    """One mapping out of YAML (of which JSON is a part).

    Raises:
        CommandFailed: names the line.
    """
    try:
        # A subclass of SafeLoader: it makes plain values only.
        document = yaml.load(text, Loader=_Loader)  # noqa: S506
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise CommandFailed(
            f"{name} is neither YAML nor JSON: {error.problem}", Exit.USAGE, field=f"line {line}"
        ) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise CommandFailed(f"{name} is neither YAML nor JSON: {error}", Exit.USAGE) from error
    if not isinstance(document, Mapping):
        raise CommandFailed(f"{name} holds {type(document).__name__}, expected a job: fields and values", Exit.USAGE)
    return dict(document)


def job_in(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The job in a document: the document itself, or `data` of a CloudEvent.

    Raises:
        CommandFailed: a CloudEvent of another type.
    """
    if "specversion" not in document:
        return dict(document)
    kind = document.get("type")
    if kind not in _TYPES_OF_A_JOB:
        raise CommandFailed(
            f"{name} is an event of type {kind!r}; `submit` takes {JobSubmitted.TYPE}",
            Exit.USAGE,
            field="type",
            remedy="`railweave publish` publishes any event",
        )
    data = document.get("data")
    if not isinstance(data, Mapping):
        raise CommandFailed(f"{name} has no data", Exit.USAGE, field="data")
    return dict(data)


def read_job(source: str) -> dict[str, Any]:
    """The job in a file or standard input; raises CommandFailed. Its fields are checked when it is published."""
    text, name = read_source(source)
    return job_in(parse_document(text, name), name)
