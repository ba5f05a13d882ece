"""Lasting slots and ordinals: given once, kept when files are read in another order and when cables move.

A slot is a node's index on a (leaf, rail); addresses follow from it. A node that is moved keeps the slot it leaves
as a former one: it gets it back when it returns, and nobody else does while the node has anything claimed. Slots never
given are used before former ones.

Not here: how many slots a subnet has (plan.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from railweave.contracts.fabric import Attachment
from railweave.contracts.types import NodeName, Slot, build
from railweave.topology.model import Graph, LeafRail, NodePort

IsClaimed = Callable[[NodeName], bool]
"""Whether a node holds any VF, or may: its addresses are in use."""

UNLIMITED = Slot.MAXIMUM + 1


@dataclass(frozen=True, slots=True)
class NodeSlots:
    """A node's number, where it hangs with which slots, and where it hung before."""

    ordinal: int
    attachments: tuple[Attachment, ...] = ()
    former: tuple[Attachment, ...] = ()

    def everywhere(self) -> Iterable[Attachment]:
        """All slots that are this node's."""
        yield from self.attachments
        yield from self.former


@dataclass(frozen=True, slots=True)
class Assignment:
    """Slots and ordinals of all nodes there ever were."""

    nodes: Mapping[NodeName, NodeSlots] = field(default_factory=dict)

    def highest(self, is_claimed: IsClaimed) -> dict[LeafRail, int]:
        """The highest slot of each (leaf, rail) that is, or may be, in use."""
        found: dict[LeafRail, int] = {}
        for name, node in self.nodes.items():
            held = node.everywhere() if node.former and is_claimed(name) else node.attachments
            for attachment in held:
                place = LeafRail(attachment.leaf, attachment.rail)
                if int(attachment.slot) > found.get(place, -1):
                    found[place] = int(attachment.slot)
        return found

    def claimed(self, is_claimed: IsClaimed) -> set[LeafRail]:
        """Every (leaf, rail) on which an address is, or may be, in use."""
        return {
            LeafRail(attachment.leaf, attachment.rail)
            for name, node in self.nodes.items()
            if is_claimed(name)
            for attachment in node.everywhere()
        }


def assign(
    previous: Assignment, graph: Graph, *, capacity: Mapping[LeafRail, int], is_claimed: IsClaimed
) -> Assignment:
    """Give every compute port of `graph` its slot and every node its ordinal, keeping what `previous` says.

    Args:
        previous: as it was.
        graph: the fabric as it is.
        capacity: slots of each (leaf, rail). Past it a former slot that nothing is claimed on is used again, and where
            there is none a number past the capacity is given: the subnet has to grow.
        is_claimed: which nodes' former slots must not be touched.
    """
    ordinals = _ordinals(previous, graph, is_claimed)
    wanted: dict[NodeName, dict[LeafRail, NodePort]] = {node.name: {} for node in graph.nodes}
    for name, port in graph.compute_ports:
        wanted[name][LeafRail(port.leaf, port.rail)] = port
    owned, taken = _owned(previous, is_claimed)
    current = {
        name: {place: owned[name][place] for place in ports if place in owned.get(name, ())}
        for name, ports in wanted.items()
    }
    spare = _spare(owned, current, is_claimed)
    lowest: dict[LeafRail, int] = {}
    for name, ports in wanted.items():
        for place in ports:
            if place not in current[name]:
                slot, loser = _new_slot(place, taken, lowest, spare, capacity.get(place, UNLIMITED))
                if loser is not None:
                    del owned[loser][place]
                current[name][place] = slot
    return Assignment(
        {name: _slots_of(name, ordinal, previous, wanted, current, owned) for name, ordinal in ordinals.items()}
    )


def _slots_of(
    name: NodeName,
    ordinal: int,
    previous: Assignment,
    wanted: Mapping[NodeName, Mapping[LeafRail, NodePort]],
    current: Mapping[NodeName, Mapping[LeafRail, int]],
    owned: Mapping[NodeName, Mapping[LeafRail, int]],
) -> NodeSlots:
    before = previous.nodes.get(name)
    known = {LeafRail(at.leaf, at.rail): at for at in before.everywhere()} if before is not None else {}
    ports = wanted.get(name, {})
    former = {place: slot for place, slot in owned.get(name, {}).items() if place not in ports}
    made = NodeSlots(
        ordinal,
        _attachments((place, current[name][place], port.port, known.get(place)) for place, port in ports.items()),
        _attachments((place, slot, known[place].port, known[place]) for place, slot in former.items()),
    )
    return before if before is not None and made == before else made


def _ordinals(previous: Assignment, graph: Graph, is_claimed: IsClaimed) -> dict[NodeName, int]:
    """The lasting numbers. One given twice (the record was put together wrongly) stays with one of the two."""
    ordinals: dict[NodeName, int] = {}
    taken: set[int] = set()
    again: list[NodeName] = []
    for name in sorted(previous.nodes, key=lambda name: (not is_claimed(name), name)):
        ordinal = previous.nodes[name].ordinal
        if ordinal in taken:
            again.append(name)
        else:
            taken.add(ordinal)
            ordinals[name] = ordinal
    following = max(taken, default=-1) + 1
    for name in (*again, *(node.name for node in graph.nodes if node.name not in previous.nodes)):
        ordinals[name] = following
        following += 1
    return ordinals


def _owned(
    previous: Assignment, is_claimed: IsClaimed
) -> tuple[dict[NodeName, dict[LeafRail, int]], dict[LeafRail, set[int]]]:
    """Whose each slot is, and which are given away. Of two owners the one in use keeps it."""
    owned: dict[NodeName, dict[LeafRail, int]] = {}
    taken: dict[LeafRail, set[int]] = {}
    for name in sorted(previous.nodes, key=lambda name: (not is_claimed(name), name)):
        node = previous.nodes[name]
        mine = owned[name] = {}
        for attachment in node.everywhere():
            place = LeafRail(attachment.leaf, attachment.rail)
            given = taken.setdefault(place, set())
            if int(attachment.slot) not in given and place not in mine:
                given.add(int(attachment.slot))
                mine[place] = int(attachment.slot)
    return owned, taken


def _spare(
    owned: Mapping[NodeName, Mapping[LeafRail, int]],
    current: Mapping[NodeName, Mapping[LeafRail, int]],
    is_claimed: IsClaimed,
) -> dict[LeafRail, list[tuple[int, NodeName]]]:
    """Former slots that nothing is claimed on, the lowest last."""
    spare: dict[LeafRail, list[tuple[int, NodeName]]] = {}
    for name, places in owned.items():
        left = places.keys() - current.get(name, {}).keys()
        if left and not is_claimed(name):
            for place in left:
                spare.setdefault(place, []).append((places[place], name))
    for slots in spare.values():
        slots.sort(reverse=True)
    return spare


def _new_slot(
    place: LeafRail,
    taken: dict[LeafRail, set[int]],
    lowest: dict[LeafRail, int],
    spare: dict[LeafRail, list[tuple[int, NodeName]]],
    capacity: int,
) -> tuple[int, NodeName | None]:
    """The lowest slot never given; else a former one, and whose it was; else one past the capacity."""
    given = taken.setdefault(place, set())
    slot = lowest.get(place, 0)
    while slot in given:
        slot += 1
    lowest[place] = slot
    if slot >= capacity and spare.get(place):
        return spare[place].pop()
    given.add(slot)
    return slot, None


def _attachments(rows: Iterable[tuple[LeafRail, int, str, Attachment | None]]) -> tuple[Attachment, ...]:
    # Not checked again: every value is of its strict type already, and a large fabric has 80,000 of them.
    made = [
        known
        if known is not None and known.slot == slot and known.port == port
        else build(Attachment, rail=place.rail, leaf=place.leaf, port=port, slot=Slot(slot))
        for place, slot, port, known in rows
    ]
    made.sort(key=lambda attachment: (attachment.rail, attachment.leaf))
    return tuple(made)
