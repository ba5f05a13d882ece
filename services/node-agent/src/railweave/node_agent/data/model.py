"""What the data half speaks of: cached datasets, what a job is shown, and the space that holds both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from railweave.contracts.inventory import DatasetState, Space
from railweave.contracts.placement import PlacedDataset
from railweave.node_agent.applier import Watch
from railweave.node_agent.model import EntryKey


class DataFailed(Exception):
    """Data could not be put where it belongs. `error` is an errno name or one of ours, `text` says what to do."""

    def __init__(self, error: str, text: str, *, is_transient: bool = False) -> None:
        super().__init__(f"{error}: {text}")
        self.error = error
        self.text = text
        self.is_transient = is_transient


@dataclass(frozen=True, slots=True)
class Cached:
    """A dataset in the cache, as its manifest says; or one on its way, with what was claimed for it."""

    name: str
    version: str
    bytes: int
    files: int
    state: DatasetState = DatasetState.READY
    source: str | None = None
    digest: str | None = None

    @property
    def dataset(self) -> str:
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class JobSpace:
    """What a job is shown: its datasets by readable names, and a scratch of so many bytes (None: none)."""

    datasets: tuple[PlacedDataset, ...]
    scratch_bytes: int | None = None
    uid: int | None = None
    """Whose the scratch is, where known."""
    gid: int | None = None

    @property
    def is_empty(self) -> bool:
        return not self.datasets and self.scratch_bytes is None


class DataSpace(Protocol):
    """The cache and scratch of one node."""

    @property
    def version(self) -> int:
        """Changes whenever a dataset comes or goes."""

    async def open(self) -> None:
        """Find out what is there; sweep what a crash left half done."""

    def cached(self, dataset: str) -> Cached | None:
        """A dataset (`name@version`) that is ready, None otherwise."""

    def datasets(self) -> Sequence[Cached]:
        """All that are ready or on their way."""

    def spaces(self) -> tuple[Space, Space]:
        """The cache and scratch spaces."""

    async def fetch(self, want: PlacedDataset, watch: Watch) -> Cached:
        """Have a dataset ready. Whoever wants the same at the same time waits for the same fetch.

        Raises:
            DataFailed: it cannot be had, or there is no room; nothing of it is left.
            Interrupted: this caller no longer wants it; it goes on for others.
        """

    async def evict(self, dataset: str) -> bool:
        """Take a ready dataset out; whether it was there. The caller has made sure that nobody uses it."""

    async def arrange(self, key: EntryKey, wanted: JobSpace) -> None:
        """Make a job's directory: links to its datasets, its scratch. Again is fine.

        Raises:
            DataFailed: a dataset is not there, or the disk refuses.
        """

    async def is_arranged(self, key: EntryKey, wanted: JobSpace) -> bool:
        """Whether a job's directory is as it must be."""

    async def clear(self, key: EntryKey) -> None:
        """Remove a job's directory with everything in it; not being there is fine."""

    async def close(self) -> None:
        """Stop what is under way; nothing half done is published."""
