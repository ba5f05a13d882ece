"""Importer of NetBox: what its REST API answers for dcim devices, interfaces and cables (export with `?limit=0`).

In a file each, or in one object with the keys devices, interfaces and cables. Reads cables of NetBox 3.3 and later
(`a_terminations`) and of before (`termination_a`). Interfaces only tell which are for management, and VLANs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from railweave.contracts.types import VlanId
from railweave.topology.cabling import Cable, CablingBuilder, Device, End, Kind, Where
from railweave.topology.json_tree import object_of, read_json
from railweave.topology.model import Role
from railweave.topology.providers.base import Files, Found, ImportOptions, SwitchVlan, VlanMember
from railweave.topology.providers.nics import are_nics
from railweave.topology.yaml_tree import FileError, Items, Mapping, Reader, Value

_KINDS: Final = ("devices", "interfaces", "cables")
_INTERFACE: Final = "dcim.interface"
_ROLES: Final = (
    # The first that is part of a role's slug says what the device is.
    (("superspine", "super-spine", "core"), Kind.SWITCH, 3),
    (("spine",), Kind.SWITCH, 2),
    (("leaf", "tor", "top-of-rack", "access-switch"), Kind.SWITCH, 1),
    (("switch", "router", "firewall"), Kind.SWITCH, None),
    (("server", "host", "compute", "gpu", "node", "storage"), Kind.HOST, None),
)


@dataclass(slots=True)
class _Rows:
    devices: list[Reader] = field(default_factory=list)
    interfaces: list[Reader] = field(default_factory=list)
    cables: list[Reader] = field(default_factory=list)


def read_netbox(files: Files, _options: ImportOptions) -> Found:
    """Read exports; raises FileError."""
    rows = _Rows()
    for file, content in files.items():
        _sort(read_json(content, file), file, rows)
    if not rows.cables:
        raise FileError(", ".join(files), None, "cables", "no cables in it; export /api/dcim/cables/?limit=0 as well")
    found = CablingBuilder()
    management = {
        (_device_name(row), row.text("name")) for row in rows.interfaces if row.text("mgmt_only", "false") == "true"
    }
    cables, skipped = _cables(rows.cables, management)
    _declare(rows.devices, cables, found)
    for cable in cables:
        found.cable(cable)
    for what, count in skipped.items():
        found.note(f"{count} cables left out: {what}")
    switches = {name for name, device in found.known.items() if device.kind is Kind.SWITCH}
    return Found(found.built(), tuple(_vlans(rows.interfaces, switches)))


def _sort(top: Value, file: str, rows: _Rows) -> None:
    if isinstance(top, Mapping) and any(kind in top.entries for kind in _KINDS):
        reader = Reader(top, file)
        for kind in _KINDS:
            if reader.has(kind):
                getattr(rows, kind).extend(_listed(reader.mapping.entries[kind], file, kind))
        return
    for row in _listed(top, file, ""):
        keys = row.mapping.entries
        if "a_terminations" in keys or "termination_a" in keys:
            rows.cables.append(row)
        elif "device_type" in keys:
            rows.devices.append(row)
        elif "device" in keys:
            rows.interfaces.append(row)
        else:
            raise row.error("", "expected a device, an interface or a cable of NetBox's API")


def _listed(value: Value, file: str, path: str) -> Iterator[Reader]:
    if isinstance(value, Mapping):
        page = Reader(value, file, path)
        if page.has("next"):
            raise page.error("next", "one page of several; export with ?limit=0")
        if not page.has("results"):
            raise page.error("results", "missing: expected what NetBox's API answers")
        value, path = value.entries["results"], f"{path}.results" if path else "results"
    if not isinstance(value, Items):
        raise FileError(file, None, path, "expected a list of rows")
    for index, item in enumerate(value.items):
        yield object_of(item, file, f"{path}[{index}]")


def _cables(rows: Iterable[Reader], management: set[tuple[str, str]]) -> tuple[list[Cable], dict[str, int]]:
    cables: list[Cable] = []
    skipped: dict[str, int] = {}
    for row in rows:
        status = _slug(row, "status")
        a, b = _ends(row, "a"), _ends(row, "b")
        if status not in {"", "connected"}:
            skipped[status] = skipped.get(status, 0) + 1
        elif not a or not b:
            skipped["not between interfaces"] = skipped.get("not between interfaces", 0) + 1
        else:
            for one, other in _pairs(a, b, row):
                is_management = {(one.device, one.port or ""), (other.device, other.port or "")} & management
                role = Role.MANAGEMENT if is_management else Role.COMPUTE
                cables.append(Cable(one, other, Where(row.file), role=role))
    return cables, skipped


def _pairs(a: Sequence[End], b: Sequence[End], row: Reader) -> Iterable[tuple[End, End]]:
    """A breakout cable has one end here and several there, or as many on both sides."""
    if len(a) == len(b):
        return zip(a, b, strict=True)
    if len(a) == 1 or len(b) == 1:
        return ((one, other) for one in a for other in b)
    raise row.error("a_terminations", f"expected as many ends on both sides, found {len(a)} and {len(b)}")


def _ends(row: Reader, side: str) -> list[End]:
    """The interfaces on a side; none where it ends on anything else."""
    if row.has(f"{side}_terminations"):
        found: list[End] = []
        for termination in row.readers(f"{side}_terminations"):
            if termination.text("object_type") != _INTERFACE:
                return []
            end = termination.mapping_at("object")
            found.append(End(_device_name(end), end.text("name")))
        return found
    if row.text(f"termination_{side}_type", "") != _INTERFACE:
        return []
    end = row.mapping_at(f"termination_{side}")
    return [End(_device_name(end), end.text("name"))]


def _device_name(row: Reader) -> str:
    device = row.mapping_at("device")
    return device.text("name", "") or device.text("display", "") or device.text("id")


def _slug(row: Reader, key: str) -> str:
    """The slug or value of what NetBox shows as an object, and in older versions as a text."""
    value = row.mapping.entries.get(key)
    if isinstance(value, Mapping):
        inside = row.mapping_at(key)
        return inside.text("slug", "") or inside.text("value", "") or inside.text("name", "")
    return row.text(key, "")


def _declare(devices: Iterable[Reader], cables: Iterable[Cable], found: CablingBuilder) -> None:
    ports: dict[str, list[tuple[str, Where]]] = {}
    for cable in cables:
        for end in (cable.a, cable.b):
            ports.setdefault(end.device, []).append((end.port or "", cable.where))
    for row in devices:
        name = row.text("name", "")
        role = (_slug(row, "role") or _slug(row, "device_role")).lower()
        known = next(((kind, tier) for words, kind, tier in _ROLES if any(word in role for word in words)), None)
        if name not in ports and (known is None or not name):
            continue  # a patch panel, a power strip: nothing of the fabric
        kind, tier = known or (_guessed(ports[name]), None)
        pod = _slug(row, "location") or None
        found.declare(Device(name, kind, Where(row.file), tier, pod if kind is Kind.SWITCH else None))
    for name, uses in ports.items():
        found.mention(Device(name, _guessed(uses), uses[0][1]))


def _guessed(uses: Iterable[tuple[str, Where]]) -> Kind:
    return Kind.HOST if are_nics(port for port, _ in uses) else Kind.SWITCH


def _vlans(interfaces: Iterable[Reader], switches: set[str]) -> Iterator[SwitchVlan]:
    members: dict[tuple[str, int], list[VlanMember]] = {}
    for row in interfaces:
        device = _device_name(row)
        if device not in switches:
            continue
        name = row.text("name")
        if row.has("untagged_vlan"):
            vid = _vid(row.mapping_at("untagged_vlan"))
            members.setdefault((device, vid), []).append(VlanMember(name, tagged=False))
        for vlan in row.readers("tagged_vlans"):
            members.setdefault((device, _vid(vlan)), []).append(VlanMember(name, tagged=True))
    for (device, vid), ports in sorted(members.items()):
        yield SwitchVlan(device, VlanId(vid), (), tuple(ports))


def _vid(vlan: Reader) -> int:
    return vlan.integer("vid", low=1, high=4094)
