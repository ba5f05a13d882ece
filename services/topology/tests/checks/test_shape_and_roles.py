"""Loops in trees, links that fit no tier, fabrics apart, and storage networks that count as compute."""

from __future__ import annotations

import pytest

from railweave.topology.checks import Finding, FindingKind, check
from railweave.topology.fabric_file import read_cabling
from railweave.topology.providers.base import Found

TREE = """\
version: 1
spines:
  - {name: core, tier: 3}
  - {name: "spine[1-3]", uplinks: core}
leaves:
  - {name: "leaf[1-2]", uplinks: spine1}
  - {name: "leaf[3-4]", uplinks: spine2}
  - {name: "leaf[5-6]", uplinks: spine3}
nodes:
  - {name: "a[1-2]", leaf: leaf1, rails: 0}
  - {name: "b[1-2]", leaf: leaf2, rails: 0}
  - {name: "c[1-2]", leaf: leaf3, rails: 0}
  - {name: "d[1-2]", leaf: leaf4, rails: 0}
  - {name: "e[1-2]", leaf: leaf5, rails: 0}
  - {name: "f[1-2]", leaf: leaf6, rails: 0}
"""

MESH = """\
version: 1
spines:
  - {name: "super[1-2]", tier: 3}
  - {name: "spine[1,3]", uplinks: super1}
  - {name: "spine[2,4]", uplinks: super2}
leaves:
  - {name: "leaf[1-3]", uplinks: "spine[1-2]"}
  - {name: "leaf[4-6]", uplinks: "spine[3-4]"}
nodes:
  - {name: "a[1-2]", leaf: leaf1, rails: 0}
  - {name: "b[1-2]", leaf: leaf2, rails: 0}
  - {name: "c[1-2]", leaf: leaf4, rails: 0}
links:
"""


def findings(text: str) -> list[Finding]:
    return list(check(Found(read_cabling(text, "fabric.yaml"))))


def loops(text: str) -> list[tuple[str, str | None, bool]]:
    found = findings(text)
    return [(one.device, one.port, one.is_error) for one in found if one.kind is FindingKind.LOOP]


class TestLoops:
    @pytest.mark.parametrize(
        "text",
        [
            TREE,
            MESH,
            TREE.replace("leaves:", "leaves:\n  - {name: leaf7, uplinks: core}"),
            MESH + "  - [spine1, super2]\n  - [spine2, super1]\n  - [spine3, super2]\n  - [spine4, super1]\n",
            MESH + "  - ['leaf1:1', 'spine1:1']\n  - ['leaf1:2', 'spine1:2']\n",
            MESH + "".join(f"  - [leaf{2 * pair - 1}, leaf{2 * pair}]\n" for pair in (1, 2, 3)),
            TREE + "links:\n  - ['leaf1:1', 'spine1:1']\n  - ['leaf1:2', 'spine1:2']\n",
            "version: 1\nleaves:\n  - name: leaf[1-2]\nlinks:\n  - [leaf1, leaf2]\n",
            MESH + "  - [super1, super2]\n",
        ],
        ids=[
            "tree",
            "mesh",
            "unbalanced",
            "full mesh",
            "cables side by side",
            "pairs of leaves",
            "trunk",
            "two leaves",
            "cores",
        ],
    )
    def test_a_tree_and_a_mesh_have_none(self, text: str) -> None:
        assert loops(text) == []

    def test_a_leaf_with_two_parents_in_a_tree_is_one(self) -> None:
        text = TREE + "links:\n  - ['leaf4:up2', 'spine3:Ethernet9']\n"
        assert loops(text) == [("leaf4", "up2", True)]
        (finding,) = findings(text)
        assert finding.expected == "one switch above it, as 5 of 6 switches of its tier"
        assert "spine2, spine3" in finding.text
        assert str(finding.where) == "fabric.yaml:17"

    def test_a_spine_with_two_parents_in_a_tree_is_one(self) -> None:
        text = (
            TREE.replace("name: core", 'name: "core,core2"')
            + "links:\n  - ['spine1:9', 'core2:1']\n  - [spine2, core2]\n"
        )
        assert ("spine1", "9", True) not in loops(text), "two of three are no exception"
        text = text.replace("  - [spine2, core2]\n", "  - [core2, core]\n")
        assert ("spine1", "9", True) in loops(text)

    def test_a_link_between_leaves_of_a_tree_is_one_and_named_once(self) -> None:
        assert loops(TREE + "links:\n  - ['leaf1:9', 'leaf6:9']\n") == [("leaf1", "9", True)]

    def test_a_link_past_a_tier_is_one(self) -> None:
        assert ("leaf1", "9", True) in loops(TREE + "links:\n  - ['leaf1:9', 'core:9']\n")

    def test_one_pair_of_leaves_with_a_link_in_a_mesh_is_odd_and_no_error(self) -> None:
        assert loops(MESH + "  - ['leaf1:9', 'leaf2:9']\n") == [("leaf1", "9", False)]

    def test_a_spine_of_one_plane_with_a_link_into_another_is_odd_and_no_error(self) -> None:
        assert loops(MESH + "  - ['spine1:9', 'super2:9']\n") == [("spine1", "9", False)]

    def test_a_pair_of_leaves_with_a_link_under_one_spine_is_one(self) -> None:
        text = "version: 1\nspines:\n  - name: top\nleaves:\n  - {name: 'l[1-2]', uplinks: top}\n"
        text += "links:\n  - ['l1:9', l2]\n"
        assert loops(text) == [("l1", "9", True)]

    def test_two_trees_joined_at_their_tops_have_none(self) -> None:
        text = TREE.replace("name: core", 'name: "core,core2"').replace(
            '"spine[1-3]", uplinks: core}', '"spine[1-2]", uplinks: core}\n  - {name: spine3, uplinks: core2}'
        )
        assert loops(text + "links:\n  - [core, core2]\n") == []


class TestIslands:
    def test_fabrics_apart_are_counted_and_no_error(self) -> None:
        text = TREE.replace("uplinks: core}", "tier: 2}")
        found = [one for one in findings(text) if one.kind is FindingKind.ISLAND]
        assert [(one.device, one.is_error) for one in found] == [("leaf1", False), ("leaf3", False), ("leaf5", False)]
        assert found[0].text == "island of leaf1: 4 of 12 nodes, out of reach of 2 other islands"

    def test_one_fabric_is_not_told_of(self) -> None:
        assert findings(TREE) == []
        assert findings(MESH) == []

    def test_a_storage_leaf_between_fabrics_joins_none(self) -> None:
        text = TREE.replace("uplinks: core}", "tier: 2}").replace(
            "leaves:", 'leaves:\n  - {name: store, uplinks: "spine[1-3]"}'
        )
        text += '  - {name: "a[1-2],c[1-2]", role: storage, leaf: store, rails: 0}\n'
        assert sum(one.kind is FindingKind.ISLAND for one in findings(text)) == 3


def units(*rows: str, spine: bool = True) -> str:
    """Two rail-optimised units of four nodes, and more rows."""
    up = ", uplinks: spine" if spine else ""
    return (
        f'version: 1\nspines:\n  - name: spine\nleaves:\n  - {{name: "u[1-2]-[0-3],store,extra"{up}}}\nnodes:\n'
        '  - {name: "a[1-4]", rails: 0-3, leaves: "u1-[0-3]"}\n'
        '  - {name: "b[1-4]", rails: 0-3, leaves: "u2-[0-3]"}\n' + "".join(f"  - {row}\n" for row in rows)
    )


class TestStorageLeaves:
    def test_a_leaf_that_all_nodes_touch_while_their_others_differ_is_one(self) -> None:
        text = units('{name: "a[1-4],b[1-4]", rails: 8, leaf: store}')
        found = [one for one in findings(text) if one.is_error]
        assert [(one.kind, one.device) for one in found] == [(FindingKind.STORAGE_LEAF, "store")]
        assert found[0].expected == "role storage for its ports"
        assert found[0].text.startswith(
            "store: 8 of 8 nodes touch it, most with rail 8, while their other NICs are on 8"
        )

    def test_so_it_is_without_links_to_the_fabric_and_in_pairs(self) -> None:
        text = units(
            '{name: "a[1-4],b[1-4]", rails: 8, leaf: store}',
            '{name: "a[1-4],b[1-4]", rails: 9, leaf: extra}',
            spine=False,
        )
        assert [one.device for one in findings(text) if one.is_error] == ["extra", "store"]

    @pytest.mark.parametrize("role", ["storage", "management"])
    def test_with_its_role_told_it_is_none(self, role: str) -> None:
        assert not any(
            one.is_error for one in findings(units(f'{{name: "a[1-4],b[1-4]", role: {role}, rails: 8, leaf: store}}'))
        )

    def test_leaves_of_one_unit_that_all_its_nodes_touch_are_none(self) -> None:
        text = (
            'version: 1\nleaves:\n  - name: rail[0-7]\nnodes:\n  - {name: "n[1-9]", rails: 0-7, leaves: "rail[0-7]"}\n'
        )
        assert findings(text) == []
        odd = text.replace("rail[0-7]\nnodes", "rail[0-7]\n  - name: other\nnodes").replace("n[1-9]", "n[1-8]")
        odd += '  - {name: n9, rails: 0-7, leaves: "rail[0-6],other"}\n'
        assert {one.kind for one in findings(odd)} == {FindingKind.MISCABLING}

    def test_a_leaf_that_only_half_of_the_nodes_touch_is_none(self) -> None:
        assert not any(one.is_error for one in findings(units('{name: "a[1-4]", rails: 8, leaf: store}')))
