"""Importer of NetQ's topology graph (JSON): switches with tiers, hosts seen by LLDP, the ports of each link."""

from __future__ import annotations

from railweave.topology.cabling import Cable, CablingBuilder, Device, End, Kind, Where
from railweave.topology.json_tree import object_of, read_json
from railweave.topology.providers.base import Found, ImportOptions
from railweave.topology.yaml_tree import FileError, Items, Reader


def read_netq(content: bytes, file: str, _options: ImportOptions) -> Found:
    """Read a topology graph; raises FileError. Keys of its drawing are not looked at."""
    top = read_json(content, file)
    graphs = top.items if isinstance(top, Items) else [top]
    if not graphs:
        raise FileError(file, None, "", "no graph in it")
    found = CablingBuilder()
    for index, graph in enumerate(graphs):
        reader = object_of(graph, file, f"[{index}]" if isinstance(top, Items) else "")
        if not reader.has("nodes"):
            raise reader.error("nodes", "missing: no topology graph")
        _read_graph(reader, found)
    return Found(found.built())


def _read_graph(graph: Reader, found: CablingBuilder) -> None:
    names: dict[str, str] = {}
    for tier in graph.readers("nodes"):
        for node in tier.readers("compounded_nodes"):
            name = names[node.text("id")] = node.text("name")
            height = node.text("tier", "-1")
            is_switch = node.text("device_type", "") == "switch"
            tier_number = int(height) if is_switch and height.isdecimal() and 1 <= int(height) <= 9 else None
            kind = Kind.SWITCH if is_switch else Kind.HOST
            found.declare(Device(name, kind, Where(graph.file), tier_number))
    for link in graph.readers("links"):
        for single in link.readers("compounded_links"):
            ends = [End(_name_of(names, end, "node"), end.text("interface")) for end in single.readers("interfaces")]
            if len(ends) != 2:
                raise single.error("interfaces", f"expected two ends, found {len(ends)}")
            found.cable(Cable(ends[0], ends[1], Where(graph.file)))


def _name_of(names: dict[str, str], end: Reader, key: str) -> str:
    identity = end.text(key)
    if identity not in names:
        raise end.error(key, f"there is no node {identity[:80]!r}")
    return names[identity]
