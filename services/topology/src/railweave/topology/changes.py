"""A change of the fabric as it is told: named, counted, and cut into parts that each fit a message. Pure."""

from __future__ import annotations

import hashlib
from typing import Final

from railweave.contracts.fabric import FabricLeaf, LeafVlan
from railweave.contracts.query import FabricPlanAnswer, FabricRefused, LeafChange, NodeChange
from railweave.contracts.types import build
from railweave.topology.inventory import Inventory
from railweave.topology.keeper import Applied
from railweave.topology.plan import Refusal

PART_BYTES: Final = 500_000
"""Of the changes in an answer: half of what a NATS server takes by default."""


def name_of(applied: Applied) -> str:
    """The name of a change: the same for the same changes of the same records, whoever works it out."""
    said = hashlib.sha256()
    for record in (*applied.leaves, *applied.nodes):
        said.update(record.model_dump_json().encode())
    for leaf in applied.leaves:
        said.update(_revision(applied.before.leaves.get(leaf.leaf)))
    for node in applied.nodes:
        said.update(_revision(applied.before.nodes.get(node.node)))
    return said.hexdigest()[:16]


def _revision(record: object) -> bytes:
    return b"%d " % getattr(record, "revision", 0)


def counts_of(applied: Applied) -> dict[str, int]:
    """How much of each thing comes, changes and goes."""
    found = dict.fromkeys(
        (
            *("leaves_new", "leaves_changed", "nodes_new", "nodes_changed", "nodes_gone"),
            *("vlans_new", "vlans_changed", "vlans_gone"),
        ),
        0,
    )
    for leaf in applied.leaves:
        old = applied.before.leaves.get(leaf.leaf)
        found["leaves_new" if old is None else "leaves_changed"] += 1
        before, after = _vlans(old), _vlans(leaf)
        found["vlans_new"] += len(after.keys() - before.keys())
        found["vlans_gone"] += len(before.keys() - after.keys())
        found["vlans_changed"] += sum(before[key] != after[key] for key in before.keys() & after.keys())
    for node in applied.nodes:
        known = applied.before.nodes.get(node.node)
        if known is None:
            found["nodes_new"] += 1
        else:
            found["nodes_gone" if known.attachments and not node.attachments else "nodes_changed"] += 1
    return found


def _vlans(leaf: FabricLeaf | None) -> dict[tuple[int, int | None], LeafVlan]:
    return {(int(vlan.rail), vlan.segment): vlan for vlan in leaf.vlans} if leaf is not None else {}


def part_of(applied: Applied, name: str, start: int) -> FabricPlanAnswer:
    """The changes from `start` on, as many as fit; one at least, where there is one."""
    leaves: list[LeafChange] = []
    nodes: list[NodeChange] = []
    left = PART_BYTES
    for place in range(start, len(applied.leaves) + len(applied.nodes)):
        change = _change(applied, place)
        left -= len(change.model_dump_json(exclude_none=True))
        if left < 0 and (leaves or nodes):
            break
        if isinstance(change, LeafChange):
            leaves.append(change)
        else:
            nodes.append(change)
    return build(
        FabricPlanAnswer,
        plan=name,
        revision=applied.revision,
        islands=applied.islands,
        counts=counts_of(applied),
        total=len(applied.leaves) + len(applied.nodes),
        start=start,
        leaves=tuple(leaves),
        nodes=tuple(nodes),
    )


def whole_of(wanted: Inventory, islands: int) -> FabricPlanAnswer:
    """All records of a fabric as one change from nothing, in one answer."""
    nodes, leaves = tuple(wanted.nodes.values()), tuple(wanted.leaves.values())
    applied = Applied(Inventory(), wanted.revision, nodes, leaves, islands)
    return build(
        FabricPlanAnswer,
        plan=name_of(applied),
        revision=applied.revision,
        islands=islands,
        counts=counts_of(applied),
        total=len(leaves) + len(nodes),
        start=0,
        leaves=tuple(build(LeafChange, leaf=leaf.leaf, new=leaf) for leaf in leaves),
        nodes=tuple(build(NodeChange, node=node.node, new=node) for node in nodes),
    )


def _change(applied: Applied, place: int) -> LeafChange | NodeChange:
    if place < len(applied.leaves):
        leaf = applied.leaves[place]
        return build(LeafChange, leaf=leaf.leaf, old=applied.before.leaves.get(leaf.leaf), new=leaf)
    node = applied.nodes[place - len(applied.leaves)]
    return build(NodeChange, node=node.node, old=applied.before.nodes.get(node.node), new=node)


def refused(refusal: Refusal) -> FabricPlanAnswer:
    """The answer where nothing can be changed."""
    return build(
        FabricPlanAnswer,
        plan="",
        revision=0,
        islands=0,
        counts={},
        total=0,
        start=0,
        refused=build(FabricRefused, text=refusal.text, numbers=dict(refusal.numbers)),
    )
