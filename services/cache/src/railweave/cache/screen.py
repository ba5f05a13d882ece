"""Which nodes come into question at all: what must be true of a node before it is scored. Pure.

Devices are judged by shape, once for all nodes alike; space is compared node by node.
"""

from __future__ import annotations

from railweave.cache.model import Check, Occupancy, Shape, SlotNeed

Verdict = float | Check
"""How well a node's GPUs fit a need (0 to 1), or the first check it fails."""


def judge(shape: Shape, need: SlotNeed) -> Check | None:
    """The first check of its devices that a node fails; None where it passes them all."""
    if not shape.is_schedulable:
        return Check.SCHEDULABLE
    if not need.selector <= shape.labels:
        return Check.SELECTOR
    if need.wants_network and not shape.in_fabric:
        return Check.FABRIC
    if shape.occupancy is Occupancy.EXCLUSIVE or (need.exclusive and shape.occupancy is not Occupancy.EMPTY):
        return Check.OCCUPIED
    if need.gpu is not None and not need.gpu.fits(shape.cards):
        return Check.GPUS
    if need.vf_groups > shape.vf_groups or need.vfs > shape.vfs:
        return Check.VFS
    return None
