"""Builders of fabrics for tests, and hypothesis strategies over them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping

from hypothesis import strategies as st

from railweave.contracts.types import LeafName, NodeName, Rail, VlanId
from railweave.topology.model import Graph, Leaf, Link, LinkEnd, Node, NodePort, Spine
from railweave.topology.plan import PlanConfig

Cabling = Mapping[str, Mapping[int, str]]
"""Node to rail to leaf."""


def fabric(cabling: Cabling, *, spine: str | None = "spine1") -> Graph:
    """The graph of a cabling; every leaf hangs on the one spine."""
    leaves = sorted({leaf for ports in cabling.values() for leaf in ports.values()})
    return Graph(
        leaves=tuple(Leaf(LeafName(leaf)) for leaf in leaves),
        spines=(Spine(spine),) if spine is not None else (),
        links=tuple(Link(LinkEnd(leaf), LinkEnd(spine)) for leaf in leaves) if spine is not None else (),
        nodes=tuple(node(name, ports) for name, ports in cabling.items()),
    )


def node(name: str, ports: Mapping[int, str]) -> Node:
    """A node with a port on each rail's leaf."""
    return Node(
        NodeName(name),
        tuple(NodePort(Rail(rail), LeafName(leaf), f"{name}:{rail}") for rail, leaf in ports.items()),
    )


def regular(leaves: Iterable[str], per_leaf: int, rails: int) -> Cabling:
    """All rails of a node on its leaf."""
    return {
        f"{leaf}-n{number}": dict.fromkeys(range(rails), leaf) for leaf in leaves for number in range(1, per_leaf + 1)
    }


def config(
    *pools: str,
    pools6: tuple[str, ...] = (),
    reserved: tuple[str, ...] = (),
    vlans: Iterable[int] = range(100, 200),
    reserved_vlans: Iterable[int] = (),
    vf_stride: int = 4,
    headroom_percent: int = 50,
    segments: int = 0,
) -> PlanConfig:
    """A plan's configuration, small subnets by default."""
    return PlanConfig(
        vlan_ids=tuple(VlanId(vlan) for vlan in vlans if vlan not in set(reserved_vlans)),
        pools=tuple(ipaddress.IPv4Network(pool) for pool in pools or ("10.0.0.0/12",)),
        pools6=tuple(ipaddress.IPv6Network(pool) for pool in pools6),
        reserved=tuple(ipaddress.ip_network(network) for network in reserved),
        reserved_vlans=frozenset(VlanId(vlan) for vlan in reserved_vlans),
        vf_stride=vf_stride,
        headroom_percent=headroom_percent,
        segments=segments,
    )


LEAVES = [f"leaf{number}" for number in range(4)]
NODES = [f"n{number}" for number in range(10)]


@st.composite
def cablings(draw: st.DrawFn) -> dict[str, dict[int, str]]:
    """Any cabling of up to ten nodes, three rails and four leaves."""
    names = draw(st.lists(st.sampled_from(NODES), unique=True, min_size=1))
    return {
        name: draw(st.dictionaries(st.integers(0, 2), st.sampled_from(LEAVES), min_size=1, max_size=3))
        for name in names
    }
