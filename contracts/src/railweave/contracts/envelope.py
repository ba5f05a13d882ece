"""The envelope of every event: CloudEvents 1.0, structured JSON, one document that `nats sub` shows whole.

`encode_event` and `decode_event` are the only way in and out. Reading checks everything once: the envelope, the body
against its type's model, and that the subject's names are the body's (a scheduler may be given rights on its own
subjects alone, so a body must not speak for another).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import from_json

from railweave.contracts.errors import ContractError
from railweave.contracts.memo import Known, Memo
from railweave.contracts.types import Document, UtcTime, build
from railweave.contracts.wire import CONTENT_TYPE, StoredMessage, WireMessage

MAX_BODY_BYTES = 1024 * 1024
"""NATS' default payload limit; a longer body cannot have come from a well-behaved sender."""


class Event(Document):
    """Base of all event bodies (`data` in the envelope)."""

    TYPE: ClassVar[str]
    """CloudEvents type with the major version."""
    SOURCE: ClassVar[str] = "/railweave"

    @abstractmethod
    def subject(self) -> str:
        """The one subject this event goes to."""

    @abstractmethod
    def event_id(self) -> str:
        """The event's id, computable by hand from what it says; also its `Nats-Msg-Id`."""

    def source(self) -> str:
        """Who says so, as a URI reference."""
        return self.SOURCE


E = TypeVar("E", bound=Event)
E_co = TypeVar("E_co", bound=Event, covariant=True)


@dataclass(frozen=True, slots=True)
class Envelope(Generic[E_co]):
    """A decoded event: the body and what the envelope says of it."""

    id: str
    source: str
    time: datetime
    traceparent: str | None
    data: E_co


class Frame(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)
    specversion: Literal["1.0"]
    type: str
    source: str = Field(min_length=1, max_length=1024)
    id: str = Field(min_length=1, max_length=1024)
    time: UtcTime
    datacontenttype: Literal["application/json"] | None = None
    traceparent: str | None = Field(default=None, max_length=128)
    data: Event


memo: Memo[Event] = Memo()
"""Events said or read by this process of late."""

_types: dict[str, type[Event]] = {}
_frames: dict[str, type[Frame]] = {}


def register_event(event_type: type[E]) -> type[E]:
    """Class decorator: make a type readable by `decode_event`."""
    if event_type.TYPE in _types:
        raise ValueError(f"{event_type.TYPE} is registered twice")
    _types[event_type.TYPE] = event_type
    return event_type


def registered_types() -> Mapping[str, type[Event]]:
    """All event types by their CloudEvents type."""
    return dict(_types)


def frame_of(type_name: str) -> type[Frame]:
    """The model of the whole document of a type; raises ContractError for an unknown one."""
    frame = _frames.get(type_name)
    if frame is None:
        event_type = _types.get(type_name)
        if event_type is None:
            raise ContractError("type", f"unknown event type {type_name!r}")
        # The type is part of the frame, so that a header which names another type is an error of `type`.
        fields: dict[str, Any] = {"type": (Literal[type_name], ...), "data": (event_type, ...)}
        frame = create_model(f"Frame_{event_type.__name__}", __base__=Frame, **fields)
        _frames[type_name] = frame
    return frame


def encode_event(
    event: Event, *, time: datetime | None = None, traceparent: str | None = None, ttl_s: int | None = None
) -> WireMessage:
    """Return the message that carries an event.

    Args:
        event: what to say.
        time: when it was said; default now.
        traceparent: W3C trace context, copied into the header.
        ttl_s: seconds after which the stream may forget it (`Nats-TTL`).

    Raises:
        ContractError: it is longer than a message may be.
    """
    event_id, type_name, subject, source = event.event_id(), event.TYPE, event.subject(), event.source()
    said_at = time or datetime.now(UTC)
    frame = build(
        frame_of(type_name),
        specversion="1.0",
        type=type_name,
        source=source,
        id=event_id,
        time=said_at,
        traceparent=traceparent,
        data=event,
    )
    headers = {"Content-Type": CONTENT_TYPE, "ce-id": event_id, "ce-type": type_name}
    if traceparent is not None:
        headers["traceparent"] = traceparent
    if ttl_s is not None:
        headers["Nats-TTL"] = f"{ttl_s}s"
    body = frame.__pydantic_serializer__.to_json(frame, exclude_defaults=False, exclude_none=True)
    _check_length(body)
    memo.put(body, Known(subject, event_id, source, said_at, traceparent, event))
    return WireMessage(subject, body, headers, event_id)


def decode_event(message: StoredMessage | WireMessage) -> Envelope[Event]:
    """Read any event.

    Raises:
        ContractError: names the field that is wrong; the message changes nothing.
    """
    known = memo.get(message.body, message.subject)
    # What was read is remembered by subject and body; the header's type is this message's own and checked each time.
    if known is None or message.headers.get("ce-type", known.data.TYPE) != known.data.TYPE:
        known = _checked(message)
        memo.put(message.body, known)
    traceparent = message.headers.get("traceparent") or known.traceparent
    return Envelope(known.id, known.source, known.time, traceparent, known.data)


def _checked(message: StoredMessage | WireMessage) -> Known[Event]:
    _check_length(message.body)
    type_name = message.headers.get("ce-type") or _type_in(message.body)
    try:
        frame = frame_of(type_name).model_validate_json(message.body)
    except ValidationError as error:
        raise contract_error(error) from error
    data = frame.data
    if data.subject() != message.subject:
        raise ContractError("subject", f"the body belongs to {data.subject()!r}, it came on {message.subject!r}")
    return Known(message.subject, frame.id, frame.source, frame.time, frame.traceparent, data)


def decode_as(event_type: type[E], message: StoredMessage | WireMessage) -> Envelope[E]:
    """Read an event of one type.

    Raises:
        ContractError: it is malformed, or of another type.
    """
    envelope = decode_event(message)
    data = envelope.data
    if not isinstance(data, event_type):
        raise ContractError("type", f"expected {event_type.TYPE}, found {data.TYPE}")
    return Envelope(envelope.id, envelope.source, envelope.time, envelope.traceparent, data)


def _check_length(body: bytes) -> None:
    if len(body) > MAX_BODY_BYTES:
        raise ContractError("body", f"expected at most {MAX_BODY_BYTES} bytes, found {len(body)}")


def _type_in(body: bytes) -> str:
    try:
        document = from_json(body)
    except ValueError as error:
        raise ContractError("body", f"not JSON: {error}") from error
    type_name = document.get("type") if isinstance(document, dict) else None
    if not isinstance(type_name, str):
        raise ContractError("type", "expected a CloudEvents document with a type")
    return type_name


def contract_error(error: ValidationError) -> ContractError:
    """What pydantic found first, with the path of the field as the sender wrote it."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = ""
    for part in first["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f"{'.' if path else ''}{part}"
    if first["type"] == "extra_forbidden":
        return ContractError(path, "there is no such field")
    return ContractError(path or "body", first["msg"].removeprefix("Value error, "))
