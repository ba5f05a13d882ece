"""Rendering the network of a worker: its interfaces with addresses, MACs and rules, from records and VF ids. Pure.

The same VFs are given to job after job, so what was rendered is kept as long as the records it follows from stay.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from typing import NamedTuple

from railweave.contracts.addressing import vf_addresses, vf_mac
from railweave.contracts.errors import ContractError
from railweave.contracts.fabric import Attachment
from railweave.contracts.inventory import Pf
from railweave.contracts.job import JobSpec
from railweave.contracts.placement import ROUTE_TABLE_BASE, Interface, Isolation, RdmaDevice, Rule, WorkerNetwork
from railweave.contracts.proposal import FabricProposal, VfRef, WorkerVfs
from railweave.contracts.reasons import Lack, Reason, ReasonCode
from railweave.contracts.types import InterfaceName, NodeName, build
from railweave.runtime.cluster import ClusterState, NodeState


class RenderError(Exception):
    """A proposal names something that is not there (any more)."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.text)
        self.reason = reason


def stale(node: NodeName | None, text: str) -> Reason:
    """The reason for another round: a proposal rests on what has changed since."""
    return Reason(code=ReasonCode.CLAIM_CONFLICT, text=text, node=node, lacks=(Lack.NODE,))


def render_network(
    spec: JobSpec, node: NodeState, chosen: WorkerVfs, fabric: FabricProposal, state: ClusterState
) -> WorkerNetwork:
    """The network of a worker that was given these VFs.

    Raises:
        RenderError: a VF, a port or a VLAN is not there (any more).
    """
    wanted = _Wanted(
        node.name,
        chosen.vfs,
        fabric.segment,
        spec.network.mtu if spec.network is not None else None,
        spec.network is not None and spec.network.rdma,
    )
    isolation = build(
        Isolation,
        mode=fabric.mode,
        segment=fabric.segment,
        vrf=f"Vrf-s{fabric.segment}" if fabric.segment is not None else None,
        owner=fabric.owner,
    )
    interfaces = _interfaces(wanted, node, state)
    return build(WorkerNetwork, vf_group=chosen.group, isolation=isolation, interfaces=interfaces)


class _Wanted(NamedTuple):
    """What the interfaces of a worker follow from, beside the records of its node and leaves."""

    node: NodeName
    vfs: tuple[VfRef, ...]
    segment: int | None
    mtu: int | None
    rdma: bool


_Records = tuple[object, ...]
_rendered: OrderedDict[_Wanted, tuple[_Records, tuple[Interface, ...]]] = OrderedDict()
_MOST_RENDERED = 16_384
"""Groups of interfaces, of 10 KB each: job after job gets the same VFs of the same nodes, 10,000 of them at most."""


def _interfaces(wanted: _Wanted, node: NodeState, state: ClusterState) -> tuple[Interface, ...]:
    """The interfaces of a worker, rendered once for as long as the records they follow from are the same objects."""
    attachments = node.fabric.attachments if node.fabric is not None else ()
    records: _Records = (node.hardware, node.fabric, *(state.leaves.get(item.leaf) for item in attachments))
    known = _rendered.get(wanted)
    if known is not None and len(known[0]) == len(records) and all(map(operator.is_, known[0], records)):
        _rendered.move_to_end(wanted)
        return known[1]
    seen: dict[int, int] = {}
    made = tuple(_interface(wanted, node, ref, state, seen) for ref in wanted.vfs)
    _rendered[wanted] = (records, made)
    _rendered.move_to_end(wanted)
    if len(_rendered) > _MOST_RENDERED:
        _rendered.popitem(last=False)
    return made


def _interface(wanted: _Wanted, node: NodeState, ref: VfRef, state: ClusterState, seen: dict[int, int]) -> Interface:
    pf = _pf_at(node, ref)
    attachment = _attachment(node, pf)
    vlan = state.vlan_of(attachment.leaf, pf.rail, wanted.segment)
    if vlan is None or node.fabric is None:
        raise RenderError(_fabric(node, f"leaf {attachment.leaf} carries no VLAN for rail {int(pf.rail)}"))
    mtu = wanted.mtu if wanted.mtu is not None else vlan.mtu
    try:
        addresses = vf_addresses(vlan, attachment.slot, ref.vf)
    except ContractError as error:
        raise RenderError(_fabric(node, str(error))) from error
    gateways = tuple(gateway for gateway in (vlan.gateway, vlan.gateway6) if gateway is not None)
    rail = int(pf.rail)
    nth = seen.get(rail, 0)
    seen[rail] = nth + 1
    table = ROUTE_TABLE_BASE + rail + 256 * nth
    return build(
        Interface,
        name=InterfaceName(f"rail{rail}" if nth == 0 else f"rail{rail}x{nth}"),
        rail=pf.rail,
        pf=pf.pci,
        vf=ref.vf,
        mac=vf_mac(node.fabric.ordinal, pf.rail, ref.vf),
        numa_node=pf.numa_node,
        rdma=RdmaDevice(device=pf.rdma) if pf.rdma is not None and wanted.rdma else None,
        leaf=attachment.leaf,
        port=attachment.port,
        vlan=vlan.vlan,
        vlan_qos=vlan.vlan_qos,
        mtu=min(mtu, pf.mtu) if pf.mtu >= 1280 else mtu,
        addresses=addresses,
        gateways=gateways,
        rules=tuple(build(Rule, priority=table, source=_host_route(address), table=table) for address in addresses),
    )


def _host_route(address: str) -> str:
    host = address.partition("/")[0]
    return f"{host}/{128 if ':' in host else 32}"


def _pf_at(node: NodeState, ref: VfRef) -> Pf:
    pfs = node.hardware.pfs if node.hardware is not None else ()
    if ref.pf >= len(pfs) or int(ref.vf) >= pfs[ref.pf].vfs:
        raise RenderError(stale(node.name, f"VF {int(ref.vf)} of PF {ref.pf} of {node.name} is gone"))
    pf = pfs[ref.pf]
    if not pf.link_up:
        raise RenderError(
            Reason(
                code=ReasonCode.VF_GROUPS_EXHAUSTED,
                text=f"{node.name} rail {int(pf.rail)} ({pf.pci}): link is down",
                node=node.name,
                lacks=(Lack.VF,),
            )
        )
    return pf


def _attachment(node: NodeState, pf: Pf) -> Attachment:
    for attachment in node.fabric.attachments if node.fabric is not None else ():
        if attachment.rail == pf.rail:
            return attachment
    raise RenderError(_fabric(node, f"{node.name} has no fabric port on rail {int(pf.rail)}"))


def _fabric(node: NodeState, text: str) -> Reason:
    return Reason(code=ReasonCode.FABRIC_UNKNOWN, text=text, node=node.name, lacks=(Lack.FABRIC,))
