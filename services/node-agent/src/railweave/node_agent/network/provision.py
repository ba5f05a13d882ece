"""Making the VFs of a node of the software fabric: what writing `sriov_numvfs` is to a physical one. Idempotent;
blocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from railweave.node_agent.network.errors import NetworkRefused
from railweave.node_agent.network.session import NodePorts, Session, rail_and_vf
from railweave.runtime.netlink import (
    AlreadyThere,
    CreateVeth,
    DeleteLink,
    Kernel,
    Link,
    SetLink,
    settle_all,
    vf_name,
)

_AT_A_TIME = 16
_MOST_VFS = 256

__all__ = ["create_vfs", "provision_vfs", "remove_vfs"]


def provision_vfs(kernel: Kernel, ports: NodePorts, vfs_per_pf: int) -> list[str]:
    """Brings every PF of the node to `vfs_per_pf` VFs; gives the keys of those that were made.

    VFs that are out in a worker's namespace count as there. Fewer than there are takes the last ones away.

    Raises:
        NetworkRefused: a VF that would go is in use: the kernel would let it vanish from its job (R9).
        KernelError: the kernel refused, e.g. the name is taken by a device that is not ours.
    """
    with Session(kernel, ports) as session:
        here = session.marked(session.node())
        missing: list[str] = []
        surplus: list[str] = []
        for port in ports.ports:
            wanted = [vf_name(port.rail, vf) for vf in range(vfs_per_pf)]
            far_names = {key: session.far_name(key) for key in wanted}
            far_ends = session.leaf(port.rail).links_named(far_names.values())
            missing += [key for key in wanted if key not in here and far_names[key] not in far_ends]
            for key, far in _beyond(session, port.rail, vfs_per_pf).items():
                if key not in here or far.master:
                    raise NetworkRefused(key, f"is in use; {vfs_per_pf} VFs on rail {port.rail} would take it away")
                surplus.append(key)
        settle_all(session.node(), [DeleteLink(here[key].index) for key in surplus])
        create_vfs(session, missing)
        return missing


def _beyond(session: Session, rail: int, vfs_per_pf: int) -> dict[str, Link]:
    """Far ends of this node's VFs of index `vfs_per_pf` and up. Asked for by name, some at a time until there are none:
    listing the leaf would cost each node what all nodes have on it."""
    found: dict[str, Link] = {}
    for first in range(vfs_per_pf, _MOST_VFS, _AT_A_TIME):
        names = {session.far_name(key): key for key in (vf_name(rail, first + more) for more in range(_AT_A_TIME))}
        links = session.leaf(rail).links_named(names)
        ours = {names[name]: link for name, link in links.items()}
        found |= {key: link for key, link in ours.items() if link.alias == f"{session.ports.mark(key)}/far"}
        if not links:
            break
    return found


def create_vfs(session: Session, keys: Sequence[str]) -> None:
    """Makes pairs: the near end on the node, down; the far end on its leaf, down and on no VLAN; both marked.

    A pair that was made and not marked, because its maker was killed in between, is marked now.

    Raises:
        KernelError: a leaf is gone, or a name is taken by a device that is not ours.
    """
    if not keys:
        return
    node = session.node()
    creations = [CreateVeth(key, session.far_name(key), session.leaf(rail_and_vf(key)[0]).ref) for key in keys]
    for creation, outcome in zip(creations, node.execute(creations), strict=True):
        if outcome is None:
            continue
        near = node.links_named([creation.name]).get(creation.name)
        if not isinstance(outcome, AlreadyThere) or near is None or near.kind != "veth" or near.alias:
            raise outcome
    near_ends = node.links_named(keys)
    marks = [SetLink(near_ends[key].index, alias=session.ports.mark(key)) for key in keys]
    by_rail: dict[int, list[str]] = defaultdict(list)
    for key in keys:
        by_rail[rail_and_vf(key)[0]].append(key)
    for rail, of_rail in by_rail.items():
        far_ends = session.leaf(rail).links_named([session.far_name(key) for key in of_rail])
        far_marks = [
            SetLink(far_ends[session.far_name(key)].index, alias=f"{session.ports.mark(key)}/far") for key in of_rail
        ]
        settle_all(session.leaf(rail), far_marks)
    settle_all(node, marks)
    session.forget()


def remove_vfs(kernel: Kernel, ports: NodePorts) -> int:
    """Takes away all VFs of this node that are on it, used or not: for taking a local stack down. Gives how many."""
    with Session(kernel, ports) as session:
        here = session.marked(session.node())
        settle_all(session.node(), [DeleteLink(link.index) for link in here.values()])
        return len(here)
