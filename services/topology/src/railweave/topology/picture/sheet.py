"""What is on the paper: boxes, labels and lines with their coordinates. Pure values, and how lines get their ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

_PITCH: Final = 10.0
"""Between the lines of a box, where it has room."""
_MARGIN: Final = 10.0
ARC: Final = 34.0
"""How far the handles of an arc are above the boxes that it joins."""


class Kind(StrEnum):
    """What a box is; it is drawn by it. Frames hold other boxes, the small ones are in a box."""

    ISLAND = "island"
    POD_FRAME = "frame"
    SPINE = "spine"
    LEAF = "leaf"
    POD = "pod"
    CARD = "card"
    HOST = "host"
    BADGE = "badge"
    TICK = "tick"
    CELL = "cell"
    SWATCH = "swatch"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle."""

    key: str
    kind: Kind
    x: float
    y: float
    w: float
    h: float
    title: str = ""
    """The whole of what is said shortly in it."""
    rail: int | None = None
    is_on: bool = False
    """In use: filled."""
    share: float = 1.0
    """How much of it is in use, where it is."""

    @property
    def middle(self) -> float:
        return self.x + self.w / 2


@dataclass(frozen=True, slots=True)
class Label:
    """A line of text in a box."""

    box: str
    x: float
    y: float
    """Of the baseline."""
    text: str
    size: float
    is_bold: bool = False
    is_faint: bool = False
    rail: int | None = None
    """It stands on the colour of the rail."""
    is_start: bool = False
    """`x` is where it begins, else its middle."""


class Point(NamedTuple):
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Line:
    """From the border of a box to that of another. Two points: a curve; more: straight pieces with round corners."""

    a: str
    b: str
    points: tuple[Point, ...]
    title: str = ""
    rail: int | None = None
    weight: int = 1
    """Cables that it stands for."""
    is_aside: bool = False
    """It carries no jobs."""
    is_arc: bool = False
    """Both ends are on top of boxes of a row."""


@dataclass(frozen=True, slots=True)
class Tie:
    """A line that has no ends yet. `a` is the upper box."""

    a: str
    b: str
    title: str = ""
    rail: int | None = None
    weight: int = 1
    is_aside: bool = False


@dataclass(slots=True)
class Sheet:
    """A part of the picture, or all of it."""

    width: float = 0.0
    height: float = 0.0
    boxes: list[Box] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    def add(self, box: Box) -> Box:
        self.boxes.append(box)
        self.width, self.height = max(self.width, box.x + box.w), max(self.height, box.y + box.h)
        return box

    def put(self, other: Sheet, x: float, y: float) -> None:
        """Take in another sheet, moved."""
        self.boxes += [replace(box, x=box.x + x, y=box.y + y) for box in other.boxes]
        self.labels += [replace(label, x=label.x + x, y=label.y + y) for label in other.labels]
        self.lines += [
            replace(line, points=tuple(Point(point.x + x, point.y + y) for point in line.points))
            for line in other.lines
        ]
        self.width, self.height = max(self.width, x + other.width), max(self.height, y + other.height)


def tied(ties: Sequence[Tie], boxes: Iterable[Box]) -> list[Line]:
    """Give lines their ends: spread over the border of each box, in the order of where they lead to."""
    at = {box.key: box for box in boxes}
    ends: dict[tuple[str, bool], list[int]] = defaultdict(list)
    """By box and whether it is its upper side; the tie's index, inverted for its `b`."""
    arcs: set[int] = set()
    for number, tie in enumerate(ties):
        a, b = at[tie.a], at[tie.b]
        is_arc = b.y < a.y + a.h
        if is_arc:
            arcs.add(number)
        ends[tie.a, is_arc].append(number)
        ends[tie.b, True].append(~number)
    found: dict[int, Point] = {}
    for (key, is_top), numbers in ends.items():
        box = at[key]

        def leads_to(number: int) -> tuple[float, int, str]:
            tie = ties[number if number >= 0 else ~number]
            other = tie.b if number >= 0 else tie.a
            return at[other].middle, -1 if tie.rail is None else tie.rail, other

        numbers.sort(key=leads_to)
        pitch = min(_PITCH, (box.w - 2 * _MARGIN) / max(1, len(numbers) - 1))
        first = box.middle - pitch * (len(numbers) - 1) / 2
        for place, number in enumerate(numbers):
            found[number] = Point(first + place * pitch, box.y if is_top else box.y + box.h)
    return [
        Line(
            tie.a,
            tie.b,
            (found[number], found[~number]),
            tie.title,
            tie.rail,
            tie.weight,
            tie.is_aside,
            number in arcs,
        )
        for number, tie in enumerate(ties)
    ]
