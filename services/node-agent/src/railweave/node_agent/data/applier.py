"""The data concern: evict what the committer chose, fetch what is wanted, show it to the job, take that away
again.

What was fetched stays in the cache when the job ends: that is what a cache is for. What is taken back at undo is the
job's own directory. Nothing that a live placement uses is evicted, whatever a placement says (R9).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from railweave.contracts.placement import PlacedDataset, Placement
from railweave.node_agent.applier import ApplyFailed, CannotDo, UndoIncomplete, Work
from railweave.node_agent.data.model import DataFailed, DataSpace, JobSpace
from railweave.node_agent.model import EntryKey, Phase

_log = logging.getLogger("railweave.agent")

InUse = Callable[[str, EntryKey], bool]
"""Whether a live placement, other than that one, uses a dataset."""


class DataStepKind(StrEnum):
    EVICT = "evict"
    FETCH = "fetch"
    ARRANGE = "arrange"


@dataclass(frozen=True, slots=True)
class DataStep:
    """One change: a dataset goes, a dataset comes, or the job's directory is made."""

    kind: DataStepKind
    dataset: str = ""
    bytes: int = 0

    def describe(self) -> str:
        """In words."""
        return f"{self.kind} {self.dataset or 'the job directory'}" + (f" ({self.bytes} bytes)" if self.bytes else "")

    def to_json(self) -> dict[str, Any]:
        """For the journal."""
        return {"kind": str(self.kind), "dataset": self.dataset, "bytes": self.bytes}


@dataclass(frozen=True, slots=True)
class DataObserved:
    """Which of the datasets concerned are ready, and whether the job's directory stands."""

    ready: frozenset[str]
    is_arranged: bool


class DataApplier:
    """Brings a placement's datasets and scratch about."""

    concern = "data"
    survives_boot = True

    def __init__(self, space: DataSpace) -> None:
        self.space = space
        self.in_use: InUse = lambda dataset, key: True
        """Set by the agent: until it is, everything counts as used."""

    async def observe(self, work: Work, phase: Phase) -> DataObserved | None:
        """What is there; None where the placement wants nothing of this concern."""
        placement = work.placement
        if phase is not Phase.PREPARE or not (placement.datasets or placement.evict or placement.scratch):
            return None
        wanted = job_space(placement)
        names = {item.dataset for item in placement.datasets} | {item.dataset for item in placement.evict}
        is_arranged = wanted.is_empty or await self.space.is_arranged(work.key, wanted)
        return DataObserved(frozenset(name for name in names if self.space.cached(name) is not None), is_arranged)

    def plan(self, work: Work, phase: Phase, observed: DataObserved | None) -> Sequence[DataStep]:
        """Evictions not yet done, datasets not yet there, the directory if it does not stand."""
        if observed is None:
            return ()
        placement = work.placement
        own = {item.dataset for item in placement.datasets}
        steps = [
            DataStep(DataStepKind.EVICT, item.dataset, int(item.bytes))
            for item in placement.evict
            if item.dataset in observed.ready and item.dataset not in work.evicted and item.dataset not in own
        ]
        for item in placement.datasets:
            if item.dataset in observed.ready:
                continue
            if item.source is None:
                text = f"{item.dataset} is not in this node's cache and its placement names no source"
                raise CannotDo(f"fetch {item.dataset}", "ENOENT", text)
            steps.append(DataStep(DataStepKind.FETCH, item.dataset, int(item.bytes)))
        if not observed.is_arranged:
            steps.append(DataStep(DataStepKind.ARRANGE))
        return steps

    async def apply(self, work: Work, phase: Phase, steps: Sequence[DataStep]) -> None:
        """Carry the steps out; a fetch ends early when the placement is released meanwhile."""
        wanted = {item.dataset: item for item in work.placement.datasets}
        for step in steps:
            work.watch.check()
            begun = time.perf_counter()
            try:
                if not await self._apply_one(work, step, wanted):
                    continue
            except DataFailed as failed:
                raise ApplyFailed(
                    step.describe(), failed.error, failed.text, is_transient=failed.is_transient
                ) from failed
            work.stopwatch.note(step.describe(), begun)

    async def _apply_one(self, work: Work, step: DataStep, wanted: Mapping[str, PlacedDataset]) -> bool:
        match step.kind:
            case DataStepKind.EVICT:
                work.evicted.add(step.dataset)
                if self.in_use(step.dataset, work.key):
                    _log.warning("%s: %s stays in the cache: a live job uses it", work.key, step.dataset)
                    return False
                await self.space.evict(step.dataset)
            case DataStepKind.FETCH:
                await self.space.fetch(wanted[step.dataset], work.watch)
            case DataStepKind.ARRANGE:
                await self.space.arrange(work.key, job_space(work.placement))
        return True

    async def undo(self, work: Work, steps: Sequence[DataStep]) -> None:
        """Take the job's directory away."""
        if not any(step.kind is DataStepKind.ARRANGE for step in steps):
            return
        begun = time.perf_counter()
        try:
            await self.space.clear(work.key)
        except DataFailed as failed:
            raise UndoIncomplete(f"data: {failed}") from failed
        work.stopwatch.note("remove the job directory", begun)

    def body_from_json(self, value: Mapping[str, Any]) -> DataStep:
        """A step from the journal."""
        return DataStep(DataStepKind(value["kind"]), str(value["dataset"]), int(value["bytes"]))


def job_space(placement: Placement) -> JobSpace:
    """What a placement's job is shown."""
    scratch, user = placement.scratch, placement.user
    return JobSpace(
        placement.datasets,
        int(scratch.bytes) if scratch is not None and scratch.bytes else None,
        user.uid if user is not None else None,
        user.gid if user is not None else None,
    )
