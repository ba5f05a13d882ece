"""Which cards: whole ones close to each other, fractions on cards that are split already.

A policy is a pure function over a node's cards; `POLICIES` names them. Fragmentation gradient descent (Weng et al.,
USENIX ATC 2023) is one more entry with the same shape.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

from railweave.gpu.model import DeviceState, WorkerShares, shares
from railweave.runtime.gpu_shares import GpuNeed

Policy = Callable[[Sequence[DeviceState], GpuNeed], list[WorkerShares] | None]
"""Gives each worker of a slot its cards, or None where they do not fit all. Never half of them."""

_Level = Callable[[DeviceState], Hashable]


def best_fit(devices: Sequence[DeviceState], need: GpuNeed) -> list[WorkerShares] | None:
    """Whole cards near each other; a fraction on the split card that it leaves the least of, then on an empty one."""
    able = [device for device in devices if device.can_serve(need)]
    if not need.is_shared:
        return _whole(able, need)
    return _split(able, need, _least_left) or _split(able, need, _most_room)


POLICIES: Mapping[str, Policy] = {"best-fit": best_fit}


# -- whole cards --------------------------------------------------------------------------------------------------


def _whole(free: list[DeviceState], need: GpuNeed) -> list[WorkerShares] | None:
    if len(free) < need.cards:
        return None
    chosen: list[WorkerShares] = []
    for _ in range(need.workers):
        mine = _near(free, need.gpus, _LEVELS)
        taken = {device.index for device in mine}
        free = [device for device in free if device.index not in taken]
        chosen.append(shares(mine, need))
    return chosen


_LEVELS: tuple[_Level, ...] = (
    # One worker computes at the pace of its slowest card: cards alike first, then a NUMA node, then a PCIe root.
    lambda device: (device.model, device.memory_mib),
    lambda device: device.numa_node,
    lambda device: device.pcie_root,
)


def _near(free: Sequence[DeviceState], count: int, levels: Sequence[_Level]) -> list[DeviceState]:
    """`count` cards in as few neighbourhoods as can be; in the smallest that holds them, to leave larger ones whole."""
    by_index = sorted(free, key=lambda device: device.index)
    if not levels or len(by_index) <= count:
        return by_index[:count]
    level, inner = levels[0], levels[1:]
    groups: dict[Hashable, list[DeviceState]] = {}
    for device in by_index:
        groups.setdefault(level(device), []).append(device)
    large_enough = [group for group in groups.values() if len(group) >= count]
    if large_enough:
        return _near(min(large_enough, key=len), count, inner)
    taken: list[DeviceState] = []
    for group in sorted(groups.values(), key=len, reverse=True):
        taken += _near(group, min(len(group), count - len(taken)), inner)
        if len(taken) == count:
            break
    return taken


# -- fractions ----------------------------------------------------------------------------------------------------

_Order = Callable[[DeviceState, int], tuple[int, ...]]


def _least_left(device: DeviceState, milli: int) -> tuple[int, ...]:
    return (device.is_empty, device.free_milli - milli, device.index)


def _most_room(device: DeviceState, milli: int) -> tuple[int, ...]:
    """The order that finds a way wherever there is one (see `GpuNeed.fits`)."""
    return (-(device.free_milli // milli), device.index)


def _split(able: Sequence[DeviceState], need: GpuNeed, order: _Order) -> list[WorkerShares] | None:
    left = {device.index: device for device in able}
    milli = {device.index: need.milli_of(device.model, device.memory_mib) for device in able}
    chosen: list[WorkerShares] = []
    for _ in range(need.workers):
        fitting = [device for device in left.values() if device.free_milli >= milli[device.index]]
        fitting.sort(key=lambda device: order(device, milli[device.index]))
        mine = fitting[: need.gpus]
        if len(mine) < need.gpus:
            return None
        for device in mine:
            left[device.index] = replace(device, free_milli=device.free_milli - milli[device.index])
        chosen.append(shares(mine, need))
    return chosen
