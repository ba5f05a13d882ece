"""Which VF group each worker gets on the nodes proposed, or why none. Pure.

All or nothing over all nodes of the job, exclusive, and different groups for workers on one node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from railweave.contracts.inventory import Gpu
from railweave.contracts.proposal import Ask, GpuProposal, NicProposal, NodesProposal, WorkerVfs
from railweave.contracts.reasons import Reason
from railweave.contracts.types import NodeName, build
from railweave.nic import explain
from railweave.nic.choose import Group, chooser_of, most_groups
from railweave.nic.model import pfs_of
from railweave.runtime.cluster import ClusterState, Hold, NodeState
from railweave.runtime.outstanding import Outstanding


@dataclass(frozen=True, slots=True)
class NodeWorkers:
    """The workers of a job on one node: their ranks, and the GPUs that each was proposed."""

    node: NodeName
    ranks: tuple[int, ...]
    gpus: tuple[tuple[int, ...], ...]


def propose(
    ask: Ask, nodes: NodesProposal, gpu: GpuProposal | None, state: ClusterState, outstanding: Outstanding
) -> NicProposal:
    """Give every worker a VF group on the proposed nodes, or say why not.

    Args:
        ask: the round.
        nodes: its nodes, one for each node slot.
        gpu: its GPUs, where it wants any.
        state: the folded cluster.
        outstanding: VF proposals of other jobs that are not stored yet.
    """
    rule = ask.spec.network.vfs if ask.spec.network is not None else "one-per-pf"
    choose = chooser_of(rule)
    given: list[WorkerVfs] = []
    short: list[Reason] = []
    for wanted in workers_by_node(ask, nodes, gpu):
        node = state.nodes.get(wanted.node)
        if node is None or node.hardware is None:
            short.append(explain.unknown_node(wanted.node, len(wanted.ranks)))
            continue
        pfs = pfs_of(node, state, outstanding.on(wanted.node, other_than=ask.key))
        groups = choose(pfs, [_devices(node, indices) for indices in wanted.gpus])
        if groups is None:
            # Choosing marked what it could give: look again at what there was.
            before = pfs_of(node, state, outstanding.on(wanted.node, other_than=ask.key))
            short.append(explain.short_of(node.name, before, rule, len(wanted.ranks)))
        else:
            given += [_given(rank, group) for rank, group in zip(wanted.ranks, groups, strict=True)]
    if short:
        never = _is_never(ask, nodes, gpu, state)
        return _answer(ask, state, reasons=explain.reasons_for(short, len(nodes.nodes), never=never), never=never)
    return _answer(ask, state, workers=tuple(given))


def workers_by_node(ask: Ask, nodes: NodesProposal, gpu: GpuProposal | None) -> list[NodeWorkers]:
    """The workers on each node, in rank order."""
    gpus_of = {worker.worker: tuple(share.gpu for share in worker.gpus) for worker in gpu.workers} if gpu else {}
    ranks: dict[int, list[int]] = {}
    for place in ask.spec.places():
        ranks.setdefault(place.slot, []).append(place.worker)
    return [
        NodeWorkers(nodes.nodes[slot], tuple(mine), tuple(gpus_of.get(rank, ()) for rank in mine))
        for slot, mine in ranks.items()
    ]


def holds_of(proposal: NicProposal, ask: Ask, nodes: NodesProposal, state: ClusterState) -> Mapping[NodeName, Hold]:
    """What a proposal would take of each node, to be kept in mind until it is stored."""
    vfs_of = {worker.worker: worker.vfs for worker in proposal.workers}
    holds: dict[NodeName, Hold] = {}
    for wanted in workers_by_node(ask, nodes, None):
        node = state.nodes.get(wanted.node)
        if node is None or node.hardware is None:
            continue
        pfs = node.hardware.pfs
        taken = tuple((pfs[ref.pf].pci, int(ref.vf)) for rank in wanted.ranks for ref in vfs_of.get(rank, ()))
        holds[wanted.node] = Hold(vfs=taken, tenant=str(ask.spec.tenant))
    return holds


def _given(rank: int, group: Group) -> WorkerVfs:
    # model_construct: every value is of its strict type already, and a large job has thousands.
    return WorkerVfs.model_construct(worker=rank, group=group.name, vfs=group.vfs)


def _devices(node: NodeState, indices: Sequence[int]) -> tuple[Gpu, ...]:
    if not indices or node.hardware is None:
        return ()
    by_index = {gpu.index: gpu for gpu in node.hardware.gpus}
    return tuple(by_index[index] for index in indices if index in by_index)


def _is_never(ask: Ask, nodes: NodesProposal, gpu: GpuProposal | None, state: ClusterState) -> bool:
    """Whether even empty nodes with every link up could not give it.

    The nodes are those that the scheduler chose; where it left the choice to us, any node of the cluster would do.
    """
    rule = ask.spec.network.vfs if ask.spec.network is not None else "one-per-pf"
    is_fixed = ask.spec.nodes.node_list is not None
    for wanted in workers_by_node(ask, nodes, gpu):
        candidates = [state.nodes[wanted.node]] if wanted.node in state.nodes else []
        if not is_fixed:
            candidates = list(state.nodes.values())
        heard_of = [node for node in candidates if node.hardware is not None]
        # A node whose agent has not spoken yet may have any number of VFs.
        if len(heard_of) == len(candidates) and not any(
            most_groups(rule, node.hardware.pfs, has_gpus=any(wanted.gpus)) >= len(wanted.ranks)
            for node in heard_of
            if node.hardware is not None
        ):
            return bool(candidates)
    return False


def _answer(
    ask: Ask,
    state: ClusterState,
    *,
    workers: tuple[WorkerVfs, ...] = (),
    reasons: tuple[Reason, ...] = (),
    never: bool = False,
) -> NicProposal:
    return build(
        NicProposal,
        cluster=ask.cluster,
        job=ask.job,
        attempt=ask.attempt,
        uid=ask.uid,
        round=ask.round,
        based_on=dict(state.sequences),
        workers=workers,
        reasons=reasons,
        never=never,
    )
