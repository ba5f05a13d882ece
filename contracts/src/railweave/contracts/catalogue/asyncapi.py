"""The AsyncAPI 3.0 document: every subject, who sends on it, and what JetStream does with it.

Railweave is the application: it receives what schedulers, platforms and operators write, and sends the rest.
AsyncAPI's NATS binding knows only queue groups, so what JetStream needs to know is in `x-jetstream-*`. The schemas
are the files beside it.
"""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from railweave.contracts.catalogue.entries import EVENTS, QUERIES, STREAMS, EventEntry, QueryEntry
from railweave.contracts.catalogue.schemas import query_file
from railweave.contracts.wire import CONTENT_TYPE

_SCHEMA_FORMAT = "application/schema+json;version=2020-12"

_PARAMETERS = {
    "attempt": "Which start of the job, from 1. Decimal.",
    "cluster": "The scheduler's domain.",
    "dataset": "`name@version` of a dataset.",
    "environment": "A development container.",
    "job": "The scheduler's name of the job.",
    "leaf": "A leaf switch.",
    "lease": "A time-bound holding of GPUs.",
    "node": "A host.",
    "service": "A service of Railweave.",
    "tenant": "A tenant.",
}


def asyncapi_document() -> dict[str, Any]:
    """The whole document."""
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    messages: dict[str, Any] = {"ServiceError": _service_error()}
    for event in EVENTS:
        _add_event(event, channels, operations, messages)
    for question in QUERIES:
        _add_query(question, channels, operations, messages)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Railweave",
            "version": version("railweave-contracts"),
            "description": "The event-driven resource plane of an AI training cluster. Names in addresses are one "
            "token each: letters, digits, `_` and `-` stay, every other byte of the UTF-8 form is `=` and two hex "
            "digits.",
        },
        "defaultContentType": CONTENT_TYPE,
        "channels": channels,
        "operations": operations,
        "components": {
            "messages": messages,
            "parameters": {
                name: {"description": f"{text} Through the token codec."} for name, text in sorted(_PARAMETERS.items())
            },
            "schemas": {"EventHeaders": _event_headers()},
        },
        "x-jetstream-streams": {stream.name: asdict(stream) for stream in STREAMS},
    }


def _add_event(
    entry: EventEntry, channels: dict[str, Any], operations: dict[str, Any], messages: dict[str, Any]
) -> None:
    name = entry.event.__name__
    messages[name] = {
        "name": entry.name,
        "title": name,
        "summary": (entry.event.__doc__ or "").strip(),
        "contentType": CONTENT_TYPE,
        "headers": {"$ref": "#/components/schemas/EventHeaders"},
        "payload": _payload(f"{entry.name}.json"),
        "x-jetstream-msg-id": entry.id,
    }
    channel: dict[str, Any] = {
        "address": entry.subject,
        "messages": {name: {"$ref": f"#/components/messages/{name}"}},
        "x-jetstream-stream": entry.stream,
    }
    if entry.parameters:
        channel["parameters"] = {key: {"$ref": f"#/components/parameters/{key}"} for key in entry.parameters}
    channels[name] = channel
    operations[f"{'receive' if entry.is_from_outside else 'send'}{name}"] = {
        "action": "receive" if entry.is_from_outside else "send",
        "summary": f"Written by {entry.writer}.",
        "channel": {"$ref": f"#/channels/{name}"},
        "messages": [{"$ref": f"#/channels/{name}/messages/{name}"}],
    }


def _add_query(
    entry: QueryEntry, channels: dict[str, Any], operations: dict[str, Any], messages: dict[str, Any]
) -> None:
    question, answer = entry.question.__name__, entry.answer.__name__
    for model in (entry.question, entry.answer):
        messages[model.__name__] = {
            "name": model.__name__,
            "summary": (model.__doc__ or "").strip(),
            "contentType": "application/json",
            "payload": _payload(query_file(model)),
        }
    what = entry.subject.rpartition(".")[2]
    asked, answered = f"query-{what}", f"query-{what}-reply"
    channels[asked] = {
        "address": entry.subject,
        "messages": {question: {"$ref": f"#/components/messages/{question}"}},
    }
    channels[answered] = {
        "address": None,
        "messages": {
            answer: {"$ref": f"#/components/messages/{answer}"},
            "ServiceError": {"$ref": "#/components/messages/ServiceError"},
        },
    }
    operations[f"answer-{what}"] = {
        "action": "receive",
        "summary": (entry.question.__doc__ or "").strip(),
        "channel": {"$ref": f"#/channels/{asked}"},
        "messages": [{"$ref": f"#/channels/{asked}/messages/{question}"}],
        "reply": {
            "channel": {"$ref": f"#/channels/{answered}"},
            "messages": [
                {"$ref": f"#/channels/{answered}/messages/{answer}"},
                {"$ref": f"#/channels/{answered}/messages/ServiceError"},
            ],
        },
    }


def _payload(file: str) -> dict[str, Any]:
    return {"schemaFormat": _SCHEMA_FORMAT, "schema": {"$ref": f"./{file}"}}


def _event_headers() -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "Content-Type": {"const": CONTENT_TYPE},
            "Nats-Msg-Id": {"type": "string", "description": "The event's id: a repeat is forgotten by the stream."},
            "ce-id": {"type": "string"},
            "ce-type": {"type": "string"},
            "traceparent": {"type": "string", "description": "W3C trace context."},
        },
        "required": ["Nats-Msg-Id"],
    }


def _service_error() -> dict[str, Any]:
    return {
        "name": "ServiceError",
        "summary": "The question could not be answered; the body is empty.",
        "headers": {
            "type": "object",
            "properties": {
                "Nats-Service-Error": {"type": "string"},
                "Nats-Service-Error-Code": {"type": "string", "pattern": "^[0-9]{3}$"},
            },
            "required": ["Nats-Service-Error", "Nats-Service-Error-Code"],
        },
    }
