"""Importer of Cumulus Linux: what `nv config show` prints of each switch, as YAML or JSON, and of its LLDP neighbours.

Neighbours: `nv show interface lldp -o json`. Both can stand beside each other for one switch: `leaf1.yaml` and
`leaf1.lldp.json`. The configuration tells VLANs and their addresses, LLDP the cabling.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Final

from railweave.contracts.types import VlanId
from railweave.topology.cabling import Kind, Where
from railweave.topology.json_tree import object_of, read_json
from railweave.topology.providers.base import Files, Found, ImportOptions, SwitchVlan, VlanMember
from railweave.topology.providers.nics import is_nic
from railweave.topology.providers.seen import Neighbour, View, cabling_of
from railweave.topology.yaml_tree import FileError, Items, Reader, Value, read_yaml_value

_RANGE: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)
_NAMES: Final = re.compile(r"([A-Za-z_]+)(\d{1,4})-(\d{1,4})", re.ASCII)
_STEM: Final = re.compile(r"[A-Za-z_]*")
_MOST_PORTS: Final = 4096


def read_cumulus(files: Files, options: ImportOptions) -> Found:
    """Read what `nv` printed; raises FileError."""
    neighbours: dict[str, list[Neighbour]] = {}
    where: dict[str, Where] = {}
    vlans: list[SwitchVlan] = []
    for file, content in files.items():
        is_json = content.lstrip()[:1] in {b"{", b"["}
        top = read_json(content, file) if is_json else read_yaml_value(content, file)
        if top is None:
            raise FileError(file, None, "", "empty: expected what nv prints")
        config = _configured(top, file)
        if config is not None:
            switch = config.mapping_at("system").text("hostname", "") or options.switch_of(file)
            vlans += _vlans(config, switch)
        else:
            switch = options.switch_of(file)
            neighbours.setdefault(switch, []).extend(_neighbours(object_of(top, file, "")))
        neighbours.setdefault(switch, [])
        where.setdefault(switch, Where(file))
    views = [View(switch, where[switch], tuple(seen)) for switch, seen in neighbours.items()]
    return Found(cabling_of(views), tuple(vlans))


def _configured(top: Value, file: str) -> Reader | None:
    """The configuration; None where it is not one."""
    if isinstance(top, Items):
        for index, item in enumerate(top.items):
            entry = object_of(item, file, f"[{index}]")
            if entry.has("set"):
                return entry.mapping_at("set")
        raise FileError(file, top.line, "", "no `set` in it: expected what `nv config show` prints")
    entry = object_of(top, file, "")
    return entry.mapping_at("set") if entry.has("set") else None


def _vlans(config: Reader, switch: str) -> Iterator[SwitchVlan]:
    gateways: dict[int, list[str]] = {}
    members: dict[int, list[VlanMember]] = {}
    ids: set[int] = set()
    for domain in config.mapping_at("bridge").mapping_at("domain").each():
        ids.update(_ids(domain.mapping_at("vlan")))
    interfaces = config.mapping_at("interface")
    for key in interfaces.mapping.entries:
        interface = interfaces.mapping_at(key)
        if interface.text("type", "") == "svi" or key.startswith("vlan"):
            _read_svi(key, interface, gateways)
            continue
        domains = list(interface.mapping_at("bridge").mapping_at("domain").each())
        for port in _ports(key, interface) if domains else ():
            for domain in domains:
                for vlan, is_tagged in _member_of(domain):
                    members.setdefault(vlan, []).append(VlanMember(port, is_tagged))
    for vlan in sorted(ids | gateways.keys() | members.keys()):
        yield SwitchVlan(switch, VlanId(vlan), tuple(gateways.get(vlan, ())), tuple(members.get(vlan, ())))


def _read_svi(key: str, interface: Reader, gateways: dict[int, list[str]]) -> None:
    for name in _split(key):
        has_id = interface.has("vlan")
        vlan = interface.integer("vlan", low=1, high=4094) if has_id else _id(name.removeprefix("vlan"), interface, key)
        known = gateways.setdefault(vlan, [])
        addresses = interface.mapping_at("ip").mapping_at("address")
        for address in addresses.mapping.entries:
            try:
                known.append(str(ipaddress.ip_interface(address)))
            except ValueError:
                reason = f"expected an address such as 10.0.0.1/24, found {address[:60]!r}"
                raise addresses.error(address[:60], reason) from None


def _member_of(domain: Reader) -> Iterator[tuple[int, bool]]:
    """The VLANs of a port in a bridge domain, and whether it sends them tagged."""
    for key in ("access", "untagged"):
        if domain.has(key) and domain.text(key) not in {"none", "auto"}:
            yield domain.integer(key, low=1, high=4094), False
    if domain.has("vlan"):
        for vlan in _ids(domain.mapping_at("vlan")):
            yield vlan, True


def _ids(vlans: Reader) -> Iterator[int]:
    """The ids that a mapping has as keys, `10` or `20-30,40`; `all` names none."""
    for key in vlans.mapping.entries:
        for part in key.split(","):
            if part.strip() == "all":
                continue
            found = _RANGE.fullmatch(part.strip())
            if found is None:
                raise vlans.error(key[:60], f"expected VLANs such as 10 or 20-30, found {key[:60]!r}")
            low, high = _id(found[1], vlans, key), _id(found[2] or found[1], vlans, key)
            if low > high:
                raise vlans.error(key[:60], f"the range {part[:60]!r} goes down")
            yield from range(low, high + 1)


def _id(digits: str, reader: Reader, key: str) -> int:
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 5 and 1 <= int(digits) <= 4094):
        raise reader.error(key[:60], f"expected a VLAN from 1 to 4094, found {digits[:20]!r}")
    return int(digits)


def _ports(key: str, interface: Reader) -> list[str]:
    """The ports a key stands for: `swp1-3,5` is swp1, swp2, swp3 and swp5."""
    ports: list[str] = []
    for name in _split(key):
        found = _NAMES.fullmatch(name)
        if found is None:
            ports.append(name)
            continue
        low, high = int(found[2]), int(found[3])
        if low > high or high - low >= _MOST_PORTS:
            raise interface.error("", f"expected ports such as swp1-4, found {name[:60]!r}")
        ports += [f"{found[1]}{number}" for number in range(low, high + 1)]
    return ports


def _split(key: str) -> Iterator[str]:
    """Names between commas; one that is digits alone has the letters of the one before."""
    stem = ""
    for part in key.split(","):
        name = part.strip()
        if name[:1].isdecimal():
            name = stem + name
        letters = _STEM.match(name)
        stem = letters[0] if letters is not None else ""
        yield name


def _neighbours(top: Reader) -> Iterator[Neighbour]:
    for port in top.mapping.entries:
        neighbours = top.mapping_at(port).mapping_at("lldp").mapping_at("neighbor")
        for name in neighbours.mapping.entries:
            seen = neighbours.mapping_at(name)
            chassis, remote = seen.mapping_at("chassis"), seen.mapping_at("port")
            system = chassis.text("system-name", "") or name
            can = chassis.mapping_at("capability")
            is_forwarding = any(can.text(key, "").lower() in {"true", "on"} for key in ("is-bridge", "is-router"))
            remote_port = remote.text("name", "") or remote.text("description", "") or None
            kind = Kind.SWITCH if is_forwarding and not (remote_port and is_nic(remote_port)) else None
            yield Neighbour(port, system, remote_port, Where(top.file), kind)
