"""What a picture shows: the graph, the VLANs of its leaves, and what is in use of them. Pure.

Of a file it is the graph alone. Of what is stored, records say where leaves, VLANs and nodes are, and nothing of the
switches above the leaves: those come from the fabric file, where it can be read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from railweave.contracts.fabric import FabricLeaf, FabricNode
from railweave.contracts.types import LeafName, NodeName
from railweave.topology.model import Graph, GraphError, Leaf, Node, NodePort
from railweave.topology.places import Place
from railweave.topology.plan import slots_of


@dataclass(frozen=True, slots=True)
class VlanShown:
    """A VLAN of a leaf, and how much of it is used."""

    rail: int
    segment: int | None
    vlan: int
    subnet: str
    gateway: str
    used: int
    """Slots that nodes have."""
    slots: int
    is_occupied: bool
    """A job is in it."""


@dataclass(frozen=True)
class Shown:
    """A fabric to be shown."""

    graph: Graph
    vlans: Mapping[str, tuple[VlanShown, ...]] = field(default_factory=dict)
    """By leaf."""
    in_use: frozenset[str] = frozenset()
    """Nodes that jobs have addresses of."""
    places: Mapping[str, Place] = field(default_factory=dict)
    """Island and pod as stored; else the graph tells."""

    def place(self, name: str) -> Place:
        """Island and pod of a leaf or node."""
        return self.places.get(name) or self.graph.place(name)


def shown_of_records(
    leaves: Iterable[FabricLeaf],
    nodes: Iterable[FabricNode],
    *,
    claimed: frozenset[NodeName] = frozenset(),
    segments_held: Iterable[int] = (),
    members: Mapping[LeafName, Collection[int]] | None = None,
    cabled: Graph | None = None,
) -> Shown:
    """What is stored.

    Args:
        leaves, nodes: the records.
        claimed: nodes that jobs have addresses of.
        segments_held: segments that jobs are in.
        members: segments of which a leaf's driver still sees members.
        cabled: the fabric of the file; its spines and links are taken.
    """
    leaves, nodes = tuple(leaves), tuple(nodes)
    used = Counter((item.leaf, item.rail) for node in nodes for item in node.attachments)
    busy = {(item.leaf, item.rail) for node in nodes if node.node in claimed for item in node.attachments}
    held = frozenset(segments_held)
    vlans = {
        str(leaf.leaf): tuple(
            VlanShown(
                rail=int(vlan.rail),
                segment=vlan.segment,
                vlan=int(vlan.vlan),
                subnet=vlan.subnet,
                gateway=vlan.gateway,
                used=used[leaf.leaf, vlan.rail],
                slots=slots_of(vlan),
                is_occupied=(vlan.segment is not None and vlan.segment in (members or {}).get(leaf.leaf, ()))
                or ((leaf.leaf, vlan.rail) in busy and (vlan.segment is None or vlan.segment in held)),
            )
            for vlan in sorted(leaf.vlans, key=lambda vlan: (vlan.segment is not None, vlan.segment or 0, vlan.rail))
        )
        for leaf in leaves
    }
    places = {str(leaf.leaf): Place(leaf.island, leaf.pod) for leaf in leaves}
    places.update((str(node.node), Place(node.island, node.pod)) for node in nodes)
    return Shown(_graph_of(leaves, nodes, cabled), vlans, frozenset(map(str, claimed)), places)


def _graph_of(leaves: Iterable[FabricLeaf], nodes: Iterable[FabricNode], cabled: Graph | None) -> Graph:
    """The records as a graph, below the spines of the file where its names go together with them."""
    known = {leaf.leaf: Leaf(leaf.leaf, leaf.pod) for leaf in leaves}
    hung = tuple(
        Node(
            record.node,
            tuple(
                NodePort(item.rail, item.leaf, f"{record.node}:{int(item.rail)}")
                for item in record.attachments
                if item.leaf in known
            ),
        )
        for record in nodes
    )
    if cabled is not None:
        spines = {spine.name for spine in cabled.spines}
        links = tuple(
            link
            for link in cabled.links
            if all(end.switch in spines or end.switch in known for end in (link.a, link.b))
        )
        try:
            return Graph(tuple(known.values()), cabled.spines, links, hung)
        except GraphError:
            pass  # The file is of another fabric, or of a later one: what is stored is shown without it.
    return Graph(tuple(known.values()), (), (), hung)
