"""Importer of Slurm's topology.yaml: several topologies in one file, of which a cluster's default is taken."""

from __future__ import annotations

from typing import Final

from railweave.topology.cabling import Cabling, Where
from railweave.topology.hostlist import HostlistError, Hostlists
from railweave.topology.providers.base import Found, ImportOptions
from railweave.topology.providers.slurm import Entry, cabling_of_blocks, cabling_of_tree
from railweave.topology.yaml_tree import FileError, Items, Mapping, Reader, read_yaml_value

_KINDS: Final = ("tree", "block", "ring", "torus3d", "flat")
_TELLING: Final = ("tree", "block")


def read_slurm_yaml(content: bytes, file: str, options: ImportOptions) -> Found:
    """Read a topology.yaml; raises FileError."""
    top = read_yaml_value(content, file)
    if not isinstance(top, Items):
        raise FileError(file, top.line if top else None, "", "expected a list of topologies")
    topologies = [_topology(item, file, index) for index, item in enumerate(top.items)]
    telling = [(reader, kind) for reader, kind, _ in topologies if kind in _TELLING]
    if not telling:
        kinds = ", ".join(kind for _, kind, _ in topologies) or "nothing"
        raise FileError(file, top.line, "", f"expected a tree or blocks, found {kinds}: that tells no leaves")
    default = next(((reader, kind) for reader, kind, is_default in topologies if is_default), telling[0])
    reader, kind = default if default[1] in _TELLING else telling[0]
    cabling = _tree(reader, options) if kind == "tree" else _blocks(reader, options)
    others = [other.text("topology", "") for other, _, _ in topologies if other is not reader]
    note = (f"taken of {len(topologies)} topologies: {reader.text('topology', '')!r}",) if others else ()
    return Found(Cabling(cabling.devices, cabling.cables, cabling.reporters, cabling.repeated, (*cabling.notes, *note)))


def _topology(item: object, file: str, index: int) -> tuple[Reader, str, bool]:
    if not isinstance(item, Mapping):
        raise FileError(file, getattr(item, "line", None), f"[{index}]", "expected a mapping")
    reader = Reader(item, file, f"[{index}]")
    kinds = [kind for kind in _KINDS if kind in item.entries]
    if len(kinds) != 1:
        raise reader.error("topology", f"expected one of {', '.join(_KINDS)}, found {', '.join(kinds) or 'none'}")
    reader.ignore(*kinds)
    reader.text("topology", "")
    is_default = reader.text("cluster_default", "false") in {"true", "yes", "1"}
    reader.finish()
    return reader, kinds[0], is_default


def _tree(topology: Reader, options: ImportOptions) -> Cabling:
    tree = topology.mapping_at("tree")
    entries: list[Entry] = []
    hostlists = Hostlists()
    for switch in tree.readers("switches"):
        entry = Entry(switch.text("switch"), Where(switch.file, switch.mapping.line))
        entry.switches, entry.nodes = _names(switch, "children", hostlists), _names(switch, "nodes", hostlists)
        switch.finish()
        entries.append(entry)
    tree.finish()
    if not entries:
        raise topology.error("tree", "no switches in it")
    return cabling_of_tree(entries, options)


def _blocks(topology: Reader, options: ImportOptions) -> Cabling:
    block = topology.mapping_at("block")
    block.ignore("block_sizes")
    entries: list[Entry] = []
    hostlists = Hostlists()
    for reader in block.readers("blocks"):
        entry = Entry(reader.text("block"), Where(reader.file, reader.mapping.line))
        entry.nodes = _names(reader, "nodes", hostlists)
        reader.finish()
        entries.append(entry)
    block.finish()
    if not entries:
        raise topology.error("block", "no blocks in it")
    return cabling_of_blocks(entries, options)


def _names(reader: Reader, key: str, hostlists: Hostlists) -> list[str]:
    names: list[str] = []
    for text, line in reader.texts(key):
        try:
            names += hostlists.expand(text)
        except HostlistError as error:
            raise FileError(reader.file, line, f"{reader.path}.{key}", str(error)) from None
    return names
