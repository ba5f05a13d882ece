"""The fabric for Graphviz: a rank for each tier, a cluster for each pod, edges in the colours of their rails. Pure.

Up to 128 nodes every host is in it, beyond that the hosts of a leaf are one. `dot -Tsvg` draws it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from railweave.topology.model import Role
from railweave.topology.picture.colours import colour_of, stroke_of
from railweave.topology.picture.legend import in_numbers
from railweave.topology.picture.scene import Card, Detail, Island, LeafDrawn, Scene, Unit, scene_of
from railweave.topology.picture.shown import Shown
from railweave.topology.picture.text import clean, counted, listed, rails_in_words

MOST_HOSTS: Final = 128
_MOST_ABREAST: Final = 16
_LONGEST: Final = 60
_STYLES: Final = {"": "solid", "7 3": "dashed", "2 3": "dotted", "9 3 2 3": "dashed"}


def dot_of(shown: Shown) -> str:
    """The fabric in the DOT language."""
    detail = Detail.HOSTS if len(shown.graph.nodes) <= MOST_HOSTS else Detail.LEAVES
    return "\n".join(_lines(scene_of(shown, detail))) + "\n"


def quoted(text: str) -> str:
    """A DOT string that is drawn as the text: in labels Graphviz reads backslashes, and `&amp;` as a character."""
    made = clean(text).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{made}"'


def _lines(scene: Scene) -> Iterator[str]:
    yield "graph fabric {"
    yield f"  graph [label={quoted(in_numbers(scene))}, labelloc=t, ranksep=1.2, newrank=true, fontname=Helvetica]"
    yield "  node [shape=box, style=rounded, fontname=Helvetica, fontsize=11]"
    yield "  edge [color=gray50]"
    for number, island in enumerate(scene.islands):
        yield from _island(island, number, scene)
    if scene.left_out:
        yield f"  left_out [label={_label(counted(len(scene.left_out), 'more island'), listed(scene.left_out))}]"
    yield "}"


def _island(island: Island, number: int, scene: Scene) -> Iterator[str]:
    for node in island.loose:
        yield f"  {quoted(node.name)}"
    for tier in island.tiers:
        yield "  {"
        yield "    rank=same"
        for spine in tier:
            label = spine.names[0] if len(spine.names) == 1 else counted(len(spine.names), "switch", "switches")
            rest = listed(spine.names) if len(spine.names) > 1 else ""
            yield f'    {spine.key} [label={_label(label, rest)}, style="rounded,filled", fillcolor=gray85]'
        yield "  }"
    pods: dict[str, list[Unit]] = defaultdict(list)
    for unit in island.units:
        pods[unit.pod].append(unit)
    for place, (pod, units) in enumerate(pods.items()):
        yield f"  subgraph cluster_{number}_{place} {{"
        yield f"    graph [label={quoted(f'pod {pod}')}, color=gray70]"
        for leaf in (leaf for unit in units for leaf in unit.leaves):
            yield f'    {leaf.key} [label={_label(leaf.name, _vlans(leaf))}, style="rounded,bold"]'
        for card in (card for unit in units for card in unit.cards):
            yield from (f"    {line}" for line in _hosts(card, scene))
        yield "  }"
    leaves = [leaf.key for unit in island.units for leaf in unit.leaves]
    if leaves:
        yield f"  {{ rank=same; {'; '.join(leaves)} }}"
    level = {spine.key: rank for rank, tier in enumerate(island.tiers) for spine in tier}
    for cable in island.cables:
        # The upper end first: Graphviz puts it above.
        upper, lower = sorted(cable[:2], key=lambda key: (level.get(key, len(level)), key))
        flat = ", constraint=false" if level.get(upper) == level.get(lower) else ""
        yield f"  {upper} -- {lower} [penwidth={1 + min(cable.links - 1, 8) * 0.25:g}{flat}]"
    keys = {leaf.name: leaf.key for unit in island.units for leaf in unit.leaves}
    for unit in island.units:
        for card in unit.cards:
            yield from (f"  {line}" for line in _wires(card, keys, scene))


def _vlans(leaf: LeafDrawn) -> str:
    shared = [vlan for vlan in leaf.vlans if vlan.segment is None]
    if not shared:
        return counted(len(leaf.nodes), "node")
    busy = sum(vlan.is_occupied for vlan in leaf.vlans)
    ids = ", ".join(str(vlan.vlan) for vlan in shared[:_MOST_ABREAST])
    return f"VLANs {ids}{', ...' if len(shared) > _MOST_ABREAST else ''}; {busy} of {len(leaf.vlans)} in use"


def _label(head: str, rest: str) -> str:
    """Two lines; the second is cut where it is long, and told whole by the tooltip."""
    if not rest:
        return quoted(head)
    short = rest if len(rest) <= _LONGEST else f"{rest[: _LONGEST - 3]}..."
    tip = f", tooltip={quoted(rest)}" if short != rest else ""
    return f"{quoted(head)[:-1]}\\n{quoted(short)[1:]}{tip}"


def _hosts(card: Card, scene: Scene) -> Iterator[str]:
    if scene.detail is Detail.HOSTS:
        for number, node in enumerate(card.nodes):
            filled = ', style="rounded,filled", fillcolor="#d9e8f6"' if node.name in scene.shown.in_use else ""
            yield f"{card.key}h{number} [label={quoted(node.name)}{filled}]"
        return
    rails = rails_in_words(wire.rail for wire in card.wires if wire.role is Role.COMPUTE)
    head = f"{counted(len(card.nodes), 'node')}, {rails}"
    yield f"{card.key} [label={_label(head, listed([node.name for node in card.nodes]))}]"


def _wires(card: Card, keys: dict[str, str], scene: Scene) -> Iterator[str]:
    """The edges from leaves to hosts; of each host its own, since hosts in one card need not all be cabled alike."""
    if scene.detail is not Detail.HOSTS:
        yield from _edges(card.key, [(wire.leaf, wire.role, wire.rail) for wire in card.wires], keys)
        return
    for number, node in enumerate(card.nodes):
        ports = [(str(port.leaf), port.role, int(port.rail)) for port in node.ports]
        yield from _edges(f"{card.key}h{number}", ports, keys)


def _edges(lower: str, wires: Iterable[tuple[str, Role, int]], keys: dict[str, str]) -> Iterator[str]:
    by_leaf: dict[str, list[tuple[Role, int]]] = defaultdict(list)
    for leaf, role, rail in wires:
        if leaf in keys:
            by_leaf[leaf].append((role, rail))
    for leaf, found in by_leaf.items():
        edge = f"{keys[leaf]} -- {lower}"
        if len(found) > _MOST_ABREAST:
            yield f"{edge} [penwidth=3, tooltip={quoted(counted(len(found), 'rail'))}]"
            continue
        for role, rail in found:
            if role is Role.COMPUTE:
                style = _STYLES[stroke_of(rail)]
                yield f'{edge} [color="{colour_of(rail)}", style={style}, tooltip="rail {rail}"]'
            else:
                yield f'{edge} [style=dashed, tooltip="{role} rail {rail}"]'
