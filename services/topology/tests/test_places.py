"""Which nodes are near: islands that reach each other, pods in them, and what one wrong cable changes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from railweave.topology.fabric_file import read_fabric_file
from railweave.topology.model import Graph
from railweave.topology.topograph import load_topograph

SHARED = Path(os.environ.get("RAILWEAVE_SHARED", Path(__file__).parents[4] / "shared"))

FAT_TREE = """\
version: 1
spines:
  - {name: "core[1-4]", tier: 3}
  - {name: "a-spine[1-2]", uplinks: "core[1-4]"}
  - {name: "b-spine[1-2]", uplinks: "core[1-4]"}
leaves:
  - {name: "a-leaf[1-4]", uplinks: "a-spine[1-2]"}
  - {name: "b-leaf[1-4]", uplinks: "b-spine[1-2]"}
nodes:
  - {name: "a1-[1-4]", leaf: a-leaf1, rails: 0-3}
  - {name: "a2-[1-4]", leaf: a-leaf2, rails: 0-3}
  - {name: "b1-[1-4]", leaf: b-leaf1, rails: 0-3}
  - {name: "b2-[1-4]", leaf: b-leaf2, rails: 0-3}
"""

RAIL_PLANES = """\
version: 1
spines:
  - {name: "core[0-1]", tier: 3}
  - {name: "p-rail0-spine[1-2]", uplinks: core0}
  - {name: "p-rail1-spine[1-2]", uplinks: core1}
  - {name: "q-rail0-spine[1-2]", uplinks: core0}
  - {name: "q-rail1-spine[1-2]", uplinks: core1}
leaves:
  - {name: "p[1-2]-rail0", uplinks: "p-rail0-spine[1-2]"}
  - {name: "p[1-2]-rail1", uplinks: "p-rail1-spine[1-2]"}
  - {name: "q[1-2]-rail0", uplinks: "q-rail0-spine[1-2]"}
  - {name: "q[1-2]-rail1", uplinks: "q-rail1-spine[1-2]"}
nodes:
  - {name: "p1-[1-4]", rails: 0-1, leaves: "p1-rail[0-1]"}
  - {name: "p2-[1-4]", rails: 0-1, leaves: "p2-rail[0-1]"}
  - {name: "q1-[1-4]", rails: 0-1, leaves: "q1-rail[0-1]"}
  - {name: "q2-[1-4]", rails: 0-1, leaves: "q2-rail[0-1]"}
"""

TWO_ISLANDS = """\
version: 1
spines:
  - name: "spine-a,spine-b"
leaves:
  - {name: "leaf-a[1-2]", uplinks: spine-a}
  - {name: "leaf-b[1-2]", uplinks: spine-b}
  - {name: store, uplinks: "spine-a,spine-b"}
nodes:
  - {name: "a[1-4]", leaf: leaf-a1, rails: 0}
  - {name: "b[1-4]", leaf: leaf-b1, rails: 0}
"""


def fabric(text: str) -> Graph:
    return read_fabric_file(text, "fabric.yaml")


def pods(graph: Graph, names: Iterable[str]) -> list[str]:
    return [graph.place(name).pod for name in names]


class TestIslands:
    @pytest.mark.parametrize("role", ["storage", "management"])
    def test_a_leaf_that_carries_no_jobs_does_not_join_the_fabrics_it_serves(self, role: str) -> None:
        graph = fabric(TWO_ISLANDS + f'  - {{name: "a[1-4],b[1-4]", role: {role}, leaf: store, rails: 0}}\n')
        assert graph.place("a1").island == "leaf-a1"
        assert graph.place("b1").island == "leaf-b1"
        assert graph.island_count == 2
        assert graph.place("store").island == "leaf-a1", "it belongs to the first that it leads to"

    def test_a_leaf_with_one_compute_port_joins_what_it_is_linked_to(self) -> None:
        graph = fabric(
            TWO_ISLANDS + '  - {name: "a[1-4],b[1-4]", role: storage, leaf: store, rails: 0}\n'
            "  - {name: c1, leaf: store, rails: 0}\n"
        )
        assert graph.island_count == 1

    def test_a_storage_network_of_its_own_is_an_island_of_its_own(self) -> None:
        text = TWO_ISLANDS.replace('uplinks: "spine-a,spine-b"', "uplinks: store-spine")
        text = text.replace('"spine-a,spine-b"', '"spine-a,spine-b,store-spine"')
        graph = fabric(text + '  - {name: "a[1-4],b[1-4]", role: storage, leaf: store, rails: 0}\n')
        assert graph.place("store").island == "store"
        assert graph.island_count == 2, "no job is on it"
        assert graph.place("a1").island != graph.place("b1").island

    def test_a_node_without_compute_ports_is_near_nobody(self) -> None:
        graph = fabric(TWO_ISLANDS + "  - {name: s1, role: storage, leaf: store, rails: 0}\n")
        assert graph.place("s1") == ("s1", "s1")
        assert graph.island_count == 2


class TestPods:
    def test_leaves_under_the_same_spines_are_a_pod_of_a_fat_tree(self) -> None:
        graph = fabric(FAT_TREE)
        assert pods(graph, ["a1-1", "a2-4", "a-leaf4"]) == ["a-spine1"] * 3
        assert pods(graph, ["b1-1", "b2-4", "b-leaf4"]) == ["b-spine1"] * 3
        assert graph.island_count == 1

    def test_a_lost_uplink_leaves_a_leaf_in_its_pod(self) -> None:
        graph = fabric(
            FAT_TREE.replace(
                '  - {name: "a-leaf[1-4]", uplinks: "a-spine[1-2]"}',
                '  - {name: "a-leaf[2-4]", uplinks: "a-spine[1-2]"}\n  - {name: a-leaf1, uplinks: a-spine2}',
            )
        )
        assert pods(graph, ["a1-1", "a2-1", "b1-1"]) == ["a-spine1", "a-spine1", "b-spine1"]

    def test_an_uplink_into_the_other_pod_does_not_make_one_pod_of_two(self) -> None:
        graph = fabric(FAT_TREE + "links:\n  - [b-leaf1, a-spine1]\n")
        assert pods(graph, ["a1-1", "b1-1", "b2-1"]) == ["a-spine1", "b-spine1", "b-spine1"]

    def test_a_nic_in_the_other_pod_does_not_make_one_pod_of_two(self) -> None:
        graph = fabric(FAT_TREE + '  - {name: odd, rails: 0-3, leaves: "a-leaf1,b-leaf1,b-leaf1,b-leaf1"}\n')
        assert pods(graph, ["a1-1", "b1-1"]) == ["a-spine1", "b-spine1"]
        assert pods(graph, ["odd"]) == ["b-spine1"], "where most of its NICs are"

    def test_spines_of_each_rail_are_one_pod_through_the_nodes(self) -> None:
        graph = fabric(RAIL_PLANES)
        assert pods(graph, ["p1-1", "p2-1", "p1-rail1"]) == ["p-rail0-spine1"] * 3
        assert pods(graph, ["q1-1", "q2-1", "q2-rail0"]) == ["q-rail0-spine1"] * 3

    def test_a_fabric_of_two_tiers_is_one_pod(self) -> None:
        graph = fabric(TWO_ISLANDS)
        assert pods(graph, ["a1", "leaf-a2", "b1"]) == ["leaf-a1"] * 3
        assert graph.island_count == 1, "a leaf without nodes may get some"

    def test_an_island_of_two_tiers_is_one_pod_beside_one_of_three(self) -> None:
        graph = fabric(
            FAT_TREE.replace("leaves:", 'leaves:\n  - {name: "c-leaf[1-2]", uplinks: c-spine}').replace(
                "spines:", "spines:\n  - {name: c-spine}"
            )
            + '  - {name: "c[1-2]", leaf: c-leaf2, rails: 0}\n'
        )
        assert pods(graph, ["c1", "c-leaf1", "a1-1"]) == ["c-leaf1", "c-leaf1", "a-spine1"]

    def test_a_pod_that_is_told_wins(self) -> None:
        graph = fabric(FAT_TREE.replace('"a-leaf[1-4]"', '"a-leaf[1-4]", pod: hall-1'))
        assert pods(graph, ["a1-1", "b1-1"]) == ["hall-1", "b-spine1"]

    def test_leaves_straight_under_the_core_are_a_pod_of_their_own(self) -> None:
        graph = fabric(FAT_TREE.replace("leaves:", "leaves:\n  - {name: edge, uplinks: core1}"))
        assert pods(graph, ["edge", "a-leaf1"]) == ["core1", "a-spine1"]

    def test_twelve_leaves_under_six_spines_are_six_pods(self) -> None:
        path = SHARED / "data" / "topology" / "topograph_large.yaml"
        if not path.exists():
            pytest.skip(f"no real fabric files at {SHARED}")
        graph = load_topograph(path, rails=8)
        assert {graph.place(node.name).pod for node in graph.nodes} == {f"spine-{number}" for number in range(1, 7)}
