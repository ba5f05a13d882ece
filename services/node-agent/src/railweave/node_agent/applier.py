"""The one interface behind which each concern (network, GPUs, data) makes a placement so on this node.

observe: what is. plan: from what is wanted and what is, the steps between (none where all is so: planning again what
is applied gives exactly the drift). apply and undo: idempotent, so that after a crash at any instruction either may
be run again from the journal alone. A refusal comes out of `observe` or `plan`, before anything is changed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from railweave.contracts.inventory import Failure, Step
from railweave.contracts.job import StartedWorker
from railweave.contracts.placement import Placement
from railweave.node_agent.model import EntryKey, JournaledStep, Phase


class CannotDo(Exception):
    """What is wanted cannot be done on this node; nothing was changed."""

    def __init__(self, step: str, error: str, text: str) -> None:
        super().__init__(f"{step}: {error}: {text}")
        self.failure = Failure(step=step, error=error, text=text)


class ApplyFailed(Exception):
    """A step failed; those before it are done. `is_transient`: trying again may help."""

    def __init__(self, step: str, error: str, text: str, *, is_transient: bool = False) -> None:
        super().__init__(f"{step}: {error}: {text}")
        self.failure = Failure(step=step, error=error, text=text)
        self.is_transient = is_transient


class UndoIncomplete(Exception):
    """Some steps could not be undone, all others were; undo again later."""


class Interrupted(Exception):
    """Stopped between two steps because the placement was released meanwhile, or the agent stops."""


class Watch:
    """Tells long work that it is no longer wanted."""

    def __init__(self) -> None:
        self._event: asyncio.Event | None = None
        self.is_interrupted = False

    def interrupt(self) -> None:
        """Ask whoever works under this watch to stop at the next step."""
        self.is_interrupted = True
        if self._event is not None:
            self._event.set()

    def check(self) -> None:
        """Raise Interrupted when asked to stop."""
        if self.is_interrupted:
            raise Interrupted

    async def wait(self) -> None:
        """Return when asked to stop."""
        if self.is_interrupted:
            return
        if self._event is None:
            self._event = asyncio.Event()
        await self._event.wait()


class Stopwatch:
    """How long each step took, as the report says it."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def note(self, name: str, begun: float) -> None:
        """Record a step that began at `begun` (time.perf_counter) and ends now."""
        milliseconds = int((time.perf_counter() - begun) * 1000)
        self.steps.append(Step.model_construct(name=name, milliseconds=milliseconds))


@dataclass(frozen=True, slots=True)
class Work:
    """What is being done: for which placement, where its workers are, and who may interrupt it."""

    key: EntryKey
    placement: Placement
    watch: Watch = field(default_factory=Watch)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    namespaces: Mapping[int, StartedWorker] = field(default_factory=dict)
    """Given over the local socket; others are in the placement."""
    steps: Sequence[JournaledStep] = ()
    """What the journal says was done, or begun, for it."""
    evicted: set[str] = field(default_factory=set)
    """Evictions done for this placement, before and now."""

    def namespace(self, rank: int) -> StartedWorker | None:
        """Where a worker's network namespace is, if anybody said."""
        if rank in self.namespaces:
            return self.namespaces[rank]
        return next((worker.namespace for worker in self.placement.workers if worker.worker == rank), None)


class Body(Protocol):
    """One step of an applier: a value that can be written down."""

    def describe(self) -> str:
        """In words."""

    def to_json(self) -> dict[str, Any]:
        """For the journal."""


class Applier(Protocol):
    """One concern."""

    @property
    def concern(self) -> str:
        """Its name in the journal: `network`, `gpu`, `data`."""

    @property
    def survives_boot(self) -> bool:
        """Whether what it did is still there after the machine was started anew."""

    async def observe(self, work: Work, phase: Phase) -> Any:
        """What is, as far as this placement is concerned; raises CannotDo."""

    def plan(self, work: Work, phase: Phase, observed: Any) -> Sequence[Any]:
        """The steps between what is wanted and what is, each a `Body`; raises CannotDo."""

    async def apply(self, work: Work, phase: Phase, steps: Sequence[Any]) -> None:
        """Carry steps out, in order; raises ApplyFailed, Interrupted."""

    async def undo(self, work: Work, steps: Sequence[Any]) -> None:
        """Undo steps, given in the order they were applied; done or not. Raises UndoIncomplete."""

    def body_from_json(self, value: Mapping[str, Any]) -> Any:
        """A step from the journal; raises ValueError, KeyError, TypeError."""
