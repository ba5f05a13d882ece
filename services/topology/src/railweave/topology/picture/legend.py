"""The head of the picture: what it is of, in numbers, and what its colours mean. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from railweave.topology.picture.scene import Detail, Scene
from railweave.topology.picture.sheet import Box, Kind, Label, Sheet
from railweave.topology.picture.shown import Shown
from railweave.topology.picture.text import counted, width_of

_MOST_RAILS: Final = 32
_SIZE: Final = 11.0
_ROW: Final = 22.0


def rails_of(shown: Shown) -> list[int]:
    """All rails of the fabric."""
    return sorted({int(port.rail) for _, port in shown.graph.compute_ports})


def in_numbers(scene: Scene) -> str:
    """The fabric in a line."""
    graph = scene.shown.graph
    parts = [
        counted(len(graph.spines), "spine"),
        counted(len(graph.leaves), "leaf", "leaves"),
        counted(len(graph.nodes), "node"),
        counted(len(rails_of(scene.shown)), "rail"),
    ]
    islands = len([island for island in scene.islands if island.name]) + len(scene.left_out)
    if islands > 1:
        parts.append(counted(islands, "island"))
    if scene.detail is Detail.LEAVES:
        parts.append("the nodes of a leaf drawn as one")
    if scene.detail is Detail.PODS:
        parts.append("the leaves of a pod drawn as one, a cell for each")
    return ", ".join(parts)


def legend_of(scene: Scene, width: float) -> Sheet:
    """Heading and legend, as wide as the picture."""
    sheet = Sheet()
    text = in_numbers(scene)
    wide = max(width, width_of(text, _SIZE) + 8)
    sheet.labels.append(Label("head", wide / 2, 20, "Fabric", 18, is_bold=True))
    sheet.labels.append(Label("head", wide / 2, 40, text, _SIZE, is_faint=True))
    sheet.add(Box("head", Kind.NOTE, 0, 0, wide, 48))
    entries = _entries(scene)
    sizes = [34 + width_of(text, _SIZE) + 18 for _, text in entries]
    rows: list[list[int]] = [[]]
    for number, size in enumerate(sizes):
        if rows[-1] and sum(sizes[other] for other in rows[-1]) + size > wide:
            rows.append([])
        rows[-1].append(number)
    y = 56.0
    for row in rows if entries else []:
        x = (wide - sum(sizes[number] for number in row) + 18) / 2
        for number in row:
            swatch, text = entries[number]
            key = f"legend{number}"
            sheet.add(Box(key, Kind.NOTE, x, y, sizes[number] - 18, _ROW - 4))
            middle = y + (18 - swatch.h) / 2
            sheet.add(replace(swatch, key=f"{key}s", x=x + 28 - swatch.w, y=middle))
            sheet.labels.append(Label(key, x + 34, y + 13, text, _SIZE, is_start=True))
            x += sizes[number]
        y += _ROW
    return sheet


def _entries(scene: Scene) -> list[tuple[Box, str]]:
    """A sample and what it means."""
    rails = rails_of(scene.shown) if scene.detail is not Detail.PODS else []
    made = [(Box("", Kind.SWATCH, 0, 0, 28, 10, rail=rail), f"rail {rail}") for rail in rails[:_MOST_RAILS]]
    if len(rails) > _MOST_RAILS:
        made.append((Box("", Kind.SWATCH, 0, 0, 28, 10), f"{len(rails) - _MOST_RAILS} more rails"))
    if scene.detail is not Detail.PODS and any(scene.shown.vlans.values()):
        first = rails[0] if rails else 0
        made.append((Box("", Kind.BADGE, 0, 0, 28, 13, rail=first), "VLAN"))
        made.append((Box("", Kind.BADGE, 0, 0, 28, 13, rail=first, is_on=True), "VLAN that a job is in"))
    if scene.shown.in_use and scene.detail is Detail.HOSTS:
        made.append((Box("", Kind.HOST, 0, 0, 28, 13, is_on=True), "node in use"))
    if scene.detail is Detail.PODS and scene.islands and (scene.shown.in_use or any(scene.shown.vlans.values())):
        made.append((Box("", Kind.CELL, 0, 0, 9, 9), "leaf with no node in use"))
        made.append((Box("", Kind.CELL, 0, 0, 9, 9, is_on=True, share=0.5), "half of its nodes"))
        made.append((Box("", Kind.CELL, 0, 0, 9, 9, is_on=True), "all of them"))
    return made
