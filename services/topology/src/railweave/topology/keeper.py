"""Keeps the FABRIC records what the fabric file says: writes what differs, guarded by the end of the stream.

Level-triggered: `apply` can be called at any time, by several instances at once, and after any crash. What was
published is remembered in this process too: a stream that was lost or put back gets the same slots and subnets again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from railweave.contracts.desired import NodeMode
from railweave.contracts.envelope import encode_event
from railweave.contracts.fabric import FabricLeaf, FabricNode
from railweave.contracts.types import LeafName, NodeName
from railweave.runtime.bus import Bus
from railweave.runtime.cluster import FABRIC, Change, ClusterState
from railweave.runtime.errors import OutcomeUnknown, StaleFence
from railweave.runtime.view import ClusterView
from railweave.topology.inventory import Inventory, difference, replan
from railweave.topology.model import Graph
from railweave.topology.plan import PlanConfig, Refusal

_log = structlog.stdlib.get_logger(__name__)

_TRIES = 20
_VIEW_S = 30.0
_WRITE_S = 10.0
_WRITE_S_EACH = 0.005
"""A server that takes no batches needs a round trip for each record."""


class ApplyRefused(Exception):
    """The fabric cannot be made what the file says; nothing was changed."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


class ApplyChanged(Exception):
    """What would be written is no longer what was agreed to; nothing was changed."""


class ApplyContended(Exception):
    """Others wrote to FABRIC all the time; what was written of ours stays, apply again for the rest."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What an apply wrote, or would write."""

    before: Inventory
    revision: int
    nodes: tuple[FabricNode, ...]
    leaves: tuple[FabricLeaf, ...]
    islands: int


class FabricKeeper:
    """Applies fabric files. One call at a time.

    Args:
        bus: where records are written.
        view: the folded cluster, which reads them back.
        load: reads the fabric file; None where none is set: then the records stay as they are. Runs in a thread.
        config: what new VLANs are made of.
    """

    def __init__(self, bus: Bus, view: ClusterView, load: Callable[[], Graph | None], config: PlanConfig) -> None:
        self._bus = bus
        self._view = view
        self._load = load
        self._config = config
        self._one_at_a_time = asyncio.Lock()
        self._nodes: dict[NodeName, FabricNode] = {}
        self._leaves: dict[LeafName, FabricLeaf] = {}
        self.graph: Graph | None = None
        """The fabric as last applied here; None before that, and where no file is set."""

    def remember(self, change: Change) -> None:
        """Take in what changed in the view. A record that the stream lost is not forgotten."""
        state = self._view.state
        for name in change.nodes:
            node = state.nodes.get(name)
            record = node.fabric if node is not None else None
            known = self._nodes.get(name)
            if record is not None and (known is None or record.revision >= known.revision):
                self._nodes[name] = record
        for leaf_name in change.leaves:
            leaf = state.leaves.get(leaf_name)
            known_leaf = self._leaves.get(leaf_name)
            if leaf is not None and (known_leaf is None or leaf.revision >= known_leaf.revision):
                self._leaves[leaf_name] = leaf

    async def apply(self, *, dry: bool = False, agreed: Callable[[Applied], bool] | None = None) -> Applied:
        """Make the records what the file says.

        Args:
            dry: only tell what would be written.
            agreed: whether that is what was agreed to, asked before anything is written. Runs in a thread.

        Raises:
            FileError: the file cannot be read; nothing was changed.
            ApplyRefused: it cannot be done; nothing was changed.
            ApplyChanged: it was not agreed to; nothing was changed.
            ApplyContended: others write at the same time; apply again.
            BusError: the stream cannot be reached.
        """
        async with self._one_at_a_time:
            graph = await asyncio.to_thread(self._load)
            for turn in range(_TRIES):
                # The end first, then the view up to it: what is read is at least as new as the guard.
                last = (await self._bus.stream_state(FABRIC)).last_sequence
                await self._view.wait_ready()
                await self._view.wait_applied(FABRIC, last, _VIEW_S)
                stored = inventory_of(self._view.state)
                wanted = await self._wanted(stored, graph)
                records = difference(stored, wanted)
                applied = _applied(stored, wanted, records, graph)
                if dry:
                    return applied
                # Once only: from the second turn on a part of it may be written.
                if turn == 0 and agreed is not None and not await asyncio.to_thread(agreed, applied):
                    raise ApplyChanged("the fabric has changed since that plan was made; plan again")
                if not records:
                    self.graph = graph
                    return applied
                try:
                    # In a thread, as making them is: a large fabric is ten thousand records.
                    messages = await asyncio.to_thread(lambda made: [*map(encode_event, made)], records)
                    deadline_s = _WRITE_S + len(messages) * _WRITE_S_EACH
                    end = await self._bus.append(FABRIC, messages, expected_last=last, deadline_s=deadline_s)
                except (StaleFence, OutcomeUnknown) as error:
                    _log.info("fabric records are compared again", cause=str(error))
                    continue
                self.graph = graph
                await self._view.wait_applied(FABRIC, end, _VIEW_S)
                _log.info(
                    "fabric applied", revision=applied.revision, nodes=len(applied.nodes), leaves=len(applied.leaves)
                )
                return applied
        raise ApplyContended(f"FABRIC changed {_TRIES} times meanwhile; apply again")

    async def _wanted(self, stored: Inventory, graph: Graph | None) -> Inventory:
        known = stored.newest_of(Inventory(dict(self._nodes), dict(self._leaves)))
        if graph is None:
            return known
        claimed = claimed_nodes(self._view.state)
        segments = frozenset(segment for segment, _ in self._view.state.segments_held())
        # In a thread: a large fabric takes a second or two, and the loop has jobs to answer.
        wanted = await asyncio.to_thread(
            replan, known, graph, self._config, claimed.__contains__, segments_in_use=segments
        )
        if isinstance(wanted, Refusal):
            raise ApplyRefused(wanted)
        return wanted


def inventory_of(state: ClusterState) -> Inventory:
    """The records that are stored."""
    return Inventory(
        {name: node.fabric for name, node in state.nodes.items() if node.fabric is not None}, dict(state.leaves)
    )


def claimed_nodes(state: ClusterState) -> frozenset[NodeName]:
    """Nodes whose addresses are in use, or may be: a retired node's ports stay quarantined."""
    return frozenset(
        name
        for name, node in state.nodes.items()
        if node.mode is NodeMode.RETIRED or any(hold.vfs for hold in node.holds.values())
    )


def _applied(
    stored: Inventory, wanted: Inventory, records: list[FabricNode | FabricLeaf], graph: Graph | None
) -> Applied:
    return Applied(
        before=stored,
        revision=wanted.revision,
        nodes=tuple(record for record in records if isinstance(record, FabricNode)),
        leaves=tuple(record for record in records if isinstance(record, FabricLeaf)),
        islands=graph.island_count if graph is not None else len({node.island for node in wanted.nodes.values()}),
    )
