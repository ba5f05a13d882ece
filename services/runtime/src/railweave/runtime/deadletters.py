"""Dead letters: what a service could not handle, kept whole in stream DEAD, seen, and replayed by a command.

Also read from DEAD: the broker's own advisories. They tell of messages that no handler lived to bury (one that kills
its process each time), which would otherwise be dropped silently after the last delivery.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from railweave.contracts.codec import encode_token
from railweave.contracts.dead import DeadLetter
from railweave.contracts.envelope import decode_as, encode_event
from railweave.contracts.errors import ContractError
from railweave.contracts.wire import StoredMessage, WireMessage
from railweave.runtime.errors import BusError
from railweave.runtime.streams import DEAD

if TYPE_CHECKING:
    from railweave.runtime.bus import Bus, Stored

_MAX_DELIVERIES = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>"


class DeadLetterMissing(BusError):
    """There is no such dead letter, or its original is not in its stream any more."""


@dataclass(frozen=True, slots=True)
class DeadEntry:
    """A dead letter as DEAD has it. `service` is the durable's name where the broker told of it."""

    sequence: int
    """Its number, for `replay`."""
    stored_at: datetime
    service: str
    stream: str
    original_sequence: int
    original_subject: str | None
    cause: str
    field: str | None
    is_advisory: bool


class DeadLetters:
    """The dead letters of one service (or, with service "", of all, for reading)."""

    def __init__(self, bus: Bus, service: str) -> None:
        self._bus = bus
        self.service = service

    async def store(self, original: StoredMessage, cause: str, field: str | None = None) -> Stored:
        """Keep `original` whole, with what was wrong. Storing it twice keeps one.

        Raises:
            OutcomeUnknown, PublishRefused: as `Bus.publish`; do not give up the original then.
        """
        letter = DeadLetter(
            service=self.service,
            stream=original.stream,
            sequence=original.sequence,
            original_subject=original.subject,
            original_headers=dict(original.headers),
            original_base64=base64.b64encode(original.body).decode(),
            stored_at=original.stored_at,
            cause=cause,
            field=field,
        )
        stored = await self._bus.publish(encode_event(letter), stream=DEAD)
        if not stored.duplicate:
            self._bus.connection.observer.count("dead_letters", service=self.service, stream=original.stream)
        return stored

    async def entries(self, *, from_sequence: int = 1, limit: int = 1000) -> list[DeadEntry]:
        """The oldest `limit` dead letters from `from_sequence` on, and advisories of messages nobody buried.

        An advisory names the durable consumer: it is listed for the service of that name.
        """
        found: list[DeadEntry] = []
        subject = f"rw.dead.{encode_token(self.service)}" if self.service else "rw.dead.>"
        async for message in self._walk(subject, from_sequence):
            entry = _letter(message)
            if entry is not None:
                found.append(entry)
            if len(found) >= limit:
                break
        buried = {(entry.stream, entry.original_sequence) for entry in found}
        told = 0
        async for message in self._walk(_MAX_DELIVERIES, from_sequence):
            entry = _advisory(message)
            is_ours = entry is not None and (not self.service or entry.service == self.service)
            if entry is not None and is_ours and (entry.stream, entry.original_sequence) not in buried:
                found.append(entry)
            told += 1
            if told >= limit:
                break
        return sorted(found, key=lambda entry: entry.sequence)

    async def replay(self, sequence: int) -> Stored:
        """Publish the original again, byte for byte, to its subject. Doing it twice stores it once.

        Args:
            sequence: the dead letter's number in DEAD.

        Raises:
            DeadLetterMissing: no such dead letter, or (an advisory) its original has expired.
            OutcomeUnknown, PublishRefused: as `Bus.publish`.
        """
        message = await self._bus.read(DEAD, sequence)
        if message is None:
            raise DeadLetterMissing(f"DEAD has no message {sequence}")
        if message.subject.startswith("rw.dead."):
            try:
                letter = decode_as(DeadLetter, message).data
            except ContractError as error:
                raise DeadLetterMissing(f"message {sequence} of DEAD is not a dead letter: {error}") from error
            subject, headers, body, stream = (
                letter.original_subject, letter.original_headers, letter.original, letter.stream,
            )  # fmt: skip
        else:
            advisory = _advisory(message)
            if advisory is None:
                raise DeadLetterMissing(f"message {sequence} of DEAD is no dead letter")
            original = await self._bus.read(advisory.stream, advisory.original_sequence)
            if original is None:
                raise DeadLetterMissing(
                    f"message {advisory.original_sequence} of {advisory.stream} is not there any more"
                )
            subject, headers, body, stream = original.subject, dict(original.headers), original.body, original.stream
        first_id = headers.get("Nats-Msg-Id", f"{stream}/{sequence}")
        # The id must differ from the original's (a duplicate would be dropped), and be the same for every try of this.
        kept = {name: value for name, value in headers.items() if not name.lower().startswith("nats-")}
        again = WireMessage(subject, body, kept, f"{first_id}/replay/{sequence}")
        return await self._bus.publish(again, stream=stream)

    async def _walk(self, subject: str, from_sequence: int) -> AsyncIterator[StoredMessage]:
        sequence = from_sequence
        while True:
            message = await self._bus.read_next(DEAD, subject, from_sequence=sequence)
            if message is None:
                return
            yield message
            sequence = message.sequence + 1


def _letter(message: StoredMessage) -> DeadEntry | None:
    try:
        letter = decode_as(DeadLetter, message).data
    except ContractError:
        return None
    return DeadEntry(
        sequence=message.sequence,
        stored_at=message.stored_at,
        service=letter.service,
        stream=letter.stream,
        original_sequence=letter.sequence,
        original_subject=letter.original_subject,
        cause=letter.cause,
        field=letter.field,
        is_advisory=False,
    )


def _advisory(message: StoredMessage) -> DeadEntry | None:
    try:
        told = json.loads(message.body)
        return DeadEntry(
            sequence=message.sequence,
            stored_at=message.stored_at,
            service=str(told["consumer"]),
            stream=str(told["stream"]),
            original_sequence=int(told["stream_seq"]),
            original_subject=None,
            cause=f"delivered {int(told['deliveries'])} times and never settled",
            field=None,
            is_advisory=True,
        )
    except (ValueError, KeyError, TypeError):
        return None
