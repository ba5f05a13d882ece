"""Keeps the software fabric of this machine what the records say, and reports leaf by leaf what was found."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import structlog

from railweave.contracts.envelope import encode_event
from railweave.contracts.fabric import FabricLeaf, FabricReport
from railweave.contracts.types import LeafName
from railweave.runtime.bus import Bus
from railweave.runtime.errors import BusError
from railweave.runtime.netlink import KernelError, LinuxKernel
from railweave.runtime.view import ClusterView
from railweave.topology.keeper import FabricKeeper
from railweave.topology.linux_fabric import FabricRefused, LinuxFabric
from railweave.topology.software import software_fabric

_log = structlog.stdlib.get_logger(__name__)

_RESYNC_S: Final = 60.0
_RETRY_S: Final = 2.0


class FabricDriver:
    """Level-triggered: compares whenever a leaf's record changes, and every minute, and mends the difference."""

    def __init__(self, run: str, bus: Bus, view: ClusterView, keeper: FabricKeeper) -> None:
        self._run = run
        self._bus = bus
        self._view = view
        self._keeper = keeper
        self._fabric = LinuxFabric(LinuxKernel(), run)
        self._again = asyncio.Event()
        self._in_use: Mapping[str, tuple[int, ...]] = {}
        """By leaf the segments with members, as last seen: what cannot be looked at now is not said to be free."""
        self._reported: dict[LeafName, FabricReport] = {}

    def look_again(self) -> None:
        """Something may differ."""
        self._again.set()

    def behind(self) -> int:
        """How many leaves are not said to be what their records want now."""
        told = self._reported
        return sum(
            1
            for name, leaf in self._view.state.leaves.items()
            if leaf.vlans and not ((said := told.get(name)) and said.applied and said.revision == leaf.revision)
        )

    async def run(self) -> None:
        """Compare and mend until cancelled."""
        while True:
            self._again.clear()
            await self._view.wait_ready()
            is_done = await self._sync()
            # Whether the last member of a segment has left, nobody tells: look as long as there may be one.
            may_have_members = any(self._in_use.values()) or bool(self._view.state.segments_held())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RESYNC_S if is_done and not may_have_members else _RETRY_S):
                    await self._again.wait()

    async def _sync(self) -> bool:
        leaves, graph = dict(self._view.state.leaves), self._keeper.graph
        # Not read yet, or not to be read, or lost: taking the fabric away would cut what runs on it.
        if graph is None or not any(leaf.vlans for leaf in leaves.values()):
            return True
        problem: str | None = None
        try:
            outcome = await self._fabric.sync(software_fabric(self._run, leaves, graph))
        except (FabricRefused, KernelError) as error:
            problem = str(error)
            _log.error("the software fabric is not what it should be", error=problem)
        else:
            self._in_use = outcome.segments_in_use
            if outcome.steps:
                _log.info("software fabric mended", steps=len(outcome.steps), kept=list(outcome.kept))
        is_told = [
            await self._report(leaf, problem, self._in_use.get(str(leaf.leaf), ()))
            for leaf in leaves.values()
            if leaf.vlans
        ]
        return problem is None and all(is_told)

    async def _report(self, leaf: FabricLeaf, problem: str | None, segments_in_use: tuple[int, ...]) -> bool:
        report = FabricReport(
            leaf=leaf.leaf,
            revision=leaf.revision,
            applied=problem is None,
            text=problem,
            segments_in_use=segments_in_use,
        )
        if self._reported.get(leaf.leaf) == report:
            return True
        try:
            # Without the id: a leaf may fail, be mended and fail again at one revision, and each time is news.
            await self._bus.publish(replace(encode_event(report), msg_id=None))
        except BusError as error:
            _log.warning("leaf report not stored yet", leaf=leaf.leaf, error=str(error))
            return False
        self._reported[leaf.leaf] = report
        return True
