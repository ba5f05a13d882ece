"""What could not be handled: the original, its cause and field, in stream DEAD."""

from __future__ import annotations

import base64

from railweave.contracts.codec import encode_id_part, encode_token
from railweave.contracts.envelope import Event, register_event
from railweave.contracts.types import UtcTime


@register_event
class DeadLetter(Event):
    """A message that a service could not handle."""

    TYPE = "railweave.deadletter.v1"
    service: str
    stream: str
    """Where the original is from."""
    sequence: int
    original_subject: str
    original_headers: dict[str, str] = {}
    original_base64: str
    """The body as it came, base64."""
    stored_at: UtcTime
    """When the original was stored."""
    cause: str
    """What is wrong, and what was expected."""
    field: str | None = None
    """Path of the field that is wrong."""

    @property
    def original(self) -> bytes:
        return base64.b64decode(self.original_base64)

    def subject(self) -> str:
        return f"rw.dead.{encode_token(self.service)}"

    def event_id(self) -> str:
        return f"deadletter/{encode_id_part(self.service)}/{encode_id_part(self.stream)}/{self.sequence}"

    def source(self) -> str:
        return f"/railweave/{encode_id_part(self.service)}"
