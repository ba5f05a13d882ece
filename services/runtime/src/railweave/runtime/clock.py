"""The two clocks a process has: the wall (UTC, for people and the wire) and the monotonic (for durations).

Handed in wherever time matters, so that decisions stay pure and tests set the hour.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """What tells the time."""

    def now(self) -> datetime:
        """The wall clock, UTC."""

    def monotonic(self) -> float:
        """Seconds since some fixed moment of this process; never goes back."""


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> datetime:
        """The wall clock, UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()


@dataclass(slots=True)
class SetClock:
    """A clock that stands still until `advance` moves it: for tests and simulations."""

    wall: datetime = datetime(2026, 12, 1, tzinfo=UTC)
    elapsed_s: float = 0.0

    def now(self) -> datetime:
        """The wall clock as set."""
        return self.wall

    def monotonic(self) -> float:
        """Seconds advanced so far."""
        return self.elapsed_s

    def advance(self, seconds: float) -> None:
        """Move both clocks on by `seconds`."""
        self.elapsed_s += seconds
        self.wall += timedelta(seconds=seconds)
