"""Importer of containerlab topologies: the links between nodes; what is a switch follows from kinds and groups."""

from __future__ import annotations

from typing import Final

from railweave.topology.cabling import Cable, CablingBuilder, Device, End, Kind, Where
from railweave.topology.providers.base import Found, ImportOptions
from railweave.topology.yaml_tree import FileError, Mapping, Reader, Value, read_yaml, scalar_text

_HOST_KINDS: Final = frozenset({"linux", "host", "ext-container", "k8s-kind"})
_OUTSIDE: Final = frozenset({"host", "mgmt-net", "macvlan", "dummy", "vxlan", "vxlan-stitch"})
"""What an end may be instead of a node of the topology."""
_TIERS: Final = {"leaf": 1, "tor": 1, "spine": 2, "superspine": 3, "super-spine": 3, "core": 3}
_HOST_GROUPS: Final = frozenset({"host", "hosts", "server", "servers", "client", "clients", "node", "nodes"})


def read_containerlab(content: bytes, file: str, _options: ImportOptions) -> Found:
    """Read a `*.clab.yml`; raises FileError. Keys that say nothing of the fabric are containerlab's to check."""
    topology = Reader(read_yaml(content, file), file).mapping_at("topology")
    found = CablingBuilder()
    defaults, groups = topology.mapping_at("defaults"), topology.mapping_at("groups")
    nodes = topology.mapping_at("nodes")
    for name in nodes.mapping.entries:
        node = nodes.mapping_at(name)
        where = Where(file, nodes.mapping.key_lines.get(name))
        group = node.text("group", defaults.text("group", ""))
        of_group = groups.mapping_at(group) if group else None
        kind = node.text("kind", (of_group.text("kind", "") if of_group else "") or defaults.text("kind", ""))
        found.declare(_device(name, kind, group.lower(), where))
    if not found.known:
        raise topology.error("nodes", "missing: no nodes")
    outside = 0
    for index, item in enumerate(topology.items("links")):
        path = f"topology.links[{index}]"
        if not isinstance(item, Mapping):
            raise FileError(file, item.line, path, "expected a mapping with endpoints")
        link = Reader(item, file, path)
        if link.text("type", "veth") in _OUTSIDE:
            outside += 1
            continue
        ends = [_end(value, file, f"{path}.endpoints") for value in link.items("endpoints")]
        if len(ends) != 2:
            raise link.error("endpoints", f"expected two ends, found {len(ends)}")
        if any(end.device in _OUTSIDE and end.device not in found.known for end in ends):
            outside += 1
            continue
        if unknown := next((end.device for end in ends if end.device not in found.known), None):
            raise link.error("endpoints", f"there is no node {unknown!r}")
        found.cable(Cable(ends[0], ends[1], Where(file, item.line)))
    if outside:
        found.note(f"{outside} links to the outside (host, management network) left out")
    return Found(found.built())


def _device(name: str, kind: str, group: str, where: Where) -> Device:
    if group in _TIERS:
        return Device(name, Kind.SWITCH, where, _TIERS[group])
    is_host = group in _HOST_GROUPS or kind in _HOST_KINDS
    return Device(name, Kind.HOST if is_host else Kind.SWITCH, where)


def _end(value: Value, file: str, path: str) -> End:
    """`leaf1:e1-1`, or a mapping of node and interface."""
    if isinstance(value, Mapping):
        reader = Reader(value, file, path)
        return End(reader.text("node"), reader.text("interface"))
    text = scalar_text(value, file, path)
    name, _, port = text.partition(":")
    if not name or not port:
        raise FileError(file, value.line, path, f"expected an end such as leaf1:e1-1, found {text[:80]!r}")
    return End(name, port)
