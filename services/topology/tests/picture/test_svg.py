"""The picture, read back by its coordinates: nothing overlaps, lines end where they should, every name is in it."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings

from railweave.contracts.types import LeafName, NodeName, Rail
from railweave.topology.model import Graph, Leaf, Node, NodePort
from railweave.topology.picture.colours import COLOURS, colour_of
from railweave.topology.picture.scene import Detail, scene_of
from railweave.topology.picture.shown import Shown, VlanShown
from railweave.topology.picture.svg import render, svg_of
from railweave.topology.picture.text import clean
from railweave.topology.providers import PROVIDERS, ImportOptions
from railweave_testing.random_fabrics import ODD_NAMES, random_fabrics, regular_fabric
from railweave_testing.reading_svg import Drawn, Rect, read_svg
from railweave_testing.real_fabrics import REAL_FABRICS, RealFabric

SHARED = Path(os.environ.get("RAILWEAVE_SHARED", Path(__file__).parents[5] / "shared"))

THINGS = ("spine", "leaf", "pod", "card")


def with_vlans(graph: Graph, *, segments: int = 3, share: float = 0.4) -> Shown:
    """The graph with VLANs on its leaves and some of its nodes in use, the same ones each time."""
    chance = random.Random(3)
    rails: dict[str, set[int]] = {}
    for _, port in graph.compute_ports:
        rails.setdefault(port.leaf, set()).add(int(port.rail))
    vlans = {
        leaf: tuple(
            VlanShown(rail, segment, 100 + rail, "10.0.0.0/24", "10.0.0.1", 4, 15, chance.random() < share)
            for segment in (None, *range(segments))
            for rail in sorted(found)
        )
        for leaf, found in rails.items()
    }
    return Shown(graph, vlans, frozenset(node.name for node in graph.nodes if chance.random() < share))


def check(drawn: Drawn) -> None:
    """What holds of every picture."""
    things = drawn.of(*THINGS)
    _apart(things)
    for kind in ("host", "badge", "frame", "island"):
        _apart(drawn.of(kind))
    for frame in drawn.of("frame", "island"):
        for thing in things:
            assert frame.holds(thing) or not frame.overlaps(thing), f"{thing} sticks out of {frame}"
    for inner, outer in (("host", ("card",)), ("badge", ("leaf",)), ("frame", ("island", "ground"))):
        holders = [*drawn.of(*outer), *([drawn.ground] if "ground" in outer else [])]
        for box in (box for key, box in drawn.boxes.items() if box.kind == inner and not key.startswith("legend")):
            assert any(holder.holds(box) for holder in holders), f"{box} is in no {outer}"
    texts = [text for _, text in drawn.texts]
    _apart(texts)
    for key, text in drawn.texts:
        holder = drawn.ground if key is None else drawn.boxes[key]
        assert holder.holds(text), f"{text} does not fit {holder}"
    for box in [*drawn.boxes.values(), *drawn.small]:
        assert drawn.ground.holds(box)
    for line in drawn.lines:
        assert drawn.boxes[line.a].has_on_border(*line.start), f"{line} begins off {drawn.boxes[line.a]}"
        assert drawn.boxes[line.b].has_on_border(*line.end), f"{line} ends off {drawn.boxes[line.b]}"


def _apart(rects: list[Rect]) -> None:
    ordered = sorted(rects, key=lambda rect: rect.y)
    for one, other in combinations(ordered, 2):
        assert not one.overlaps(other), f"{one} overlaps {other}"


SHAPES: dict[str, Callable[[], Graph]] = {
    "empty": Graph,
    "one-node": lambda: regular_fabric(1),
    "eight": lambda: regular_fabric(8, leaves=2, spines=2),
    "96-in-pods": lambda: regular_fabric(96, leaves=12, spines=4, pods=3),
    "128-on-one-leaf": lambda: regular_fabric(128),
    "rail-optimised": lambda: regular_fabric(64, leaves=16, spines=4, pods=2, is_rail_optimised=True),
    "40-rails": lambda: regular_fabric(4, rails=40),
    "256-rails": lambda: regular_fabric(2, rails=256),
    "64-leaves": lambda: regular_fabric(128, leaves=64, spines=8),
    "collapsed-by-leaf": lambda: regular_fabric(640, leaves=32, spines=4, pods=4),
    "collapsed-rail-optimised": lambda: regular_fabric(512, leaves=64, spines=20, pods=4, is_rail_optimised=True),
    "collapsed-by-pod": lambda: regular_fabric(2000, leaves=100, spines=8, pods=10),
    "one-pod-of-500": lambda: regular_fabric(10_000, leaves=500, spines=40),
    "more-pods-than-are-drawn": lambda: regular_fabric(300, leaves=300, pods=300, rails=1),
    "islands-without-end": lambda: regular_fabric(60, leaves=60, spines=0, rails=2),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("vlans", [False, True], ids=["file", "stored"])
def test_nothing_overlaps_and_lines_end_on_boxes(shape: str, *, vlans: bool) -> None:
    graph = SHAPES[shape]()
    check(read_svg(svg_of(with_vlans(graph) if vlans else Shown(graph))))


@pytest.mark.parametrize("fabric", REAL_FABRICS, ids=str)
def test_nor_do_they_in_pictures_of_real_fabrics(fabric: RealFabric) -> None:
    provider = PROVIDERS.get(fabric.format_name)
    if provider is None or not all(path.exists() for path in fabric.paths(SHARED)):
        pytest.skip(f"no importer of {fabric.format_name}, or no real data at {SHARED}")
    files = {path.name: path.read_bytes() for path in fabric.paths(SHARED)}
    graph = provider.read(files, ImportOptions(rails=fabric.rails)).imported().graph
    drawn = read_svg(svg_of(with_vlans(graph)))
    check(drawn)
    if len(graph.nodes) <= 128 and len(graph.leaves) <= 64:
        _has_all_names(drawn, graph)


@settings(max_examples=60, deadline=None)
@given(random_fabrics())
def test_any_fabric_is_drawn_whole(graph: Graph) -> None:
    for shown in (Shown(graph), with_vlans(graph)):
        drawn = read_svg(svg_of(shown))
        check(drawn)
        _has_all_names(drawn, graph)
        _colours_mean_rails(drawn)


@settings(max_examples=20, deadline=None)
@given(random_fabrics())
def test_or_taken_together(graph: Graph) -> None:
    for detail in (Detail.LEAVES, Detail.PODS):
        check(read_svg(render(scene_of(with_vlans(graph), detail))))


def _has_all_names(drawn: Drawn, graph: Graph) -> None:
    words = drawn.words()
    for name in (*(leaf.name for leaf in graph.leaves), *(spine.name for spine in graph.spines)):
        assert clean(name) in words
    for node in graph.nodes:
        assert clean(node.name) in words or not node.ports


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_name_of_any_kind_is_told_whole(name: str) -> None:
    drawn = read_svg(svg_of(Shown(_named(name))))
    check(drawn)
    assert clean(name) in [title.partition(":")[0] for title in (box.title for box in drawn.of("host"))] or (
        ":" in name and any(box.title.startswith(clean(name)) for box in drawn.of("host"))
    )


def _named(name: str) -> Graph:
    leaf = LeafName("leaf1")
    return Graph((Leaf(leaf),), (), (), (Node(NodeName(name), (NodePort(Rail(0), leaf, "p"),)),))


@pytest.mark.parametrize("rails", [1, 8, 12, 32, 40])
def test_each_rail_has_the_colour_that_the_legend_tells(rails: int) -> None:
    drawn = read_svg(svg_of(with_vlans(regular_fabric(4, rails=rails))))
    assert set(drawn.legend) == set(range(min(rails, 32)))
    _colours_mean_rails(drawn)
    if rails <= 16:
        assert {line.title.partition(":")[0] for line in drawn.lines if "rail" in line.title} == {
            f"rail {rail}" for rail in range(rails)
        }


def _colours_mean_rails(drawn: Drawn) -> None:
    for rail, classes in drawn.legend.items():
        assert f"r{rail}" in classes.split()
    for rail, colour in drawn.colours.items():
        assert colour == colour_of(rail)
    for line in drawn.lines:
        if line.title.startswith("rail "):
            told = line.title.removeprefix("rail ").partition(":")[0]
            assert f"r{told}" in line.classes or "cable" in line.classes


def test_a_vlan_that_a_job_is_in_is_filled() -> None:
    graph = regular_fabric(2, rails=2)
    vlans = (
        VlanShown(0, None, 100, "10.0.0.0/24", "10.0.0.1", 2, 15, is_occupied=True),
        VlanShown(1, None, 101, "10.0.1.0/24", "10.0.1.1", 2, 15, is_occupied=False),
    )
    svg = svg_of(Shown(graph, {"leaf000": vlans}, frozenset({"n00001"})))
    on = [line for line in svg.splitlines() if 'class="badge on"' in line]
    assert (
        len([line for line in on if "<title>rail 0: VLAN 100, 10.0.0.0/24, 2 of 15 slots, in use</title>" in line]) == 1
    )
    assert len([line for line in svg.splitlines() if 'class="badge"' in line and "VLAN 101" in line]) == 1
    assert len([line for line in svg.splitlines() if 'class="host on"' in line and "n00001" in line]) == 1


def test_spines_are_above_leaves_and_leaves_above_hosts() -> None:
    drawn = read_svg(svg_of(Shown(regular_fabric(96, leaves=12, spines=4, pods=3))))
    rows = [drawn.of(kind) for kind in ("spine", "leaf", "card")]
    assert [len(row) for row in rows] == [4, 12, 12]
    for upper, lower in ((rows[0], rows[1]), (rows[1], rows[2])):
        assert max(box.y + box.h for box in upper) < min(box.y for box in lower)


def test_hosts_are_drawn_up_to_128_and_then_taken_together() -> None:
    assert len(read_svg(svg_of(Shown(regular_fabric(128, leaves=4)))).of("host")) == 128
    more = read_svg(svg_of(Shown(regular_fabric(129, leaves=3))))
    assert more.of("host") == []
    assert [box.title for box in more.of("card")] == [
        f"43 nodes, rails 0-7: n[{low:05}-{low + 42:05}]" for low in (0, 43, 86)
    ]


def test_ten_thousand_nodes_are_drawn_in_a_second_and_a_megabyte() -> None:
    shown = with_vlans(regular_fabric(10_000, leaves=500, spines=16, pods=25), segments=8)
    started = time.process_time()
    svg = svg_of(shown)
    assert time.process_time() - started < 1.0
    assert len(svg.encode()) < 1_000_000


def test_the_same_fabric_is_the_same_picture() -> None:
    graph = regular_fabric(96, leaves=12, spines=4, pods=3)
    again = Graph(graph.leaves[::-1], graph.spines[::-1], graph.links[::-1], graph.nodes[::-1])
    assert svg_of(Shown(graph)) == svg_of(Shown(again))


def test_it_says_what_it_is_to_those_who_do_not_see_it() -> None:
    root = read_svg(svg_of(Shown(regular_fabric(8, leaves=2, spines=2)))).root
    assert root.get("role") == "img"
    ids = {each.get("id"): "".join(each.itertext()) for each in root if each.get("id") in {"title", "desc"}}
    assert ids == {"title": "Fabric", "desc": "2 spines, 2 leaves, 8 nodes, 8 rails"}
    assert root.get("aria-labelledby") == "title desc"
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"
    assert "prefers-color-scheme:dark" in "".join(root.itertext())


@pytest.mark.parametrize(
    ("who", "sees"),
    [
        ("everybody", ((1, 0, 0), (0, 1, 0), (0, 0, 1))),
        ("protanopes", ((0.1523, 1.0526, -0.2049), (0.1145, 0.7863, 0.0992), (-0.0039, -0.0481, 1.0520))),
        ("deuteranopes", ((0.3673, 0.8606, -0.2280), (0.2801, 0.6725, 0.0474), (-0.0118, 0.0429, 0.9689))),
        ("tritanopes", ((1.2555, -0.0767, -0.1788), (-0.0784, 0.9308, 0.1476), (0.0047, 0.6914, 0.3039))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_colours_are_told_apart_however_one_sees_them(who: str, sees: tuple[tuple[float, ...], ...]) -> None:
    """By the simulation of Machado, Oliveira and Fernandes (2009) and the distance in CIE L*a*b*."""
    seen = {colour: _lab(_mixed(sees, _linear(colour))) for colour in COLOURS}
    for one, other in combinations(COLOURS, 2):
        distance = sum((a - b) ** 2 for a, b in zip(seen[one], seen[other], strict=True)) ** 0.5
        assert distance > 12, f"{who}: {one} and {other} are {distance:.0f} apart"


def _mixed(rows: tuple[tuple[float, ...], ...], rgb: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(sum(share * value for share, value in zip(row, rgb, strict=True)) for row in rows)


def _linear(colour: str) -> tuple[float, ...]:
    values = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return tuple(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values)


def _lab(rgb: tuple[float, ...]) -> tuple[float, float, float]:
    r, g, b = (min(1.0, max(0.0, value)) for value in rgb)
    x = _cube((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047)
    y = _cube(0.2126 * r + 0.7152 * g + 0.0722 * b)
    z = _cube((0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _cube(value: float) -> float:
    return float(value ** (1 / 3)) if value > 0.008856 else 7.787 * value + 16 / 116
