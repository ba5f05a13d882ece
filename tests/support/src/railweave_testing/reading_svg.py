"""A picture of a fabric read back from its SVG: boxes, texts and lines by their coordinates."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass

from railweave.topology.picture.text import width_of

_SVG = "{http://www.w3.org/2000/svg}"
_SLACK = 0.02


@dataclass(frozen=True)
class Rect:
    """A rectangle; what is drawn as a rectangle, and where text is."""

    kind: str
    x: float
    y: float
    w: float
    h: float
    title: str = ""
    text: str = ""

    def overlaps(self, other: Rect) -> bool:
        return (
            self.x < other.x + other.w - _SLACK
            and other.x < self.x + self.w - _SLACK
            and self.y < other.y + other.h - _SLACK
            and other.y < self.y + self.h - _SLACK
        )

    def holds(self, other: Rect) -> bool:
        return (
            self.x - _SLACK <= other.x
            and self.y - _SLACK <= other.y
            and other.x + other.w <= self.x + self.w + _SLACK
            and other.y + other.h <= self.y + self.h + _SLACK
        )

    def has_on_border(self, x: float, y: float) -> bool:
        is_at_side = abs(x - self.x) <= _SLACK or abs(x - self.x - self.w) <= _SLACK
        is_at_end = abs(y - self.y) <= _SLACK or abs(y - self.y - self.h) <= _SLACK
        within_x = self.x - _SLACK <= x <= self.x + self.w + _SLACK
        within_y = self.y - _SLACK <= y <= self.y + self.h + _SLACK
        return (is_at_side and within_y) or (is_at_end and within_x)


@dataclass(frozen=True)
class Stroke:
    """A line between two boxes."""

    a: str
    b: str
    classes: frozenset[str]
    title: str
    start: tuple[float, float]
    end: tuple[float, float]


@dataclass(frozen=True)
class Drawn:
    """The picture."""

    root: ET.Element
    ground: Rect
    boxes: dict[str, Rect]
    """Those that have a key."""
    small: list[Rect]
    """Ticks, cells."""
    texts: list[tuple[str | None, Rect]]
    """With the key of the box that they are in."""
    lines: list[Stroke]
    colours: dict[int, str]
    """Of the lines of each rail, as the style sheet says."""
    legend: dict[int, str]
    """Rail by rail, the classes of its sample."""

    def of(self, *kinds: str) -> list[Rect]:
        return [box for box in self.boxes.values() if box.kind in kinds]

    def words(self) -> str:
        """Everything that is written or said of a thing when it is pointed at."""
        return "\n".join(
            "".join(each.itertext()) for each in self.root.iter() if each.tag in {_SVG + "title", _SVG + "text"}
        )


def read_svg(svg: str) -> Drawn:
    """Read it back; raises ParseError where it is not well-formed."""
    root = ET.fromstring(svg)
    boxes: dict[str, Rect] = {}
    texts: list[tuple[str | None, Rect]] = []
    for group in root.iter(_SVG + "g"):
        key = group.get("id")
        rect = group.find(_SVG + "rect")
        if key is not None and rect is not None:
            assert key not in boxes
            kind = (group.get("class") or rect.get("class") or "").split(" ")[0]
            boxes[key] = _rect(kind, rect, _title(group))
        texts += [(key, _text(each)) for each in group.iter(_SVG + "text")]
    style = "".join(root.find(_SVG + "style").itertext())  # type: ignore[union-attr]
    return Drawn(
        root,
        _rect("ground", root.find(f"{_SVG}rect[@class='ground']"), ""),
        boxes,
        [_rect(each.get("class", ""), each, _title(each)) for each in root.findall(_SVG + "rect") if each.get("x")],
        texts,
        [_stroke(each) for each in root.iter(_SVG + "path")],
        {int(rail): colour for rail, colour in re.findall(r"^\.r(\d+)\{stroke:(#[0-9a-f]{6})", style, re.MULTILINE)},
        dict(_legend(root)),
    )


def _rect(kind: str, element: ET.Element | None, title: str) -> Rect:
    assert element is not None
    x, y, w, h = (float(element.get(name, "0")) for name in ("x", "y", "width", "height"))
    return Rect(kind, x, y, w, h, title)


def _title(element: ET.Element) -> str:
    found = element.find(_SVG + "title")
    return "" if found is None else "".join(found.itertext())


def _text(element: ET.Element) -> Rect:
    text = "".join(element.itertext())
    size = float(element.get("font-size", "0"))
    classes = element.get("class", "").split()
    width = width_of(text, size, is_bold="b" in classes)
    x = float(element.get("x", "0")) - (0 if "s" in classes else width / 2)
    # From the height of capitals to the depth of descenders.
    return Rect("text", x, float(element.get("y", "0")) - size * 0.75, width, size * 0.97, text=text)


def _stroke(path: ET.Element) -> Stroke:
    numbers = [float(found) for found in re.findall(r"-?\d+(?:\.\d+)?", path.get("d", ""))]
    classes = frozenset(path.get("class", "").split())
    ends = (numbers[0], numbers[1]), (numbers[-2], numbers[-1])
    return Stroke(path.get("data-a", ""), path.get("data-b", ""), classes, _title(path), *ends)


def _legend(root: ET.Element) -> Iterator[tuple[int, str]]:
    """Samples stand directly to the left of their words."""
    samples = [each for each in root.iter(_SVG + "line") if "swatch" in each.get("class", "")]
    for text in root.iter(_SVG + "text"):
        found = re.fullmatch(r"rail (\d+)", text.text or "")
        if found is None or "s" not in text.get("class", "").split():
            continue
        x, y = float(text.get("x", "0")), float(text.get("y", "0"))
        beside = [
            each
            for each in samples
            if 0 < x - float(each.get("x2", "0")) < 10 and abs(y - float(each.get("y1", "0"))) < 10
        ]
        assert len(beside) == 1
        yield int(found[1]), beside[0].get("class", "")
