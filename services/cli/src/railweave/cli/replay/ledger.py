"""What became of each job of a replay: folded from its events, with the stream's own times. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class Stage(StrEnum):
    """How far a job of the replay has come."""

    SUBMITTED = "submitted"
    PLACED = "placed"
    PREPARED = "prepared"
    ATTACHED = "attached"
    RELEASING = "releasing"
    RELEASED = "released"
    REJECTED = "rejected"


@dataclass(slots=True)
class Record:
    """One job. Times are those at which the broker stored its events."""

    stage: Stage = Stage.SUBMITTED
    submitted_at: datetime | None = None
    placed_at: datetime | None = None
    """The first time."""
    prepared_at: datetime | None = None
    rejected_for: str | None = None
    waits_for: str | None = None
    given_back: int = 0
    """Times it was released and proposed again."""


@dataclass(slots=True)
class Ledger:
    """All jobs, by name."""

    records: dict[str, Record] = field(default_factory=dict)
    stages: Counter[Stage] = field(default_factory=Counter)
    first_at: datetime | None = None
    last_at: datetime | None = None
    """When the last job came to its end."""

    def take(self, event: str, job: str, data: Mapping[str, Any], at: datetime) -> Stage | None:  # noqa: PLR0911
        """Fold one event; the stage that the job has come to by it, None where it stays."""
        record = self.records.get(job)
        if record is None:
            record = self.records[job] = Record()
            self.stages[Stage.SUBMITTED] += 1
        match event:
            case "submitted":
                record.submitted_at = record.submitted_at or at
                self.first_at = self.first_at or at
                return None
            case "pending":
                record.waits_for = _first_code(data)
                return None
            case "placed":
                record.placed_at = record.placed_at or at
                return self._to(record, Stage.PLACED)
            case "prepared":
                record.prepared_at = record.prepared_at or at
                return self._to(record, Stage.PREPARED)
            case "attached":
                return self._to(record, Stage.ATTACHED)
            case "releasing":
                return self._to(record, Stage.RELEASING)
            case "released" if data.get("requeued"):
                record.given_back += 1
                return self._to(record, Stage.SUBMITTED)
            case "released":
                self.last_at = at
                return self._to(record, Stage.RELEASED)
            case "rejected":
                record.rejected_for = _first_code(data) or "Unknown"
                self.last_at = at
                return self._to(record, Stage.REJECTED)
            case _:
                return None

    def _to(self, record: Record, stage: Stage) -> Stage:
        self.stages[record.stage] -= 1
        self.stages[stage] += 1
        record.stage = stage
        return stage

    @property
    def waiting_for(self) -> str | None:
        """What most jobs that wait now said last that they wait for."""
        reasons = Counter(
            record.waits_for
            for record in self.records.values()
            if record.stage is Stage.SUBMITTED and record.waits_for is not None
        )
        return reasons.most_common(1)[0][0] if reasons else None

    @property
    def ended(self) -> int:
        """Jobs that hold nothing any more."""
        return self.stages[Stage.RELEASED] + self.stages[Stage.REJECTED]

    @property
    def prepared(self) -> int:
        """Jobs that were prepared, whatever became of them."""
        return sum(1 for record in self.records.values() if record.prepared_at is not None)

    @property
    def rejected_by_reason(self) -> dict[str, int]:
        """Rejected jobs by their first reason."""
        reasons = Counter(record.rejected_for for record in self.records.values() if record.rejected_for is not None)
        return {str(reason): count for reason, count in sorted(reasons.items())}

    @property
    def waiting_by_reason(self) -> dict[str, int]:
        """Jobs that were never prepared nor rejected, by what they waited for last."""
        reasons = Counter(
            record.waits_for or "NotPlacedInTime"
            for record in self.records.values()
            if record.prepared_at is None and record.rejected_for is None
        )
        return {str(reason): count for reason, count in sorted(reasons.items())}

    def milliseconds_to(self, stage: Stage) -> list[float]:
        """From submitted to placed or prepared, of every job that came so far; sorted."""
        found: list[float] = []
        for record in self.records.values():
            reached = record.placed_at if stage is Stage.PLACED else record.prepared_at
            if reached is not None and record.submitted_at is not None:
                found.append((reached - record.submitted_at).total_seconds() * 1000)
        return sorted(found)

    @property
    def busy_s(self) -> float:
        """From the first job's submission to the last one's end."""
        if self.first_at is None or self.last_at is None:
            return 0.0
        return (self.last_at - self.first_at).total_seconds()


def _first_code(data: Mapping[str, Any]) -> str | None:
    reasons = data.get("reasons") or ()
    return str(reasons[0].get("code")) if reasons else None


def percentile(ordered: Iterable[float], share: float) -> float | None:
    """The nearest-rank percentile of ordered values, None of none."""
    values = list(ordered)
    if not values:
        return None
    return values[max(0, math.ceil(share * len(values)) - 1)]
