"""Carrying out: plan, write the plan into the journal, apply it; and the way back. One instance for each
node.

After a crash at any instruction the journal says what may have been changed and what was there before, so that the
same functions, called again, either finish or undo it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from railweave.contracts.inventory import Step
from railweave.contracts.placement import Fence
from railweave.node_agent.applier import Applier, ApplyFailed, CannotDo, Interrupted, Watch, Work
from railweave.node_agent.journal import Journal, Use
from railweave.node_agent.model import Buried, Entry, EntryKey, EntryState, JournaledStep, Phase, network_workers

_log = logging.getLogger("railweave.agent")

TRANSIENT_TRIES = 3
"""How often a step that failed for a passing reason is tried before the placement is reported as failed."""

Boundary = Callable[[str], None]
"""Called at every point at which a crash leaves something different behind; tests kill there."""

Planned = list[tuple[Applier, Sequence[Any]]]


class Carrier:
    """Carries out what was decided, concern by concern, in the order of `appliers`."""

    def __init__(self, journal: Journal, appliers: Sequence[Applier], boundary: Boundary) -> None:
        self._journal = journal
        self._appliers = tuple(appliers)
        self._boundary = boundary
        self._watches: dict[EntryKey, Watch] = {}
        self._is_stopping = False
        self.mended = 0
        """Changes made because something had drifted."""

    def interrupt(self, key: EntryKey) -> None:
        """What is being done for a placement is no longer wanted."""
        watch = self._watches.get(key)
        if watch is not None:
            watch.interrupt()

    def stop(self) -> None:
        """Finish the step at hand, begin no other."""
        self._is_stopping = True
        for watch in self._watches.values():
            watch.interrupt()

    async def save(self, entry: Entry, uses: Mapping[str, Use | None] | None = None) -> None:
        """Write an entry; raises JournalBroken."""
        self._boundary(f"before journaling {entry.state}")
        await self._journal.save(entry, uses=uses)
        self._boundary(f"journaled {entry.state}")

    def _work(self, entry: Entry) -> Work:
        watch = self._watches[entry.key] = Watch()
        if self._is_stopping:
            watch.interrupt()
        return _work_of(entry, watch)

    async def prepare(self, entry: Entry, *, is_new: bool) -> None:
        """Bring a placement to `prepared`, or `refused` or `failed`; also what a crash left in the middle.

        Raises:
            Interrupted: it was released meanwhile, or the agent stops; it stays as far as it is.
        """
        work = self._work(entry)
        try:
            entry = await self._bring_to(entry, work, Phase.PREPARE, EntryState.PREPARING, is_new=is_new)
            if entry.state is EntryState.PREPARING:
                uses = {
                    item.dataset: Use(self._uses(item.dataset) + 1, entry.fence.sequence)
                    for item in entry.placement.datasets
                }
                await self.save(_reached(entry, work, EntryState.PREPARED), uses)
        finally:
            self._watches.pop(entry.key, None)

    async def attach(self, entry: Entry) -> None:
        """Bring a prepared placement to `attached`, or `failed`; raises Interrupted."""
        work = self._work(entry)
        try:
            if network_workers(entry.placement):
                entry = await self._bring_to(entry, work, Phase.ATTACH, EntryState.ATTACHING, is_new=False)
            if entry.state is not EntryState.FAILED:
                await self.save(_reached(entry, work, EntryState.ATTACHED))
        finally:
            self._watches.pop(entry.key, None)

    def _uses(self, dataset: str) -> int:
        use = self._journal.uses.get(dataset)
        return use.uses if use is not None else 0

    async def _bring_to(self, entry: Entry, work: Work, phase: Phase, while_at: EntryState, *, is_new: bool) -> Entry:
        """Plan, journal, apply; the entry as it then is in the journal: at `while_at`, or failed, or refused."""
        is_untouched = is_new
        for attempt in range(TRANSIENT_TRIES):
            try:
                planned = await self._plan(work, phase)
            except CannotDo as refusal:
                state = EntryState.REFUSED if is_untouched else EntryState.FAILED
                entry = replace(_reached(entry, work, state), failure=refusal.failure)
                await self.save(entry)
                return entry
            steps = _added(entry.steps, planned, phase)
            if is_untouched or steps is not entry.steps or entry.state is not while_at:
                entry = replace(entry, state=while_at, steps=steps)
                is_untouched = False
                await self.save(entry)
            try:
                for applier, bodies in planned:
                    work.watch.check()
                    await applier.apply(work, phase, bodies)
                    self._boundary(f"applied {phase} {applier.concern}")
                return entry
            except ApplyFailed as failed:
                if failed.is_transient and attempt + 1 < TRANSIENT_TRIES:
                    continue
                entry = replace(_reached(entry, work, EntryState.FAILED), failure=failed.failure)
                await self.save(entry)
                return entry
        return entry

    async def _plan(self, work: Work, phase: Phase) -> Planned:
        planned: Planned = []
        for applier in self._appliers:
            bodies = applier.plan(work, phase, await applier.observe(work, phase))
            if bodies:
                planned.append((applier, bodies))
        return planned

    async def undo(self, entry: Entry, undone_at: Fence) -> tuple[Step, ...]:
        """Take everything back and bury the entry; how long it took.

        Args:
            entry: what the journal holds.
            undone_at: the release's fence, below which nothing of it is taken in again.

        Raises:
            UndoIncomplete: something would not go; the entry stays `undoing`. Again later.
        """
        if entry.state is not EntryState.UNDOING:
            entry = replace(entry, state=EntryState.UNDOING, undone_at=undone_at)
            if entry.steps:
                await self.save(entry)
        work = _work_of(entry, Watch())
        await self._undo_steps(work, entry.steps)
        await self._journal.bury(entry.key, Buried(entry.uid, max(entry.undone_at or undone_at, entry.fence)))
        self._boundary("buried")
        return tuple(work.stopwatch.steps)

    async def _undo_steps(self, work: Work, steps: Sequence[JournaledStep]) -> None:
        for applier in self._appliers:
            bodies = [step.body for step in steps if step.concern == applier.concern]
            if bodies:
                await applier.undo(work, bodies)
                self._boundary(f"undone {applier.concern}")

    async def detach(self, entry: Entry) -> None:
        """Take an attached placement back to `prepared`; raises UndoIncomplete."""
        await self._undo_steps(_work_of(entry, Watch()), [step for step in entry.steps if step.phase is Phase.ATTACH])
        kept = tuple(step for step in entry.steps if step.phase is Phase.PREPARE)
        state = entry.state if entry.state is EntryState.FAILED else EntryState.PREPARED
        await self.save(replace(entry, state=state, steps=kept, namespaces={}))

    async def mend(self, entry: Entry) -> None:
        """Put right what has drifted since; what cannot be is logged, and looked at again the next time."""
        if entry.state not in (EntryState.PREPARED, EntryState.ATTACHED):
            return
        work = self._work(entry)
        phases = [Phase.PREPARE]
        if entry.state is EntryState.ATTACHED and network_workers(entry.placement):
            phases.append(Phase.ATTACH)
        try:
            for phase in phases:
                planned = await self._plan(work, phase)
                steps = _added(entry.steps, planned, phase)
                if steps is not entry.steps:
                    entry = replace(entry, steps=steps)
                    await self.save(entry)
                for applier, bodies in planned:
                    await applier.apply(work, phase, bodies)
                    self.mended += len(bodies)
                    _log.warning("mended %s: %s", entry.key, "; ".join(body.describe() for body in bodies[:4]))
        except (CannotDo, ApplyFailed) as failed:
            _log.warning("%s has drifted and cannot be mended: %s", entry.key, failed)
        except Interrupted:
            _log.debug("mending %s was interrupted", entry.key)
        finally:
            self._watches.pop(entry.key, None)

    async def plan(self, entry: Entry) -> list[JournaledStep]:
        """What would be done next for a placement, touching nothing; raises CannotDo."""
        work = _work_of(entry, Watch())
        phases = [Phase.PREPARE]
        if network_workers(entry.placement) and (entry.namespaces or entry.placement.started):
            phases.append(Phase.ATTACH)
        return [
            JournaledStep(applier.concern, phase, body)
            for phase in phases
            for applier, bodies in await self._plan(work, phase)
            for body in bodies
        ]


def _work_of(entry: Entry, watch: Watch) -> Work:
    return Work(
        entry.key,
        entry.placement,
        watch,
        namespaces=entry.namespaces,
        steps=entry.steps,
        evicted=set(entry.evicted),
    )


def _reached(entry: Entry, work: Work, state: EntryState) -> Entry:
    return replace(entry, state=state, timings=tuple(work.stopwatch.steps), evicted=frozenset(work.evicted))


def _added(held: tuple[JournaledStep, ...], planned: Planned, phase: Phase) -> tuple[JournaledStep, ...]:
    """The journal's steps with those planned behind them. One that is there keeps its `before`: what was before us."""
    fresh = [JournaledStep(applier.concern, phase, body) for applier, bodies in planned for body in bodies]
    if fresh:
        known = {_identity(step) for step in held if step.phase is phase}
        fresh = [step for step in fresh if not known or _identity(step) not in known]
    return (*held, *fresh) if fresh else held


def _identity(step: JournaledStep) -> str:
    body: dict[str, Any] = step.body.to_json()
    body.pop("before", None)
    return f"{step.concern}/{step.phase}/{json.dumps(body, sort_keys=True, default=str)}"
