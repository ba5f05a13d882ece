"""The insides of what is drawn: a spine, a leaf with its VLANs, a card of hosts, a pod with a cell for each leaf. Pure.

Each is a sheet of its own that begins at 0, 0; its first box is the thing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from railweave.topology.model import Node, Role
from railweave.topology.picture.scene import Card, Detail, LeafDrawn, Pod, SpineDrawn
from railweave.topology.picture.sheet import Box, Kind, Label, Sheet
from railweave.topology.picture.shown import Shown, VlanShown
from railweave.topology.picture.text import clean, counted, elided, listed, rails_in_words, width_of

PAD: Final = 10.0
_WIDEST: Final = 170.0
_BADGE_W, _BADGE_H, _BADGE_GAP = 32.0, 15.0, 4.0
_MOST_BADGES: Final = 32
_MOST_TICKS: Final = 16
_MOST_CELLS: Final = 2000
_HOST_H, _HOST_GAP, _HOST_SIZE = 20.0, 4.0, 10.5
_TICK_W, _TICK_GAP = 4.0, 2.0
_CELL, _CELL_GAP = 9.0, 3.0


@dataclass(frozen=True, slots=True)
class Words:
    """A line of text in a box."""

    text: str
    size: float = 10.0
    is_bold: bool = False
    is_faint: bool = True


def worded(key: str, kind: Kind, lines: Sequence[Words], title: str, *, least: float = 96.0) -> Sheet:
    """A box with lines of text, wide enough for them up to a limit."""
    lines = [Words(clean(line.text), line.size, line.is_bold, line.is_faint) for line in lines if line.text]
    wide = max((width_of(line.text, line.size, is_bold=line.is_bold) for line in lines), default=0.0)
    width = max(least, min(wide + 0.5, _WIDEST) + 2 * PAD)
    sheet = Sheet()
    y = PAD - 2
    for line in lines:
        y += line.size + 1.5
        text = elided(line.text, width - 2 * PAD, line.size, is_bold=line.is_bold)
        sheet.labels.append(Label(key, width / 2, y, text, line.size, line.is_bold, line.is_faint))
        y += 2.5
    sheet.add(Box(key, kind, 0, 0, width, y + PAD - 3, clean(title)))
    return sheet


def spine_box(spine: SpineDrawn) -> Sheet:
    """A switch above the leaves, or several."""
    if len(spine.names) == 1:
        return worded(spine.key, Kind.SPINE, [Words(spine.names[0], 12, True, False)], spine.names[0])
    names = listed(spine.names)
    lines = [Words(counted(len(spine.names), "switch", "switches"), 12, True, False), Words(names)]
    return worded(spine.key, Kind.SPINE, lines, f"{counted(len(spine.names), 'switch', 'switches')}: {names}")


def leaf_box(leaf: LeafDrawn) -> Sheet:
    """A leaf: its name, what hangs on it, a badge for each VLAN that all share, and how many segments are in use."""
    shared = [vlan for vlan in leaf.vlans if vlan.segment is None]
    segments = {vlan.segment for vlan in leaf.vlans if vlan.segment is not None}
    busy = {vlan.segment for vlan in leaf.vlans if vlan.segment is not None and vlan.is_occupied}
    has_badges = 0 < len(shared) <= _MOST_BADGES
    columns = min(len(shared), 4 if len(shared) <= 16 else 8)
    badges_w = columns * (_BADGE_W + _BADGE_GAP) - _BADGE_GAP if has_badges else 0.0
    what = counted(len(leaf.nodes), "node") + (f", {rails_in_words(leaf.rails)}" if leaf.rails else "")
    lines = [Words(leaf.name, 12, True, False), Words(what)]
    if segments:
        lines.append(Words(f"{len(busy)} of {counted(len(segments), 'segment')} in use"))
    if shared and not has_badges:
        lines.append(Words(f"{sum(vlan.is_occupied for vlan in shared)} of {len(shared)} VLANs in use"))
    sheet = worded(leaf.key, Kind.LEAF, lines, f"leaf {leaf.name}: {what}", least=max(96.0, badges_w + 2 * PAD))
    if has_badges:
        top = sheet.height
        x = (sheet.width - badges_w) / 2
        for number, vlan in enumerate(shared):
            row, column = divmod(number, columns)
            _badge(sheet, f"{leaf.key}v{number}", vlan, x + column * (_BADGE_W + _BADGE_GAP), top + row * 19.0)
        box = sheet.boxes[0]
        rows = ceil(len(shared) / columns)
        sheet.boxes[0] = Box(box.key, box.kind, 0, 0, box.w, top + rows * 19.0 + PAD - 4, box.title)
        sheet.height = sheet.boxes[0].h
    return sheet


def _badge(sheet: Sheet, key: str, vlan: VlanShown, x: float, y: float) -> None:
    state = "in use" if vlan.is_occupied else "free"
    title = f"rail {vlan.rail}: VLAN {vlan.vlan}, {vlan.subnet}, {vlan.used} of {vlan.slots} slots, {state}"
    sheet.add(Box(key, Kind.BADGE, x, y, _BADGE_W, _BADGE_H, title, vlan.rail, vlan.is_occupied))
    on = vlan.rail if vlan.is_occupied else None
    sheet.labels.append(Label(key, x + _BADGE_W / 2, y + 11, str(vlan.vlan), 9.5, is_bold=True, rail=on))


def card_box(card: Card, shown: Shown, detail: Detail, room: float) -> Sheet:
    """Hosts that are cabled alike, each on its own, or in words.

    Args:
        card: the hosts.
        shown: tells which are in use.
        detail: whether each is drawn.
        room: how wide it may get before its hosts go below each other.
    """
    names = [node.name for node in card.nodes]
    busy = sum(name in shown.in_use for name in names)
    rails = rails_in_words(wire.rail for wire in card.wires if wire.role is Role.COMPUTE)
    title = f"{counted(len(names), 'node')}, {rails}: {listed(names)}"
    if detail is Detail.HOSTS:
        return _hosts(card, shown, room, clean(title))
    use = f"{busy} in use" if busy else ""
    lines = [Words(counted(len(names), "node"), 12, True, False), Words(listed(names)), Words(rails), Words(use)]
    return worded(card.key, Kind.CARD, lines, title, least=110.0)


def _hosts(card: Card, shown: Shown, room: float, title: str) -> Sheet:
    size = _HOST_SIZE
    names = [clean(node.name) for node in card.nodes]
    wide = min(130.0, max(width_of(name, size) for name in names) + 0.5)
    most = max(len(node.ports) for node in card.nodes)
    ticks = most if most <= _MOST_TICKS else 0
    width = max(wide + 18 + (ticks * (_TICK_W + _TICK_GAP) + 4 if ticks else 0), 60.0)
    columns = max(1, min(ceil(len(names) / 4), int((room - PAD) // (width + _HOST_GAP)), 8))
    columns = max(columns, ceil(len(names) / 16))
    rows = ceil(len(names) / columns)
    columns = ceil(len(names) / rows)
    sheet = Sheet()
    inner = columns * (width + _HOST_GAP) - _HOST_GAP
    whole = max(inner + 2 * 8, 90.0)
    sheet.add(Box(card.key, Kind.CARD, 0, 0, whole, rows * (_HOST_H + _HOST_GAP) - _HOST_GAP + 16, title))
    for number, node in enumerate(card.nodes):
        column, row = divmod(number, rows)
        x, y = (whole - inner) / 2 + column * (width + _HOST_GAP), 8 + row * (_HOST_H + _HOST_GAP)
        at = Box(f"{card.key}h{number}", Kind.HOST, x, y, width, _HOST_H, is_on=node.name in shown.in_use)
        _host(sheet, node, at, wide, has_ticks=ticks > 0)
    return sheet


def _host(sheet: Sheet, node: Node, at: Box, wide: float, *, has_ticks: bool) -> None:
    key, size = at.key, _HOST_SIZE
    name = clean(node.name)
    ports = "; ".join(
        f"{'' if port.role is Role.COMPUTE else f'{port.role} '}rail {int(port.rail)} on {port.leaf}"
        for port in node.ports[:_MOST_TICKS]
    )
    title = f"{name}{': ' + clean(ports) if ports else ''}{', in use' if at.is_on else ''}"
    sheet.add(replace(at, title=title))
    text = elided(name, wide, size)
    sheet.labels.append(Label(key, at.x + 9, at.y + 14, text, size, is_start=True))
    if not has_ticks:
        return
    for number, port in enumerate(node.ports):
        x = at.x + 9 + wide + 6 + number * (_TICK_W + _TICK_GAP)
        rail = int(port.rail) if port.role is Role.COMPUTE else None
        sheet.add(Box(f"{key}t{number}", Kind.TICK, x, at.y + 5, _TICK_W, at.h - 10, rail=rail, is_on=rail is not None))


def pod_box(pod: Pod, shown: Shown) -> Sheet:
    """A pod: what is in it in words, and a cell for each leaf, filled where a job is on it."""
    nodes = list(dict.fromkeys(name for leaf in pod.leaves for name in leaf.nodes))
    leaves = [leaf.name for leaf in pod.leaves]
    vlans = [vlan for leaf in pod.leaves for vlan in leaf.vlans]
    busy = sum(name in shown.in_use for name in nodes)
    rails = rails_in_words(rail for leaf in pod.leaves for rail in leaf.rails)
    name = f"pod {pod.names[0]}" if len(pod.names) == 1 else counted(len(pod.names), "pod")
    lines = [
        Words(name, 12.5, True, False),
        Words(f"{counted(len(pod.spines), 'spine')}: {listed(pod.spines)}" if pod.spines else ""),
        Words(f"{counted(len(leaves), 'leaf', 'leaves')}: {listed(leaves)}"),
        Words(f"{counted(len(nodes), 'node')}: {listed(nodes)}" if nodes else "no nodes"),
        Words(rails + (f", {busy} nodes in use" if busy else "")),
        Words(f"{sum(vlan.is_occupied for vlan in vlans):,} of {len(vlans):,} VLANs in use" if vlans else ""),
    ]
    title = "; ".join(line.text for line in lines if line.text)
    sheet = worded(pod.key, Kind.POD, lines, clean(title, 1500), least=_WIDEST + 2 * PAD)
    if len(shown.graph.leaves) > _MOST_CELLS:
        return sheet
    top = sheet.height - 2
    step = _CELL + _CELL_GAP
    columns = int((sheet.width - 2 * PAD + _CELL_GAP) // step)
    x = (sheet.width - min(columns, len(pod.leaves)) * step + _CELL_GAP) / 2
    for number, leaf in enumerate(pod.leaves):
        row, column = divmod(number, columns)
        on = sum(name in shown.in_use for name in leaf.nodes)
        share = 0.2 + 0.8 * on / len(leaf.nodes) if on else 1.0
        what = f"{leaf.name}: {counted(len(leaf.nodes), 'node')}" + (f", {on} in use" if on else "")
        at = (x + column * step, top + row * step)
        sheet.add(Box(leaf.key, Kind.CELL, *at, _CELL, _CELL, clean(what, 300), is_on=on > 0, share=share))
    box = sheet.boxes[0]
    sheet.boxes[0] = Box(
        box.key, box.kind, 0, 0, box.w, top + ceil(len(pod.leaves) / columns) * step + PAD - 4, box.title
    )
    sheet.height = sheet.boxes[0].h
    return sheet
