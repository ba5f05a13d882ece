"""What goes over the wire, before anyone looks inside: a subject, headers and a body.

Not here: what the bodies mean (the event modules) and how they travel (the runtime's bus).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

CONTENT_TYPE = "application/cloudevents+json"

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class WireMessage:
    """A message to publish.

    `msg_id` is the event's id, sent as `Nats-Msg-Id` where it is published alone and left out in an
    atomic batch (a repeat would refuse the whole batch; notes on ADR-50).
    """

    subject: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: _NO_HEADERS)
    msg_id: str | None = None


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as a stream holds it: `sequence` and `stored_at` are the stream's own."""

    stream: str
    subject: str
    sequence: int
    stored_at: datetime
    headers: Mapping[str, str]
    body: bytes
