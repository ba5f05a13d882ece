"""The tree in text, and what is shown of records."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from railweave.contracts.fabric import FabricLeaf, FabricNode
from railweave.contracts.types import LeafName, NodeName
from railweave.topology.inventory import Inventory, replan
from railweave.topology.model import Graph
from railweave.topology.picture.shown import Shown, shown_of_records
from railweave.topology.picture.text import clean, elided, width_of
from railweave.topology.picture.tree import tree_of
from railweave_testing.fabrics import config
from railweave_testing.random_fabrics import random_fabrics, regular_fabric


def stored(graph: Graph, *, segments: int = 0) -> tuple[list[FabricLeaf], list[FabricNode]]:
    found = replan(Inventory(), graph, config(segments=segments), lambda _: False)
    assert isinstance(found, Inventory)
    return list(found.leaves.values()), list(found.nodes.values())


def lines(shown: Shown, *, with_segments: bool = False, whole: bool = False) -> list[str]:
    rows = tree_of(shown, with_segments=with_segments, whole=whole)
    return [
        " | ".join(cell for cell in (row.name, row.nodes, row.vlans, row.subnets, row.slots, row.use) if cell)
        for row in rows
    ]


def test_a_file_is_a_tree_of_leaves_and_their_nodes() -> None:
    assert lines(Shown(regular_fabric(4, leaves=2, pods=2, spines=1, rails=2))) == [
        "island leaf000: 2 leaves | 4: n[00000-00003]",
        "├─ pod pod000: 1 leaf | 2: n[00000-00001]",
        "│  └─ leaf leaf000, rails 0-1 | 2: n[00000-00001]",
        "└─ pod pod001: 1 leaf | 2: n[00002-00003]",
        "   └─ leaf leaf001, rails 0-1 | 2: n[00002-00003]",
    ]


def test_of_what_is_stored_every_rail_tells_vlan_subnet_and_slots() -> None:
    leaves, nodes = stored(regular_fabric(2, rails=2), segments=3)
    claimed = frozenset({NodeName("n00001")})
    shown = shown_of_records(leaves, nodes, claimed=claimed, segments_held=[2])
    first, second = (vlan for vlan in leaves[0].vlans if vlan.segment is None)
    assert lines(shown)[1:] == [
        "└─ pod pod000: 1 leaf | 2: n[00000-00001] | 100-107 | 8 subnets | 4/12 | 1 node in use",
        "   └─ leaf leaf000 | 2: n[00000-00001] | 1 node in use",
        f"      ├─ rail 0 | {int(first.vlan)} | {first.subnet} | 2/6 | in use",
        f"      ├─ rail 1 | {int(second.vlan)} | {second.subnet} | 2/6 | in use",
        "      └─ 3 segments | 102-107 | 6 subnets | 2 VLANs in use",
    ]
    asked = [line for line in lines(shown, with_segments=True) if "segment" in line]
    assert len(asked) == 6
    assert [line for line in asked if "in use" in line] == [line for line in asked if "segment 2 " in line]


def test_a_segment_that_a_leaf_still_has_members_of_is_in_use() -> None:
    leaves, nodes = stored(regular_fabric(2, leaves=2, rails=1), segments=2)
    shown = shown_of_records(leaves, nodes, members={LeafName("leaf001"): [1]})
    busy = [(leaf, vlan.segment) for leaf, vlans in shown.vlans.items() for vlan in vlans if vlan.is_occupied]
    assert busy == [("leaf001", 1)]


@pytest.mark.parametrize("leaves", [1, 16, 17, 64, 65, 500])
def test_the_tree_is_never_longer_than_two_hundred_lines(leaves: int) -> None:
    graph = regular_fabric(leaves * 2, leaves=leaves, pods=max(1, leaves // 10))
    shown = shown_of_records(*stored(graph, segments=1))
    found = lines(shown)
    assert len(found) <= 200
    assert "… " not in "\n".join(found) or leaves > 64
    whole = lines(shown, whole=True)
    assert len([line for line in whole if "leaf leaf" in line]) == leaves
    assert len([line for line in whole if " rail " in line]) == leaves * 8


def test_where_leaves_are_left_out_it_says_how_many_and_adds_them_up() -> None:
    found = lines(Shown(regular_fabric(500, leaves=100, pods=5)))
    assert "├─ pod pod000: 20 leaves | 100: n[00000-00099]" in found
    assert "│  └─ … 17 more leaves | 85: n[00015-00099]" in found


@settings(max_examples=50, deadline=None)
@given(random_fabrics())
def test_any_fabric_is_a_tree_with_all_its_leaves(graph: Graph) -> None:
    text = "\n".join(lines(Shown(graph)))
    for leaf in graph.leaves:
        assert f"leaf {clean(leaf.name)}" in text


def test_spines_come_from_the_fabric_file_where_it_is_of_the_same_fabric() -> None:
    graph = regular_fabric(4, leaves=2, spines=2, rails=1)
    records = stored(graph)
    cabled = shown_of_records(*records, cabled=graph).graph
    assert (cabled.spines, cabled.links) == (graph.spines, graph.links)
    assert shown_of_records(*records).graph.spines == ()
    other = Graph(spines=regular_fabric(1, spines=1).spines)
    assert shown_of_records(*records, cabled=other).graph.links == ()


def test_islands_and_pods_are_those_that_are_stored() -> None:
    graph = regular_fabric(4, leaves=2, spines=1, rails=1)
    shown = shown_of_records(*stored(graph))
    assert {shown.place(leaf.name) for leaf in graph.leaves} == {graph.place(leaf.name) for leaf in graph.leaves}
    assert len([line for line in lines(shown) if line.startswith("island")]) == 1


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [("leaf1", 100, "leaf1"), ("a" * 30, 60, "aaaa…aaaa"), ("x", 1, "…"), ("", 5, ""), ("日" * 20, 60, "日日…日日")],
)
def test_what_does_not_fit_keeps_its_beginning_and_its_end(text: str, width: float, expected: str) -> None:
    assert elided(text, width, 10) == expected


def test_widths_are_those_of_a_wide_font() -> None:
    # DejaVu Sans: W 0.989 em, i 0.278 em, 0 0.636 em.
    assert width_of("W", 1000) == pytest.approx(989, abs=2)
    assert width_of("iiii", 1000) == pytest.approx(4 * 278, abs=8)
    assert width_of("0", 1000) == pytest.approx(636, abs=1)
    assert width_of("leaf1", 10, is_bold=True) > width_of("leaf1", 10)


@pytest.mark.parametrize(
    ("text", "expected"), [("a\x00b", "a\ufffdb"), ("\u202e", "\ufffd"), ("é<&", "é<&"), ("\uffff", "\ufffd")]
)
def test_what_xml_cannot_hold_is_replaced(text: str, expected: str) -> None:
    assert clean(text) == expected
