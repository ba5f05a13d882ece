"""Which segment a tenant or job is in: its own if it has one, else a free one that its leaves all carry. Pure.

A segment is free when no placement is in it any more and no leaf reports a member. VLANs and VRFs are on the switches
before any job comes, so that choosing one is all there is to do.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence

from railweave.contracts.reasons import Lack, Reason, ReasonCode
from railweave.contracts.types import LeafName, NodeName
from railweave.runtime.cluster import ClusterState


def choose_segment(owner: str, nodes: Sequence[NodeName], state: ClusterState) -> int | Reason:
    """Choose the segment that an owner's job is in on these nodes.

    Args:
        owner: whose it is to be.
        nodes: where the job runs; each is in the fabric.
        state: the folded cluster.

    Returns:
        The segment, or why there is none: with nothing lacked where there will never be one.
    """
    carried = _carried(nodes, state)
    if not carried:
        return _none_carried(nodes, state)
    held = state.segments_held()
    mine = min((segment for segment in carried if (segment, owner) in held), default=None)
    if mine is not None:
        return mine
    taken = {segment for segment, _ in held}
    still_in_use = _still_in_use(carried - taken, state)
    free = sorted(carried - taken - still_in_use)
    if not free:
        return _exhausted(carried, taken & carried, still_in_use)
    # Two owners that ask at once seldom want the same one, and two jobs of one owner always do.
    return free[zlib.crc32(owner.encode()) % len(free)]


def _carried(nodes: Sequence[NodeName], state: ClusterState) -> set[int]:
    """The segments that have a VLAN wherever one of the nodes hangs."""
    found: set[int] | None = None
    seen: set[LeafName] = set()
    for name in nodes:
        node = state.nodes[name].fabric
        for attachment in node.attachments if node is not None else ():
            if attachment.leaf not in seen:
                seen.add(attachment.leaf)
                on_leaf = state.segments_of(attachment.leaf)
                found = set(on_leaf) if found is None else found & on_leaf
    return found or set()


def _still_in_use(segments: Collection[int], state: ClusterState) -> set[int]:
    """Segments that nobody holds and some leaf still has a member in."""
    return {segment for report in state.reports.values() for segment in report.segments_in_use if segment in segments}


def _none_carried(nodes: Sequence[NodeName], state: ClusterState) -> Reason:
    total = len({segment for leaf in state.leaves for segment in state.segments_of(leaf)})
    what = f"the leaves of its {len(nodes)} nodes carry none in common" if total else "this fabric has none configured"
    return Reason(
        code=ReasonCode.SEGMENTS_EXHAUSTED,
        text=f"isolation tenant needs a segment, and {what}: 0 of {total} free",
        numbers={"segments_used": 0, "segments_total": total},
        lacks=(Lack.SEGMENT,) if total else (),
        remedy="apply the fabric file again" if total else "set topology.segments, or ask for isolation rail",
    )


def _exhausted(carried: Collection[int], used: Collection[int], still_in_use: Collection[int]) -> Reason:
    waiting = f", {len(still_in_use)} released with a member left on a leaf" if still_in_use else ""
    return Reason(
        code=ReasonCode.SEGMENTS_EXHAUSTED,
        text=f"all {len(carried)} segments are taken: {len(used)} in use{waiting}",
        numbers={
            "segments_used": len(used),
            "segments_total": len(carried),
            "segments_with_members_left": len(still_in_use),
        },
        lacks=(Lack.SEGMENT,),
        remedy="wait for a tenant's last job to end, or raise topology.segments",
    )
