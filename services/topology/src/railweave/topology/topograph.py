"""Importer of NVIDIA topograph's model files: a tree of switches, and blocks of nodes under the lowest ones.

The format tells no rails and no ports: every node gets as many rails as asked for, all on its switch.
"""

from __future__ import annotations

from pathlib import Path

from railweave.topology.cabling import Cable, Cabling, CablingBuilder, Device, End, Kind, Where
from railweave.topology.fabric_file import read_bytes
from railweave.topology.hostlist import HostlistError, Hostlists
from railweave.topology.inferring import graph_of
from railweave.topology.model import Graph
from railweave.topology.trees import LoopError, tree_tiers
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
    return graph_of(read_cabling(text, file, rails=rails))[0]


def read_cabling(text: bytes | str, file: str, *, rails: int) -> Cabling:
    """Read what a topograph model tells; raises FileError as `read_topograph`."""
    if not 1 <= rails <= 256:
        raise FileError(file, None, "rails", f"expected 1 to 256 rails, found {rails}")
    top = Reader(read_yaml(text, file), file)
    hostlists = Hostlists()
    children, lines = _switches(top, hostlists)
    blocks = _blocks(top, hostlists)
    top.finish()
    nodes_of: dict[str, list[tuple[str, int | None]]] = {}
    for switch, nodes, line in blocks:
        nodes_of.setdefault(switch, []).extend((node, line) for node in nodes)
    if odd := sorted(name for name in nodes_of if children.get(name)):
        raise top.error("blocks", f"switch {odd[0]} has both nodes and switches under it")
    found = CablingBuilder()
    try:
        tiers = tree_tiers(children, nodes_of)
    except LoopError as error:
        raise top.error("switches", str(error)) from None
    for name, tier in tiers.items():
        found.declare(Device(name, Kind.SWITCH, Where(file, lines.get(name)), tier))
    for name, under in children.items():
        for child in under:
            found.cable(Cable(End(name), End(child), Where(file, lines[name])))
    for switch, nodes_under in nodes_of.items():
        for node, line in nodes_under:
            where = Where(file, line)
            found.declare(Device(node, Kind.HOST, where))
            for rail in range(rails):
                found.cable(Cable(End(node), End(switch), where, rail=rail))
    return found.built()


def _switches(top: Reader, hostlists: Hostlists) -> tuple[dict[str, list[str]], dict[str, int | None]]:
    """What is under each switch, and where each switch is written."""
    children: dict[str, list[str]] = {}
    parent: dict[str, str] = {}
    switches = top.mapping_at("switches")
    for name in switches.mapping.entries:
        switch = switches.mapping_at(name)
        switch.ignore("labels", "annotations")
        under = _expanded(switch, "switches", hostlists)
        switch.finish()
        for child in under:
            if child in parent:
                raise switch.error("switches", f"{child} is under {parent[child]} already; one parent a switch")
            parent[child] = name
        children[name] = under
    return children, switches.mapping.key_lines


def _blocks(top: Reader, hostlists: Hostlists) -> list[tuple[str, list[str], int | None]]:
    """Switch, nodes and line of each block. A block without a switch tells nothing of the network."""
    found: list[tuple[str, list[str], int | None]] = []
    for block in top.readers("blocks"):
        block.ignore("labels", "annotations", "name")
        switch = block.optional_text("switch")
        nodes = _expanded(block, "nodes", hostlists)
        block.finish()
        if switch is not None:
            found.append((switch, nodes, block.mapping.line))
    return found


def _expanded(reader: Reader, key: str, hostlists: Hostlists) -> list[str]:
    names: list[str] = []
    for text, line in reader.texts(key):
        try:
            names += hostlists.expand(text)
        except HostlistError as error:
            raise FileError(reader.file, line, f"{reader.path}.{key}", str(error)) from None
    return names
