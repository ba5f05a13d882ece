"""A Linux switch with FRR: `ip` and `bridge` commands for a vlan-filtering bridge, and what FRR is to announce."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from railweave.topology.switch_config.model import IntentRefused, IntentVlan, SwitchIntent

_BRIDGE = "br0"
_TABLE_BASE = 10_000
"""The routing table of segment i's VRF is this plus i: out of the way of tables that people number by hand."""
_LONGEST = 15


def commands(intent: SwitchIntent, *, asn: int = 65_000) -> list[str]:
    """The lines for a switch, each a command; FRR's at the end as one `vtysh` call a VRF.

    Args:
        intent: what is wanted.
        asn: the autonomous system that FRR speaks BGP as, 1 to 4294967295.

    Raises:
        IntentRefused: a name that is no interface's.
    """
    if not 1 <= asn <= 4_294_967_295:
        raise IntentRefused(f"expected an AS number from 1 to 4294967295, found {asn}")
    for name in (*intent.ports, *intent.vrfs):
        if len(name) > _LONGEST or "/" in name:
            reason = f"is no interface of Linux: at most {_LONGEST} characters, no slash"
            raise IntentRefused(f"{intent.switch}: {name!r} {reason}")
    lines = [
        f"ip link add name {_BRIDGE} type bridge vlan_filtering 1 vlan_default_pvid 0",
        f"ip link set dev {_BRIDGE} up",
        *(line for vrf in intent.vrfs for line in _vrf(vrf)),
        *(line for port in intent.ports for line in _port(port)),
        *(line for vlan in intent.vlans for line in _vlan(vlan)),
    ]
    for vrf in (None, *intent.vrfs):
        lines += _announced(intent, vrf, asn)
    return lines


def _vrf(vrf: str) -> Iterator[str]:
    yield f"ip link add name {vrf} type vrf table {_TABLE_BASE + int(vrf.removeprefix('Vrf-s'))}"
    yield f"ip link set dev {vrf} up"


def _port(port: str) -> Iterator[str]:
    yield f"ip link set dev {port} master {_BRIDGE}"
    yield f"ip link set dev {port} up"


def _vlan(vlan: IntentVlan) -> Iterator[str]:
    yield f"bridge vlan add dev {_BRIDGE} vid {vlan.vlan} self"
    for port in vlan.members:
        yield f"bridge vlan add dev {port} vid {vlan.vlan}"
    name = f"vlan{vlan.vlan}"
    yield f"ip link add link {_BRIDGE} name {name} type vlan id {vlan.vlan}"
    yield f"ip link set dev {name} mtu {vlan.mtu}"
    if vlan.vrf is not None:
        # Before its addresses: entering a VRF moves their routes, and IPv6 addresses are lost on the way.
        yield f"ip link set dev {name} master {vlan.vrf}"
    for gateway in vlan.gateways:
        yield f"ip address add {gateway} dev {name}"
    yield f"ip link set dev {name} up"


def _announced(intent: SwitchIntent, vrf: str | None, asn: int) -> list[str]:
    networks = [
        ipaddress.ip_interface(gateway).network for vlan in intent.vlans if vlan.vrf == vrf for gateway in vlan.gateways
    ]
    if not networks:
        return []
    parts = ["configure terminal", f"router bgp {asn}" + (f" vrf {vrf}" if vrf is not None else "")]
    for version, family in ((4, "ipv4"), (6, "ipv6")):
        of_family = [network for network in networks if network.version == version]
        if of_family:
            parts.append(f"address-family {family} unicast")
            parts += [f"network {network}" for network in of_family]
            parts.append("exit-address-family")
    return ["vtysh " + " ".join(f"-c '{part}'" for part in parts)]
