"""From the records to the software fabric of one machine: what the Linux driver is asked to make. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping

from railweave.contracts.fabric import FabricLeaf, LeafVlan
from railweave.contracts.types import LeafName
from railweave.topology.linux_fabric import FabricPlan, SoftwareLeaf, SoftwareSpine, SoftwareVlan, mesh_links
from railweave.topology.model import Graph

_LINKS6 = "fd00:6c69:6e6b::/112"


def software_fabric(run: str, leaves: Mapping[LeafName, FabricLeaf], graph: Graph) -> FabricPlan:
    """The software fabric of the stored leaves.

    Between leaves it has one tier: each leaf is cabled to every switch of the highest tier that it reaches. It routes
    between the same leaves as the tiers in between do.
    """
    carried = [leaf for name, leaf in sorted(leaves.items()) if leaf.vlans]
    names = [str(leaf.leaf) for leaf in carried]
    above = _tops(graph)
    spines = sorted({spine for name in names for spine in above.get(name, ())})
    has_ipv6 = any(vlan.subnet6 is not None for leaf in carried for vlan in leaf.vlans)
    links = mesh_links(names, spines, pool6=_LINKS6 if has_ipv6 else None) if spines else ()
    return FabricPlan(
        run,
        tuple(SoftwareLeaf(str(leaf.leaf), tuple(_vlan(vlan) for vlan in leaf.vlans)) for leaf in carried),
        tuple(SoftwareSpine(spine) for spine in spines),
        tuple(link for link in links if link.spine in above.get(link.leaf, ())),
    )


def _vlan(vlan: LeafVlan) -> SoftwareVlan:
    return SoftwareVlan(
        int(vlan.vlan),
        _gateway(vlan.subnet, vlan.gateway),
        _gateway(vlan.subnet6, vlan.gateway6) if vlan.subnet6 is not None and vlan.gateway6 is not None else None,
        vlan.mtu,
        vlan.segment,
    )


def _gateway(subnet: str, gateway: str) -> str:
    return f"{gateway}/{ipaddress.ip_network(subnet).prefixlen}"


def _tops(graph: Graph) -> dict[str, set[str]]:
    """The switches of the highest tier that each leaf reaches, going up."""
    tiers = {spine.name: spine.tier for spine in graph.spines}
    up: dict[str, set[str]] = {}
    for link in graph.links:
        for end, other in ((link.a.switch, link.b.switch), (link.b.switch, link.a.switch)):
            if tiers.get(other, 1) > tiers.get(end, 1):
                up.setdefault(end, set()).add(other)
    return {str(leaf.name): _highest(_reached(str(leaf.name), up), tiers) for leaf in graph.leaves}


def _reached(start: str, up: Mapping[str, Iterable[str]]) -> set[str]:
    reached: set[str] = set()
    following = [start]
    while following:
        for above in up.get(following.pop(), ()):
            if above not in reached:
                reached.add(above)
                following.append(above)
    return reached


def _highest(switches: Iterable[str], tiers: Mapping[str, int]) -> set[str]:
    known = list(switches)
    top = max((tiers[name] for name in known), default=0)
    return {name for name in known if tiers[name] == top}
