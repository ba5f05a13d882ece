"""Importer of Slurm's topology.conf (topology/tree and topology/block). It tells no ports, and rails seldom.

Names are case-insensitive, as in Slurm; the first spelling is kept. A node that stands under several leaves has a rail
on each, in the order in which they are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from railweave.topology.cabling import Cable, Cabling, CablingBuilder, Device, End, Kind, Where
from railweave.topology.hostlist import HostlistError, Hostlists
from railweave.topology.providers.base import Found, ImportOptions
from railweave.topology.trees import LoopError, tree_tiers
from railweave.topology.yaml_tree import FileError, text_of

BLOCK_SPINE: Final = "blocks"
"""The switch above all blocks: a job may span blocks, so something connects them."""

_MOST_NAME: Final = 64
_PAIR: Final = re.compile(r"([A-Za-z]+)=(\S*)")
_KEYS: Final = {
    "switchname": {"switches", "nodes", "linkspeed"},
    "blockname": {"nodes"},
    "blocksizes": set[str](),
}


@dataclass(slots=True)
class Entry:
    """A switch or block: its name, and what is under it."""

    name: str
    where: Where
    switches: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)


def read_slurm(content: bytes, file: str, options: ImportOptions) -> Found:
    """Read a topology.conf; raises FileError."""
    switches: list[Entry] = []
    blocks: list[Entry] = []
    hostlists = Hostlists()
    for line, pairs in _lines(text_of(content, file), file):
        kind = next(iter(pairs))
        known = _KEYS.get(kind)
        if known is None:
            raise FileError(file, line, kind, "expected SwitchName=, BlockName= or BlockSizes= first")
        if unknown := [key for key in list(pairs)[1:] if key not in known]:
            raise FileError(file, line, unknown[0], f"unknown key; known here: {', '.join(sorted(known)) or 'none'}")
        if kind == "blocksizes":
            continue
        where = Where(file, line)
        names = _expanded(hostlists, pairs[kind], where, kind)
        if len(names) != 1:
            raise FileError(file, line, kind, f"expected one name, found {len(names)}")
        entry = Entry(names[0], where)
        entry.switches = _expanded(hostlists, pairs["switches"], where, "Switches") if "switches" in pairs else []
        entry.nodes = _expanded(hostlists, pairs["nodes"], where, "Nodes") if "nodes" in pairs else []
        (switches if kind == "switchname" else blocks).append(entry)
    if blocks and switches:
        raise FileError(file, blocks[0].where.line, "BlockName", "both switches and blocks; Slurm knows one of them")
    if not blocks and not switches:
        raise FileError(file, None, "", "no SwitchName and no BlockName in it")
    return Found(cabling_of_tree(switches, options) if switches else cabling_of_blocks(blocks, options))


def cabling_of_tree(switches: list[Entry], options: ImportOptions) -> Cabling:
    """What a tree of switches tells.

    Raises:
        FileError: a switch that is not there, above itself, or has both switches and nodes under it.
    """
    found = CablingBuilder()
    canon: dict[str, str] = {}
    for entry in switches:
        name = canon.setdefault(entry.name.casefold(), entry.name)
        entry.name = name
        if entry.switches and entry.nodes:
            raise FileError(*entry.where, f"switch {name}", "both switches and nodes under it; expected one of them")
        if not entry.switches and not entry.nodes:
            raise FileError(*entry.where, f"switch {name}", "nothing under it; expected Switches or Nodes")
    children: dict[str, list[str]] = {}
    for entry in switches:
        under = [canon.get(child.casefold()) for child in entry.switches]
        if None in under:
            missing = entry.switches[under.index(None)]
            raise FileError(*entry.where, f"switch {entry.name}", f"there is no switch {missing!r}")
        children[entry.name] = [child for child in under if child is not None]
    try:
        tiers = tree_tiers(children)
    except LoopError as error:
        name = str(error).partition(" ")[0]
        raise FileError(*next(e.where for e in switches if e.name == name), f"switch {name}", str(error)) from None
    for entry in switches:
        found.declare(Device(entry.name, Kind.SWITCH, entry.where, tiers[entry.name]))
        for child in children[entry.name]:
            found.cable(Cable(End(entry.name), End(child), entry.where))
    _hang_nodes(found, switches, options)
    return found.built()


def cabling_of_blocks(blocks: list[Entry], options: ImportOptions) -> Cabling:
    """What blocks tell: nodes that are near each other. Raises FileError."""
    found = CablingBuilder()
    found.declare(Device(BLOCK_SPINE, Kind.SWITCH, blocks[0].where, 2))
    found.note(f"blocks tell nothing of the network between them: taken for leaves under one spine {BLOCK_SPINE!r}")
    for block in blocks:
        found.declare(Device(block.name, Kind.SWITCH, block.where, 1))
        found.cable(Cable(End(block.name), End(BLOCK_SPINE), block.where))
    _hang_nodes(found, blocks, options)
    return found.built()


def _hang_nodes(found: CablingBuilder, switches: list[Entry], options: ImportOptions) -> None:
    canon: dict[str, str] = {}
    leaves_of: dict[str, list[Entry]] = {}
    for entry in switches:
        for node in entry.nodes:
            name = canon.setdefault(node.casefold(), node)
            under = leaves_of.setdefault(name, [])
            if entry not in under:
                under.append(entry)
    several = 0
    for name, leaves in leaves_of.items():
        device = Device(name, Kind.HOST, leaves[0].where)
        if name in found.known:
            found.declare(device)
            continue
        found.mention(device)
        several += len(leaves) > 1
        rails = len(leaves) if len(leaves) > 1 else options.rails
        for rail in range(rails):
            leaf = leaves[rail] if len(leaves) > 1 else leaves[0]
            found.cable(Cable(End(name), End(leaf.name), leaf.where, rail=rail))
    if several:
        found.note(f"{several} nodes stand under several switches: a rail on each, in the order written")


def _expanded(hostlists: Hostlists, text: str, where: Where, key: str) -> list[str]:
    try:
        names = hostlists.expand(text)
    except HostlistError as error:
        raise FileError(*where, key, str(error)) from None
    if long := next((name for name in names if len(name) > _MOST_NAME), None):
        raise FileError(*where, key, f"expected names of at most {_MOST_NAME} characters, found {long[:80]!r}")
    return names


def _lines(text: str, file: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Each line that says something, joined with those that go on from it, as values by lower-case key."""
    joined, first = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].rstrip()
        first = first or number
        if line.endswith("\\"):
            joined += line[:-1] + " "
            continue
        joined += line
        pairs = _pairs(joined.strip(), file, first)
        if pairs:
            yield first, pairs
        joined, first = "", 0
    if joined.strip():
        raise FileError(file, first, "", "the last line goes on, and nothing follows")


def _pairs(line: str, file: str, number: int) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for word in line.split():
        found = _PAIR.fullmatch(word)
        if found is None:
            raise FileError(file, number, word[:80], "expected KEY=VALUE")
        if found[1].lower() in pairs:
            raise FileError(file, number, found[1], "written twice in one line")
        pairs[found[1].lower()] = found[2]
    return pairs
