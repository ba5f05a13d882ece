"""Rendering: from proposals, which carry ids, to placements, which carry everything a node needs. Pure.

What goes in was checked at the edge, so models are built without being checked again: that was most of the time.
A stale id (an inventory that changed since the proposal) is a reason for another round, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TypeVar

from railweave.contracts.inventory import Gpu
from railweave.contracts.job import JobSpec, Rendezvous, WorkerPlace
from railweave.contracts.placement import (
    PlacedDataset,
    PlacedGpu,
    Placement,
    PlacementState,
    Scratch,
    Worker,
    WorkerNetwork,
)
from railweave.contracts.proposal import (
    Concern,
    DataProposal,
    FabricProposal,
    GpuProposal,
    NicProposal,
    NodeData,
    NodesProposal,
    Proposal,
)
from railweave.contracts.types import Bytes, Mib, Milli, NodeName, Round, build
from railweave.jobs.render_network import RenderError, render_network, stale
from railweave.runtime.cluster import ClusterState, NodeState

RENDEZVOUS_PORT = 29500
"""PyTorch's default; each worker's first address is its own, so two jobs never share address and port."""


P = TypeVar("P", bound=Proposal)


def render(
    spec: JobSpec,
    round_number: int,
    commit: str,
    epoch: int,
    proposals: Mapping[Concern, Proposal],
    state: ClusterState,
    *,
    submitted_at: datetime | None = None,
) -> tuple[Placement, ...]:
    """Return the placements of a job, one a node, in rank order.

    Raises:
        RenderError: with the reason; the job is to be proposed again.
    """
    nodes = _proposal(proposals, Concern.NODES, NodesProposal).nodes
    if len(nodes) != spec.slot_count:
        raise RenderError(stale(None, f"{len(nodes)} nodes proposed for {spec.slot_count} node slots"))
    if len(set(nodes)) != len(nodes):
        raise RenderError(stale(None, "a node was proposed for two slots"))
    workers = _render_workers(spec, nodes, proposals, state)
    rendezvous = _rendezvous(workers)
    data = _data_by_node(proposals)
    scratch = [0] * len(nodes)
    for place in spec.places():
        scratch[place.slot] += int(place.group.scratch_bytes)
    placements = []
    for slot, node in enumerate(nodes):
        mine = tuple(_with_env(worker, slot, len(nodes), rendezvous) for worker in workers[slot])
        plan = data.get(node) or build(NodeData, node=node)
        placements.append(
            build(
                Placement,
                cluster=spec.cluster,
                job=spec.job,
                attempt=spec.attempt,
                uid=spec.uid,
                node=node,
                state=PlacementState.DESIRED,
                epoch=epoch,
                round=Round(round_number),
                commit=commit,
                submitted_at=submitted_at,
                tenant=spec.tenant,
                user=spec.user,
                attach=spec.network.attach if spec.network is not None else "host",
                node_rank=slot,
                node_count=len(nodes),
                rendezvous=rendezvous,
                exclusive=spec.nodes.exclusive,
                workers=mine,
                datasets=_datasets(spec, plan, state),
                evict=plan.evict,
                scratch=Scratch(bytes=Bytes(scratch[slot])) if scratch[slot] else None,
            )
        )
    return tuple(placements)


def _proposal(proposals: Mapping[Concern, Proposal], concern: Concern, kind: type[P]) -> P:
    found = proposals.get(concern)
    if not isinstance(found, kind):
        raise RenderError(stale(None, f"the {concern} proposal is missing"))
    return found


def _render_workers(
    spec: JobSpec, nodes: tuple[NodeName, ...], proposals: Mapping[Concern, Proposal], state: ClusterState
) -> list[list[Worker]]:
    gpus_of = (
        {item.worker: item.gpus for item in _proposal(proposals, Concern.GPU, GpuProposal).workers}
        if spec.wants_gpus
        else {}
    )
    network = (
        {item.worker: item for item in _proposal(proposals, Concern.NIC, NicProposal).workers}
        if spec.wants_network
        else {}
    )
    fabric = _proposal(proposals, Concern.FABRIC, FabricProposal) if spec.wants_network else None
    by_slot: list[list[Worker]] = [[] for _ in nodes]
    for place in spec.places():
        node = state.nodes.get(nodes[place.slot])
        if node is None or node.hardware is None:
            raise RenderError(stale(nodes[place.slot], f"{nodes[place.slot]} has no inventory"))
        gpus = tuple(_gpu(node, index, milli) for index, milli in gpus_of.get(place.worker, ()))
        if len(gpus) != place.group.gpus:
            raise RenderError(stale(node.name, f"{len(gpus)} GPUs proposed for a worker of {place.group.gpus}"))
        attached = None
        if fabric is not None:
            chosen = network.get(place.worker)
            if chosen is None:
                raise RenderError(stale(node.name, f"no VF group proposed for worker {place.worker}"))
            attached = render_network(spec, node, chosen, fabric, state)
        by_slot[place.slot].append(_worker(place, gpus, attached))
    return by_slot


def _worker(place: WorkerPlace, gpus: tuple[PlacedGpu, ...], network: WorkerNetwork | None) -> Worker:
    return build(Worker, name=str(place.group.name), worker=place.worker, gpus=gpus, network=network)


def _gpu(node: NodeState, index: int, milli: Milli) -> PlacedGpu:
    found = _gpu_at(node, index)
    if found is None or not found.healthy:
        raise RenderError(stale(node.name, f"GPU {index} of {node.name} is gone or not healthy"))
    return build(
        PlacedGpu,
        index=found.index,
        uuid=found.uuid,
        pci=found.pci,
        numa_node=found.numa_node,
        fraction_milli=milli,
        memory_mib=found.memory_mib if milli == Milli.MAXIMUM else Mib(int(found.memory_mib) * int(milli) // 1000),
    )


def _gpu_at(node: NodeState, index: int) -> Gpu | None:
    gpus = node.hardware.gpus if node.hardware is not None else ()
    if index < len(gpus) and gpus[index].index == index:
        return gpus[index]
    return next((gpu for gpu in gpus if gpu.index == index), None)


def _rendezvous(workers: list[list[Worker]]) -> Rendezvous | None:
    for worker in workers[0] if workers else ():
        if worker.network is not None and worker.network.interfaces:
            address = worker.network.interfaces[0].addresses[0].partition("/")[0]
            return Rendezvous(address=address, port=RENDEZVOUS_PORT)
    return None


def _with_env(worker: Worker, node_rank: int, node_count: int, rendezvous: Rendezvous | None) -> Worker:
    env = {"NODE_RANK": str(node_rank), "NNODES": str(node_count)}
    if rendezvous is not None:
        env |= {"MASTER_ADDR": rendezvous.address, "MASTER_PORT": str(rendezvous.port)}
    if worker.network is not None:
        env["NCCL_SOCKET_IFNAME"] = "=" + ",".join(item.name for item in worker.network.interfaces)
        devices = [item.rdma.device for item in worker.network.interfaces if item.rdma is not None]
        if devices:
            env["NCCL_IB_HCA"] = "=" + ",".join(devices)
    if worker.gpus:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid for gpu in worker.gpus)
    return build(Worker, name=worker.name, worker=worker.worker, gpus=worker.gpus, network=worker.network, env=env)


def _data_by_node(proposals: Mapping[Concern, Proposal]) -> dict[NodeName, NodeData]:
    found = proposals.get(Concern.DATA)
    return {item.node: item for item in found.nodes} if isinstance(found, DataProposal) else {}


def _datasets(spec: JobSpec, plan: NodeData, state: ClusterState) -> tuple[PlacedDataset, ...]:
    placed = []
    for want in spec.datasets:
        name = want.dataset
        if name not in plan.use and name not in plan.fetch:
            raise RenderError(stale(plan.node, f"the data proposal says nothing of {name} on {plan.node}"))
        known = state.datasets.get(name)
        placed.append(
            PlacedDataset(
                name=want.name,
                version=want.version,
                action="fetch" if name in plan.fetch else "use",
                bytes=plan.fetch.get(name, want.size_bytes or Bytes(0)),
                source=want.source or (known.source_uri if known is not None else None),
                digest=want.digest or (known.digest if known is not None else None),
            )
        )
    return tuple(placed)
