"""Where a node's inventories come from: its devices, and its spaces with what the journal knows of their use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from railweave.contracts.inventory import CachedDataset, Gpu, Pf
from railweave.contracts.types import BootId, Bytes, DatasetName, DatasetVersion, Label
from railweave.node_agent.data import Cached, DataSpace
from railweave.node_agent.journal import Journal, Use
from railweave.node_agent.speaking import Devices, Storage

_NEVER = Use(0, 0)


class PfSource(Protocol):
    """What knows the node's PFs."""

    async def pfs(self) -> tuple[Pf, ...]:
        """As they are now."""


class FixedPfs:
    """PFs that do not change: simulated nodes, and nodes without a network part."""

    def __init__(self, pfs: tuple[Pf, ...] = ()) -> None:
        self._pfs = pfs

    async def pfs(self) -> tuple[Pf, ...]:
        """As they were given."""
        return self._pfs


class NodeInventory:
    """Puts a node's inventories together.

    Args:
        pfs: its PFs.
        gpus: gives its GPUs as they are now.
        labels: of the node.
        space: its data.
        journal: knows how often each dataset was used.
    """

    def __init__(
        self,
        pfs: PfSource,
        gpus: Callable[[], tuple[Gpu, ...]],
        labels: Mapping[str, Label],
        space: DataSpace,
        journal: Journal,
    ) -> None:
        self._pfs = pfs
        self._gpus = gpus
        self._labels = dict(labels)
        self._space = space
        self._journal = journal

    async def devices(self) -> Devices:
        """PFs, GPUs and labels."""
        return Devices(await self._pfs.pfs(), self._gpus(), self._labels)

    async def storage(self) -> Storage:
        """Spaces, and the datasets in order of their names."""
        version = self._space.version
        cache, scratch = self._space.spaces()
        uses = self._journal.uses
        datasets = tuple(_cached(item, uses.get(item.dataset, _NEVER)) for item in self._space.datasets())
        return Storage(version, cache, scratch, datasets)

    @property
    def storage_version(self) -> int:
        """Changes when a dataset comes or goes."""
        return self._space.version


def _cached(item: Cached, use: Use) -> CachedDataset:
    return CachedDataset.model_construct(
        name=DatasetName(item.name),
        version=DatasetVersion(item.version),
        bytes=Bytes(item.bytes),
        files=item.files,
        state=item.state,
        uses=use.uses,
        last_used=use.last_used,
        pinned=False,
        source=item.source,
        digest=item.digest,
    )


def kernel_boot_id() -> BootId:
    """The running kernel's boot id."""
    return BootId(Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip())
