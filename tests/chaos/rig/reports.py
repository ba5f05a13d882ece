"""Follows what nodes report, and remembers of whom they said that it is undone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from railweave.contracts import StoredMessage, decode_event
from railweave.contracts.identity import JobRun
from railweave.contracts.inventory import Report, ReportState
from railweave.runtime.bus import Bus
from railweave.runtime.streams import NODES


class ReportWatch:
    """`async with` it."""

    def __init__(self, bus: Bus) -> None:
        self.undone: dict[JobRun, list[str]] = {}
        """Nodes that said so, by run."""
        self.states: Counter[str] = Counter()
        self._follower = bus.follow(
            NODES, ["rw.report.>"], self._take, on_reset=lambda _cause: None, start="new", whole_batches=False
        )

    async def __aenter__(self) -> ReportWatch:
        await self._follower.__aenter__()
        await self._follower.wait_ready(30.0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._follower.__aexit__(None, None, None)

    def _take(self, messages: Sequence[StoredMessage]) -> None:
        for message in messages:
            report = decode_event(message).data
            if not isinstance(report, Report):
                continue
            self.states[str(report.state)] += 1
            if report.state is ReportState.UNDONE:
                self.undone.setdefault(report.run, []).append(str(report.node))
