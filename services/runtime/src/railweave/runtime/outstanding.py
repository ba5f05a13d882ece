"""A service's own proposals that are not committed yet.

Two jobs asked for within a few milliseconds see the same view. Without this, both would be given the same free GPUs,
and one would be sent back for another round. A proposal still holds nothing: this only steers the next choice.
"""

from __future__ import annotations

from collections.abc import Iterable, KeysView, Mapping
from dataclasses import dataclass
from typing import Final

from railweave.contracts.identity import JobKey
from railweave.contracts.placement import JobState
from railweave.contracts.proposal import RoundKey
from railweave.contracts.types import NodeName
from railweave.runtime.cluster import ClusterState, HeadSummary, Hold

PATIENCE_S: Final = 5.0
"""How long a proposal is kept in mind that nobody takes."""


@dataclass(frozen=True, slots=True)
class _Entry:
    key: RoundKey
    holds: Mapping[NodeName, Hold]
    expires_at: float


class Outstanding:
    """What this service proposed and has not seen stored. `now` is the caller's monotonic clock, in seconds."""

    def __init__(self, *, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._entries: dict[JobKey, _Entry] = {}
        self._by_node: dict[NodeName, dict[JobKey, Hold]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: RoundKey, holds: Mapping[NodeName, Hold], now: float) -> None:
        """Remember a proposal just made; an older round of the same job is forgotten."""
        job = key.run.key
        self.drop(job)
        self._entries[job] = _Entry(key, holds, now + self._patience_s)
        for node, hold in holds.items():
            self._by_node.setdefault(node, {})[job] = hold

    def nodes(self) -> KeysView[NodeName]:
        """Nodes on which anything is proposed and not yet stored."""
        return self._by_node.keys()

    def on(self, node: NodeName, *, other_than: JobKey | None = None) -> Iterable[Hold]:
        """What is proposed on a node and not yet stored, other than for one job."""
        return [hold for job, hold in self._by_node.get(node, {}).items() if job != other_than]

    def drop(self, job: JobKey) -> None:
        """Forget what was proposed for a job."""
        entry = self._entries.pop(job, None)
        for node in entry.holds if entry is not None else ():
            on_node = self._by_node[node]
            del on_node[job]
            if not on_node:
                del self._by_node[node]

    def settle(self, state: ClusterState, now: float) -> None:
        """Forget proposals that are stored, that a newer round or run made pointless, or that nobody took in time."""
        for job, entry in list(self._entries.items()):
            answered = _answered(state.heads.get(job), entry.key)
            if answered or now >= entry.expires_at:
                self.drop(job)


def _answered(head: HeadSummary | None, key: RoundKey) -> bool:
    """Whether the record says that a round is over: taken, refused for good, or followed by another.

    A head that is still pending at that round is the ask itself. Of different uids neither is known to be the
    newer one: patience decides.
    """
    if head is None or head.run.uid != key.run.uid:
        return False
    if head.run.attempt != key.run.attempt:
        return head.run.attempt > key.run.attempt
    return head.round > key.round or (head.round == key.round and head.state is not JobState.PENDING)
