"""Rule R13 as a pure fold: what of an atomic batch has come is held back until the batch is whole."""

from __future__ import annotations

from collections.abc import Iterable

from railweave.contracts.wire import StoredMessage

BATCH_ID = "Nats-Batch-Id"
BATCH_COMMIT = "Nats-Batch-Commit"


def is_inside_batch(message: StoredMessage) -> bool:
    """Whether more messages of its batch follow this one in the stream."""
    return BATCH_ID in message.headers and BATCH_COMMIT not in message.headers


class WholeBatches:
    """Lets messages through in order, a batch only when it is whole.

    A batch is whole when its commit has come, or when any message of a higher sequence that is not part of it has:
    batches are contiguous in the stream, and the commit itself may have been superseded or be none of the filter's.
    """

    def __init__(self) -> None:
        self._held: list[StoredMessage] = []

    @property
    def held(self) -> tuple[StoredMessage, ...]:
        """What is held back, in order."""
        return tuple(self._held)

    @property
    def is_holding(self) -> bool:
        """Whether an unfinished batch is held back."""
        return bool(self._held)

    def feed(self, messages: Iterable[StoredMessage], *, as_they_are_up_to: int = 0) -> list[StoredMessage]:
        """Take messages in stream order, give those that may be shown.

        Args:
            messages: in the order of their sequences.
            as_they_are_up_to: the fixed last sequence of a snapshot, which ended between batches.
        """
        shown: list[StoredMessage] = []
        held = self._held
        for message in messages:
            batch = message.headers.get(BATCH_ID)
            if held and held[0].headers[BATCH_ID] != batch:
                shown += held
                held.clear()
            if batch is None or message.sequence <= as_they_are_up_to:
                shown.append(message)
                continue
            held.append(message)
            if BATCH_COMMIT in message.headers:
                shown += held
                held.clear()
        return shown

    def release(self) -> list[StoredMessage]:
        """Give what is held: whoever calls knows that the batch is whole."""
        released = self._held
        self._held = []
        return released

    def drop(self) -> None:
        """Forget what is held."""
        self._held = []
