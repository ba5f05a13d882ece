"""Which GPUs each worker gets on the nodes proposed, or why none. Pure.

All or nothing over all nodes of the job. They are given, by the cache service or by the scheduler: no other node is
looked at here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from railweave.contracts.job import JobSpec
from railweave.contracts.proposal import Ask, GpuProposal, NodesProposal, WorkerGpus
from railweave.contracts.reasons import Reason
from railweave.contracts.types import NodeName, build
from railweave.gpu import explain
from railweave.gpu.choose import POLICIES
from railweave.gpu.model import devices_of
from railweave.runtime.cluster import ClusterState, Hold
from railweave.runtime.gpu_shares import GpuNeed
from railweave.runtime.outstanding import Outstanding


@dataclass(frozen=True, slots=True)
class GpuConfig:
    """How cards are chosen."""

    policy: str = "best-fit"
    """A name in `choose.POLICIES`."""


@dataclass(frozen=True, slots=True)
class SlotGpus:
    """What one node slot wants: the ranks of its workers, and what each of them needs."""

    node: NodeName
    ranks: tuple[int, ...]
    need: GpuNeed


def propose(
    ask: Ask, nodes: NodesProposal, state: ClusterState, outstanding: Outstanding, config: GpuConfig
) -> GpuProposal:
    """Give every worker its GPUs on the proposed nodes, or say why not.

    Args:
        ask: the round.
        nodes: the nodes of that round, one for each node slot.
        state: the folded cluster.
        outstanding: GPU proposals of other jobs that are not stored yet.
        config: the policy.
    """
    profiles = {group.mig_profile for group in ask.spec.workers if group.gpus and group.mig_profile is not None}
    if profiles:
        return _answer(ask, state, reasons=explain.no_mig(sorted(profiles)), never=True)
    reasons = _over_quota(ask, state, outstanding, nodes.nodes)
    if reasons:
        return _answer(ask, state, reasons=reasons)
    policy = POLICIES[config.policy]
    given: list[WorkerGpus] = []
    short: list[explain.Short] = []
    for slot in slots_of(ask.spec, nodes.nodes):
        node = state.nodes.get(slot.node)
        if node is None or node.hardware is None:
            short.append(explain.unknown_node(slot.node, slot.need))
            continue
        devices = devices_of(node, outstanding.on(slot.node, other_than=ask.key))
        listed = _listed(ask.spec, slot.node)
        if listed is not None:
            bad = explain.listed_indices(node, devices, listed, slot.need)
            if bad is not None:
                short.append(bad)
                continue
            devices = tuple(device for device in devices if device.index in listed)
        chosen = policy(devices, slot.need)
        if chosen is None:
            short.append(explain.short_of(node, devices, slot.need, is_given=ask.spec.nodes.node_list is not None))
        else:
            given += [build(WorkerGpus, worker=rank, gpus=mine) for rank, mine in zip(slot.ranks, chosen, strict=True)]
    if short:
        never = any(item.never for item in short)
        return _answer(ask, state, reasons=explain.reasons_for(short, len(nodes.nodes)), never=never)
    return _answer(ask, state, workers=tuple(given))


def slots_of(spec: JobSpec, nodes: Sequence[NodeName]) -> list[SlotGpus]:
    """The node slots whose workers want GPUs, with the node that each was given."""
    by_slot: dict[int, list[int]] = {}
    groups = {}
    for place in spec.places():
        if place.group.gpus:
            by_slot.setdefault(place.slot, []).append(place.worker)
            groups[place.slot] = place.group
    slots = []
    for slot, ranks in by_slot.items():
        need = GpuNeed.of(groups[slot], len(ranks))
        if need is not None:
            slots.append(SlotGpus(nodes[slot], tuple(ranks), need))
    return slots


def holds_of(proposal: GpuProposal, spec: JobSpec, nodes: Sequence[NodeName]) -> Mapping[NodeName, Hold]:
    """What a proposal would take of each node, to be kept in mind until it is stored."""
    by_node: dict[NodeName, list[tuple[int, int]]] = {}
    slot_of = {place.worker: place.slot for place in spec.places()}
    for worker in proposal.workers:
        by_node.setdefault(nodes[slot_of[worker.worker]], []).extend(
            (share.gpu, int(share.milli)) for share in worker.gpus
        )
    return {node: Hold(gpus=tuple(gpus), tenant=str(spec.tenant)) for node, gpus in by_node.items()}


def _listed(spec: JobSpec, node: NodeName) -> frozenset[int] | None:
    """The GPUs that the scheduler chose on a node; None where it left that to us."""
    by_node = spec.nodes.gpu_indices
    if by_node is None or node not in by_node:
        return None
    return frozenset(by_node[node])


def _over_quota(
    ask: Ask, state: ClusterState, outstanding: Outstanding, nodes: Sequence[NodeName]
) -> tuple[Reason, ...]:
    tenant = state.tenants.get(str(ask.spec.tenant))
    limit = tenant.quota.gpus.limit if tenant is not None else None
    if limit is None:
        return ()
    in_use = state.tenant_gpu_milli(str(ask.spec.tenant)) + sum(
        milli
        for node in outstanding.nodes()
        for hold in outstanding.on(node, other_than=ask.key)
        if hold.tenant == ask.spec.tenant
        for _, milli in hold.gpus
    )
    # What memory needs of a fraction depends on the card, so at least this much; the committer claims the exact sum.
    needed = sum(slot.need.cards * _milli_on(slot, state) for slot in slots_of(ask.spec, nodes))
    return explain.over_quota(str(ask.spec.tenant), limit, in_use, needed)


def _milli_on(slot: SlotGpus, state: ClusterState) -> int:
    """Least thousandths that one worker of a slot takes of one card there."""
    node = state.nodes.get(slot.node)
    gpus = node.hardware.gpus if node is not None and node.hardware is not None else ()
    taken = [milli for gpu in gpus if (milli := slot.need.milli_of(gpu.model, int(gpu.memory_mib)))]
    return min(taken, default=slot.need.fraction_milli)


def _answer(
    ask: Ask,
    state: ClusterState,
    *,
    workers: tuple[WorkerGpus, ...] = (),
    reasons: tuple[Reason, ...] = (),
    never: bool = False,
) -> GpuProposal:
    return build(
        GpuProposal,
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
