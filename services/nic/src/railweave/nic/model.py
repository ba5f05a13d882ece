"""The PFs of a node as far as choosing VFs needs to know: what is there, what is usable, what is in use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from railweave.contracts.inventory import Pf
from railweave.contracts.types import PciAddress
from railweave.runtime.cluster import ClusterState, Hold, NodeState


@dataclass(slots=True)
class PfState:
    """One PF. `fault` says why none of its VFs may be given away; None where they may."""

    index: int
    """In the node's hardware inventory: what a proposal names it by."""
    pci: PciAddress
    rail: int
    vfs: int
    """VFs that have an address: as many as the PF has, and at most as many as a slot has addresses."""
    numa_node: int | None = None
    pcie_root: str | None = None
    fault: str | None = None
    used: set[int] = field(default_factory=set)

    @property
    def free(self) -> int:
        """How many VFs could be given away now."""
        return 0 if self.fault is not None else self.vfs - len(self.used)

    def lowest_free(self) -> int | None:
        """The lowest VF that could be given away now."""
        if self.fault is None:
            for index in range(self.vfs):
                if index not in self.used:
                    return index
        return None


def pfs_of(node: NodeState, state: ClusterState, proposed: Iterable[Hold]) -> list[PfState]:
    """The PFs of a node that have VFs, by rail.

    Args:
        node: the node.
        state: the folded cluster, for the VLANs of the node's leaves.
        proposed: what is proposed to other jobs there and not stored yet.
    """
    if node.hardware is None:
        return []
    ports = {attachment.rail: attachment for attachment in node.fabric.attachments} if node.fabric is not None else {}
    cordoned = node.desired.cordoned_rails if node.desired is not None else ()
    found: list[PfState] = []
    rails: set[int] = set()
    for index, pf in enumerate(node.hardware.pfs):
        if not pf.vfs:
            continue
        port = ports.get(pf.rail)
        vlan = state.vlan_of(port.leaf, pf.rail) if port is not None else None
        fault: str | None = None
        if not pf.link_up:
            fault = "down"
        elif pf.rail in cordoned:
            fault = "cordoned"
        elif port is None:
            fault = "without a fabric port"
        elif vlan is None:
            fault = f"without a VLAN on leaf {port.leaf}"
        elif pf.rail in rails:
            fault = f"on rail {int(pf.rail)} like another PF"  # they would have the same addresses
        if fault is None:
            rails.add(pf.rail)
        found.append(_state_of(index, pf, fault, min(pf.vfs, vlan.vf_stride) if vlan is not None else pf.vfs))
    by_pci = {pf.pci: pf for pf in found}
    for pci, vf in node.vfs_used:
        if (used := by_pci.get(pci)) is not None and vf < used.vfs:
            used.used.add(vf)
    for hold in proposed:
        for pci, vf in hold.vfs:
            if (used := by_pci.get(pci)) is not None and vf < used.vfs:
                used.used.add(vf)
    found.sort(key=lambda pf: (pf.rail, pf.index))
    return found


def _state_of(index: int, pf: Pf, fault: str | None, vfs: int) -> PfState:
    return PfState(
        index=index,
        pci=pf.pci,
        rail=int(pf.rail),
        vfs=vfs,
        numa_node=pf.numa_node,
        pcie_root=pf.pcie_root,
        fault=fault,
    )
