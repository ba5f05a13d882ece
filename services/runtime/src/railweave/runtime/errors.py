"""What can go wrong on the bus, one name per thing a caller can do about it.

Not here: domain outcomes (no room, unknown dataset), which are values, and the kernel's errors.
"""

from __future__ import annotations


class BusError(Exception):
    """The root of everything the bus raises."""


class BusClosed(BusError):
    """The connection was closed for good: by us, or by a server that does not want us. Exit and be restarted."""


class BusUnavailable(BusError):
    """A request got no answer. `was_sent` says whether the server may have acted on it."""

    def __init__(self, what: str, *, was_sent: bool) -> None:
        super().__init__(what)
        self.was_sent = was_sent


class NoResponders(BusUnavailable):
    """Nobody listens on the subject: no such stream or consumer, or JetStream is not up yet. Nothing was done."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"nobody answers on {subject}", was_sent=False)
        self.subject = subject


class PermissionRefused(BusError):
    """The server does not allow this subject to this user (it says so only out of band, in lower case)."""

    def __init__(self, subject: str, description: str) -> None:
        super().__init__(f"{subject}: {description}; give the user this right or use another one")
        self.subject = subject
        self.description = description


class ApiError(BusError):
    """JetStream answered with an error. `status` is HTTP-like, `code` JetStream's own number."""

    def __init__(self, operation: str, status: int, code: int, description: str) -> None:
        super().__init__(f"{operation}: {description} ({status}/{code})")
        self.operation = operation
        self.status = status
        self.code = code
        self.description = description


class StreamMissing(BusError):
    """The stream does not exist (yet): bootstrap creates it."""

    def __init__(self, stream: str) -> None:
        super().__init__(f"stream {stream} does not exist; run bootstrap")
        self.stream = stream


class OutcomeUnknown(BusError):
    """A write got no answer in time: it may be stored or not. Repeat it with the same id, or read the head."""


class NotStored(OutcomeUnknown):
    """A write got no answer in time, and it is certain that nothing was stored."""


class PublishRefused(BusError):
    """The server refused a write and stored nothing. `code` is JetStream's error number, 0 if found out here."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"{description} ({code})")
        self.code = code
        self.description = description


class StaleFence(PublishRefused):
    """The stream moved on without us: its last sequence is not `expected`. Read the head before anything else.

    `stored_up_to` is the sequence of the last message of this call that was stored before the refusal
    (an append may be refused in the middle; a batch never is).
    """

    def __init__(self, expected: int, actual: int | None, code: int, stored_up_to: int | None = None) -> None:
        where = "somewhere else" if actual is None else f"at {actual}"
        super().__init__(code, f"expected the stream to end at {expected}, it is {where}")
        self.expected = expected
        self.actual = actual
        self.stored_up_to = stored_up_to


class BatchTooLarge(PublishRefused):
    """More messages than the server takes in one atomic batch."""


class StreamBusy(PublishRefused):
    """Too many batches are open on the stream; nothing was stored: back off and repeat."""


class ConsumerLost(BusError):
    """A consumer is gone or silent: create or bind it again."""


class Reject(Exception):
    """Raised by a handler: this message can never succeed. It becomes a dead letter that names `field`."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class Retry(Exception):
    """Raised by a handler: not now. The message comes again after `delay_s` seconds (None: the usual backoff)."""

    def __init__(self, delay_s: float | None = None, reason: str = "retry") -> None:
        super().__init__(reason)
        self.delay_s = delay_s
