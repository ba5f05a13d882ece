"""What is: reads the node, its leaves and one worker's namespace into an `Observed`. Changes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from railweave.node_agent.network.model import Observed, VfState, VfWant, WorkerState
from railweave.node_agent.network.routes import IPV6_SETTINGS
from railweave.node_agent.network.session import Session
from railweave.runtime.netlink import Link, Namespace, NetnsGone, NetnsRef, family_of, vlan_bridge_name

__all__ = ["observe"]


def observe(session: Session, wants: Sequence[VfWant], worker: NetnsRef | None) -> Observed:
    """The state of the wanted VFs, their ends on the leaves, and what they have in the worker's namespace.

    Raises:
        NetnsGone: the node's own namespace or a leaf is gone (that a worker's is, is a finding: `worker_gone`).
        KernelError: the kernel refused to show something.
    """
    node = session.node()
    node_links = session.marked(node)
    inside: Namespace | None = None
    gone = False
    if worker is not None:
        try:
            inside = session.worker(worker)
        except NetnsGone:
            gone = True
    inside_links = session.marked(inside) if inside is not None else {}
    by_rail: dict[int, list[VfWant]] = defaultdict(list)
    for want in wants:
        if session.ports.port(want.rail) is not None:
            by_rail[want.rail].append(want)
    states: dict[str, VfState] = {}
    vlan_mtus: dict[tuple[int, int], int] = {}
    for rail, of_rail in by_rail.items():
        far_ends, mtus = _leaf_side(session, rail, of_rail)
        vlan_mtus |= {(rail, vlan): mtu for vlan, mtu in mtus.items()}
        for want in of_rail:
            base = far_ends[want.key]
            if want.key in inside_links:
                states[want.key] = _with_near(base, "worker", inside_links[want.key])
            elif want.key in node_links:
                states[want.key] = _with_near(base, "node", node_links[want.key])
            else:
                states[want.key] = base
    worker_state = None
    if inside is not None:
        worker_state = _worker_state(inside, session.links(inside), inside_links)
        states = {key: _with_ipv6(state, inside, worker_state) for key, state in states.items()}
    names = frozenset(link.name for link in session.links(node))
    return Observed(states, vlan_mtus, names, worker_state, gone)


def _with_near(base: VfState, where: Literal["node", "worker"], link: Link) -> VfState:
    return replace(
        base,
        where=where,
        name=link.name,
        index=link.index,
        mac=link.mac,
        mtu=link.mtu,
        up=link.up,
        carrier=link.carrier,
        settings=link.ipv4,
    )


def _leaf_side(session: Session, rail: int, wants: Iterable[VfWant]) -> tuple[dict[str, VfState], dict[int, int]]:
    leaf = session.leaf(rail)
    far_names = {want.key: session.far_name(want.key) for want in wants}
    bridges = {vlan_bridge_name(want.vlan): want.vlan for want in wants}
    links = leaf.links_named([*far_names.values(), *bridges])
    vlan_of = {links[name].index: vlan for name, vlan in bridges.items() if name in links}
    mtus = {vlan: links[name].mtu for name, vlan in bridges.items() if name in links}
    masters = {links[name].master for name in far_names.values() if name in links} - {0} - vlan_of.keys()
    if masters:
        # On a VLAN that nobody asked about, or a bridge that is none of ours: the whole list is needed to name it.
        for link in leaf.links():
            suffix = link.name.removeprefix("br")
            if link.index in masters and suffix.isdigit():
                vlan_of[link.index] = int(suffix)
    states: dict[str, VfState] = {}
    for key, name in far_names.items():
        far = links.get(name)
        if far is None:
            states[key] = VfState(key, "missing")
        else:
            states[key] = VfState(key, "out", vlan=vlan_of.get(far.master), port_mtu=far.mtu, port_up=far.up)
    return states, mtus


def _worker_state(inside: Namespace, links: list[Link], ours: dict[str, Link]) -> WorkerState:
    key_of = {link.index: key for key, link in ours.items()}
    names = {link.name: key_of.get(link.index, "") for link in links}
    addresses: dict[str, set[str]] = defaultdict(set)
    for address in inside.addresses():
        if address.index in key_of:
            addresses[key_of[address.index]].add(address.cidr)
    return WorkerState(
        inside.ref,
        names,
        {key: frozenset(found) for key, found in addresses.items()},
        tuple(inside.routes()),
        tuple(inside.rules()),
    )


def _with_ipv6(state: VfState, inside: Namespace, worker: WorkerState) -> VfState:
    """IPv6 settings are files, one read each: only for those who have such an address."""
    if state.where != "worker" or not any(family_of(a) == 6 for a in worker.addresses.get(state.key, ())):
        return state
    values = {f"ipv6/{name}": int(inside.sysctl(f"ipv6/conf/{state.name}/{name}")) for name in IPV6_SETTINGS}
    return replace(state, settings={**state.settings, **values})
