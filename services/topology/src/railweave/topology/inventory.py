"""The fabric's records: read what is stored, make what is wanted of a graph, and tell what differs. Pure.

The records are the only store: slots, ordinals, VLANs and subnets are read back from them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from railweave.contracts.fabric import FabricLeaf, FabricNode, LeafVlan
from railweave.contracts.types import LeafName, NodeName, build
from railweave.topology.collecting import collector_paused
from railweave.topology.model import SHARED, Graph, VlanPlace, ports_by_leaf_rail
from railweave.topology.plan import PlanConfig, Refusal, capacities, plan
from railweave.topology.slots import Assignment, IsClaimed, NodeSlots, assign


@dataclass(frozen=True, slots=True)
class Inventory:
    """All records of the fabric."""

    nodes: Mapping[NodeName, FabricNode] = field(default_factory=dict)
    leaves: Mapping[LeafName, FabricLeaf] = field(default_factory=dict)

    @property
    def revision(self) -> int:
        """The highest revision of any record, 0 where there is none."""
        return max((record.revision for records in (self.nodes, self.leaves) for record in records.values()), default=0)

    def assignment(self) -> Assignment:
        """The slots and ordinals that the records tell."""
        return Assignment(
            {name: NodeSlots(node.ordinal, node.attachments, node.former) for name, node in self.nodes.items()}
        )

    def vlans(self) -> dict[VlanPlace, LeafVlan]:
        """Every VLAN of every leaf."""
        return {
            VlanPlace(leaf.leaf, vlan.rail, SHARED if vlan.segment is None else vlan.segment): vlan
            for leaf in self.leaves.values()
            for vlan in leaf.vlans
        }

    def newest_of(self, other: Inventory) -> Inventory:
        """Record by record the one of the higher revision; `other`'s where they are equal."""
        nodes, leaves = dict(self.nodes), dict(self.leaves)
        for name, node in other.nodes.items():
            if name not in nodes or node.revision >= nodes[name].revision:
                nodes[name] = node
        for leaf_name, leaf in other.leaves.items():
            if leaf_name not in leaves or leaf.revision >= leaves[leaf_name].revision:
                leaves[leaf_name] = leaf
        return Inventory(nodes, leaves)


def replan(
    known: Inventory,
    graph: Graph,
    config: PlanConfig,
    is_claimed: IsClaimed,
    *,
    segments_in_use: Collection[int] = (),
    revision: int | None = None,
) -> Inventory | Refusal:
    """Make the records of a graph, keeping what was given.

    Args:
        known: what was given.
        graph: the fabric as it is.
        config: what new VLANs are made of.
        is_claimed: which nodes' addresses are in use.
        segments_in_use: segments that jobs are in; the VLANs of others go when they are no longer wanted.
        revision: of the records that change; by default the next one.

    Returns:
        All records, those that do not change as they were; or why there is none.
    """
    with collector_paused():
        return _replan(known, graph, config, is_claimed, segments_in_use, revision)


def _replan(
    known: Inventory,
    graph: Graph,
    config: PlanConfig,
    is_claimed: IsClaimed,
    segments_in_use: Collection[int],
    revision: int | None,
) -> Inventory | Refusal:
    before = known.assignment()
    vlans_before = known.vlans()
    ports = {place: len(names) for place, names in ports_by_leaf_rail(graph).items()}
    slots = assign(before, graph, capacity=capacities(vlans_before, ports, config), is_claimed=is_claimed)
    in_use = (SHARED, *segments_in_use)
    claimed = {VlanPlace(*place, segment) for place in before.claimed(is_claimed) for segment in in_use}
    vlans = plan(vlans_before, ports, slots.highest(is_claimed), claimed, config)
    if isinstance(vlans, Refusal):
        return vlans
    following = known.revision + 1 if revision is None else revision
    return Inventory(
        {name: _node(name, node, graph, known.nodes.get(name), following) for name, node in slots.nodes.items()},
        _leaves(graph, known, vlans, following),
    )


def difference(stored: Inventory, wanted: Inventory) -> list[FabricNode | FabricLeaf]:
    """The records to write, in an order in which every step makes sense.

    First the leaves that carry something, then the nodes that hang on them, last the leaves that carry nothing.
    """
    nodes = [node for name, node in wanted.nodes.items() if stored.nodes.get(name) != node]
    leaves = [leaf for name, leaf in wanted.leaves.items() if stored.leaves.get(name) != leaf]
    return [*(leaf for leaf in leaves if leaf.vlans), *nodes, *(leaf for leaf in leaves if not leaf.vlans)]


def _node(name: NodeName, slots: NodeSlots, graph: Graph, known: FabricNode | None, revision: int) -> FabricNode:
    """The record of a node; one that is not in the graph hangs nowhere and keeps its number and slots."""
    place = graph.find_place(name)
    # Not checked again: every value is of its strict type already.
    made = build(
        FabricNode,
        node=name,
        revision=known.revision if known is not None else revision,
        ordinal=slots.ordinal,
        island=place.island if place is not None else known.island if known is not None else name,
        pod=place.pod if place is not None else known.pod if known is not None else name,
        attachments=slots.attachments,
        former=slots.former,
    )
    if known is None or made == known:
        return known or made
    return made.model_copy(update={"revision": revision})


def _leaves(
    graph: Graph, known: Inventory, vlans: Mapping[VlanPlace, LeafVlan], revision: int
) -> dict[LeafName, FabricLeaf]:
    carried: dict[LeafName, list[LeafVlan]] = {}
    for place in sorted(vlans):
        carried.setdefault(place.leaf, []).append(vlans[place])
    names: Iterable[LeafName] = sorted({leaf.name for leaf in graph.leaves} | known.leaves.keys() | carried.keys())
    return {name: _leaf(name, tuple(carried.get(name, ())), graph, known.leaves.get(name), revision) for name in names}


def _leaf(
    name: LeafName, vlans: tuple[LeafVlan, ...], graph: Graph, known: FabricLeaf | None, revision: int
) -> FabricLeaf:
    place = graph.find_place(name)
    made = FabricLeaf(
        leaf=name,
        revision=known.revision if known is not None else revision,
        island=place.island if place is not None else known.island if known is not None else name,
        pod=place.pod if place is not None else known.pod if known is not None else name,
        vlans=vlans,
    )
    if known is None or made == known:
        return known or made
    return made.model_copy(update={"revision": revision})
