"""Importer of LLDP neighbours, a file a device: `lldpcli -f json0 show neighbors`, NAPALM's getters, Arista's JSON.

LLDP gives cabling and locality: no VLANs, no roles. What a device is, its capabilities tell, or its own file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from railweave.topology.cabling import Kind, Where
from railweave.topology.json_tree import object_of, read_object
from railweave.topology.providers.base import Files, Found, ImportOptions
from railweave.topology.providers.nics import is_nic
from railweave.topology.providers.seen import Neighbour, View, cabling_of
from railweave.topology.yaml_tree import FileError, Items, Mapping, Reader, Value, scalar_text

_MAC: Final = re.compile(r"([0-9a-f]{2}[:-]){5}[0-9a-f]{2}|([0-9a-f]{4}\.){2}[0-9a-f]{4}", re.IGNORECASE)
_FORWARDING: Final = frozenset({"bridge", "router", "switch"})


def read_lldp(files: Files, options: ImportOptions) -> Found:
    """Read the neighbours of each device; raises FileError."""
    views: list[View] = []
    notes: list[str] = []
    for file, content in files.items():
        top = read_object(content, file)
        nameless: list[str] = []
        if top.has("lldp"):
            neighbours, kind = _lldpcli(top, nameless), None
        elif "lldpNeighbors" in top.mapping.entries:
            neighbours, kind = _eos(top, nameless), Kind.SWITCH
        else:
            neighbours, kind = _napalm(top, nameless), Kind.SWITCH
        views.append(View(options.switch_of(file), Where(file), tuple(neighbours), kind))
        if nameless:
            notes.append(f"{file}: {len(nameless)} neighbours without a name left out")
    return Found(cabling_of(views, notes))


def _lldpcli(top: Reader, nameless: list[str]) -> Iterator[Neighbour]:
    for lldp in _objects(top, "lldp"):
        for interface in _objects(lldp, "interface"):
            local = interface.text("name")
            for chassis in _objects(interface, "chassis"):
                name = _first(chassis, "name")
                if not name:
                    nameless.append(local)
                    continue
                told = list(_objects(chassis, "capability"))
                on = {item.text("type", "").lower() for item in told if item.text("enabled", "true") == "true"}
                port = next(iter(_objects(interface, "port")), None)
                remote = _port_name(_first(port, "id"), _first(port, "descr")) if port is not None else None
                yield Neighbour(local, name, remote, Where(top.file), _kind(on if told else None, remote))


def _napalm(top: Reader, nameless: list[str]) -> Iterator[Neighbour]:
    for local, value in top.mapping.entries.items():
        if not isinstance(value, Items):
            reason = "expected a list of neighbours: output of lldpcli, NAPALM or Arista"
            raise FileError(top.file, None, local[:80], reason)
        for reader in top.readers(local):
            name = reader.text("remote_system_name", "") or reader.text("hostname", "")
            if not name:
                nameless.append(local)
                continue
            identity = reader.text("remote_port", "") or reader.text("port", "")
            remote = _port_name(identity, reader.text("remote_port_description", ""))
            on = {text.strip().lower() for text in _capabilities(reader)} or None
            yield Neighbour(local, name, remote, Where(top.file), _kind(on, remote))


def _capabilities(reader: Reader) -> Iterator[str]:
    """What is switched on, as a list or as one text with commas."""
    for key in ("remote_system_enable_capab", "remote_system_capab"):
        if reader.has(key):
            for text, _ in reader.texts(key):
                yield from text.split(",")
            return


def _eos(top: Reader, nameless: list[str]) -> Iterator[Neighbour]:
    value = top.mapping.entries["lldpNeighbors"]
    if isinstance(value, Items):
        for reader in top.readers("lldpNeighbors"):
            yield Neighbour(
                reader.text("port"), reader.text("neighborDevice"), reader.text("neighborPort"), Where(top.file)
            )
        return
    ports = top.mapping_at("lldpNeighbors")
    for local in ports.mapping.entries:
        for seen in ports.mapping_at(local).readers("lldpNeighborInfo"):
            name = seen.text("systemName", "")
            if not name:
                nameless.append(local)
                continue
            can = seen.mapping_at("systemCapabilities")
            on = {key.lower() for key in can.mapping.entries if can.text(key, "false") == "true"}
            port = seen.mapping_at("neighborInterfaceInfo")
            remote = _port_name(port.text("interfaceId", ""), port.text("interfaceDescription", ""))
            told_on = on if can.mapping.entries else None
            yield Neighbour(local, name, remote, Where(top.file), _kind(told_on, remote))


def _kind(capabilities: set[str] | None, port: str | None) -> Kind | None:
    """A host may say that it bridges, for its containers: what has the ports of a host is one all the same."""
    if capabilities is None or (port is not None and is_nic(port)):
        return None
    return Kind.SWITCH if capabilities & _FORWARDING else Kind.HOST


def _port_name(identity: str, description: str) -> str | None:
    """The name of a port: its identity, unless that is a MAC and the description is what the device calls it."""
    identity, description = identity.strip('"'), description.strip('"')
    if (not identity or _MAC.fullmatch(identity)) and description and " " not in description:
        return description
    return identity or None


def _objects(reader: Reader, key: str) -> Iterator[Reader]:
    """A list of objects, or the one object that stands for a list of one."""
    value: Value | None = reader.mapping.entries.get(key)
    if isinstance(value, Mapping):
        yield object_of(value, reader.file, f"{reader.path}.{key}")
    elif value is not None:
        yield from reader.readers(key)


def _first(reader: Reader, key: str) -> str:
    """The first value of `[{"value": ...}]`; empty where there is none."""
    value = reader.mapping.entries.get(key)
    if value is None or isinstance(value, Items | Mapping):
        for item in _objects(reader, key):
            return item.text("value", "")
        return ""
    return scalar_text(value, reader.file, f"{reader.path}.{key}")
