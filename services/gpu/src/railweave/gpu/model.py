"""A node's GPUs as the choice sees them: what each card is and how much of it is free."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from railweave.contracts.proposal import GpuShare
from railweave.contracts.types import Milli
from railweave.runtime.cluster import WHOLE_GPU_MILLI, Hold, NodeState
from railweave.runtime.gpu_shares import GpuNeed


@dataclass(slots=True)
class DeviceState:
    """One GPU of a node. Not to be changed; it is not frozen because that makes it slow to make."""

    index: int
    model: str
    memory_mib: int
    free_milli: int
    """Thousandths that no job, environment or proposal under way has."""
    healthy: bool = True
    numa_node: int | None = None
    pcie_root: str | None = None
    fault: str | None = None

    @property
    def is_empty(self) -> bool:
        return self.free_milli == WHOLE_GPU_MILLI

    def can_serve(self, need: GpuNeed) -> bool:
        """Whether one worker can have its part of this card now."""
        milli = need.milli_of(self.model, self.memory_mib)
        return self.healthy and 0 < milli <= self.free_milli


WorkerShares = tuple[GpuShare, ...]
"""The cards of one worker, by index."""


def devices_of(node: NodeState, proposed: Iterable[Hold] = ()) -> tuple[DeviceState, ...]:
    """All GPUs of a node, sick ones too, with what is left of each after `proposed`."""
    taken: dict[int, int] = {}
    for hold in proposed:
        for index, milli in hold.gpus:
            taken[index] = taken.get(index, 0) + milli
    return tuple(
        DeviceState(
            index=gpu.index,
            model=gpu.model,
            memory_mib=int(gpu.memory_mib),
            free_milli=max(0, node.free_gpu_milli(gpu.index) - taken.get(gpu.index, 0)),
            healthy=gpu.healthy,
            numa_node=gpu.numa_node,
            pcie_root=gpu.pcie_root,
            fault=gpu.fault,
        )
        for gpu in (node.hardware.gpus if node.hardware is not None else ())
    )


def shares(devices: Sequence[DeviceState], need: GpuNeed) -> WorkerShares:
    """One worker's part of each of these cards, in order of index."""
    return tuple(
        GpuShare(device.index, Milli(need.milli_of(device.model, device.memory_mib)))
        for device in sorted(devices, key=lambda device: device.index)
    )
