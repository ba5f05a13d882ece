"""The write-ahead journal: what this node holds and does for each placement, written before it is done.

The agent reads the image in memory and writes through: a change is in the store before it is in the image, and in the
image before the agent acts on it. What a store is made of: `MemoryStore` (simulated agents), `SqliteStore`
(journal_sqlite.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from railweave.contracts.placement import Fence
from railweave.node_agent.model import Buried, Entry, EntryKey, EntryState

BURIED_KEPT = 1024
"""How many undone placements are remembered: enough for any that a restored record could bring back."""
REVISIONS_RESERVED = 1000
"""Report revisions are reserved in blocks: a crash skips some, none is ever used twice."""


class Use(NamedTuple):
    """How often a dataset was used here, and the sequence of the last placement that did."""

    uses: int
    last_used: int


@dataclass(frozen=True, slots=True)
class Change:
    """What one write changes, all or nothing."""

    entry: Entry | None = None
    """The new state of an entry."""
    bury: tuple[EntryKey, Buried] | None = None
    """The entry is done with: this stays of it."""
    forget: tuple[EntryKey, ...] = ()
    """No longer remembered as undone."""
    uses: Mapping[str, Use | None] = field(default_factory=dict)
    """Uses of datasets; None for one that is gone."""
    fence_seen: Fence | None = None
    revision_ceiling: int | None = None
    boot_id: str | None = None


@dataclass(slots=True)
class Image:
    """Everything in the journal."""

    entries: dict[EntryKey, Entry] = field(default_factory=dict)
    buried: dict[EntryKey, Buried] = field(default_factory=dict)
    """Oldest first."""
    uses: dict[str, Use] = field(default_factory=dict)
    fence_seen: Fence = field(default_factory=lambda: Fence(0, 0))
    revision_ceiling: int = 0
    boot_id: str = ""

    def apply(self, change: Change) -> None:
        """Take a change in."""
        if change.entry is not None:
            self.entries[change.entry.key] = change.entry
            self.buried.pop(change.entry.key, None)
        if change.bury is not None:
            key, buried = change.bury
            self.entries.pop(key, None)
            self.buried.pop(key, None)
            self.buried[key] = buried
        for key in change.forget:
            self.buried.pop(key, None)
        for dataset, use in change.uses.items():
            if use is None:
                self.uses.pop(dataset, None)
            else:
                self.uses[dataset] = use
        if change.fence_seen is not None:
            self.fence_seen = change.fence_seen
        if change.revision_ceiling is not None:
            self.revision_ceiling = change.revision_ceiling
        if change.boot_id is not None:
            self.boot_id = change.boot_id


class JournalBroken(Exception):
    """The journal cannot be read or written; nothing was changed on the node. Names the file and what to do."""


class Store(Protocol):
    """Where the journal's changes are kept."""

    async def load(self) -> Image:
        """Everything stored; raises JournalBroken."""

    async def write(self, change: Change) -> None:
        """Store a change; when this returns it survives the machine. Raises JournalBroken."""

    async def close(self) -> None:
        """Let go of it."""


class MemoryStore:
    """Keeps everything in memory: simulated agents, whose kernel and disk are in memory too."""

    def __init__(self) -> None:
        self._image = Image()

    async def load(self) -> Image:
        """A copy of what is stored."""
        image = self._image
        return replace(image, entries=dict(image.entries), buried=dict(image.buried), uses=dict(image.uses))

    async def write(self, change: Change) -> None:
        """Store a change."""
        self._image.apply(change)

    async def close(self) -> None:
        """Nothing to let go of."""


class Journal:
    """The journal of one node. `await open()` before anything else."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._image = Image()
        self._revision = 0
        self._seen = Fence(0, 0)

    async def open(self, boot_id: str, *, lost_by_boot: Iterable[str] = ()) -> bool:
        """Read what is stored; says whether the machine was started anew since.

        Args:
            boot_id: of the running kernel.
            lost_by_boot: concerns whose steps are gone with the kernel's state; entries that had any are prepared anew.
        """
        self._image = await self._store.load()
        self._revision = self._image.revision_ceiling
        self._seen = self._image.fence_seen
        was_booted = bool(self._image.boot_id) and self._image.boot_id != boot_id
        if was_booted:
            lost = frozenset(lost_by_boot)
            for entry in list(self._image.entries.values()):
                await self._write(Change(entry=_after_boot(entry, lost)))
        if self._image.boot_id != boot_id:
            await self._write(Change(boot_id=boot_id))
        return was_booted

    @property
    def entries(self) -> Mapping[EntryKey, Entry]:
        """What is held, or was refused and not yet released."""
        return self._image.entries

    @property
    def buried(self) -> Mapping[EntryKey, Buried]:
        """What was undone, as far as it is remembered."""
        return self._image.buried

    @property
    def uses(self) -> Mapping[str, Use]:
        """Uses of datasets, by `name@version`."""
        return self._image.uses

    @property
    def fence_seen(self) -> Fence:
        """The highest fence taken in."""
        return self._seen

    async def save(self, entry: Entry, *, uses: Mapping[str, Use | None] | None = None) -> None:
        """Write an entry."""
        await self._write(Change(entry=entry, uses=uses or {}, fence_seen=self._higher(entry.fence)))

    async def bury(self, key: EntryKey, buried: Buried) -> None:
        """Replace an entry, if there is one, by the memory of its undoing."""
        kept = self._image.buried
        forget: tuple[EntryKey, ...] = ()
        if len(kept) >= BURIED_KEPT and key not in kept:
            forget = (next(iter(kept)),)
        await self._write(Change(bury=(key, buried), forget=forget, fence_seen=self._higher(buried.fence)))

    async def save_uses(self, uses: Mapping[str, Use | None]) -> None:
        """Write the uses of datasets; None for one that is gone."""
        if uses:
            await self._write(Change(uses=uses))

    async def next_revision(self) -> int:
        """A revision that no report or inventory of this node ever had."""
        if self._revision >= self._image.revision_ceiling:
            await self._write(Change(revision_ceiling=self._revision + REVISIONS_RESERVED))
        self._revision += 1
        return self._revision

    async def close(self) -> None:
        """Let go of the store."""
        await self._store.close()

    def _higher(self, fence: Fence) -> Fence | None:
        if fence <= self._seen:
            return None
        # Taken before it is stored: of two writes that cross, the lower one must not be stored last.
        self._seen = fence
        return fence

    async def _write(self, change: Change) -> None:
        await self._store.write(change)
        self._image.apply(change)


def _after_boot(entry: Entry, lost: frozenset[str]) -> Entry:
    """The kernel's state is gone, the disk's is not: what stood is prepared anew."""
    kept = tuple(step for step in entry.steps if step.concern not in lost)
    again = {EntryState.PREPARED, EntryState.ATTACHING, EntryState.ATTACHED}
    state = EntryState.PREPARING if entry.state in again else entry.state
    return replace(entry, steps=kept, state=state, namespaces={})
