"""What this process has just said or read need not be read again.

Several services in one process hear the same messages, and often one of them wrote them: the committer's placements
come back to the view that every proposer reads. Events never change, so all may hold the same one. Bodies are
compared byte by byte: what was not written or checked in this process is checked.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Known(Generic[D]):
    """A checked event with what its envelope says; `subject` is the one it was checked for."""

    subject: str
    id: str
    source: str
    time: datetime
    traceparent: str | None
    data: D


class Memo(Generic[D]):
    """The most recent events by their bodies, oldest forgotten first.

    Args:
        most_bytes: of bodies, all together; 0 remembers nothing.
        most_entries: events.
    """

    def __init__(self, most_bytes: int = 8 * 2**20, most_entries: int = 4096) -> None:
        self.most_bytes = most_bytes
        self._most_entries = most_entries
        self._known: OrderedDict[bytes, Known[D]] = OrderedDict()
        self._bytes = 0

    def get(self, body: bytes, subject: str) -> Known[D] | None:
        """The event of a body that came on a subject, where it is known."""
        known = self._known.get(body)
        return known if known is not None and known.subject == subject else None

    def put(self, body: bytes, known: Known[D]) -> None:
        """Remember an event."""
        if not self.most_bytes or body in self._known:
            return
        self._known[body] = known
        self._bytes += len(body)
        while self._bytes > self.most_bytes or len(self._known) > self._most_entries:
            forgotten, _ = self._known.popitem(last=False)
            self._bytes -= len(forgotten)
