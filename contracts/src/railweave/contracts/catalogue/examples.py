"""Golden messages of every event: a minimal one (the required fields alone) and a rich one (every field).

Every later version must read them. They are written as an integrator would write them, at a fixed time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pydantic_core import from_json, to_json

from railweave.contracts.catalogue.entries import EVENTS
from railweave.contracts.catalogue.example_parts import ADDED
from railweave.contracts.catalogue.minimal_examples import MINIMAL
from railweave.contracts.catalogue.rich_examples import RICH
from railweave.contracts.envelope import Event, encode_event, registered_types
from railweave.contracts.wire import WireMessage

TIME = datetime(2026, 12, 1, 10, 0, tzinfo=UTC)
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@dataclass(frozen=True, slots=True)
class Example:
    """One golden message."""

    name: str
    event: Event
    message: WireMessage

    def document(self) -> dict[str, Any]:
        """As it is checked in: what a stranger needs to publish it."""
        return {
            "name": self.name,
            "subject": self.message.subject,
            "headers": {"Nats-Msg-Id": self.message.msg_id, **self.message.headers},
            "body": from_json(self.message.body),
        }


def examples_of(type_name: str) -> tuple[Example, ...]:
    """The golden messages of a type: minimal, rich, and what was added for a reason."""
    return tuple(_examples(type_name))


def all_examples() -> dict[str, tuple[Example, ...]]:
    """The golden messages of every type."""
    return {entry.name: examples_of(entry.name) for entry in EVENTS}


def _examples(type_name: str) -> Iterator[Example]:
    yield _example(type_name, "minimal", MINIMAL[type_name], None)
    yield _example(type_name, "rich", RICH[type_name], TRACEPARENT)
    for name, values in ADDED.get(type_name, {}).items():
        yield _example(type_name, name, values, None)


def _example(type_name: str, name: str, values: Mapping[str, Any], traceparent: str | None) -> Example:
    event = registered_types()[type_name].model_validate_json(to_json(values), extra="forbid")
    message = encode_event(event, time=TIME, traceparent=traceparent)
    # The body is what was written, without the defaults that our own writer spells out.
    body = to_json({**from_json(message.body), "data": values})
    return Example(name, event, replace(message, body=body))
