"""What the nic service shows of a node: its PFs, why some are not usable, and its VF groups."""

from __future__ import annotations

from typing import Any

from railweave.nic.choose import free_groups
from railweave.nic.model import pfs_of
from railweave.runtime.cluster import ClusterState, NodeState


def describe(node: NodeState, state: ClusterState) -> dict[str, Any]:
    """A node's VF groups as JSON, as stored proposals left them."""
    pfs = pfs_of(node, state, ())
    usable = [pf for pf in pfs if pf.fault is None]
    return {
        "node": node.name,
        "groups": min((pf.vfs for pf in usable), default=0),
        "free_groups": [f"g{index}" for index in free_groups(pfs)],
        "pfs": [
            {
                "rail": pf.rail,
                "pci": pf.pci,
                "vfs": pf.vfs,
                "used_vfs": sorted(pf.used),
                "numa_node": pf.numa_node,
                "pcie_root": pf.pcie_root,
                "fault": pf.fault,
            }
            for pf in pfs
        ],
        "held_by": {
            str(run): sorted([pci, vf] for pci, vf in hold.vfs) for run, hold in node.holds.items() if hold.vfs
        },
    }
