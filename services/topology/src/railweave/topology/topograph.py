"""Importer of NVIDIA topograph's model files: a tree of switches, and blocks of nodes under the lowest ones.

The format tells no rails and no ports: every node gets as many rails as asked for, all on its switch.
"""

from __future__ import annotations

from pathlib import Path

from railweave.contracts.types import LeafName, NodeName, Rail
from railweave.topology.fabric_file import read_bytes
from railweave.topology.hostlist import HostlistError, expand
from railweave.topology.model import Graph, GraphError, Leaf, Link, LinkEnd, Node, NodePort, Spine
from railweave.topology.yaml_tree import FileError, Reader, read_yaml


def load_topograph(path: Path, *, rails: int) -> Graph:
    """Read a topograph model from disk.

    Raises:
        FileError: unreadable, too large, or not a topograph model.
    """
    return read_topograph(read_bytes(path), path.name, rails=rails)


def read_topograph(text: bytes | str, file: str, *, rails: int) -> Graph:
    """Read the text of a topograph model.

    Args:
        text: the content.
        file: its name, for errors.
        rails: how many rails every node has, 1 to 256.

    Raises:
        FileError: not a topograph model; names line, key and reason.
    """
    if not 1 <= rails <= 256:
        raise FileError(file, None, "rails", f"expected 1 to 256 rails, found {rails}")
    top = Reader(read_yaml(text, file), file)
    children, labels = _switches(top)
    nodes_of = _blocks(top)
    top.finish()
    lowest = {name for name in nodes_of if not children.get(name)}
    if odd := sorted(set(nodes_of) - lowest):
        raise top.error("blocks", f"switch {odd[0]} has both nodes and switches under it")
    names = set(children) | set(nodes_of) | {child for under in children.values() for child in under}
    lowest |= {name for name in names if not children.get(name)}
    tiers = _tiers(children, lowest, top)
    try:
        return Graph(
            leaves=tuple(Leaf(LeafName(name)) for name in lowest),
            spines=tuple(Spine(name, tiers[name]) for name in names - lowest),
            links=tuple(Link(LinkEnd(name), LinkEnd(child)) for name, under in children.items() for child in under),
            nodes=tuple(
                Node(
                    NodeName(node),
                    tuple(NodePort(Rail(k), LeafName(leaf), f"{node}:{k}") for k in range(rails)),
                )
                for leaf, under in nodes_of.items()
                for node in under
            ),
        )
    except GraphError as error:
        raise FileError(file, labels.get(error.thing.partition(" ")[2]), error.thing, error.reason) from None
    except ValueError as error:
        raise FileError(file, None, "", str(error)) from None


def _switches(top: Reader) -> tuple[dict[str, list[str]], dict[str, int]]:
    """What is under each switch, and where each switch is written."""
    children: dict[str, list[str]] = {}
    parent: dict[str, str] = {}
    switches = top.mapping_at("switches")
    for name in switches.mapping.entries:
        switch = switches.mapping_at(name)
        switch.ignore("labels", "annotations")
        under = _expanded(switch, "switches")
        switch.finish()
        for child in under:
            if child in parent:
                raise switch.error("switches", f"{child} is under {parent[child]} already; one parent a switch")
            parent[child] = name
        children[name] = under
    return children, switches.mapping.key_lines


def _blocks(top: Reader) -> dict[str, list[str]]:
    """The nodes under each switch. A block without a switch tells nothing of the network."""
    nodes_of: dict[str, list[str]] = {}
    for block in top.readers("blocks"):
        block.ignore("labels", "annotations", "name")
        switch = block.optional_text("switch")
        nodes = _expanded(block, "nodes")
        block.finish()
        if switch is not None:
            nodes_of.setdefault(switch, []).extend(nodes)
    return nodes_of


def _expanded(reader: Reader, key: str) -> list[str]:
    names: list[str] = []
    for text, line in reader.texts(key):
        try:
            names += expand(text)
        except HostlistError as error:
            raise FileError(reader.file, line, f"{reader.path}.{key}", str(error)) from None
    return names


def _tiers(children: dict[str, list[str]], lowest: set[str], top: Reader) -> dict[str, int]:
    """How high each switch stands: one more than the highest under it."""
    tiers = dict.fromkeys(lowest, 1)
    waiting = [name for name in children if name not in lowest]
    while waiting:
        later: list[str] = []
        for name in waiting:
            below = [tiers.get(child) for child in children[name]]
            if None in below:
                later.append(name)
            else:
                tiers[name] = 1 + max(tier for tier in below if tier is not None)
        if len(later) == len(waiting):
            raise top.error("switches", f"{min(later)} is above itself")
        waiting = later
    return tiers
