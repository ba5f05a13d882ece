"""The fabric file (docs/operate/fabric-file.md), written: compact where the fabric is regular, exact where it is not.

What was read is written so that it reads as the same graph, and the same graph is always the same text.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from railweave.topology.fabric_file import VERSION
from railweave.topology.hostlist import compress, escape
from railweave.topology.inferring import natural
from railweave.topology.model import Graph, Link, LinkEnd, Node, NodePort, Role

_WIDEST: Final = 110
_MOST_AT_ONCE: Final = 100_000
"""Names of a hostlist: the reader has a limit too."""
_PLAIN: Final = re.compile(r"(?!null\Z)[A-Za-z0-9_](?:[A-Za-z0-9_./@+\[\],\\-]|:(?=[^\s]))*\Z", re.ASCII)
_PLAIN_IN_FLOW: Final = re.compile(r"(?!null\Z)[A-Za-z0-9_](?:[A-Za-z0-9_./@+-]|:(?=[A-Za-z0-9_]))*\Z", re.ASCII)
_NOT_PRINTED: Final = re.compile('["\\\\]|[^\x20-\x7e\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]')


def write_fabric_file(graph: Graph) -> str:
    """The fabric file of a graph."""
    above, cables = _uplinks(graph)
    lines = [f"version: {VERSION}"]
    spines: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for spine in sorted(graph.spines, key=lambda spine: (-spine.tier, natural(spine.name))):
        spines[spine.tier, above.get(spine.name, ())].append(spine.name)
    leaves: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for leaf in sorted(graph.leaves, key=lambda leaf: natural(leaf.name)):
        leaves[leaf.pod, above.get(leaf.name, ())].append(leaf.name)
    lines += _section("spines", (_switch(names, {"tier": tier}, up) for (tier, up), names in spines.items()))
    lines += _section("leaves", (_switch(names, {"pod": pod}, up) for (pod, up), names in leaves.items()))
    lines += _section("links", _links(cables))
    lines += _section("nodes", _nodes(graph.nodes))
    return "\n".join(lines) + "\n"


def _section(key: str, entries: Iterable[list[str]]) -> list[str]:
    """A list of mappings, each given as its lines."""
    written = [f"{'  - ' if number == 0 else '    '}{line}" for entry in entries for number, line in enumerate(entry)]
    return [f"{key}:", *written] if written else []


def _switch(names: Sequence[str], extra: Mapping[str, object], uplinks: object) -> list[str]:
    lines = _hostlists("name", names)
    for key, value in extra.items():
        if value is not None and (key, value) != ("tier", 2):
            lines.append(f"{key}: {_scalar(str(value))}")
    if isinstance(uplinks, tuple) and uplinks:
        lines += _hostlists("uplinks", uplinks)
    return lines


def _uplinks(graph: Graph) -> tuple[dict[str, tuple[str, ...]], list[Link]]:
    """The switches above each, where the cable has no ports; and the links that have to be written out."""
    tiers = {spine.name: spine.tier for spine in graph.spines}
    above: dict[str, list[str]] = defaultdict(list)
    cables: list[Link] = []
    for link in graph.links:
        a, b = tiers.get(link.a.switch, 1), tiers.get(link.b.switch, 1)
        if a == b or link.a.port is not None or link.b.port is not None:
            # The lower end first, as people say it.
            cables.append(link if a <= b else Link(link.b, link.a))
        elif a < b:
            above[link.a.switch].append(link.b.switch)
        else:
            above[link.b.switch].append(link.a.switch)
    return {name: tuple(sorted(names, key=natural)) for name, names in above.items()}, cables


def _links(links: Sequence[Link]) -> Iterator[list[str]]:
    """Two ends each, or two hostlists of ends: by the leaf's port or by the spine's, whichever takes fewer lines."""
    for members in min((_grouped(links, by_upper) for by_upper in (True, False)), key=len):
        yield from _fitting(members)


def _fitting(members: Sequence[tuple[LinkEnd, LinkEnd]]) -> Iterator[list[str]]:
    """One line for all of them where it is not too long, else two halves."""
    a, b = (",".join(compress(map(_end, side))) for side in zip(*members, strict=True))
    if len(a) + len(b) <= _WIDEST or len(members) == 1:
        yield [f"[{_scalar(a, _PLAIN_IN_FLOW)}, {_scalar(b, _PLAIN_IN_FLOW)}]"]
        return
    half = len(members) // 2
    yield from _fitting(members[:half])
    yield from _fitting(members[half:])


def _grouped(links: Sequence[Link], by_upper: bool) -> list[list[tuple[LinkEnd, LinkEnd]]]:
    groups: dict[tuple[str, str | None], list[tuple[LinkEnd, LinkEnd]]] = defaultdict(list)
    for link in sorted(links, key=lambda link: (_end_key(link.a), _end_key(link.b))):
        one, other = (link.b, link.a) if by_upper else (link.a, link.b)
        groups[one.switch, other.port].append((link.a, link.b))
    return list(groups.values())


def _end_key(end: LinkEnd) -> tuple[object, object]:
    return natural(end.switch), natural(end.port or "")


def _end(end: LinkEnd) -> str:
    switch = escape(end.switch, is_switch_of_end=True)
    return switch if end.port is None else f"{switch}:{escape(end.port)}"


class _Shape(NamedTuple):
    """What nodes of one entry have in common. One leaf stands for all rails, several are one for each."""

    role: Role
    rails: tuple[int, ...]
    leaves: tuple[str, ...]
    is_named: bool
    """Whether its ports are written: left out where they are called what the reader would call them."""


def _nodes(nodes: Iterable[Node]) -> Iterator[list[str]]:
    members: dict[_Shape, list[tuple[str, tuple[str, ...]]]] = defaultdict(list)
    bare: list[str] = []
    for node in sorted(nodes, key=lambda node: natural(node.name)):
        if not node.ports:
            bare.append(node.name)
        for shape, ports in _shapes(node):
            members[shape].append((node.name, ports))
    roles = list(Role)
    for shape, named in sorted(members.items(), key=lambda entry: roles.index(entry[0].role)):
        yield _entry(shape, named)
    if bare:
        yield [*_hostlists("name", bare), "ports: []"]


def _shapes(node: Node) -> Iterator[tuple[_Shape, tuple[str, ...]]]:
    """The entries that a node stands in: one a role where its ports allow, else one for each leaf."""
    by_role: dict[Role, list[NodePort]] = {}
    for port in node.ports:
        by_role.setdefault(port.role, []).append(port)
    for role, ports in by_role.items():
        written = [port.port != f"{node.name}:{int(port.rail)}" for port in ports]
        leaves = {port.leaf for port in ports}
        names = {port.port for port in ports}
        if not any(written) or (len(names) == 1 < len(leaves)):
            one = tuple(leaves) if len(leaves) == 1 else tuple(port.leaf for port in ports)
            shape = _Shape(role, tuple(int(port.rail) for port in ports), one, any(written))
            yield shape, (ports[0].port,) if any(written) else ()
            continue
        pieces: dict[tuple[str, bool], list[NodePort]] = {}
        for port, is_named in zip(ports, written, strict=True):
            pieces.setdefault((port.leaf, is_named), []).append(port)
        for (leaf, is_named), piece in pieces.items():
            shape = _Shape(role, tuple(int(port.rail) for port in piece), (leaf,), is_named)
            yield shape, tuple(port.port for port in piece) if is_named else ()


def _entry(shape: _Shape, members: Sequence[tuple[str, tuple[str, ...]]]) -> list[str]:
    lines = _hostlists("name", [name for name, _ in members])
    if shape.role is not Role.COMPUTE:
        lines.append(f"role: {shape.role}")
    lines.append(f"rails: {_rails(shape.rails)}")
    if len(shape.leaves) == 1:
        lines.append(f"leaf: {_scalar(shape.leaves[0])}")
    else:
        lines += _hostlists("leaves", shape.leaves)
    if shape.is_named:
        lines += _hostlists("leaf_ports", [port for _, ports in members for port in ports])
    return lines


def _rails(rails: Sequence[int]) -> str:
    """`0-3`, or `[0-1, 3]`."""
    spans: list[list[int]] = []
    for rail in rails:
        if spans and rail == spans[-1][1] + 1:
            spans[-1][1] = rail
        else:
            spans.append([rail, rail])
    texts = [str(low) if low == high else f"{low}-{high}" for low, high in spans]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def _hostlists(key: str, names: Sequence[str]) -> list[str]:
    """`key: names` as one hostlist, or as a list of several."""
    chunks: list[str] = []
    for first in range(0, len(names), _MOST_AT_ONCE):
        for text in compress(map(escape, names[first : first + _MOST_AT_ONCE])):
            if chunks and first == 0 and len(chunks[-1]) + len(text) < _WIDEST:
                chunks[-1] += f",{text}"
            else:
                chunks.append(text)
    if len(chunks) == 1:
        return [f"{key}: {_scalar(chunks[0])}"]
    return [f"{key}:", *(f"  - {_scalar(chunk)}" for chunk in chunks)]


def _scalar(text: str, plain: re.Pattern[str] = _PLAIN) -> str:
    """A text in YAML: bare where nothing else can be read in it, else in double quotes."""
    return text if plain.match(text) else f'"{_NOT_PRINTED.sub(_escaped, text)}"'


def _escaped(found: re.Match[str]) -> str:
    char = found[0]
    return f"\\{char}" if char in '"\\' else f"\\U{ord(char):08x}"
