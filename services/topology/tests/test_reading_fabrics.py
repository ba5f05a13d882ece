"""Fabric files and topograph models become graphs, or errors that name file, line, key and reason."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.contracts.types import NodeName
from railweave.topology.fabric_file import load_fabric_file, read_fabric_file
from railweave.topology.hostlist import HostlistError, expand
from railweave.topology.model import Graph, LeafRail, Role, ports_by_leaf_rail
from railweave.topology.topograph import read_topograph
from railweave.topology.yaml_tree import MOST_BYTES, FileError

SHARED = Path(os.environ.get("RAILWEAVE_SHARED", Path(__file__).parents[4] / "shared"))

TWO_LEAVES = """\
version: 1
spines:
  - name: spine[1-2]
leaves:
  - name: leaf[1-2]
    pod: pod-a
    uplinks: spine[1-2]
nodes:
  - name: n[01-02]
    leaf: leaf1
    rails: 0-3
  - name: n[03-04]
    leaf: leaf2
    rails: 0-3
"""

RAIL_OPTIMISED = """\
version: 1
leaves:
  - name: rail[0-3]
nodes:
  - name: n[1-3]
    rails: 0-3
    leaves: rail[0-3]
    leaf_ports: Ethernet[0-2]
  - name: n1
    role: storage
    ports:
      - {rail: 0, leaf: rail0, port: Ethernet63}
"""


def refusal(text: str | bytes) -> FileError:
    with pytest.raises(FileError) as caught:
        read_fabric_file(text, "fabric.yaml")
    return caught.value


def test_rails_can_all_be_on_one_leaf() -> None:
    graph = read_fabric_file(TWO_LEAVES, "fabric.yaml")
    assert (len(graph.leaves), len(graph.spines), len(graph.links), len(graph.nodes)) == (2, 2, 4, 4)
    assert {(str(place.leaf), int(place.rail)): names for place, names in ports_by_leaf_rail(graph).items()} == {
        (f"leaf{leaf}", rail): [f"n0{2 * leaf - 1}", f"n0{2 * leaf}"] for leaf in (1, 2) for rail in range(4)
    }
    assert graph.island_count == 1
    assert graph.place("n01").pod == "pod-a"


def test_or_one_leaf_a_rail_with_ports_named() -> None:
    graph = read_fabric_file(RAIL_OPTIMISED, "fabric.yaml")
    by_name = {node.name: node for node in graph.nodes}
    assert [(str(port.leaf), port.port) for port in by_name[NodeName("n2")].ports] == [
        (f"rail{rail}", "Ethernet1") for rail in range(4)
    ]
    assert [port.role for port in by_name[NodeName("n1")].ports].count(Role.STORAGE) == 1
    assert len(graph.compute_ports) == 12
    assert graph.island_count == 1, "nodes connect the networks of their rails"


def test_a_storage_leaf_that_touches_every_node_makes_nobody_near() -> None:
    text = """\
version: 1
leaves:
  - name: [a, b, stor]
nodes:
  - {name: n1, leaf: a, rails: 0}
  - {name: n2, leaf: b, rails: 0}
  - {name: "n[1-2]", leaf: stor, rails: 0, role: storage}
"""
    graph = read_fabric_file(text, "fabric.yaml")
    assert graph.place("n1").island != graph.place("n2").island


def test_the_order_in_the_file_means_nothing() -> None:
    head, nodes = TWO_LEAVES.split("nodes:\n")
    entries = nodes.split("  - ")[1:]
    turned = head + "nodes:\n  - " + "  - ".join(reversed(entries))
    assert read_fabric_file(turned, "fabric.yaml") == read_fabric_file(TWO_LEAVES, "fabric.yaml")


@pytest.mark.parametrize(
    ("line", "wrong", "where", "says"),
    [
        ("version: 1", "version: 2", (1, "version"), "whole number from 1 to 1"),
        ("version: 1", "versoin: 1", (1, "version"), "missing"),
        ("    pod: pod-a", "    pods: pod-a", (6, "leaves[0].pods"), "unknown key"),
        ("    uplinks: spine[1-2]", "    uplinks: spine[1-3]", (5, "link leaf1 - spine3"), "no switch 'spine3'"),
        ("  - name: n[03-04]", "  - name: n[02-03]", (12, "node n02 rail 0"), "two compute ports"),
        ("  - name: n[03-04]", "  - name: n[04-03]", (12, "nodes[1].name"), "goes down"),
        ("  - name: n[03-04]", "  - name: n[1-99999999]", (12, "nodes[1].name"), "more than 200000 names"),
        ("  - name: n[03-04]", "  - name: leaf2", (12, "node leaf2"), "a switch has the same name"),
        ("  - name: n[03-04]", "  - name: a/b", (12, "nodes[1].name"), "without spaces, slashes"),
        ("  - name: n[03-04]", f"  - name: {'x' * 300}", (12, "nodes[1].name"), "at most 253"),
        ("    leaf: leaf2", "    leaf: leaf3", (12, "node n03 rail 0"), "no leaf 'leaf3'"),
        ("    leaf: leaf2", "    leaf: [leaf2]", (13, "nodes[1].leaf"), "expected a text"),
        ("    leaf: leaf2", "    leaves: [leaf1, leaf2]", (13, "nodes[1].leaves"), "one leaf a rail: 4, found 2"),
        ("    leaf: leaf2", "    leaf: &x leaf2", (13, ""), "anchors are not allowed"),
        ("    leaf: leaf2", "    leaf: *x", (13, ""), "alias"),
        ("    leaf: leaf2", "    leaf: !!python/object:os.system x", (13, ""), "tags are not allowed"),
        ("    leaf: leaf2", "    leaf: leaf2\n    leaf: leaf1", (14, "leaf"), "written twice, first at line 13"),
        ("    leaf: leaf2", "    leaf: leaf2\n    role: gpu", (14, "nodes[1].role"), "compute, storage, management"),
        ("    leaf: leaf2", "    leaf: {", (15, ""), "not YAML"),
        ("    leaf: leaf2", "    leaf: leaf2\n    leaf_ports: e[1-7]", (14, "nodes[1].leaf_ports"), "expected 8 ports"),
        ("    leaf: leaf2", "    leaf: " + "[" * 40 + "]" * 40, (13, ""), "deeper than 16"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(line: str, wrong: str, where: tuple[int, str], says: str) -> None:
    assert line in TWO_LEAVES
    error = refusal(TWO_LEAVES.replace(line, wrong))
    assert (error.file, error.line) == ("fabric.yaml", where[0]), str(error)
    assert error.key == where[1], str(error)
    assert says in error.reason


@pytest.mark.parametrize("text", ["", "- a", "a", "version", b"\xff\xfe\x00", "version: 1\n---\nversion: 1\n"])
def test_what_is_no_fabric_file_is_refused(text: str | bytes) -> None:
    assert str(refusal(text)).startswith("fabric.yaml")


def test_a_file_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    with path.open("wb") as file:
        file.truncate(100 * 1024 * 1024)
    with pytest.raises(FileError, match=f"at most {MOST_BYTES} bytes"):
        load_fabric_file(path)
    with pytest.raises(FileError, match="No such file"):
        load_fabric_file(tmp_path / "missing.yaml")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_mutated_file_is_a_graph_or_a_typed_error(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([TWO_LEAVES, RAIL_OPTIMISED]))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 6))
        text = text[:place] + data.draw(st.text("[]{}:-,*&!01xé\n\t '\"", max_size=4)) + text[place + cut :]
    with contextlib.suppress(FileError):
        assert isinstance(read_fabric_file(text, "fabric.yaml"), Graph)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("srv11[01-03]", ["srv1101", "srv1102", "srv1103"]),
        ("a[0-1,12],b7", ["a0", "a1", "a12", "b7"]),
        ("r[1-2]n[08-10]", ["r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10"]),
        ("n[9-11].rack", ["n9.rack", "n10.rack", "n11.rack"]),
    ],
)
def test_hostlists_expand_as_in_slurm(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text", ["", "a,,b", "a[", "a]", "a[]", "a[1-]", "a[x]", "a[[1]]", "a[2-1]", "a[1-9][0-99999999]"]
)
def test_malformed_hostlists_are_refused(text: str) -> None:
    with pytest.raises(HostlistError):
        expand(text)


TOPOGRAPH = """\
switches:
  core: {switches: [spine-1, spine-2]}
  spine-1: {labels: {zone: z1}, switches: ["leaf-1-[1-2]"]}
  spine-2: {switches: [leaf-2-1]}
blocks:
- {switch: leaf-1-1, nodes: ["srv11[01-08]"], annotations: {domain: nvl-1-1}}
- {switch: leaf-1-2, nodes: ["srv12[01-08]"]}
- {switch: leaf-2-1, nodes: [srv2101, srv2102]}
"""


def test_a_topograph_model_becomes_leaves_pods_and_rails() -> None:
    graph = read_topograph(TOPOGRAPH, "model.yaml", rails=4)
    assert (len(graph.leaves), len(graph.spines), len(graph.nodes), len(graph.compute_ports)) == (3, 3, 18, 72)
    assert [graph.place(name).pod for name in ("srv1101", "srv1208", "srv2101")] == ["spine-1", "spine-1", "spine-2"]
    assert graph.island_count == 1
    assert {spine.name: spine.tier for spine in graph.spines} == {"spine-1": 2, "spine-2": 2, "core": 3}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("spine-2]}", "spine-2, core]}", "above itself"),
        ("[leaf-2-1]", "[leaf-1-1]", "under spine-1 already"),
        ("switch: leaf-2-1", "switch: spine-2", "both nodes and switches"),
        ("srv2102", "srv1101", "used twice"),
        ("srv2102", "leaf-2-1", "a switch has the same name"),
        ("labels:", "lables:", "unknown key"),
    ],
)
def test_a_model_that_is_no_tree_is_refused(old: str, new: str, says: str) -> None:
    assert old in TOPOGRAPH
    with pytest.raises(FileError, match=says):
        read_topograph(TOPOGRAPH.replace(old, new, 1), "model.yaml", rails=4)


@pytest.mark.skipif(not (SHARED / "data/topology").is_dir(), reason="the shared topology files are not here")
def test_the_large_topograph_model_has_its_96_nodes() -> None:
    text = (SHARED / "data/topology/topograph_large.yaml").read_bytes()
    graph = read_topograph(text, "topograph_large.yaml", rails=8)
    assert (len(graph.leaves), len(graph.spines), len(graph.nodes)) == (12, 7, 96)
    assert set(ports_by_leaf_rail(graph)) == {LeafRail(leaf.name, rail) for leaf in graph.leaves for rail in range(8)}
    assert graph.place("srv6208").pod == "spine-6"


def test_the_files_of_the_documentation_can_be_read() -> None:
    page = (Path(__file__).parents[3] / "docs/operate/fabric-file.md").read_text()
    blocks = [block.partition("```")[0] for block in page.split("```yaml\n")[1:]]
    graphs = [read_fabric_file(block, "fabric-file.md") for block in blocks]
    assert [(len(graph.nodes), len(graph.compute_ports)) for graph in graphs] == [(16, 64), (3, 12)]
