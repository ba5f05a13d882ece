"""Importer of SONiC's config_db.json, a file a switch: neighbours and VLANs, from nested files and from flat dumps."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Final

from railweave.contracts.types import VlanId
from railweave.topology.cabling import Kind, Where
from railweave.topology.json_tree import object_of, read_object
from railweave.topology.providers.base import Files, Found, ImportOptions, SwitchVlan, VlanMember
from railweave.topology.providers.seen import Neighbour, View, cabling_of
from railweave.topology.yaml_tree import FileError, Items, Reader, Value, scalar_text

_TIERS: Final = {"torrouter": 1, "backendtorrouter": 1, "leafrouter": 2, "backendleafrouter": 2, "spinerouter": 3}
_MOST_NAMED: Final = 8

Table = dict[str, Reader]


def read_sonic(files: Files, options: ImportOptions) -> Found:
    """Read the config_db.json of each switch; raises FileError."""
    notes: list[str] = []
    views: list[View] = []
    vlans: list[SwitchVlan] = []
    for file, content in files.items():
        config = ConfigDb(content, file)
        name = config.hostname or options.switch_of(file)
        views.append(_view(config, name, notes))
        vlans += _vlans(config, name, notes)
    return Found(cabling_of(views, notes), tuple(vlans))


class ConfigDb:
    """The tables of one switch.

    Raises:
        FileError: on construction, where it is no config_db.json.
    """

    def __init__(self, content: bytes, file: str) -> None:
        self.file = file
        self._tables: dict[str, Table] = {}
        top = read_object(content, file)
        for key, value in top.mapping.entries.items():
            table, bar, rest = key.partition("|")
            if bar:
                self._tables.setdefault(table, {})[rest] = object_of(value, file, key)
            elif table.isupper():
                rows = object_of(value, file, key)
                for name, row in rows.mapping.entries.items():
                    self._tables.setdefault(table, {})[name] = object_of(row, file, f"{key}.{name}")
        if not self._tables:
            raise FileError(file, None, "", "expected tables such as PORT and VLAN, found none")

    def table(self, name: str) -> Table:
        """The rows of a table by key; empty where it is not there."""
        return self._tables.get(name, {})

    def has(self, name: str) -> bool:
        """Whether it has a table of that name."""
        return name in self._tables

    @property
    def hostname(self) -> str | None:
        """Its name, where it tells."""
        own = self.table("DEVICE_METADATA").get("localhost")
        return own.optional_text("hostname") if own is not None else None

    @property
    def type(self) -> str:
        """What it is configured to be: `ToRRouter`, `LeafRouter`; empty where it does not tell."""
        own = self.table("DEVICE_METADATA").get("localhost")
        return own.text("type", "") if own is not None else ""


def _view(config: ConfigDb, name: str, notes: list[str]) -> View:
    down = {port for port, row in config.table("PORT").items() if row.text("admin_status", "up") == "down"}
    neighbours: list[Neighbour] = []
    stale: list[str] = []
    for neighbour in _neighbours(config):
        if neighbour.port in down:
            stale.append(neighbour.port)
        else:
            neighbours.append(neighbour)
    if stale:
        notes.append(f"{config.file}: neighbours of {len(stale)} ports that are down left out: {_few(stale)}")
    return View(name, Where(config.file), tuple(neighbours), Kind.SWITCH, _TIERS.get(config.type.lower()))


def _neighbours(config: ConfigDb) -> Iterator[Neighbour]:
    types = {name: row.text("type", "") for name, row in config.table("DEVICE_NEIGHBOR_METADATA").items()}
    where = Where(config.file)
    for key, row in config.table("DEVICE_NEIGHBOR").items():
        # Two shapes: by the local port, or (older) by the neighbour's name with the local port inside.
        is_old = row.has("local_port")
        port, name = (row.text("local_port"), key) if is_old else (key, row.text("name"))
        kind, tier = _what(types.get(name, row.text("type", "")))
        yield Neighbour(port, name, row.optional_text("port"), where, kind, tier)
    if not config.has("DEVICE_NEIGHBOR"):
        for port, row in config.table("PORT").items():
            name, colon, remote = row.text("description", "").partition(":")
            if name and colon and remote and not remote.startswith(("/", " ")):
                kind, tier = _what(types.get(name, ""))
                yield Neighbour(port, name, remote, where, kind, tier)


def _what(type_name: str) -> tuple[Kind | None, int | None]:
    lower = type_name.lower()
    if not lower:
        return None, None
    return (Kind.HOST, None) if "server" in lower or lower == "host" else (Kind.SWITCH, _TIERS.get(lower))


def _vlans(config: ConfigDb, switch: str, notes: list[str]) -> Iterator[SwitchVlan]:
    members: dict[str, list[VlanMember]] = {}
    strays: list[str] = []
    for key, row in config.table("VLAN_MEMBER").items():
        name, _, port = key.partition("|")
        if not port:
            raise row.error("", "expected a key such as Vlan100|Ethernet0")
        if name not in config.table("VLAN"):
            strays.append(key)
            continue
        members.setdefault(name, []).append(VlanMember(port, row.text("tagging_mode", "tagged") == "tagged"))
    gateways: dict[str, list[str]] = {}
    for key, row in config.table("VLAN_INTERFACE").items():
        name, bar, address = key.partition("|")
        if bar:
            gateways.setdefault(name, []).append(_interface(address, row))
    for name, row in config.table("VLAN").items():
        listed = set(_listed(row))
        had = {member.port for member in members.get(name, ())}
        if listed and listed != had:
            # The old list is kept by some versions and not by others: VLAN_MEMBER is what the switch does.
            counts = f"{len(listed)} members and VLAN_MEMBER has {len(had)}"
            notes.append(f"{config.file}: {name} lists {counts}: it is as VLAN_MEMBER says")
        yield SwitchVlan(switch, _vlan_id(name, row), tuple(gateways.get(name, ())), tuple(members.get(name, ())))
    unknown = sorted({m.port for found in members.values() for m in found} - config.table("PORT").keys())
    unknown = [port for port in unknown if port not in config.table("PORTCHANNEL")]
    if unknown and config.has("PORT"):
        notes.append(f"{config.file}: VLAN members that are not in PORT: {_few(unknown)}")
    if strays:
        notes.append(f"{config.file}: members of VLANs that are not there left out: {_few(strays)}")


def _listed(row: Reader) -> Iterator[str]:
    for key in ("members", "members@"):
        value: Value | None = row.mapping.entries.get(key)
        if isinstance(value, Items):
            yield from (scalar_text(item, row.file, f"{row.path}.{key}") for item in value.items)
        elif value is not None:
            yield from (name for name in row.text(key, "").split(",") if name)


def _vlan_id(name: str, row: Reader) -> VlanId:
    digits = name.removeprefix("Vlan")
    told = row.text("vlanid", digits)
    if not name.startswith("Vlan") or told != digits:
        raise row.error("vlanid", f"expected Vlan{told[:8]} with vlanid {told[:8]}, found the name {name[:40]!r}")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 4 and 1 <= int(digits) <= 4094):
        raise row.error("vlanid", f"expected a VLAN from 1 to 4094, found {told[:20]!r}")
    return VlanId(int(digits))


def _interface(address: str, row: Reader) -> str:
    try:
        return str(ipaddress.ip_interface(address))
    except ValueError:
        raise row.error("", f"expected an address such as 10.0.0.1/24, found {address[:60]!r}") from None


def _few(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + (
        f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    )
