"""What the client raises, one name for each thing a caller can do about it.

A malformed job is a `ContractError`, raised before anything is sent.
"""

from __future__ import annotations

from railweave.contracts.reasons import Reason


class ClientError(Exception):
    """The root of what the client raises, but for `ContractError` and `StillWaiting`."""


class Unreachable(ClientError):
    """No server of NATS was reached in time. Nothing was sent."""


class NotStored(ClientError):
    """The broker did not confirm an event within the deadline: say it again, it has the same id and counts once.

    `may_be_stored` is False where it is certain that nothing was stored.
    """

    def __init__(self, event_id: str, why: str, *, may_be_stored: bool) -> None:
        outcome = "it may be stored all the same" if may_be_stored else "nothing was stored"
        super().__init__(f"{event_id} was not confirmed: {why}; {outcome}, so say it again")
        self.event_id = event_id
        self.may_be_stored = may_be_stored


class Refused(ClientError):
    """The broker said no: a missing right or stream, a limit. Repeating it does not help. `code` is JetStream's."""

    def __init__(self, what: str, description: str, code: int = 0) -> None:
        super().__init__(f"{what}: {description}" + (f" ({code})" if code else ""))
        self.code = code
        self.description = description


class NotAnswered(ClientError):
    """Nobody answered in time: the service is not running, or this user may not ask it.

    `was_sent` is False where it is certain that nobody got the question.
    """

    def __init__(self, what: str, *, was_sent: bool = True) -> None:
        super().__init__(what)
        self.was_sent = was_sent


class QueryFailed(ClientError):
    """A service could not answer a question. `code` is HTTP-like: 400 the question, 404 unknown, 503 not now."""

    def __init__(self, subject: str, code: int, description: str) -> None:
        super().__init__(f"{subject}: {description} ({code})")
        self.code = code
        self.description = description


class JobNotStarting(ClientError):
    """The job will not get what it asked for; `reasons` say why."""

    def __init__(self, job: str, what: str, reasons: tuple[Reason, ...]) -> None:
        super().__init__(f"{job} {what}{_why(reasons)}")
        self.job = job
        self.reasons = reasons


class JobWasRejected(JobNotStarting):
    """It can never run as asked."""

    def __init__(self, job: str, reasons: tuple[Reason, ...]) -> None:
        super().__init__(job, "was rejected", reasons)


class JobWasReleased(JobNotStarting):
    """It was given back: ended, replaced by a newer run, or past a deadline. Nothing is held any more."""

    def __init__(self, job: str, reasons: tuple[Reason, ...]) -> None:
        super().__init__(job, "was released", reasons)


class StillWaiting(TimeoutError):
    """The time a caller gave is over; the job goes on. `state` and `reasons` are the last ones told."""

    def __init__(self, job: str, until: str, timeout_s: float, state: str, reasons: tuple[Reason, ...]) -> None:
        super().__init__(f"{job} is not {until} after {timeout_s:g} s, it is {state}{_why(reasons)}")
        self.job = job
        self.until = until
        self.state = state
        self.reasons = reasons


def _why(reasons: tuple[Reason, ...]) -> str:
    return "".join(f"\n  {reason.code}: {reason.text}" for reason in reasons)
