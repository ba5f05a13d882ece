"""The picture as SVG: one file that scales, on light ground and dark, and that a screen reader can say. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from railweave.topology.picture.colours import colour_of, ink_on, stroke_of
from railweave.topology.picture.layout import lay_out
from railweave.topology.picture.legend import in_numbers
from railweave.topology.picture.scene import Scene, scene_of
from railweave.topology.picture.sheet import ARC, Box, Kind, Label, Line, Point
from railweave.topology.picture.shown import Shown
from railweave.topology.picture.text import is_measured, width_of

_ROUND: Final = {Kind.ISLAND: 14, Kind.POD_FRAME: 12, Kind.BADGE: 7, Kind.HOST: 4, Kind.TICK: 1, Kind.CELL: 2}
_CORNER: Final = 7.0

_STYLE: Final = """\
text{font-family:ui-sans-serif,system-ui,"Segoe UI",Helvetica,Arial,"DejaVu Sans",sans-serif;text-anchor:middle;\
fill:#1b1f27}
.b{font-weight:600}.s{text-anchor:start}.faint{fill:#5b6472}
.ground{fill:#f7f8fa}
.island{fill:#ffffff;stroke:#d5dae1}
.frame{fill:#eceff3;stroke:#dde2e8}
.spine rect{fill:#2f3a4c;stroke:#2f3a4c}.spine text{fill:#ffffff}.spine .faint{fill:#c3ccd8}
.leaf>rect{fill:#ffffff;stroke:#8794a6;stroke-width:1.4}
.pod>rect,.card>rect{fill:#ffffff;stroke:#c3cbd6}
.host>rect{fill:#f4f6f9;stroke:#d5dbe3}.host.on>rect{fill:#d9e8f6;stroke:#6c9cc6}
.badge>rect{fill:#ffffff;stroke-width:1.6}
.cell{fill:#dfe5ec;stroke:#aab4c2}.cell.on{fill:#0072b2;stroke:#0072b2}
.tick{fill:none;stroke:#8794a6;stroke-width:.8}
.line{fill:none;stroke-linecap:round}.cable{stroke:#7d8a9c;stroke-opacity:.75}.aside{stroke-dasharray:5 4}
@media (prefers-color-scheme:dark){
text{fill:#e8ebf0}.faint{fill:#9aa5b5}
.ground{fill:#14171d}.island{fill:#191d25;stroke:#333b48}.frame{fill:#1e232c;stroke:#2c333f}
.spine rect{fill:#c9d3e0;stroke:#c9d3e0}.spine text{fill:#14171d}.spine .faint{fill:#47515f}
.leaf>rect{fill:#232a35;stroke:#7f8da1}.pod>rect,.card>rect{fill:#20262f;stroke:#3b4554}
.host>rect{fill:#2a313d;stroke:#3f4a5a}.host.on>rect{fill:#1f425f;stroke:#5b9bd0}
.badge>rect{fill:#232a35}.cell{fill:#333c49;stroke:#56616f}.cell.on{fill:#56b4e9;stroke:#56b4e9}
.cable{stroke:#8c99ab}
}
"""


def svg_of(shown: Shown) -> str:
    """Draw a fabric."""
    return render(scene_of(shown))


def render(scene: Scene) -> str:
    """Draw what was decided to be drawn."""
    sheet = lay_out(scene)
    labels: dict[str, list[Label]] = {}
    for label in sheet.labels:
        labels.setdefault(label.box, []).append(label)
    rails = {box.rail for box in sheet.boxes} | {line.rail for line in sheet.lines}
    width, height = _number(sheet.width), _number(sheet.height)
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    frames = [box for box in sheet.boxes if box.kind in {Kind.ISLAND, Kind.POD_FRAME}]
    frames.sort(key=lambda box: box.kind is not Kind.ISLAND)
    others = [box for box in sheet.boxes if box.kind not in {Kind.ISLAND, Kind.POD_FRAME}]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">',
        f'<title id="title">Fabric</title><desc id="desc">{escape(in_numbers(scene))}</desc>',
        f"<style>{_STYLE}{_rail_styles(rails)}</style>",
        f'<rect class="ground" width="{width}" height="{height}"/>',
        *(_box(box, labels.get(box.key, ())) for box in frames),
        *map(_line, sheet.lines),
        *(_box(box, labels.get(box.key, ())) for box in others),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _rail_styles(rails: Iterable[int | None]) -> str:
    """A class for each rail: its lines, its badges, its ticks and its sample in the legend have one colour."""
    made = []
    for rail in sorted(rail for rail in rails if rail is not None):
        colour, dashes = colour_of(rail), stroke_of(rail)
        name = f".r{rail}"
        made.append(f"{name}{{stroke:{colour}{f';stroke-dasharray:{dashes}' if dashes else ''}}}")
        made.append(f".badge>rect{name}{{stroke:{colour}}}.badge.on>rect{name}{{fill:{colour};stroke-dasharray:none}}")
        made.append(
            f".tick{name}{{fill:{colour};stroke:{colour};stroke-dasharray:none}}.ink{name}{{fill:{ink_on(rail)};stroke:none}}"
        )
    return "\n".join(made)


def _box(box: Box, labels: Iterable[Label]) -> str:
    rail = f" r{box.rail}" if box.rail is not None else ""
    on = " on" if box.is_on else ""
    at = f'x="{_number(box.x)}" y="{_number(box.y)}" width="{_number(box.w)}" height="{_number(box.h)}"'
    title = f"<title>{escape(box.title)}</title>" if box.title else ""
    round_ = f' rx="{_ROUND.get(box.kind, 7)}"'
    match box.kind:
        case Kind.SWATCH:
            y, ends = _number(box.y + box.h / 2), (_number(box.x), _number(box.x + box.w))
            return (
                f'<line class="line swatch{rail or " cable"}" stroke-width="2.4" '
                f'x1="{ends[0]}" y1="{y}" x2="{ends[1]}" y2="{y}"/>'
            )
        case Kind.TICK | Kind.CELL:
            share = f' fill-opacity="{_number(box.share)}"' if box.share < 1 else ""
            closed = f">{title}</rect>" if title else "/>"
            return f'<rect class="{box.kind}{rail}{on}" {at}{round_}{share}{closed}'
        case Kind.NOTE if not box.title:
            return f'<g class="note">{"".join(map(_label, labels))}</g>'
        case Kind.ISLAND | Kind.POD_FRAME:
            return f'<g id="{box.key}">{title}<rect class="{box.kind}" {at}{round_}/>{"".join(map(_label, labels))}</g>'
        case _:
            inner = f'<rect class="{rail.strip()}" {at}{round_}/>' if rail else f"<rect {at}{round_}/>"
            kind = Kind.CARD if box.kind is Kind.NOTE else box.kind
            return f'<g id="{box.key}" class="{kind}{on}">{title}{inner}{"".join(map(_label, labels))}</g>'


def _label(label: Label) -> str:
    classes = [
        *(["b"] if label.is_bold else []),
        *(["s"] if label.is_start else []),
        *(["faint"] if label.is_faint else []),
        *(["ink", f"r{label.rail}"] if label.rail is not None else []),
    ]
    named = f' class="{" ".join(classes)}"' if classes else ""
    squeezed = ""
    if not is_measured(label.text):
        width = _number(width_of(label.text, label.size, is_bold=label.is_bold))
        squeezed = f' textLength="{width}" lengthAdjust="spacingAndGlyphs"'
    at = f'x="{_number(label.x)}" y="{_number(label.y)}" font-size="{_number(label.size)}"'
    return f"<text{named} {at}{squeezed}>{escape(label.text)}</text>"


def _line(line: Line) -> str:
    most = 4.0 if len(line.points) == 2 else 1.8
    weight = 2.0 if line.rail is not None else min(1.1 + 0.35 * (line.weight - 1), most)
    named = f"r{line.rail}" if line.rail is not None else "cable"
    aside = " aside" if line.is_aside else ""
    ends = f"data-a={quoteattr(line.a)} data-b={quoteattr(line.b)}"
    title = f"<title>{escape(line.title)}</title>" if line.title else ""
    return f'<path class="line {named}{aside}" stroke-width="{_number(weight)}" {ends} d="{_path(line)}">{title}</path>'


def _path(line: Line) -> str:
    first, last = line.points[0], line.points[-1]
    start = f"M{_number(first.x)} {_number(first.y)}"
    if len(line.points) > 2:
        return start + _with_corners(line.points)
    if line.is_arc:
        high = min(first.y, last.y) - ARC
        one, other = Point(first.x, high), Point(last.x, high)
    else:
        half = (last.y - first.y) / 2
        one, other = Point(first.x, first.y + half), Point(last.x, last.y - half)
    return start + "C" + " ".join(f"{_number(point.x)} {_number(point.y)}" for point in (one, other, last))


def _with_corners(points: tuple[Point, ...]) -> str:
    """Straight pieces, each corner rounded as far as its shorter side allows."""
    made = []
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        ends = []
        for other in (before, after):
            length = abs(other.x - corner.x) + abs(other.y - corner.y)
            share = min(_CORNER, length / 2) / length if length else 0.0
            ends.append(Point(corner.x + (other.x - corner.x) * share, corner.y + (other.y - corner.y) * share))
        into, out = ends
        made.append(
            f"L{_number(into.x)} {_number(into.y)}"
            f"Q{_number(corner.x)} {_number(corner.y)} {_number(out.x)} {_number(out.y)}"
        )
    return "".join(made) + f"L{_number(points[-1].x)} {_number(points[-1].y)}"


def _number(value: float) -> str:
    """At most two places after the point, and none that are zero."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
