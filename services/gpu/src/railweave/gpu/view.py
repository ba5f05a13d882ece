"""What is known of a node's GPUs, for people: what each is, what is free of it, and who has the rest."""

from __future__ import annotations

from railweave.contracts.types import Document, NodeName
from railweave.gpu.model import devices_of
from railweave.runtime.cluster import NodeState


class GpuUse(Document):
    """Who has how much of a GPU: a job (`cluster/job`) or a lease of an environment."""

    holder: str
    milli: int
    releasing: bool = False


class GpuLine(Document):
    index: int
    model: str
    memory_mib: int
    free_milli: int
    healthy: bool
    fault: str | None = None
    used_by: tuple[GpuUse, ...] = ()


class NodeGpus(Document):
    node: NodeName
    gpus: tuple[GpuLine, ...]


def describe(node: NodeState) -> NodeGpus:
    """A node's GPUs by index."""
    holders = [(str(run.key), hold) for run, hold in node.holds.items()]
    holders += [(f"lease {lease}", hold) for lease, hold in node.grants.items()]
    used: dict[int, list[GpuUse]] = {}
    for holder, hold in holders:
        for index, milli in hold.gpus:
            used.setdefault(index, []).append(GpuUse(holder=holder, milli=milli, releasing=hold.releasing))
    return NodeGpus(
        node=node.name,
        gpus=tuple(
            GpuLine(
                index=device.index,
                model=device.model,
                memory_mib=device.memory_mib,
                free_milli=device.free_milli,
                healthy=device.healthy,
                fault=device.fault,
                used_by=tuple(used.get(device.index, ())),
            )
            for device in devices_of(node)
        ),
    )
