"""Why no GPUs: reasons with numbers, and what would help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from railweave.contracts.reasons import Lack, Reason, ReasonCode
from railweave.contracts.types import NodeName
from railweave.gpu.model import DeviceState
from railweave.runtime.cluster import WHOLE_GPU_MILLI, NodeState
from railweave.runtime.gpu_shares import Card, GpuNeed

MOST_NODES_NAMED = 8
"""Nodes given a reason of their own; the summary counts the rest."""


@dataclass(frozen=True, slots=True)
class Short:
    """A node that cannot give what its slot wants."""

    reason: Reason
    able: int
    """Cards of it that one worker could have now: the node with the most is the nearest to fitting."""
    needed: int
    never: bool = False


def unknown_node(name: NodeName, need: GpuNeed) -> Short:
    """The node has no inventory (any more)."""
    reason = Reason(
        code=ReasonCode.INSUFFICIENT_GPUS,
        text=f"{name} has not told its GPUs: no inventory of its agent",
        numbers={"needed_gpus": need.cards, "free_gpus": 0},
        node=name,
        lacks=(Lack.AGENT, Lack.NODE),
        remedy=f"see that the agent of {name} runs",
    )
    return Short(reason, 0, need.cards)


def short_of(node: NodeState, devices: Sequence[DeviceState], need: GpuNeed, *, is_given: bool) -> Short:
    """A node whose free cards are too few. `is_given`: the scheduler chose it, so no other node can do instead."""
    suited = [device for device in devices if need.milli_of(device.model, device.memory_mib)]
    able = [device for device in suited if device.can_serve(need)]
    sick = [device for device in suited if not device.healthy]
    numbers = {
        "needed_gpus": need.cards,
        "gpus": len(devices),
        "suited_gpus": len(suited),
        "free_gpus": len(able),
        "unhealthy_gpus": len(sick),
        "needed_milli": need.fraction_milli,
        "largest_free_milli": max((device.free_milli for device in suited if device.healthy), default=0),
    }
    # Empty and well again: if even that is too little, waiting is in vain.
    could_never = not need.fits(Card(device.model, device.memory_mib, WHOLE_GPU_MILLI) for device in devices)
    parts = [f"{node.name}: {_wanted(need)}; it has {len(devices)} GPUs"]
    if len(suited) < len(devices):
        parts.append(f"{len(suited)} of them {_suited(need)}")
    if sick:
        parts.append(f"{len(sick)} not healthy ({_faults(sick)})")
    parts.append(f"{len(able)} with room")
    never = could_never and is_given
    reason = Reason(
        code=ReasonCode.EXCEEDS_CLUSTER_CAPACITY if never else ReasonCode.INSUFFICIENT_GPUS,
        text=", ".join(parts),
        numbers=numbers,
        node=node.name,
        lacks=() if never else (Lack.GPU,),
        remedy=_remedy(node.name, sick, could_never=could_never),
    )
    return Short(reason, len(able), need.cards, never)


def listed_indices(
    node: NodeState, devices: Sequence[DeviceState], listed: frozenset[int], need: GpuNeed
) -> Short | None:
    """What is wrong with the GPUs that the scheduler listed; None where nothing is."""
    by_index = {device.index: device for device in devices}
    faults: list[str] = []
    never = False
    for index in sorted(listed):
        device = by_index.get(index)
        if device is None:
            faults.append(f"GPU {index} does not exist")
            never = True
        elif not need.milli_of(device.model, device.memory_mib):
            faults.append(f"GPU {index} is a {device.model} with {device.memory_mib} MiB")
            never = True
        elif not device.healthy:
            faults.append(f"GPU {index} is not healthy ({device.fault or 'no cause told'})")
        elif not device.can_serve(need):
            faults.append(f"GPU {index} has {device.free_milli} of 1000 free{_holders(node, index)}")
    most_cards = sum(1 for index in listed if index in by_index) * (need.workers if need.is_shared else 1)
    if not faults and most_cards < need.cards:
        faults.append(f"{len(listed)} listed, {need.cards} wanted")
        never = True
    if not faults:
        return None
    able = sum(1 for index in listed if index in by_index and by_index[index].can_serve(need))
    reason = Reason(
        code=ReasonCode.EXCEEDS_CLUSTER_CAPACITY if never else ReasonCode.INSUFFICIENT_GPUS,
        text=f"{node.name}, GPUs chosen by the scheduler: {'; '.join(faults)}; {_wanted(need)}",
        numbers={"needed_gpus": need.cards, "listed_gpus": len(listed), "free_gpus": able},
        node=node.name,
        lacks=() if never else (Lack.GPU,),
        remedy="list other GPUs in nodes.gpu_indices, or leave the choice of GPUs to Railweave",
    )
    return Short(reason, able, need.cards, never)


def reasons_for(short: Sequence[Short], node_count: int) -> tuple[Reason, ...]:
    """All that is said of the nodes that fall short: a summary naming the nearest, then node by node."""
    nearest = max(short, key=lambda item: (item.able - item.needed, item.able))
    if len(short) == 1:
        return (nearest.reason,)
    never = [item for item in short if item.never]
    named = sorted(short, key=lambda item: (not item.never, item.needed - item.able))[:MOST_NODES_NAMED]
    summary = Reason(
        code=(never[0] if never else nearest).reason.code,
        text=f"{len(short)} of {node_count} nodes lack GPUs; nearest is {nearest.reason.text}",
        numbers={"nodes": node_count, "nodes_short": len(short), "nodes_never": len(never)}
        | {f"best_{name}": value for name, value in nearest.reason.numbers.items()},
        node=nearest.reason.node,
        lacks=() if never else (Lack.GPU,),
        remedy=nearest.reason.remedy,
    )
    return (summary, *(item.reason for item in named))


def no_mig(profiles: Sequence[str]) -> tuple[Reason, ...]:
    """MIG was asked for; inventories tell whole cards only."""
    return (
        Reason(
            code=ReasonCode.EXCEEDS_CLUSTER_CAPACITY,
            text=f"no node offers MIG profile {', '.join(profiles)}",
            numbers={"offering_nodes": 0},
            remedy="ask for gpu_fraction_milli with gpu_memory_mib instead of mig_profile",
        ),
    )


def over_quota(tenant: str, limit: int, in_use_milli: int, needed_milli: int) -> tuple[Reason, ...]:
    """The tenant's limit is reached, whatever is free."""
    limit_milli = limit * WHOLE_GPU_MILLI
    over = in_use_milli + needed_milli - limit_milli
    if over <= 0:
        return ()
    too_large = needed_milli > limit_milli
    return (
        Reason(
            code=ReasonCode.WAITING_FOR_QUOTA,
            text=f"wants {_gpus(needed_milli)} GPUs; tenant {tenant}: limit {limit}, in use {_gpus(in_use_milli)}, "
            f"{_gpus(over)} too many",
            numbers={
                "needed_milli": needed_milli,
                "limit_milli": limit_milli,
                "in_use_milli": in_use_milli,
                "over_milli": over,
            },
            lacks=(Lack.QUOTA,),
            remedy=f"the limit of {tenant} has to be raised: the job alone is past it"
            if too_large
            else f"{_gpus(over)} fewer GPUs in use by {tenant}, or a higher limit",
        ),
    )


def _wanted(need: GpuNeed) -> str:
    each = f"{need.fraction_milli}/1000 of {need.gpus}" if need.is_shared else str(need.gpus)
    workers = f"{need.workers} workers x " if need.workers > 1 else ""
    suffix = f" {_suited(need)}" if need.model or need.memory_mib else ""
    return f"{workers}{each} GPUs wanted{suffix}"


def _suited(need: GpuNeed) -> str:
    parts = [f"of model {need.model}"] if need.model else []
    if need.memory_mib:
        parts.append(f"with {need.memory_mib} MiB")
    return " ".join(parts)


def _faults(sick: Sequence[DeviceState]) -> str:
    return ", ".join(f"GPU {device.index}: {device.fault or 'no cause told'}" for device in sick[:4])


def _holders(node: NodeState, index: int) -> str:
    names = [str(run.key) for run, hold in node.holds.items() if any(gpu == index for gpu, _ in hold.gpus)]
    names += [f"lease {lease}" for lease, hold in node.grants.items() if any(gpu == index for gpu, _ in hold.gpus)]
    return f", held by {', '.join(names[:4])}" if names else ""


def _remedy(name: NodeName, sick: Sequence[DeviceState], *, could_never: bool) -> str:
    if could_never:
        return f"{name} cannot hold it even when empty: choose another node, or ask for fewer GPUs"
    if sick:
        return f"repair {'GPUs' if len(sick) > 1 else 'GPU'} {', '.join(str(d.index) for d in sick[:4])} of {name}"
    return f"wait until GPUs of {name} are released"


def _gpus(milli: int) -> str:
    """Thousandths as GPUs, without floating point."""
    whole, rest = divmod(milli, WHOLE_GPU_MILLI)
    return str(whole) if not rest else f"{whole}.{rest:03d}".rstrip("0")
