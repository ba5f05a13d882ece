"""Where everything goes: spines on top, leaves, hosts below; islands side by side. Pure.

An island that is not too wide is fanned out: every cable is a line of its own in the band between two rows. A wider one
is a grid of blocks in frames, with a bus that leads from the spines down between the columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import sqrt
from typing import Final

from railweave.topology.model import Role
from railweave.topology.picture.blocks import Words, card_box, leaf_box, pod_box, spine_box, worded
from railweave.topology.picture.legend import legend_of
from railweave.topology.picture.scene import Cable, Card, Detail, Island, Scene, SpineDrawn, Unit
from railweave.topology.picture.sheet import ARC, Box, Kind, Label, Line, Point, Sheet, Tie, tied
from railweave.topology.picture.text import clean, counted, elided, listed, rails_in_words

EDGE: Final = 24.0
_GAP: Final = 18.0
_BETWEEN_PODS: Final = 40.0
_FRAME: Final = 12.0
_FRAME_FOOT: Final = 24.0
_WIDEST_FAN: Final = 3000.0
_GUTTER: Final = 34.0
_BUS: Final = 22.0
_MOST_WIRES: Final = 256
_MOST_ABREAST: Final = 16
"""Lines of a card to one leaf."""
_ASPECT: Final = 1.7
_GRID_ASPECT: Final = 2.4
"""Wider: the spines come on top."""
_SPINE_GAP: Final = 24.0


def lay_out(scene: Scene) -> Sheet:
    """The whole picture."""
    islands = [_island(island, scene) for island in scene.islands]
    if scene.left_out:
        names = listed(scene.left_out)
        text = counted(len(scene.left_out), "more island")
        islands.append(worded("left-out", Kind.NOTE, [Words(text, 12, True, False), Words(names)], f"{text}: {names}"))
    if not islands:
        islands.append(worded("empty", Kind.NOTE, [Words("nothing in it", 12, True, False)], "an empty fabric"))
    widest = max(island.width for island in islands)
    area = sum((island.width + _GAP) * (island.height + _GAP) for island in islands)
    body = _shelved(islands, max(widest, sqrt(area * _ASPECT)))
    head = legend_of(scene, max(body.width, 560.0))
    sheet = Sheet()
    sheet.put(head, EDGE, EDGE)
    sheet.put(body, EDGE + max(0.0, (head.width - body.width) / 2), EDGE + head.height + 20)
    sheet.width, sheet.height = sheet.width + EDGE, sheet.height + EDGE
    return sheet


def _shelved(sheets: Sequence[Sheet], width: float) -> Sheet:
    """Side by side, in several rows where they are wider than that together."""
    whole = Sheet()
    x = y = height = 0.0
    for sheet in sheets:
        if x and x + sheet.width > width + 0.5:
            x, y, height = 0.0, y + height + _GAP, 0.0
        whole.put(sheet, x, y)
        x, height = x + sheet.width + _GAP, max(height, sheet.height)
    return whole


def _island(island: Island, scene: Scene) -> Sheet:
    if island.loose:
        names = listed([node.name for node in island.loose])
        lines = [Words(f"{counted(len(island.loose), 'node')} without a link", 12, True, False), Words(names)]
        return worded(f"{island.key}loose", Kind.NOTE, lines, f"no link: {names}")
    rows = [[(spine, spine_box(spine)) for spine in tier] for tier in island.tiers]
    blocks = [_Block(pod.key, pod.names[0], pod_box(pod, scene.shown)) for pod in island.pods]
    blocks += _unit_blocks(island, scene)
    width = sum(block.sheet.width + _GAP for block in blocks)
    if scene.detail is Detail.PODS or width > _WIDEST_FAN:
        inside = _gridded(island, blocks, rows)
    else:
        inside = _fanned(island, blocks, rows)
    return inside if len(scene.islands) + len(scene.left_out) == 1 else _framed_island(island, inside)


def _framed_island(island: Island, inside: Sheet) -> Sheet:
    name = clean(f"island {island.name}" if island.name else "switches that lead to no leaf")
    sheet = Sheet()
    width, height = max(inside.width, 120.0) + 2 * EDGE, inside.height + 2 * EDGE + 18
    sheet.add(Box(island.key, Kind.ISLAND, 0, 0, width, height, name))
    sheet.labels.append(Label(island.key, width / 2, 22, elided(name, width - 24, 12, is_bold=True), 12, is_bold=True))
    sheet.put(inside, (width - inside.width) / 2, EDGE + 18)
    return sheet


@dataclass(frozen=True, slots=True)
class _Block:
    """What stands below the spines: a unit, or a pod, which is the first box of its sheet."""

    key: str
    pod: str
    sheet: Sheet
    leaves: tuple[str, ...] = ()
    """Keys of the leaves in it."""
    ties: tuple[Tie, ...] = ()
    """The rails of its hosts, to leaves in it and to others."""

    @property
    def inner(self) -> list[Tie]:
        """Those to leaves in it."""
        return [tie for tie in self.ties if tie.a in self.leaves]


def _unit_blocks(island: Island, scene: Scene) -> list[_Block]:
    """The units, with leaves of one height, so that what is below them begins at one height too."""
    parts = [(unit, [leaf_box(leaf) for leaf in unit.leaves]) for unit in island.units]
    keys = {leaf.name: leaf.key for unit in island.units for leaf in unit.leaves}
    tall = max((sheet.height for _, leaves in parts for sheet in leaves), default=0.0)
    wires = max((len(unit.leaves) * len(unit.cards) for unit in island.units), default=1)
    band = 46.0 if wires == 1 else min(150.0, 70.0 + 7 * wires)
    return [_unit(unit, leaves, scene, (tall, band), keys) for unit, leaves in parts]


def _unit(
    unit: Unit, leaves: Sequence[Sheet], scene: Scene, heights: tuple[float, float], keys: Mapping[str, str]
) -> _Block:
    """Leaves in a row, and their hosts below, those on the first leaves first."""
    tall, band = heights
    order = {leaf.name: number for number, leaf in enumerate(unit.leaves)}

    def middle(card: Card) -> float:
        found = [order[wire.leaf] for wire in card.wires if wire.leaf in order]
        return sum(found) / len(found) if found else 0.0

    room = sum(sheet.width + _GAP for sheet in leaves) / max(1, len(unit.cards))
    cards = [card_box(card, scene.shown, scene.detail, max(room, 150.0)) for card in sorted(unit.cards, key=middle)]
    rows = ((leaves, 0.0), (cards, tall + band))
    widths = [sum(part.width + _GAP for part in row) - _GAP for row, _ in rows]
    whole = max(*widths, 0.0)
    sheet = Sheet()
    for (row, y), width in zip(rows, widths, strict=True):
        # A row that is narrower than the other is spread a little, so that lines are short.
        spread = min(30.0, (whole - width) / (len(row) - 1)) if len(row) > 1 else 0.0
        x = (whole - width - spread * (len(row) - 1)) / 2
        for part in row:
            if row is leaves:
                part.boxes[0] = replace(part.boxes[0], h=tall)
            sheet.put(part, x, y)
            x += part.width + _GAP + spread
    return _Block(unit.key, unit.pod, sheet, tuple(keys[leaf] for leaf in order), tuple(_wires(unit, keys)))


def _wires(unit: Unit, keys: Mapping[str, str]) -> list[Tie]:
    """A line for each rail of a card; for each leaf where they would be too many."""
    ties: list[Tie] = []
    for card in unit.cards:
        by_leaf: dict[tuple[str, Role], list[int]] = defaultdict(list)
        for wire in card.wires:
            by_leaf[wire.leaf, wire.role].append(wire.rail)
        for (leaf, role), rails in by_leaf.items():
            if leaf not in keys:
                continue
            aside = role is not Role.COMPUTE
            what = f"{counted(len(card.nodes), 'node')} on {clean(leaf)}"
            if aside or len(rails) > _MOST_ABREAST or len(card.wires) > _MOST_WIRES:
                said = f"{role} {rails_in_words(rails)}" if aside else rails_in_words(rails)
                ties.append(Tie(keys[leaf], card.key, f"{said}: {what}", None, min(len(rails), 8), aside))
            else:
                ties += [Tie(keys[leaf], card.key, f"rail {rail}: {what}", rail) for rail in rails]
    return ties


_Row = Sequence[tuple[SpineDrawn, Sheet]]


def _fanned(island: Island, blocks: Sequence[_Block], rows: Sequence[_Row]) -> Sheet:
    """Rows from the top, every cable a line between two of them."""
    below = Sheet()
    x = 0.0
    pods = [(pod, list(group)) for pod, group in groupby(blocks, key=lambda block: block.pod)]
    is_framed = len(pods) > 1
    frame = _FRAME if is_framed else 0.0
    tall = max((block.sheet.height for block in blocks), default=0.0)
    for number, (pod, group) in enumerate(pods):
        first = x
        x += frame
        for block in group:
            below.put(block.sheet, x, frame)
            x += block.sheet.width + _GAP
        x += frame - _GAP
        if is_framed:
            key, name = f"{island.key}f{number}", clean(f"pod {pod}")
            below.add(Box(key, Kind.POD_FRAME, first, 0, x - first, tall + frame + _FRAME_FOOT, name))
            text = elided(name, x - first - 12, 10.5)
            below.labels.append(Label(key, (first + x) / 2, tall + frame + 16, text, 10.5, is_faint=True))
        x += _BETWEEN_PODS if is_framed else 0.0
    at = {box.key: box.middle for box in below.boxes}
    cables = [_tie(cable, island) for cable in island.cables]
    placed: list[list[tuple[float, Sheet]]] = []
    for tier in reversed(rows):
        placed.append(_spread(tier, at, island.cables))
        at.update((part.boxes[0].key, x + part.width / 2) for x, part in placed[-1])
    left = min((x for row in placed for x, _ in row), default=0.0)
    sheet = Sheet()
    y = 0.0
    for row in reversed(placed):
        for x, part in row:
            sheet.put(part, x - min(left, 0.0), y)
        y = sheet.height + _band(len(cables))
    sheet.put(below, -min(left, 0.0), y)
    sheet.lines += tied([*cables, *(tie for block in blocks for tie in block.ties)], sheet.boxes)
    if not any(line.is_arc and line.points[0].y < ARC for line in sheet.lines):
        return sheet
    lower = Sheet()
    lower.put(sheet, 0, ARC)
    return lower


def _band(lines: int) -> float:
    return min(190.0, 64.0 + 1.6 * lines)


def _tie(cable: Cable, island: Island) -> Tie:
    """The upper thing first."""
    level = {spine.key: -number for number, tier in enumerate(island.tiers) for spine in tier}
    low = -len(island.tiers)
    a, b = sorted(cable[:2], key=lambda key: (-level.get(key, low), key))
    return Tie(a, b, counted(cable.links, "cable"), None, cable.links)


def _spread(row: _Row, at: Mapping[str, float], cables: Sequence[Cable]) -> list[tuple[float, Sheet]]:
    """Put each spine over the middle of what is below it, as near as its neighbours let it."""
    below: dict[str, list[float]] = defaultdict(list)
    for cable in cables:
        for one, other in ((cable.a, cable.b), (cable.b, cable.a)):
            if other in at:
                below[one].append(at[other])
    middle = sum(at.values()) / len(at) if at else 0.0
    wanted = [(sum(found) / len(found) if (found := below[spine.key]) else middle, part) for spine, part in row]
    wanted.sort(key=lambda entry: entry[0])
    # Those that want the same place share it out around it: merge neighbours that overlap until none do.
    groups: list[tuple[float, list[tuple[float, Sheet]]]] = []
    for entry in wanted:
        groups.append((entry[0], [entry]))
        while len(groups) > 1 and _left(groups[-2]) + _wide(groups[-2]) + _SPINE_GAP > _left(groups[-1]):
            last, before = groups.pop(), groups.pop()
            both = before[1] + last[1]
            groups.append((sum(x for x, _ in both) / len(both), both))
    placed = []
    for group in groups:
        x = _left(group)
        for _, part in group[1]:
            placed.append((x, part))
            x += part.width + _SPINE_GAP
    return placed


_Group = tuple[float, list[tuple[float, Sheet]]]


def _wide(group: _Group) -> float:
    return sum(part.width + _SPINE_GAP for _, part in group[1]) - _SPINE_GAP


def _left(group: _Group) -> float:
    return group[0] - _wide(group) / 2


def _gridded(island: Island, blocks: Sequence[_Block], rows: Sequence[_Row]) -> Sheet:
    """Blocks in columns of one width; a bus from the spines leads down the gutter to the left of each column."""
    has_pods = len({block.pod for block in blocks}) > 1
    wide = max((block.sheet.width for block in blocks), default=0.0)
    framed = [_in_frame(block, wide, has_name=has_pods) for block in blocks]
    wide = max((sheet.width for sheet in framed), default=0.0)
    columns = _columns([sheet.height for sheet in framed], wide)
    grid_w = columns * (wide + _GUTTER) - _GUTTER / 2
    top_w = max([grid_w, *(sum(part.width + _SPINE_GAP for _, part in row) - _SPINE_GAP for row in rows)])
    sheet = Sheet()
    buses: dict[str, float] = {}
    y = 0.0
    for row in rows:
        x = (top_w + _SPINE_GAP - sum(part.width + _SPINE_GAP for _, part in row)) / 2
        for _, part in row:
            sheet.put(part, x, y)
            x += part.width + _SPINE_GAP
        buses.update((spine.key, sheet.height + _BUS) for spine, _ in row)
        y = sheet.height + 64.0
    where: dict[str, tuple[float, Box]] = {}
    for first in range(0, len(framed), columns):
        for column, part in enumerate(framed[first : first + columns]):
            x = (top_w - grid_w) / 2 + column * (wide + _GUTTER) + _GUTTER / 2
            sheet.put(part, x, y)
            at = (x - _GUTTER / 2, replace(part.boxes[0], x=x, y=y))
            where.update(dict.fromkeys((part.boxes[0].key, *blocks[first + column].leaves), at))
        y = sheet.height + _GAP
    sheet.lines += _bus(island.cables, buses, where, sheet.boxes)
    between = [cable for cable in island.cables if cable.a in buses and cable.b in buses]
    sheet.lines += tied([_tie(cable, island) for cable in between], sheet.boxes)
    sheet.width = max(sheet.width, top_w)
    return sheet


def _columns(heights: Sequence[float], wide: float) -> int:
    """How many columns make a grid of a pleasing shape, with the fewest empty places in its last row."""
    if not heights:
        return 1
    area = sum((wide + _GUTTER) * (height + _GAP) for height in heights)
    about = round(sqrt(area * _GRID_ASPECT) / (wide + _GUTTER))
    choices = [count for count in (about, about + 1, about - 1) if 1 <= count <= len(heights)]
    return min(choices, key=lambda count: -len(heights) % count) if choices else len(heights)


def _in_frame(block: _Block, wide: float, *, has_name: bool) -> Sheet:
    if block.sheet.boxes[0].key == block.key:
        return block.sheet
    sheet = Sheet()
    name = clean(f"pod {block.pod}")
    width = wide + 2 * _FRAME
    height = block.sheet.height + _FRAME + (_FRAME_FOOT if has_name else _FRAME)
    sheet.add(Box(block.key, Kind.POD_FRAME, 0, 0, width, height, name))
    if has_name:
        text = elided(name, width - 12, 10.5)
        sheet.labels.append(Label(block.key, width / 2, height - 8, text, 10.5, is_faint=True))
    sheet.put(block.sheet, (width - block.sheet.width) / 2, _FRAME)
    sheet.lines += tied(block.inner, sheet.boxes)
    return sheet


def _bus(
    cables: Sequence[Cable], buses: Mapping[str, float], where: Mapping[str, tuple[float, Box]], boxes: Sequence[Box]
) -> list[Line]:
    """From under each spine along the bus, down the gutter, and into the left side of the block."""
    at = {box.key: box for box in boxes if box.key in buses}
    links: dict[tuple[str, str], int] = defaultdict(int)
    for cable in cables:
        spine, below = (cable.a, cable.b) if cable.a in buses else (cable.b, cable.a)
        if spine in buses and below in where:
            links[spine, where[below][1].key] += cable.links
    gutters = {box.key: (x, box) for x, box in where.values()}
    lines = []
    for (spine, block), count in links.items():
        x, box = gutters[block]
        start = Point(at[spine].middle, at[spine].y + at[spine].h)
        turn, into = buses[spine], box.y + min(24.0, box.h / 2)
        points = (start, Point(start.x, turn), Point(x, turn), Point(x, into), Point(box.x, into))
        lines.append(Line(spine, block, points, counted(count, "cable"), None, count))
    return lines
