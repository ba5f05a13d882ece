"""What is written reads as the same graph, whatever is in it; the same graph is the same text."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.contracts.types import LeafName, NodeName, Rail
from railweave.topology.exporting import EXPORTERS, CannotExport
from railweave.topology.fabric_file import read_fabric_file
from railweave.topology.fabric_writer import write_fabric_file
from railweave.topology.hostlist import compress, escape, expand, expand_ends
from railweave.topology.model import Graph, Leaf, Link, LinkEnd, Node, NodePort, Role, Spine
from railweave.topology.providers import PROVIDERS, ImportOptions
from railweave_testing.real_fabrics import REAL_FABRICS, RealFabric

SHARED = Path(os.environ.get("RAILWEAVE_SHARED", Path(__file__).parents[4] / "shared"))

NAMES = st.one_of(
    st.from_regex(r"\A[a-z]{1,3}[0-9]{1,3}\Z"),
    st.from_regex(r"\A(sw|n)[0-9]{1,2}[-.][0-9]{1,2}[a-z]?\Z"),
    st.sampled_from(
        ["null", "~", "0", "007", "1e3", "yes", "a:1", "a:b", "x[1]", "x[", "a,b", "\\", "a\\:1", "-", "#a"]
    ),
    st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/ "), min_size=1, max_size=6),
)
PORTS = st.one_of(
    st.from_regex(r"\AEthernet[0-9]{1,3}\Z"),
    st.from_regex(r"\Aswp[0-9]{1,2}s[0-3]\Z"),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5),
)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Any graph: names and ports as odd as they are allowed, ports named or not, islands, bare nodes."""
    names = draw(st.lists(NAMES, min_size=1, max_size=24, unique=True))
    kinds = [draw(st.sampled_from("lsn")) for _ in names]
    leaves = [name for name, kind in zip(names, kinds, strict=True) if kind == "l"]
    spines = [name for name, kind in zip(names, kinds, strict=True) if kind == "s"]
    switches = [*leaves, *spines]
    used: set[tuple[str, str]] = set()

    def port_of(switch: str) -> str | None:
        port = draw(st.none() | PORTS)
        if port is None or (switch, port) in used:
            return None
        used.add((switch, port))
        return port

    links = []
    if len(switches) > 1:
        pairs = st.tuples(st.sampled_from(switches), st.sampled_from(switches)).filter(lambda pair: pair[0] != pair[1])
        links = [Link(LinkEnd(a, port_of(a)), LinkEnd(b, port_of(b))) for a, b in draw(st.lists(pairs, max_size=12))]
    nodes = []
    for name in (name for name, kind in zip(names, kinds, strict=True) if kind == "n"):
        slots = draw(st.lists(st.tuples(st.sampled_from(Role), st.integers(0, 9)), max_size=6, unique=True))
        ports = []
        for role, rail in slots if leaves else []:
            leaf = draw(st.sampled_from(leaves))
            port = port_of(leaf) or f"{name}:{rail}"
            if (leaf, port) in used and port == f"{name}:{rail}":
                continue
            used.add((leaf, port))
            ports.append(NodePort(Rail(rail), LeafName(leaf), port, role))
        nodes.append(Node(NodeName(name), tuple(ports)))
    pods = st.none() | st.sampled_from(["p1", "pod: 2", "", "null", "ü\n"])
    return Graph(
        tuple(Leaf(LeafName(name), draw(pods)) for name in leaves),
        tuple(Spine(name, draw(st.sampled_from([2, 2, 3, 9, 40]))) for name in spines),
        tuple(links),
        tuple(nodes),
    )


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_every_graph_reads_back_from_its_fabric_file_as_it_was(graph: Graph) -> None:
    text = write_fabric_file(graph)
    again = read_fabric_file(text.encode(), "fabric.yaml")
    assert again == graph
    assert write_fabric_file(again) == text


@given(st.lists(st.one_of(NAMES, PORTS), max_size=30))
def test_names_written_as_hostlists_are_the_same_names_in_their_order(names: list[str]) -> None:
    written = compress(escape(name) for name in names)
    assert [name for text in written for name in expand(text)] == names
    assert expand(",".join(written)) == names if names else True


@given(st.lists(st.tuples(NAMES, st.none() | PORTS), min_size=1, max_size=20))
def test_ends_written_as_hostlists_are_the_same_switches_and_ports(ends: list[tuple[str, str | None]]) -> None:
    texts = [
        escape(switch, is_switch_of_end=True) + ("" if port is None else f":{escape(port)}") for switch, port in ends
    ]
    assert expand_ends(",".join(compress(texts))) == ends


@pytest.mark.parametrize(
    ("names", "written"),
    [
        (["n1", "n2", "n3"], ["n[1-3]"]),
        (["n08", "n09", "n10", "n11"], ["n[08-11]"]),
        (["n8", "n9", "n10"], ["n[8-10]"]),
        (["n09", "n10", "n100"], ["n[09-10,100]"]),
        (["e0", "e4", "e8", "e9"], ["e[0,4,8-9]"]),
        (["r1n1", "r1n2", "r2n1", "r2n2"], ["r1n[1-2]", "r2n[1-2]"]),
        (["a", "b"], ["a", "b"]),
        (["n1", "n1"], ["n1", "n1"]),
        (["n3", "n2"], ["n[3,2]"]),
        (["n9999999999", "n9999999998"], ["n9999999999", "n9999999998"]),
        (["n0", "n00"], ["n[0,00]"]),
    ],
)
def test_what_counts_up_is_a_range(names: list[str], written: list[str]) -> None:
    assert compress(names) == written


def test_slurm_has_brackets_at_the_end_of_a_name_alone() -> None:
    assert compress(["n1-ib", "n2-ib", "n3", "n4"], only_at_end=True) == ["n1-ib", "n2-ib", "n[3-4]"]


def test_a_regular_fabric_is_a_few_lines() -> None:
    text = """\
version: 1
spines:
  - name: core1
    tier: 3
  - name: spine[1-4]
    uplinks: core1
leaves:
  - name: leaf[1-16]
    pod: a
links:
  - ["leaf[1-16]:Ethernet48", "spine1:Ethernet[0-15]"]
  - ["leaf[1-16]:Ethernet52", "spine2:Ethernet[0-15]"]
nodes:
  - name: n[001-100]
    rails: 0-7
    leaves: leaf[1-8]
    leaf_ports: Ethernet[100-199]
  - name: n[101-120]
    rails: 0-7
    leaf: leaf9
  - name: n[001-120]
    role: storage
    rails: 0
    leaf: leaf16
  - name: spare1
    ports: []
"""
    assert write_fabric_file(read_fabric_file(text, "fabric.yaml")) == text


def test_links_may_be_hostlists_of_the_same_length() -> None:
    text = """\
version: 1
spines: [{name: "sp[1-2]"}]
leaves: [{name: "leaf[1-2]"}, {name: "odd\\\\:leaf"}]
links:
  - ["leaf[1-2]:e[0-1]", "sp[1-2]:e[7,9]"]
  - ['odd\\\\:leaf:e:1', sp1]
"""
    graph = read_fabric_file(text.replace('odd\\\\:leaf"', 'odd:leaf"').replace("\\\\", "\\"), "fabric.yaml")
    assert [(link.a, link.b) for link in graph.links] == [
        (("leaf1", "e0"), ("sp1", "e7")),
        (("leaf1", "e1"), ("sp1", "e9")),
        (("leaf2", "e0"), ("sp2", "e7")),
        (("leaf2", "e1"), ("sp2", "e9")),
        (("odd:leaf", "e:1"), ("sp1", None)),
    ]


def slurm(graph: Graph) -> tuple[str, tuple[str, ...]]:
    written = EXPORTERS["slurm"].write(graph)
    assert EXPORTERS["slurm"].write(graph) == written
    return written.text, written.notes


def test_a_tree_is_the_same_tree_in_slurms_file() -> None:
    graph = read_fabric_file(
        """\
version: 1
spines: [{name: core, tier: 3}, {name: "sp[1-2]", uplinks: core}]
leaves: [{name: "leaf[1-2]", uplinks: sp1}, {name: "leaf[3-4]", uplinks: sp2}]
nodes:
  - {name: "n[01-40]", leaf: leaf1, rails: 0-7}
  - {name: "n[41-60]", leaf: leaf3, rails: 0-7}
  - {name: "a-ib,b-ib", leaf: leaf4, rails: 0}
  - {name: bare, ports: []}
""",
        "fabric.yaml",
    )
    assert slurm(graph) == (
        """\
SwitchName=core Switches=sp[1-2]
SwitchName=sp1 Switches=leaf1
SwitchName=sp2 Switches=leaf[3-4]
SwitchName=leaf1 Nodes=n[01-40]
SwitchName=leaf3 Nodes=n[41-60]
SwitchName=leaf4 Nodes=a-ib,b-ib
""",
        (
            "nodes without a compute port, left out: bare",
            "switches that no node is written under, left out: leaf2",
        ),
    )


def test_what_is_no_tree_is_written_as_the_nearest_one_and_says_so() -> None:
    graph = read_fabric_file(
        """\
version: 1
spines: [{name: "sp[1-3]"}, {name: lone}]
leaves: [{name: "u1r[0-1]", uplinks: "sp[1-2]"}, {name: "u2r[0-1]", uplinks: "sp[2-3]"}, {name: side}]
links: [["u1r0:peer", "u1r1:peer"]]
nodes:
  - {name: "n[1-4]", rails: 0-1, leaves: "u1r[0-1]"}
  - {name: "n[5-8]", rails: 0-1, leaves: "u2r[0-1]"}
  - {name: "x[1-2]", rails: 0, leaf: side}
  - {name: n1, rails: 2, leaf: side}
""",
        "fabric.yaml",
    )
    text, notes = slurm(graph)
    assert (
        text
        == """\
SwitchName=sp1 Switches=u1r0,u2r0
SwitchName=side Nodes=x[1-2]
SwitchName=u1r0 Nodes=n[1-4]
SwitchName=u2r0 Nodes=n[5-8]
"""
    )
    assert notes == (
        "nodes on several leaves, written under that of their first rail: n1, n2, n3, n4, n5, n6 and 2 more",
        "links between switches of a tier, left out: u1r0 - u1r1",
        "written as sp1, since they share what is below them: sp1, sp2, sp3",
        "switches that no node is written under, left out: lone, u1r1, u2r1",
        "2 trees, which Slurm lets no job span, for 1 parts of the fabric: only nodes join some of them",
    )


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["n\u00fc"], "no name for Slurm"),
        (["a" * 65], "no name for Slurm"),
        (["a=b"], "no name for Slurm"),
        (["N1", "n1"], "differ in case alone"),
        ([], "no node has a compute port"),
    ],
)
def test_what_slurm_cannot_hold_is_refused(names: list[str], says: str) -> None:
    leaf = LeafName("leaf")
    nodes = tuple(Node(NodeName(name), (NodePort(Rail(0), leaf, f"p{number}"),)) for number, name in enumerate(names))
    with pytest.raises(CannotExport, match=says):
        slurm(Graph((Leaf(leaf),), nodes=nodes))


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_slurms_file_of_any_graph_is_written_or_refused_with_a_reason(graph: Graph) -> None:
    try:
        text, _ = slurm(graph)
    except CannotExport:
        return
    assert all(line.startswith("SwitchName=") for line in text.splitlines())
    assert len({line.split()[0] for line in text.splitlines()}) == len(text.splitlines()), "a switch is written twice"


REAL_TREES = [real for real in REAL_FABRICS if real.format_name in {"slurm", "topograph"}]


@pytest.mark.skipif(not (SHARED / "data/topology").is_dir(), reason="the shared topology files are not here")
@pytest.mark.parametrize("real", REAL_TREES, ids=str)
def test_a_real_tree_is_the_same_graph_after_slurms_file(real: RealFabric) -> None:
    files = {str(path): path.read_bytes() for path in real.paths(SHARED)}
    options = ImportOptions(rails=real.rails)
    graph = PROVIDERS[real.format_name].read(files, options).imported().graph
    text, notes = slurm(graph)
    assert notes == ()
    assert PROVIDERS["slurm"].read({"topology.conf": text.encode()}, options).imported().graph == graph


@pytest.mark.skipif(not (SHARED / "data/topology").is_dir(), reason="the shared topology files are not here")
@pytest.mark.parametrize("real", REAL_FABRICS, ids=str)
def test_every_real_fabric_is_the_same_graph_after_a_fabric_file(real: RealFabric) -> None:
    files = {str(path): path.read_bytes() for path in real.paths(SHARED)}
    graph = PROVIDERS[real.format_name].read(files, ImportOptions(rails=real.rails)).imported().graph
    text = write_fabric_file(graph)
    assert read_fabric_file(text, "fabric.yaml") == graph
    assert len(text.splitlines()) < 4 * sum(len(content.splitlines()) for content in files.values())


def test_a_fabric_of_ten_thousand_nodes_is_written_in_hundreds_of_lines_and_seconds() -> None:
    nodes = "".join(f'  - {{name: "n{leaf}-[1-20]", leaf: leaf{leaf}, rails: 0-7}}\n' for leaf in range(1, 501))
    graph = read_fabric_file(f'version: 1\nleaves: [{{name: "leaf[1-500]"}}]\nnodes:\n{nodes}', "fabric.yaml")
    begun = time.process_time()
    text = write_fabric_file(graph)
    assert time.process_time() - begun < 10, "a second on an idle machine"
    assert len(text.splitlines()) < 1600
