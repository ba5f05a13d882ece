"""Importer of `ibnetdiscover` dumps: an InfiniBand fabric as seen from one of its ports. Locality and cabling alone.

A host's name is in the description of its adapters, `HOST HCA`, where its driver put it there; an adapter without is
named by its GUID. Every device tells of its own ports, so that half links show.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from railweave.topology.cabling import Cable, Cabling, CablingBuilder, Device, End, Kind, Where
from railweave.topology.providers.base import Found, ImportOptions
from railweave.topology.yaml_tree import FileError, text_of

_DEVICE: Final = re.compile(r'(Switch|Ca|Rt)\s+(\d+)\s+"([SHR]-[0-9a-fA-F]+)"\s*#\s*"([^"]*)".*')
_PORT: Final = re.compile(r'\[(\d+)\](?:\([0-9a-fA-F]+\))?\s+"([SHR]-[0-9a-fA-F]+)"\[(\d+)\].*')
_FACT: Final = re.compile(r"[a-z]+=\S+")
_SWITCH_NAME: Final = re.compile(r"(?:[^;]*;)?([^\s:/;]+)(?::.*)?")
_ADAPTER: Final = re.compile(r"(\S+) ((?:mlx|hca|bnxt|irdma|ib|qib|roce)\S*)", re.IGNORECASE)
_AGGREGATION: Final = "Aggregation Node"
"""A switch's own adapter (SHARP): it is no host."""
_MOST_NAMED: Final = 253


@dataclass(slots=True)
class _Seen:
    """A device as dumped."""

    guid: str
    kind: str
    ports: int
    about: str
    line: int
    links: list[tuple[int, str, int, int]] = field(default_factory=list)
    """Own port, the peer's GUID and port, line."""


def read_ibnetdiscover(content: bytes, file: str, _options: ImportOptions) -> Found:
    """Read a dump; raises FileError."""
    seen = _devices(text_of(content, file), file)
    if not seen:
        raise FileError(file, None, "", "no Switch and no Ca in it")
    return Found(_cabling(seen, file))


def _devices(text: str, file: str) -> dict[str, _Seen]:
    seen: dict[str, _Seen] = {}
    current: _Seen | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#") or _FACT.fullmatch(line):
            continue
        if port := _PORT.fullmatch(line):
            if current is None:
                raise FileError(file, number, "", "a port before any device")
            current.links.append((_number(port[1], file, number), port[2], _number(port[3], file, number), number))
        elif device := _DEVICE.fullmatch(line):
            guid = device[3]
            if guid in seen:
                raise FileError(file, number, guid, f"the device is there already, at line {seen[guid].line}")
            current = seen[guid] = _Seen(guid, device[1], _number(device[2], file, number), device[4].strip(), number)
        else:
            raise FileError(file, number, "", f"expected a device or a port of one, found {line[:60]!r}")
    return seen


def _number(text: str, file: str, line: int) -> int:
    if len(text) > 4:
        raise FileError(file, line, "", f"expected a port of up to 4 digits, found {text[:20]}")
    return int(text)


def _cabling(seen: dict[str, _Seen], file: str) -> Cabling:
    found = CablingBuilder()
    ends = _ends(seen, found)
    for guid, device in seen.items():
        if guid not in ends:
            continue
        name, kind, _ = ends[guid]
        found.mention(Device(name, kind, Where(file, device.line)))
        found.report(name)
    strangers: set[str] = set()
    for guid, device in seen.items():
        if guid not in ends:
            continue
        for port, peer, peer_port, line in device.links:
            if peer not in ends:
                if peer in seen:
                    continue
                strangers.add(peer)
                kind = Kind.SWITCH if peer.startswith("S-") else Kind.HOST
                ends[peer] = (peer, kind, None)
                found.mention(Device(peer, kind, Where(file, line)))
            told_by = frozenset({ends[guid][0]})
            cable = Cable(_end(ends[guid], port), _end(ends[peer], peer_port), Where(file, line), told_by)
            found.cable(cable)
    if strangers:
        found.note(f"{len(strangers)} devices are named by others and not dumped themselves: named by their GUIDs")
    return found.built()


_Named = tuple[str, Kind, str | None]
"""Name of the device, its kind, and of an adapter its name on its host."""


def _end(named: _Named, port: int) -> End:
    name, kind, adapter = named
    return End(
        name, str(port) if kind is Kind.SWITCH or adapter is None else adapter if port == 1 else f"{adapter}p{port}"
    )


def _ends(seen: dict[str, _Seen], found: CablingBuilder) -> dict[str, _Named]:
    """What each device is called; without the adapters that are a switch's own, and routers."""
    ends: dict[str, _Named] = {}
    switches = Counter(_switch_name(device) for device in seen.values() if device.kind == "Switch")
    adapters = Counter(device.about for device in seen.values() if device.kind == "Ca")
    nameless = own = 0
    for guid, device in seen.items():
        if device.kind == "Switch":
            name = _switch_name(device)
            ends[guid] = (name if switches[name] == 1 else f"{name}-{guid}", Kind.SWITCH, None)
        elif device.kind == "Ca" and _AGGREGATION in device.about:
            own += 1
        elif device.kind == "Ca":
            adapter = _ADAPTER.fullmatch(device.about)
            if adapter is None or adapters[device.about] > 1 or "/" in device.about or len(adapter[1]) > _MOST_NAMED:
                nameless += 1
                ends[guid] = (f"ca-{guid.removeprefix('H-')}", Kind.HOST, "hca")
            else:
                ends[guid] = (adapter[1], Kind.HOST, adapter[2])
    counted = sum(adapters.values())
    found.note(f"{counted} channel adapters: {own} of switches left out, {nameless} without host name named by GUID")
    return ends


def _switch_name(device: _Seen) -> str:
    named = _SWITCH_NAME.fullmatch(device.about)
    return named[1] if named is not None and len(named[1]) <= _MOST_NAMED - 20 else device.guid
