"""A cluster and rounds of proposals made up for benchmarks: alike hosts, 40 on a leaf, as large as asked for."""

from __future__ import annotations

from collections.abc import Sequence

from railweave.contracts.fabric import Attachment, FabricLeaf, FabricNode, LeafVlan
from railweave.contracts.inventory import Gpu, NodeHardware, NodeStorage, Pf, Space
from railweave.contracts.job import JobSpec
from railweave.contracts.proposal import (
    FabricProposal,
    GpuProposal,
    GpuShare,
    NicProposal,
    NodesProposal,
    Proposal,
    VfRef,
    WorkerGpus,
    WorkerVfs,
)
from railweave.contracts.types import (
    BootId,
    Bytes,
    GpuUuid,
    InterfaceName,
    Label,
    LeafName,
    Mib,
    NodeName,
    PciAddress,
    Rail,
    Round,
    Slot,
    VfIndex,
    VlanId,
)
from railweave.runtime.cluster import ClusterState

GPUS = 8
RAILS = 4
VFS = 8
PER_LEAF = 40
_TIB = 2**40


def hosts(count: int, rails: int = RAILS) -> tuple[ClusterState, list[NodeName]]:
    """A state with `count` hosts, and their names."""
    state = ClusterState()
    sequence = 0
    names = [NodeName(f"n{number:05d}") for number in range(count)]
    for number, name in enumerate(names):
        leaf, slot = LeafName(f"leaf-{number // PER_LEAF}"), number % PER_LEAF
        events: list[FabricLeaf | FabricNode | NodeHardware | NodeStorage] = []
        if slot == 0:
            events.append(_leaf(leaf, number // PER_LEAF, rails))
        events += [
            FabricNode(
                node=name,
                revision=1,
                ordinal=number,
                island="i",
                pod=f"pod-{number // PER_LEAF // 8}",
                attachments=tuple(
                    Attachment(rail=Rail(rail), leaf=leaf, port=f"e{slot}-{rail}", slot=Slot(slot))
                    for rail in range(rails)
                ),
            ),
            _hardware(name, rails),
            NodeStorage(
                node=name,
                revision=1,
                boot_id=BootId("b"),
                cache=Space(total_bytes=Bytes(_TIB), used_bytes=Bytes(0)),
                scratch=Space(total_bytes=Bytes(_TIB), used_bytes=Bytes(0)),
            ),
        ]
        for event in events:
            sequence += 1
            stream = "FABRIC" if isinstance(event, FabricLeaf | FabricNode) else "NODES"
            state.apply_event(event, sequence, stream)
    return state, names


def _leaf(leaf: LeafName, number: int, rails: int) -> FabricLeaf:
    vlans = []
    for rail in range(rails):
        block = number * rails + rail
        prefix = f"10.{block >> 6}.{(block & 63) << 2}"
        vlans.append(LeafVlan(rail=Rail(rail), vlan=VlanId(100 + rail), subnet=f"{prefix}.0/22", gateway=f"{prefix}.1"))
    return FabricLeaf(leaf=leaf, revision=1, island="i", pod=f"pod-{number // 8}", vlans=tuple(vlans))


def _hardware(name: NodeName, rails: int) -> NodeHardware:
    return NodeHardware(
        node=name,
        revision=1,
        boot_id=BootId("b"),
        agent_version="bench",
        pfs=tuple(
            Pf(
                pci=PciAddress(f"0000:{16 + rail:02x}:00.0"),
                rail=Rail(rail),
                netdev=InterfaceName(f"r{rail}"),
                vfs=VFS,
                mtu=9000,
            )
            for rail in range(rails)
        ),
        gpus=tuple(
            Gpu(index=index, uuid=GpuUuid(f"GPU-{name}-{index}"), model=Label("sim"), memory_mib=Mib(81_920))
            for index in range(GPUS)
        ),
    )


def round_of(
    spec: JobSpec, names: Sequence[NodeName], number: int, round_number: int = 1, rails: int = RAILS
) -> list[Proposal]:
    """All answers of a round, nodes by turns."""
    about = {
        "cluster": spec.cluster,
        "job": spec.job,
        "attempt": spec.attempt,
        "uid": spec.uid,
        "round": Round(round_number),
    }
    slots = spec.slot_count
    chosen = tuple(names[(number * slots + slot) % len(names)] for slot in range(slots))
    places = spec.places()
    index = number * slots // len(names) % GPUS
    answers: list[Proposal] = [
        NodesProposal(**about, nodes=chosen),
        GpuProposal(
            **about,
            workers=tuple(
                WorkerGpus(
                    worker=place.worker,
                    gpus=tuple(
                        GpuShare((index + at) % GPUS, place.group.milli_per_gpu) for at in range(place.group.gpus)
                    ),
                )
                for place in places
            ),
        ),
    ]
    if spec.wants_network:
        group = tuple(VfRef(rail, VfIndex(index)) for rail in range(rails))
        answers += [
            FabricProposal(**about),
            NicProposal(
                **about, workers=tuple(WorkerVfs(worker=place.worker, group=f"g{index}", vfs=group) for place in places)
            ),
        ]
    return answers
