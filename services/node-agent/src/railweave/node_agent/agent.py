"""The agent of one node: does what `model.decide` says, journal first, and has it reported.

Work for one job runs one piece at a time (whoever calls `reconcile` sees to that); different jobs run side by side.
Nothing in here sleeps, follows or owns a task: `fleet.py` does, for one agent or a hundred in a process.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from railweave.contracts.identity import JobKey
from railweave.contracts.inventory import ReportState, Step
from railweave.contracts.job import StartedWorker
from railweave.contracts.placement import Fence, Placement, PlacementState
from railweave.node_agent.applier import Applier, CannotDo, Interrupted, UndoIncomplete
from railweave.node_agent.carrying import Boundary, Carrier
from railweave.node_agent.journal import BURIED_KEPT, Journal, JournalBroken
from railweave.node_agent.model import (
    Action,
    Buried,
    Do,
    Entry,
    EntryKey,
    EntryState,
    JournaledStep,
    Node,
    Record,
    decide,
    due_report,
    is_stale,
    network_workers,
)
from railweave.node_agent.speaking import Speaker

_log = logging.getLogger("railweave.agent")


class NodeAgent:
    """One node.

    Args:
        journal: opened.
        appliers: in the order in which they prepare; undone in that order too, attach before prepare.
        speaker: says reports and inventories.
        features: what placements may require.
        later: asks for `reconcile(job)` again in so many seconds.
        boundary: for crash tests.
    """

    def __init__(
        self,
        journal: Journal,
        appliers: Sequence[Applier],
        speaker: Speaker,
        *,
        features: Collection[str] = (),
        later: Callable[[JobKey, float], None] = lambda job, seconds: None,
        boundary: Boundary | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.journal = journal
        self.speaker = speaker
        self.node = speaker.node
        self._boundary = boundary or (lambda point: None)
        self._carrier = Carrier(journal, appliers, self._boundary)
        self._facts = Node(frozenset(features), sees_record=False)
        self._later = later
        self._rng = rng or random.Random()
        self._records: dict[EntryKey, Record] = {}
        self._over: dict[EntryKey, Fence] = {}
        """Fences of releases of what was not here, oldest first."""
        self._attempts: dict[JobKey, set[EntryKey]] = {}
        self._tries: dict[EntryKey, int] = {}
        self._undo_steps: dict[EntryKey, tuple[Step, ...]] = {}
        self.is_stopping = False
        self.refused_stale = 0
        """Placements refused for an older fence."""
        for key in journal.entries:
            self._attempts.setdefault(key.job_key, set()).add(key)

    # What the record says

    def take(self, record: Record) -> JobKey | None:
        """A stored placement of this node; the job to reconcile, None where it says nothing new."""
        key = record.key
        known = self._records.get(key)
        if record.fence < self._over.get(key, record.fence) or (known is not None and record.fence < known.fence):
            self.refused_stale += 1
            return None
        entry = self.journal.entries.get(key)
        if record.state is PlacementState.RELEASED and entry is None and self._is_settled(record, known):
            return None
        self._records[key] = record
        self._attempts.setdefault(key.job_key, set()).add(key)
        if is_stale(record, entry, self.journal.buried.get(key)):
            self.refused_stale += 1
        if entry is None or record.state is not PlacementState.DESIRED:
            self._carrier.interrupt(key)
        return key.job_key

    def _is_settled(self, record: Record, known: Record | None) -> bool:
        """Takes in a tombstone of what is not here; whether there is nothing to do for it.

        The stream keeps thousands of them, so the journal keeps only those that come as news.
        """
        key = record.key
        self._over.pop(key, None)
        self._over[key] = record.fence
        if len(self._over) > BURIED_KEPT:
            del self._over[next(iter(self._over))]
        if key in self.journal.buried:
            self._forget(key)
            return True
        return known is None and not self._facts.sees_record

    def record_lost(self) -> None:
        """What was told of the record is void: nothing is known until it is told again. Nothing is undone."""
        self._records.clear()
        # A record that was put back tells releases again that were over: they are to be answered once more.
        self._over.clear()
        self._facts = replace(self._facts, sees_record=False)

    def record_ready(self) -> None:
        """Everything stored has been told."""
        self._facts = replace(self._facts, sees_record=True)

    def jobs(self) -> list[JobKey]:
        """Jobs of which something is stored or held here."""
        return list({key.job_key for keys in (self._records, self.journal.entries) for key in keys})

    def known(self, job: JobKey) -> list[EntryKey]:
        """Placements of a job that are stored or held here, oldest attempt first."""
        return sorted(self._attempts.get(job, ()))

    @property
    def sees_record(self) -> bool:
        """Everything stored has been told."""
        return self._facts.sees_record

    def in_use(self, dataset: str, other_than: EntryKey) -> bool:
        """Whether a live placement, other than one, needs a dataset (R9)."""
        return any(entry.uses(dataset) for key, entry in self.journal.entries.items() if key != other_than)

    def stop(self) -> None:
        """Finish the step at hand and nothing more; undo nothing."""
        self.is_stopping = True
        self._carrier.stop()

    # Reconciling

    async def reconcile(self, job: JobKey, *, mend: bool = False) -> None:
        """Bring everything of one job to where it must be, and have it reported.

        Args:
            job: whose placements.
            mend: also look whether what stands has drifted.
        """
        keys = sorted(self._attempts.get(job, ()))
        try:
            while any([await self._settle(key, keys) for key in keys]) and len(keys) > 1:
                if self.is_stopping:
                    return
            for key in keys:
                entry = self.journal.entries.get(key)
                if mend and entry is not None:
                    await self._carrier.mend(entry)
                if not await self._report(key):
                    self._later(job, self._backoff_s(key))
                elif entry is None or entry.state is not EntryState.UNDOING:
                    self._tries.pop(key, None)
                self._drop_if_over(key)
        except JournalBroken as broken:
            _log.error("%s: %s: %s", self.node, job, broken)
            self._later(job, 5.0)

    async def _settle(self, key: EntryKey, keys: Iterable[EntryKey]) -> bool:
        """Do what is to be done for one placement; whether anything was."""
        done = False
        while not self.is_stopping:
            entry = self.journal.entries.get(key)
            record = self._records.get(key)
            blocked_by = next((other for other in keys if other != key and self._is_held(other)), None)
            action = decide(record, entry, self.journal.buried.get(key), blocked_by, self._facts)
            try:
                if not await self._do(action, key, record, entry):
                    return done
            except Interrupted:
                continue
            except UndoIncomplete as incomplete:
                _log.warning("%s: %s is not undone yet: %s", self.node, key, incomplete)
                self._later(key.job_key, self._backoff_s(key))
                return done
            done = True
        return done

    async def _do(self, action: Action, key: EntryKey, record: Record | None, entry: Entry | None) -> bool:
        """Carry one action out; False where there is none."""
        match action.do, record, entry:
            case Do.UNDO, _, Entry():
                is_released = record is not None and record.placement is None
                # Replaced by a newer round: what is buried must not make that round look old.
                undone_at = record.fence if record is not None and is_released else entry.fence
                self._undo_steps[key] = await self._carrier.undo(entry, undone_at)
                self._tries.pop(key, None)
            case Do.REFUSE, Record(placement=Placement() as placement), _:
                refused = Entry(key, placement, record.fence, EntryState.REFUSED, failure=action.failure)
                await self._carrier.save(refused)
            case Do.BEGIN, Record(placement=Placement() as placement), _:
                fresh = Entry(key, placement, record.fence, EntryState.PREPARING)
                await self._carrier.prepare(fresh, is_new=True)
            case Do.PREPARE, _, Entry():
                await self._carrier.prepare(entry, is_new=False)
            case Do.TAKE_IN, Record(placement=Placement() as placement), Entry():
                await self._carrier.save(replace(entry, placement=placement, fence=record.fence))
            case Do.ATTACH, _, Entry():
                await self._carrier.attach(entry)
            case Do.BURY, Record(), _:
                await self.journal.bury(key, Buried(record.uid, record.fence))
            case _:
                return False
        return True

    def _is_held(self, key: EntryKey) -> bool:
        entry = self.journal.entries.get(key)
        return entry is not None and entry.holds

    # Reporting

    async def _report(self, key: EntryKey) -> bool:
        """Say what must be said of a placement; whether that is stored, or nothing must."""
        entry = self.journal.entries.get(key)
        record = self._records.get(key)
        due = due_report(record, entry, self.journal.buried.get(key), self._facts)
        if due is None or self.speaker.has_said(key, due):
            return True
        self._boundary(f"before reporting {due.state}")
        is_about_entry = entry is not None and due.uid == entry.uid and due.state is not ReportState.UNDONE
        said = await self.speaker.report(
            key,
            due,
            steps=entry.timings if entry is not None and is_about_entry else self._undo_steps.pop(key, ()),
            failure=entry.failure if entry is not None and is_about_entry else None,
            held=entry.placement if entry is not None and due.state is ReportState.ORPHAN else None,
            traceparent=record.traceparent if record is not None else None,
        )
        self._boundary(f"reported {due.state}")
        return said

    def _drop_if_over(self, key: EntryKey) -> None:
        """Forget what is released and gone; the journal remembers the fence."""
        record = self._records.get(key)
        if key in self.journal.entries or (record is not None and record.state is not PlacementState.RELEASED):
            return
        if record is not None:
            self._forget(key)

    def _forget(self, key: EntryKey) -> None:
        self._records.pop(key, None)
        self._tries.pop(key, None)
        self._undo_steps.pop(key, None)
        self.speaker.forget(key)
        keys = self._attempts.get(key.job_key)
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self._attempts[key.job_key]

    def _backoff_s(self, key: EntryKey) -> float:
        tries = self._tries[key] = self._tries.get(key, 0) + 1
        return float(min(60.0, 0.5 * 2 ** min(tries, 8)) * (0.5 + self._rng.random() / 2))

    def tidy(self) -> None:
        """Forget reports of what is neither stored nor held any more."""
        if self._facts.sees_record:
            self.speaker.keep_only(self._records.keys() | self.journal.entries.keys())

    # The local socket's ways in

    async def attach(self, key: EntryKey, workers: Sequence[StartedWorker]) -> None:
        """Take in where workers' namespaces are; `reconcile` the job then.

        Raises:
            CannotDo: the placement is not here, or it names no such worker.
        """
        entry = self.journal.entries.get(key)
        if entry is None or entry.state not in (EntryState.PREPARED, EntryState.ATTACHING, EntryState.ATTACHED):
            raise CannotDo(f"attach {key}", "ENOENT", "is not prepared on this node" if entry is None else entry.state)
        ranks = network_workers(entry.placement)
        unknown = [worker.worker for worker in workers if worker.worker not in ranks]
        if unknown:
            raise CannotDo(f"attach {key}", "EINVAL", f"no worker {unknown[0]} with a network here; there are {ranks}")
        namespaces = {**entry.namespaces, **{worker.worker: worker for worker in workers}}
        await self._carrier.save(replace(entry, namespaces=namespaces))

    async def detach(self, key: EntryKey) -> None:
        """Take a placement's VFs out of its workers' namespaces again; it stays prepared. Nothing to do is fine.

        Raises:
            CannotDo: the record says that its workers run: release it instead.
            UndoIncomplete: try again.
        """
        entry = self.journal.entries.get(key)
        if entry is None or entry.state not in (EntryState.ATTACHING, EntryState.ATTACHED, EntryState.FAILED):
            return
        if entry.placement.attach == "started" and entry.placement.started:
            raise CannotDo(f"detach {key}", "EBUSY", "its workers were started; it is detached when it is released")
        await self._carrier.detach(entry)

    async def plan(self, key: EntryKey) -> list[JournaledStep]:
        """What would be done for a stored or held placement, touching nothing.

        Raises:
            CannotDo: it cannot be done here, or nothing of that name is known.
        """
        entry = self.journal.entries.get(key)
        record = self._records.get(key)
        if entry is None and record is not None and record.placement is not None:
            entry = Entry(key, record.placement, record.fence, EntryState.PREPARING)
        if entry is None:
            raise CannotDo(f"plan {key}", "ENOENT", "nothing of that name is stored or held here")
        return await self._carrier.plan(entry)

    @property
    def mended(self) -> int:
        """Changes made because something had drifted."""
        return self._carrier.mended

    @property
    def fence_seen(self) -> Fence:
        """The highest fence taken in."""
        return self.journal.fence_seen
