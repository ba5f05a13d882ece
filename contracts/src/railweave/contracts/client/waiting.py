"""Waiting for a job to get somewhere: folds its events, and decides when everything stored so far is read.

Nothing is decided earlier: an old run under the same name may lie before the one that is meant.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

from railweave.contracts.client.errors import JobWasRejected, JobWasReleased, StillWaiting
from railweave.contracts.client.reader import StreamReader
from railweave.contracts.envelope import Event, decode_event
from railweave.contracts.errors import ContractError
from railweave.contracts.identity import JobRun
from railweave.contracts.job import (
    JobAttached,
    JobEnded,
    JobEvent,
    JobPending,
    JobPlaced,
    JobPrepared,
    JobRejected,
    JobReleased,
    JobReleasing,
    JobStarted,
    JobSubmitted,
)
from railweave.contracts.reasons import Reason

_log = logging.getLogger("railweave.client")

Stage = Literal["placed", "prepared", "attached", "released"]
"""What can be waited for."""


class Progress:
    """How far a run has come, as its events tell."""

    def __init__(self) -> None:
        self.state = "not submitted"
        self.reasons: tuple[Reason, ...] = ()
        self.reached: dict[str, Event] = {}
        """The answers of the present round, by stage."""
        self.end: JobRejected | JobReleased | None = None
        """Set once it is over for good."""

    def take(self, event: Event) -> None:
        """Fold one event of the run."""
        match event:
            case JobSubmitted():
                if self.end is not None or self.state == "not submitted":
                    self._begin("submitted", ())
            case JobPending():
                self._begin("pending", event.reasons)
            case JobPlaced() | JobPrepared() | JobAttached():
                self.state, self.reasons = event.EVENT, ()
                self.reached[event.EVENT] = event
            case JobStarted():
                self.state = "started"
            case JobEnded():
                self.state = f"ended ({event.outcome})"
            case JobReleasing():
                self.state, self.reasons = "releasing", event.reasons
                self.reached.clear()
            case JobReleased() if event.requeued:
                self._begin("released, to be proposed again", event.reasons)
            case JobReleased() | JobRejected():
                self.state, self.end = event.EVENT, event
                self.reasons = event.reasons or self.reasons
                self.reached = {event.EVENT: event}
            case _:
                pass

    def _begin(self, state: str, reasons: tuple[Reason, ...]) -> None:
        self.state, self.reasons, self.end = state, reasons, None
        self.reached.clear()


async def wait_until(reader: StreamReader, run: JobRun, until: Stage, timeout_s: float) -> Event:
    """Read a job's events until one run of it is there; opens and closes the reader.

    Raises:
        JobWasRejected, JobWasReleased: it will not get there.
        StillWaiting: `timeout_s` seconds are over.
    """
    progress = Progress()
    try:
        async with asyncio.timeout(timeout_s):
            await reader.open()
            while True:
                if reader.is_caught_up and (event := _outcome(progress, run, until)) is not None:
                    return event
                message = await reader.next()
                try:
                    event = decode_event(message).data
                except ContractError as error:
                    _log.warning("%s %d is skipped: %s", message.stream, message.sequence, error)
                    continue
                if isinstance(event, JobEvent) and event.run == run:
                    progress.take(event)
    except TimeoutError:
        raise StillWaiting(str(run), until, timeout_s, progress.state, progress.reasons) from None
    finally:
        await reader.close()


def _outcome(progress: Progress, run: JobRun, until: Stage) -> Event | None:
    reached = progress.reached.get(until)
    if reached is not None:
        return reached
    match progress.end:
        case JobRejected():
            raise JobWasRejected(str(run), progress.reasons)
        case JobReleased():
            raise JobWasReleased(str(run), progress.reasons)
        case None:
            return None
