"""Whether a stream is still the one that was read: not deleted and made again, not put back to an older copy."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime

from railweave.contracts.wire import StoredMessage
from railweave.runtime.connection import Connection
from railweave.runtime.errors import PermissionRefused
from railweave.runtime.jsapi import JetStreamApi, StreamState


class ResetCause(enum.StrEnum):
    """Why everything a follower told is void."""

    RECREATED = "recreated"
    """The stream was deleted and made again: its sequences start over."""
    WENT_BACK = "went_back"
    """The stream ends before what was seen of it: restored from an older copy, or acknowledged writes were lost."""
    HISTORY_DIFFERS = "history_differs"
    """The stream holds another message where the last one seen was: restored, and written to since."""
    UNCERTAIN = "uncertain"
    """The broker was another one and the last message seen is not there any more: it may have been restored."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The last message received, by which the stream is known again."""

    sequence: int
    subject: str
    stored_at: datetime


class History:
    """What is remembered of a stream to know it again."""

    def __init__(self, connection: Connection, api: JetStreamApi, stream: str) -> None:
        self._connection = connection
        self._api = api
        self._stream = stream
        self._server_id = ""
        self._seen: _Seen | None = None
        self.created: datetime | None = None

    def remember(self, message: StoredMessage) -> None:
        """Take the last message received."""
        self._seen = _Seen(message.sequence, message.subject, message.stored_at)

    async def compare(self, state: StreamState, highest: int) -> ResetCause | None:
        """Say what is wrong with the stream as it is now, if anything, and remember this one from now on.

        Args:
            state: where it stands, just read.
            highest: the highest sequence it was known to have had.
        """
        cause: ResetCause | None = None
        if self.created is not None and state.created != self.created:
            cause = ResetCause.RECREATED
        elif state.last_sequence < highest:
            cause = ResetCause.WENT_BACK
        elif self._seen is not None:
            cause = await self._compare_last(self._seen)
        if cause is not None:
            self._seen = None
        self.created = state.created
        self._server_id = self._connection.client.server_id
        return cause

    async def _compare_last(self, seen: _Seen) -> ResetCause | None:
        try:
            found = await self._api.message(self._stream, {"seq": seen.sequence})
        except PermissionRefused:
            found = None
        if found is not None:
            same = found.stored_at == seen.stored_at and found.subject == seen.subject
            return None if same else ResetCause.HISTORY_DIFFERS
        # Superseded, expired, or never there. The same server process cannot have been given another store.
        return None if self._connection.client.server_id == self._server_id else ResetCause.UNCERTAIN
