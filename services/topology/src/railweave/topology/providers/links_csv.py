"""Importer of links in CSV, in the shape of sonic-mgmt's lab files; a file of the devices may stand beside it.

Links: StartDevice, StartPort, EndDevice, EndPort; optional Rail and Role (compute, storage, management). Devices:
Hostname, Type. Other columns say nothing of the fabric. Without a devices file a device is a host when its ports have
the names of NICs (`eth0`, `ens4f0`, `p4p1`, `mlx5_0`, `ib0`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Final

from railweave.topology.cabling import Cable, CablingBuilder, Device, End, Kind, Where
from railweave.topology.model import Role
from railweave.topology.providers.base import Files, Found, ImportOptions
from railweave.topology.providers.nics import are_nics
from railweave.topology.yaml_tree import FileError, text_of

_LINKS: Final = ("startdevice", "startport", "enddevice", "endport")
_DEVICES: Final = ("hostname", "type")
_TYPES: Final = {
    "leaf": (Kind.SWITCH, 1),
    "spine": (Kind.SWITCH, 2),
    "superspine": (Kind.SWITCH, 3),
    "server": (Kind.HOST, None),
    "host": (Kind.HOST, None),
    "node": (Kind.HOST, None),
    "devixiachassis": (Kind.HOST, None),
    "consoleserver": (Kind.HOST, None),
    "pdu": (Kind.HOST, None),
}
"""Anything else is a switch whose tier follows from its cables: DevSonic, FanoutLeaf, FanoutRoot, ToRRouter."""

Row = tuple[int, dict[str, str]]


def read_links_csv(files: Files, _options: ImportOptions) -> Found:
    """Read a file of links, and maybe one of devices; which is which, their first lines tell. Raises FileError."""
    links: list[tuple[str, list[Row]]] = []
    types: dict[str, tuple[Kind, int | None, Where]] = {}
    for file, content in files.items():
        header, rows = _table(text_of(content, file), file)
        if set(_LINKS) <= set(header):
            links.append((file, rows))
        elif set(_DEVICES) <= set(header):
            for line, row in rows:
                kind, tier = _TYPES.get(row["type"].lower(), (Kind.SWITCH, None))
                types.setdefault(_name(row, "hostname", file, line), (kind, tier, Where(file, line)))
        else:
            expected = "StartDevice,StartPort,EndDevice,EndPort or Hostname,Type"
            raise FileError(file, 1, "", f"expected a first line with {expected}, found {', '.join(header)[:120]}")
    if not links:
        raise FileError(", ".join(files), None, "", "no file of links among them")
    return _found(links, types)


def _found(links: Sequence[tuple[str, list[Row]]], types: dict[str, tuple[Kind, int | None, Where]]) -> Found:
    found = CablingBuilder()
    cables = [_cable(row, file, line) for file, rows in links for line, row in rows]
    ports: dict[str, list[tuple[str, Where]]] = {}
    for cable in cables:
        for end in (cable.a, cable.b):
            ports.setdefault(end.device, []).append((end.port or "", cable.where))
    guessed = [name for name in ports if name not in types]
    for name, uses in ports.items():
        known = types.get(name)
        if known is not None:
            found.declare(Device(name, known[0], known[2], known[1]))
        else:
            is_host = are_nics(port for port, _ in uses)
            found.declare(Device(name, Kind.HOST if is_host else Kind.SWITCH, uses[0][1]))
    loops = 0
    for cable in cables:
        if cable.a.device == cable.b.device:
            loops += 1
        else:
            found.cable(cable)
    if guessed:
        found.note(f"{len(guessed)} devices are in no devices file: hosts are those whose ports have names of NICs")
    if loops:
        found.note(f"{loops} cables from a device to itself left out")
    return Found(found.built())


def _cable(row: dict[str, str], file: str, line: int) -> Cable:
    a = End(_name(row, "startdevice", file, line), _name(row, "startport", file, line))
    b = End(_name(row, "enddevice", file, line), _name(row, "endport", file, line))
    rail, role = row.get("rail", ""), row.get("role", "").lower() or Role.COMPUTE
    if rail and (not rail.isascii() or not rail.isdecimal() or len(rail) > 3):
        raise FileError(file, line, "Rail", f"expected a number from 0 to 255, found {rail[:20]!r}")
    if role not in set(Role):
        raise FileError(file, line, "Role", f"expected one of {', '.join(Role)}, found {role[:20]!r}")
    return Cable(a, b, Where(file, line), rail=int(rail) if rail else None, role=Role(role))


def _name(row: dict[str, str], key: str, file: str, line: int) -> str:
    if not row[key]:
        raise FileError(file, line, key, "missing")
    return row[key]


def _table(text: str, file: str) -> tuple[list[str], list[Row]]:
    """The columns in lower case, and each row with its line."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip().lower() for name in next(reader, [])]
        if len(set(header)) != len(header):
            raise FileError(file, 1, "", "a column is there twice")
        return header, list(_rows(reader, header, file))
    except csv.Error as error:
        raise FileError(file, reader.line_num, "", f"not CSV: {error}") from None


def _rows(reader: Iterator[list[str]], header: list[str], file: str) -> Iterator[Row]:
    for values in reader:
        line: int = reader.line_num  # type: ignore[attr-defined]
        if not any(value.strip() for value in values):
            continue
        # A line may end early: the last columns are optional. sonic-mgmt's have a comma more than its header, too.
        if len(values) > len(header) and any(value.strip() for value in values[len(header) :]):
            raise FileError(file, line, "", f"expected {len(header)} columns, found {len(values)}")
        row = dict.fromkeys(header, "") | {key: value.strip() for key, value in zip(header, values, strict=False)}
        yield line, row
