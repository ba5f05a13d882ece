"""Fabrics as hypothesis makes them: odd names, cables anywhere, nodes with any NICs; and regular ones of any size."""

from __future__ import annotations

from hypothesis import strategies as st

from railweave.contracts.types import LeafName, NodeName, Rail
from railweave.topology.model import Graph, Leaf, Link, LinkEnd, Node, NodePort, Role, Spine

ODD_NAMES = (
    "a<b>&\"c'",
    "]]><!--",
    "&amp;",
    "back\\slash\\n",
    "n[1]",
    "日本語のノード",
    "ﷺ",
    "e\u0301\u200d\u202e",
    "𝔘𝔫𝔦",
    "\ufffe",
    "x" * 253,
    "W" * 253,
    "-" * 40,
)
_NAME = st.one_of(
    st.from_regex(r"[a-z]{1,6}[0-9]{1,3}", fullmatch=True),
    st.sampled_from(ODD_NAMES),
    st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="/").filter(
            lambda char: not (char <= "\x20" or "\x7f" <= char <= "\x9f")
        ),
        min_size=1,
        max_size=30,
    ),
)


@st.composite
def random_fabrics(draw: st.DrawFn, most_leaves: int = 6, most_nodes: int = 12) -> Graph:
    """Any graph that is consistent."""
    names = draw(st.lists(_NAME, unique=True, min_size=1, max_size=most_leaves + 5 + most_nodes))
    leaves = [LeafName(name) for name in names[: draw(st.integers(0, most_leaves))]]
    rest = names[len(leaves) :]
    spines = [Spine(name, draw(st.integers(2, 4))) for name in rest[: draw(st.integers(0, 5))]]
    switches = [*leaves, *(spine.name for spine in spines)]
    ends = st.sampled_from(switches) if switches else st.nothing()
    pairs = draw(st.lists(st.tuples(ends, ends), max_size=20)) if switches else []
    links = [Link(LinkEnd(one), LinkEnd(other)) for one, other in pairs if one != other]
    nodes = [
        Node(NodeName(name), tuple(draw(_ports(name, leaves))) if leaves else ())
        for name in rest[len(spines) : len(spines) + most_nodes]
    ]
    pods = draw(st.lists(st.sampled_from([None, "pod-a", "pod <b>"]), min_size=len(leaves), max_size=len(leaves)))
    return Graph(
        tuple(Leaf(name, pod) for name, pod in zip(leaves, pods, strict=True)),
        tuple(spines),
        tuple(links),
        tuple(nodes),
    )


def _ports(node: str, leaves: list[LeafName]) -> st.SearchStrategy[list[NodePort]]:
    roles = st.sampled_from([Role.COMPUTE, Role.COMPUTE, Role.STORAGE])
    places = st.tuples(st.sampled_from(leaves), st.integers(0, 20), roles)
    return st.lists(places, max_size=9, unique_by=lambda place: (place[1], place[2])).map(
        lambda found: [NodePort(Rail(rail), leaf, f"{node}:{rail}:{role}", role) for leaf, rail, role in found]
    )


def regular_fabric(
    nodes: int, *, leaves: int = 1, spines: int = 1, rails: int = 8, pods: int = 1, is_rail_optimised: bool = False
) -> Graph:
    """Nodes spread over leaves, all cabled to all spines; or over units, each with a leaf for every rail."""
    names = [LeafName(f"leaf{number:03}") for number in range(leaves)]
    tops = tuple(Spine(f"spine{number}") for number in range(spines))
    units = max(1, leaves // rails)
    hung = []
    for number in range(nodes):
        name = f"n{number:05}"
        first = number * units // nodes * rails
        homes = [names[first + rail] if is_rail_optimised else names[number * leaves // nodes] for rail in range(rails)]
        ports = tuple(NodePort(Rail(rail), leaf, f"{name}:{rail}") for rail, leaf in enumerate(homes))
        hung.append(Node(NodeName(name), ports))
    return Graph(
        tuple(Leaf(name, f"pod{number * pods // leaves:03}") for number, name in enumerate(names)),
        tops,
        tuple(Link(LinkEnd(leaf), LinkEnd(spine.name)) for leaf in names for spine in tops),
        tuple(hung),
    )
