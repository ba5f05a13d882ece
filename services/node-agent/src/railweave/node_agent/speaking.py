"""What a node says of itself: reports and inventories, each with a revision of its own, and nothing twice
that is stored.

The node's subjects are written by its agent alone (R1), so what is stored is known from what was said and heard back.
After the stream was lost or put back everything that differs is said again. The storage inventory goes before a
report that depends on it: who reads `prepared` must find the dataset there.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from railweave.contracts import ContractError, Event, StoredMessage, WireMessage, decode_event, encode_event
from railweave.contracts.inventory import (
    CachedDataset,
    Failure,
    Gpu,
    NodeHardware,
    NodeStorage,
    Pf,
    Report,
    ReportState,
    Space,
    Step,
)
from railweave.contracts.placement import Fence, Placement
from railweave.contracts.types import BootId, Label, NodeName
from railweave.node_agent.journal import Journal
from railweave.node_agent.model import EntryKey, Said

_log = logging.getLogger("railweave.agent")

UNDONE_TTL_S = 86_400
"""How long an undone report is kept; one that is asked for again (its release is stored) is said again."""

_ECHOES_KEPT = 1000

Voice = Callable[[WireMessage], Awaitable[bool]]
"""Stores a message; says whether it is stored. Must not raise."""


@dataclass(frozen=True, slots=True)
class Devices:
    """The hardware part of an inventory."""

    pfs: tuple[Pf, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    labels: dict[str, Label] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage part of an inventory. `version` changes whenever the rest does."""

    version: int
    cache: Space
    scratch: Space
    datasets: tuple[CachedDataset, ...] = ()


class InventorySource(Protocol):
    """Where the inventories' content comes from."""

    async def devices(self) -> Devices:
        """PFs and GPUs as they are now."""

    async def storage(self) -> Storage:
        """Spaces and datasets as they are now."""

    @property
    def storage_version(self) -> int:
        """Of the storage; changes with every change that a proposer must know of before the next report."""


@dataclass(slots=True)
class _Stored:
    """An inventory: what was said last, and what the stream holds."""

    said: Devices | Storage | None = None
    said_fence: Fence = field(default_factory=lambda: Fence(0, 0))
    said_id: str = ""
    stored_id: str = ""


class Speaker:
    """Says a node's reports and inventories."""

    def __init__(
        self,
        node: NodeName,
        journal: Journal,
        source: InventorySource,
        voice: Voice,
        *,
        boot_id: BootId,
        version: str,
        features: Collection[str] = (),
    ) -> None:
        self.node = node
        self._journal = journal
        self._source = source
        self._voice = voice
        self._boot_id = boot_id
        self._version = version
        self._features = tuple(sorted(features))
        self._said: dict[EntryKey, tuple[Said, int]] = {}
        self._hardware = _Stored()
        self._storage = _Stored()
        self._storage_version: int | None = None
        self._echoes: set[int] = set()
        """Revisions of reports said and not yet heard back: nothing is to be learned from them."""

    # Reports

    def has_said(self, key: EntryKey, due: Said) -> bool:
        """Whether that very report is the stored one."""
        found = self._said.get(key)
        return found is not None and found[0] == due

    async def report(
        self,
        key: EntryKey,
        due: Said,
        *,
        steps: tuple[Step, ...] = (),
        failure: Failure | None = None,
        held: Placement | None = None,
        traceparent: str | None = None,
    ) -> bool:
        """Say it; whether it is stored. The storage inventory goes first where it has changed."""
        if self._storage_version != self._source.storage_version and not await self.say_storage():
            return False
        revision = await self._journal.next_revision()
        report = Report.model_construct(
            cluster=key.cluster,
            job=key.job,
            attempt=key.attempt,
            uid=due.uid,
            node=self.node,
            revision=revision,
            boot_id=self._boot_id,
            fence=due.fence,
            state=due.state,
            steps=steps,
            failure=failure,
            held=held,
        )
        ttl_s = UNDONE_TTL_S if due.state is ReportState.UNDONE else None
        self._echoes.add(revision)
        if not await self._voice(encode_event(report, traceparent=traceparent, ttl_s=ttl_s)):
            return False
        known = self._said.get(key)
        if known is None or known[1] < revision:
            self._said[key] = (due, revision)
        return True

    def forget(self, key: EntryKey) -> None:
        """Nothing more will be said of a placement."""
        self._said.pop(key, None)

    def keep_only(self, keys: Collection[EntryKey]) -> None:
        """Forget what was said of all others."""
        for key in [key for key in self._said if key not in keys]:
            del self._said[key]
        # Those that a newer message replaced in the stream are never heard.
        if len(self._echoes) > _ECHOES_KEPT:
            self._echoes = set(sorted(self._echoes)[-_ECHOES_KEPT:])

    # Inventories

    async def say_inventories(self, *, again: bool = False) -> bool:
        """Say the inventories that changed or that the stream lacks; whether both are stored.

        Args:
            again: also where nothing changed.
        """
        return await self._say_hardware(again) and await self.say_storage(again=again, if_changed=True)

    async def _say_hardware(self, again: bool) -> bool:
        devices = await self._source.devices()
        stored = self._hardware
        is_stored = stored.said_id != "" and stored.stored_id == stored.said_id
        if is_stored and not again and stored.said == devices and stored.said_fence == self._journal.fence_seen:
            return True
        fence = self._journal.fence_seen
        event = NodeHardware(
            node=self.node,
            revision=await self._journal.next_revision(),
            boot_id=self._boot_id,
            agent_version=self._version,
            features=self._features,
            labels=devices.labels,
            fence_seen=fence,
            pfs=devices.pfs,
            gpus=devices.gpus,
        )
        if not await self._say(event, stored):
            return False
        stored.said, stored.said_fence = devices, fence
        return True

    async def say_storage(self, *, again: bool = False, if_changed: bool = False) -> bool:
        """Say the storage inventory; whether it is stored."""
        storage = await self._source.storage()
        stored = self._storage
        is_stored = stored.said_id != "" and stored.stored_id == stored.said_id
        if if_changed and is_stored and not again and stored.said == storage:
            return True
        event = NodeStorage.model_construct(
            node=self.node,
            revision=await self._journal.next_revision(),
            boot_id=self._boot_id,
            cache=storage.cache,
            scratch=storage.scratch,
            datasets=storage.datasets,
        )
        if not await self._say(event, stored):
            return False
        stored.said = storage
        self._storage_version = storage.version
        return True

    async def _say(self, event: Event, stored: _Stored) -> bool:
        message = encode_event(event)
        if not await self._voice(message):
            return False
        stored.said_id = stored.stored_id = message.msg_id or ""
        return True

    # What the stream holds

    def heard(self, message: StoredMessage) -> None:
        """Take in a message of the node's own subjects, as the stream tells it."""
        message_id = message.headers.get("ce-id", "")
        if message.subject.startswith("rw.inventory."):
            stored = self._hardware if message.subject.endswith(".hardware") else self._storage
            if _revision_of(message_id) >= _revision_of(stored.said_id) or stored.said_id == "":
                stored.stored_id = message_id
            return
        revision = _revision_of(message_id)
        if revision and revision in self._echoes:
            self._echoes.discard(revision)
            return
        try:
            report = decode_event(message).data
        except ContractError as error:
            _log.warning("%s: a stored report of this node cannot be read: %s", self.node, error)
            return
        if not isinstance(report, Report):
            return
        key = EntryKey(report.cluster, report.job, report.attempt)
        known = self._said.get(key)
        if known is None or known[1] < report.revision:
            self._said[key] = (Said(report.state, report.fence, report.uid), report.revision)

    def stream_lost(self) -> None:
        """Everything stored is void: it is heard again from here on."""
        self._said.clear()
        self._echoes.clear()
        self._hardware.stored_id = ""
        self._storage.stored_id = ""


def _revision_of(event_id: str) -> int:
    _, _, revision = event_id.rpartition("/")
    return int(revision) if revision.isdigit() else 0
