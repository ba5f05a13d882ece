"""The folded cluster, kept current: four followers, one state, and word of what changed.

One per process, shared by its services. The state is only read from outside; it changes between two awaits of the
reader, never under it, since everything runs in one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import structlog

from railweave.contracts import StoredMessage
from railweave.runtime.bus import Bus, ResetCause
from railweave.runtime.cluster import DESIRED, FABRIC, NODES, PLACEMENTS, Change, ClusterState
from railweave.runtime.follower import Follower
from railweave.runtime.metrics import Metrics

_log = structlog.stdlib.get_logger(__name__)

FILTERS: Mapping[str, tuple[str, ...]] = {
    PLACEMENTS: ("rw.head.>", "rw.placement.>", "rw.grant.>", "rw.data.>", "rw.epoch"),
    NODES: ("rw.inventory.>", "rw.report.>"),
    DESIRED: ("rw.node.>", "rw.tenant.>", "rw.dataset.>", "rw.env.>"),
    FABRIC: ("rw.fabric.>",),
}


class ClusterView:
    """Followers that fold into one `ClusterState`.

    While a stream is being read for the first time, or again after it was lost, the view is not ready: decide nothing
    on it. Callbacks are held back until then and get one `Change` with everything.
    """

    def __init__(self, bus: Bus, metrics: Metrics) -> None:
        self._metrics = metrics
        self.state = ClusterState(on_skipped=lambda stream, field: metrics.skipped.labels(stream, _reason(field)).inc())
        self._callbacks: list[Callable[[Change], None]] = []
        self._resets: list[Callable[[str, ResetCause], None]] = []
        self._pending = Change()
        self._read_again = asyncio.Event()
        self._ready = asyncio.Event()
        self._followers: dict[str, Follower] = {
            stream: bus.follow(
                stream,
                filters,
                partial(self._take, stream),
                on_reset=partial(self._reset, stream),
            )
            for stream, filters in FILTERS.items()
        }

    @property
    def is_ready(self) -> bool:
        """Whether every stream has been read up to where it ended when this was begun, and none is read again."""
        return all(follower.is_ready for follower in self._followers.values())

    def on_change(self, callback: Callable[[Change], None]) -> None:
        """Call back with what changed, after each slice of messages. It must not raise, wait, or change the state."""
        self._callbacks.append(callback)

    def on_reset(self, callback: Callable[[str, ResetCause], None]) -> None:
        """Call back with the stream when what it said has become void: it was lost or restored."""
        self._resets.append(callback)

    async def wait_ready(self) -> None:
        """Wait until the view may be decided on."""
        while not self.is_ready:
            await self._ready.wait()
            for follower in self._followers.values():
                await follower.wait_ready()

    async def wait_applied(self, stream: str, sequence: int, timeout_s: float) -> None:
        """Wait until the view has what `stream` holds up to `sequence`.

        Raises:
            TimeoutError: after `timeout_s` seconds.
        """
        await self._followers[stream].wait_applied(sequence, timeout_s)

    async def run(self, stop: asyncio.Event) -> None:
        """Follow until `stop` is set."""
        async with asyncio.TaskGroup() as group:
            following = [group.create_task(follower.run()) for follower in self._followers.values()]
            telling = group.create_task(self._tell_when_read())
            await stop.wait()
            for task in (*following, telling):
                task.cancel()

    async def _tell_when_read(self) -> None:
        """After a (first or new) reading: tell what was held back, even if nothing more comes."""
        while True:
            self._read_again.clear()
            for follower in self._followers.values():
                await follower.wait_ready()
            self._ready.set()
            self._tell()
            await self._read_again.wait()

    def _take(self, stream: str, messages: Sequence[StoredMessage]) -> None:
        for message in messages:
            self._pending.merge(self.state.apply(message))
        self._metrics.view_applied.labels(stream).set(self.state.sequences.get(stream, 0))
        self._tell()

    def _reset(self, stream: str, cause: ResetCause) -> None:
        _log.warning("a stream was lost or restored, it is read again", stream=stream, cause=str(cause))
        self._ready.clear()
        self._pending.merge(self.state.reset(stream))
        self._read_again.set()
        for callback in self._resets:
            callback(stream, cause)

    def _tell(self) -> None:
        if not self._pending or not self.is_ready:
            return
        change, self._pending = self._pending, Change()
        for callback in self._callbacks:
            callback(change)


def _reason(field: str) -> str:
    """The first part of the field's path: few values, as a label must have."""
    return field.partition(".")[0].partition("[")[0][:32]
