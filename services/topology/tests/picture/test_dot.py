"""The fabric for Graphviz: what it says is read back by a small reader of DOT, and by `dot` where that is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import given, settings

from railweave.contracts.types import LeafName, NodeName, Rail
from railweave.topology.model import Graph, Leaf, Link, LinkEnd, Node, NodePort, Spine
from railweave.topology.picture.colours import colour_of
from railweave.topology.picture.dot import dot_of
from railweave.topology.picture.shown import Shown
from railweave.topology.picture.text import clean
from railweave_testing.random_fabrics import ODD_NAMES, random_fabrics, regular_fabric

_TOKEN = re.compile(r'\s*(?:("(?:\\.|[^"\\])*")|(--|[{}\[\],;=])|([A-Za-z_][A-Za-z0-9_]*|-?[0-9.]+))', re.DOTALL)
Attributes = dict[str, str]


class Read:
    """A graph read from DOT: nodes and edges with their attributes. Fails on anything else than the language."""

    def __init__(self, text: str) -> None:
        self.nodes: dict[str, Attributes] = {}
        self.edges: list[tuple[str, str, Attributes]] = []
        self.labels: list[str] = []
        self._tokens = list(_tokens(text))
        assert self._take() == "graph"
        assert self._take() == "fabric"
        self._block()
        assert not self._tokens

    def _take(self, wanted: str | None = None) -> str:
        token = self._tokens.pop(0)
        assert wanted is None or token == wanted, f"expected {wanted}, found {token}"
        return token

    def _block(self) -> None:
        self._take("{")
        while self._tokens[0] != "}":
            self._statement()
        self._take("}")

    def _statement(self) -> None:
        if self._tokens[0] == "{":
            self._block()
            return
        name = self._take()
        if name == ";":
            return
        assert name not in "[],=--", name
        if name == "subgraph":
            self._take()
            self._block()
        elif self._tokens[0] == "=":
            self._take()
            self._take()
        elif self._tokens[0] == "--":
            self._take()
            self.edges.append((name, self._take(), self._attributes()))
        elif name in {"graph", "node", "edge"}:
            self.labels += [value for key, value in self._attributes().items() if key == "label"]
        else:
            self.nodes.setdefault(name, {}).update(self._attributes())

    def _attributes(self) -> Attributes:
        found: Attributes = {}
        if self._tokens[0] != "[":
            return found
        self._take()
        while self._tokens[0] != "]":
            key = self._take()
            self._take("=")
            found[key] = self._take()
            if self._tokens[0] == ",":
                self._take()
        self._take()
        return found


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        assert found is not None, f"no token at {text[at : at + 40]!r}"
        yield next(group for group in found.groups() if group is not None)
        at = found.end()


def said(label: str) -> str:
    """The text that Graphviz draws for a quoted label, its lines joined."""
    inner = re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], label[1:-1])
    return inner.replace("&amp;", "&")


def test_every_host_leaf_and_spine_is_a_node_and_every_rail_an_edge() -> None:
    read = Read(dot_of(Shown(regular_fabric(4, leaves=2, spines=1, rails=3))))
    labels = [said(node["label"]).partition("\n")[0] for node in read.nodes.values() if "label" in node]
    assert sorted(labels) == sorted(["spine0", "leaf000", "leaf001", "n00000", "n00001", "n00002", "n00003"])
    rails = [edge for edge in read.edges if "color" in edge[2]]
    assert len(read.edges) == 2 + 12
    assert len(rails) == 12
    assert {(edge[2]["color"], edge[2]["tooltip"]) for edge in rails} == {
        (f'"{colour_of(rail)}"', f'"rail {rail}"') for rail in range(3)
    }


def test_tiers_have_ranks_and_pods_are_clusters() -> None:
    text = dot_of(Shown(regular_fabric(8, leaves=4, spines=2, pods=2)))
    assert text.count("subgraph cluster_") == 2
    assert text.count("rank=same") == 2


def test_hosts_are_taken_together_by_leaf_above_128() -> None:
    assert 'label="n00127"' in dot_of(Shown(regular_fabric(128, leaves=4)))
    read = Read(dot_of(Shown(regular_fabric(1290, leaves=129, spines=2))))
    cards = [said(node["label"]) for node in read.nodes.values() if "rails 0-7" in node["label"]]
    assert len(cards) == 129
    assert cards[0] == "10 nodes, rails 0-7\nn[00000-00009]"


@settings(max_examples=60, deadline=None)
@given(random_fabrics())
def test_any_fabric_is_dot(graph: Graph) -> None:
    read = Read(dot_of(Shown(graph)))
    labels = {said(node["label"]).partition("\n")[0] for node in read.nodes.values() if "label" in node}
    known = labels | {said(name) for name in read.nodes if name.startswith('"')}
    for name in (*(leaf.name for leaf in graph.leaves), *(node.name for node in graph.nodes)):
        assert clean(name) in known
    for one, other, _ in read.edges:
        assert {one, other} <= read.nodes.keys()


def _odd() -> Graph:
    leaves = [LeafName(f"leaf{name}"[:253]) for name in ODD_NAMES]
    return Graph(
        tuple(Leaf(leaf, f'pod "{leaf[4:]}"') for leaf in leaves),
        tuple(Spine(f"spine{name}") for name in ODD_NAMES),
        tuple(Link(LinkEnd(leaf), LinkEnd(f"spine{name}")) for leaf, name in zip(leaves, ODD_NAMES, strict=True)),
        tuple(
            Node(NodeName(name), (NodePort(Rail(0), leaf, "p"),)) for leaf, name in zip(leaves, ODD_NAMES, strict=True)
        ),
    )


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed; the reader above has read it all")
@pytest.mark.parametrize(
    "graph",
    [Graph(), _odd(), regular_fabric(8, leaves=2, spines=2), regular_fabric(300, leaves=6, spines=2, pods=3)],
    ids=["empty", "odd-names", "eight", "three-hundred"],
)
def test_graphviz_reads_it_without_a_word(graph: Graph) -> None:
    done = subprocess.run(
        ["dot", "-Tdot"],
        input=dot_of(Shown(graph)).encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr.decode()) == (0, "")
