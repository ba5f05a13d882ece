"""What SONiC's YANG models say of VLANs, their members and interfaces, as a check of `config_db` tables. Pure.

Source: sonic-vlan.yang, and what it refers to in sonic-port, sonic-portchannel, sonic-vrf, sonic-vnet and sonic-sag.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

Tables = Mapping[str, Mapping[str, Mapping[str, Any]]]

_VLAN: Final = re.compile(r"Vlan([1-9]\d{0,3})", re.ASCII)
_MAC: Final = re.compile(r"([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}", re.ASCII)
_VRF: Final = re.compile(r"Vrf[A-Za-z0-9_-]{0,12}", re.ASCII)
_INTERFACE_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "nat_zone": frozenset({"0", "1", "2", "3"}),
    "grat_arp": frozenset({"enabled", "disabled"}),
    "proxy_arp": frozenset({"enabled", "disabled"}),
    "loopback_action": frozenset({"drop", "forward"}),
    "ipv6_use_link_local_only": frozenset({"enable", "disable"}),
    "static_anycast_gateway": frozenset({"true", "false"}),
}


def faults(tables: Tables) -> tuple[str, ...]:
    """What SONiC would refuse of these tables: one line each, with table, row and reason."""
    return (*_of_vrfs(tables), *_of_vlans(tables), *_of_members(tables), *_of_interfaces(tables))


def _of_vrfs(tables: Tables) -> Iterator[str]:
    for name in tables.get("VRF", {}):
        if name not in {"default", "mgmt"} and not _VRF.fullmatch(name):
            yield f"VRF {name}: expected Vrf and at most 12 more characters"


def _of_vlans(tables: Tables) -> Iterator[str]:
    for name, row in tables.get("VLAN", {}).items():
        found = _VLAN.fullmatch(name)
        if found is None or int(found[1]) > 4094:
            yield f"VLAN {name}: expected Vlan1 to Vlan4094"
        elif str(row.get("vlanid", found[1])) != found[1]:
            yield f"VLAN {name}: its vlanid is {row['vlanid']}"
        if "mtu" in row and not (str(row["mtu"]).isdecimal() and 1 <= int(row["mtu"]) <= 9216):
            yield f"VLAN {name}: mtu {row['mtu']} is not from 1 to 9216"
        if "mac" in row and not _MAC.fullmatch(str(row["mac"])):
            yield f"VLAN {name}: {row['mac']} is no MAC"
        for field, version in (("dhcp_servers", 4), ("dhcpv6_servers", 6)):
            for server in row.get(field, ()):
                if not _is_address(server, version):
                    yield f"VLAN {name}: {server} in {field} is no IPv{version} address"


def _of_members(tables: Tables) -> Iterator[str]:
    ports = {*tables.get("PORT", {}), *tables.get("PORTCHANNEL", {})}
    bundled = {key.partition("|")[2] for key in tables.get("PORTCHANNEL_MEMBER", {})}
    routed = {key.partition("|")[0] for key in tables.get("INTERFACE", {})}
    mirrored = {row.get("dst_port") for row in tables.get("MIRROR_SESSION", {}).values()}
    untagged: dict[str, str] = {}
    for key, row in tables.get("VLAN_MEMBER", {}).items():
        vlan, _, port = key.partition("|")
        thing = f"VLAN_MEMBER {key}"
        if vlan not in tables.get("VLAN", {}):
            yield f"{thing}: there is no {vlan}"
        if port not in ports:
            yield f"{thing}: there is no port {port}"
        if row.get("tagging_mode") not in {"tagged", "untagged", "priority_tagged"}:
            yield f"{thing}: tagging_mode {row.get('tagging_mode')} is none"
        if port in bundled:
            yield f"{thing}: {port} is a member of a port channel"
        if port in routed:
            yield f"{thing}: {port} is a router interface"
        if port in mirrored:
            yield f"{thing}: {port} is the end of a mirror session"
        if row.get("tagging_mode") == "untagged" and untagged.setdefault(port, vlan) != vlan:
            yield f"{thing}: {port} is untagged in {untagged[port]} already"


def _of_interfaces(tables: Tables) -> Iterator[str]:
    rows = tables.get("VLAN_INTERFACE", {})
    for key, row in rows.items():
        vlan, bar, prefix = key.partition("|")
        thing = f"VLAN_INTERFACE {key}"
        if vlan not in tables.get("VLAN", {}):
            yield f"{thing}: there is no {vlan}"
        if bar:
            yield from _of_address(thing, prefix, row, has_interface=vlan in rows)
            continue
        for field, known in _INTERFACE_FIELDS.items():
            if field in row and str(row[field]) not in known:
                yield f"{thing}: {field} {row[field]} is none of {', '.join(sorted(known))}"
        if "mac_addr" in row and not _MAC.fullmatch(str(row["mac_addr"])):
            yield f"{thing}: {row['mac_addr']} is no MAC"
        for field, table in (("vrf_name", "VRF"), ("vnet_name", "VNET")):
            if field in row and row[field] not in tables.get(table, {}):
                yield f"{thing}: there is no {row[field]} in {table}"
        if row.get("static_anycast_gateway") == "true" and "GLOBAL" not in tables.get("SAG", {}):
            yield f"{thing}: a static anycast gateway needs SAG GLOBAL"


def _of_address(thing: str, prefix: str, row: Mapping[str, Any], *, has_interface: bool) -> Iterator[str]:
    if not has_interface:
        yield f"{thing}: its interface has no row of its own"
    try:
        version = ipaddress.ip_interface(prefix).version
    except ValueError:
        yield f"{thing}: {prefix} is no address with prefix length"
        return
    if row.get("family", f"IPv{version}") != f"IPv{version}":
        yield f"{thing}: the family is {row['family']}"


def _is_address(text: object, version: int) -> bool:
    try:
        return ipaddress.ip_address(str(text)).version == version
    except ValueError:
        return False
