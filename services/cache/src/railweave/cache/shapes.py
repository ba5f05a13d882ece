"""The shape of a node: its free devices, as it is and as it could be at best. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from railweave.cache.model import Occupancy, Shape
from railweave.contracts.inventory import Pf
from railweave.runtime.cluster import WHOLE_GPU_MILLI, ClusterState, NodeState
from railweave.runtime.gpu_shares import Card


def shape_now(node: NodeState, state: ClusterState) -> Shape:
    """The node as it is."""
    hardware = node.hardware
    usable = _usable_pfs(node, state)
    used = [index for pci, index in node.vfs_used if pci in usable]
    fewest = min(usable.values(), default=0)
    holds = bool(node.holds) or bool(node.grants)
    return Shape(
        is_schedulable=node.is_schedulable,
        in_fabric=node.fabric is not None,
        occupancy=Occupancy.EXCLUSIVE if node.is_exclusively_held else Occupancy.SHARED if holds else Occupancy.EMPTY,
        labels=frozenset((key, str(value)) for key, value in node.labels.items()),
        cards=tuple(
            sorted(
                Card(gpu.model, int(gpu.memory_mib), node.free_gpu_milli(gpu.index))
                for gpu in (hardware.gpus if hardware is not None else ())
                if gpu.healthy
            )
        ),
        vf_groups=fewest - len({index for index in used if index < fewest}),
        vfs=sum(usable.values()) - len(used),
    )


def shape_empty(node: NodeState) -> Shape:
    """The node with nothing on it, every device well, in the fabric: what it could be at best."""
    hardware = node.hardware
    pfs: Sequence[Pf] = hardware.pfs if hardware is not None else ()
    return Shape(
        is_schedulable=True,
        in_fabric=True,
        occupancy=Occupancy.EMPTY,
        labels=frozenset((key, str(value)) for key, value in node.labels.items()),
        cards=tuple(
            sorted(
                Card(gpu.model, int(gpu.memory_mib), WHOLE_GPU_MILLI)
                for gpu in (hardware.gpus if hardware is not None else ())
            )
        ),
        vf_groups=max((pf.vfs for pf in pfs), default=0),
        vfs=sum(pf.vfs for pf in pfs),
    )


def _usable_pfs(node: NodeState, state: ClusterState) -> dict[str, int]:
    """VFs of each PF that may be given away, as the nic service counts them.

    A PF needs a link, a fabric port whose leaf carries a VLAN for its rail, and must be the first of its rail and not
    cordoned; it has as many VFs as a slot of that VLAN has addresses at most.
    """
    if node.hardware is None or node.fabric is None:
        return {}
    cordoned = node.desired.cordoned_rails if node.desired is not None else ()
    leaf_of = {attachment.rail: attachment.leaf for attachment in node.fabric.attachments}
    usable: dict[str, int] = {}
    rails: set[int] = set()
    for pf in node.hardware.pfs:
        leaf = leaf_of.get(pf.rail)
        if leaf is None or not pf.link_up or not pf.vfs or pf.rail in cordoned or pf.rail in rails:
            continue
        vlan = state.vlan_of(leaf, pf.rail)
        if vlan is not None:
            rails.add(pf.rail)
            usable[pf.pci] = min(pf.vfs, vlan.vf_stride)
    return usable


def take_some(cards: list[Card], milli: int) -> None:
    """Take thousandths where the gpu service is likely to: of the card with least room for it."""
    fitting = [index for index, card in enumerate(cards) if card.free_milli >= milli]
    if fitting:
        index = min(fitting, key=lambda index: cards[index].free_milli)
        cards[index] = cards[index]._replace(free_milli=cards[index].free_milli - milli)
