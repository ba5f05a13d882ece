"""From a placement's interface to addresses, rules, routes and settings inside the worker's namespace. Pure.

Per VF: `from <address> lookup <own table>` with an explicit priority; in the table the connected route, the default by
the subnet's gateway, and `unreachable default` of the worst metric, so that a lost rail answers "no route" instead of
leaving by another NIC (a rule to an empty table falls through to `main`). In `main` a default by each rail, worse with
each rail, for those who open a connection without a source address; anything that the container runtime put there is
better than ours."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from railweave.node_agent.network.errors import NetworkRefused
from railweave.node_agent.network.model import VfWant
from railweave.runtime.netlink import GUARD_METRIC, Route, check_device_name, family_of
from railweave.runtime.netlink.errors import NameRefused

__all__ = ["ARP_SETTINGS", "IPV6_SETTINGS", "MAIN_METRIC", "MAIN_TABLE", "check_wants", "routes_of", "settings_of"]

MAIN_METRIC: Final = 4096
"""Metric of rail 0's default route in `main`; rail k has k more. Worse than any that a runtime sets."""

ARP_SETTINGS: Final[Mapping[str, int]] = {"arp_ignore": 1, "arp_announce": 2, "rp_filter": 2}
"""Answer ARP only for an interface's own address, ask with it, and check sources loosely: with several NICs in one
subnet Linux otherwise answers from whichever it likes (ARP flux, NCCL#1269). A namespace starts with 0s."""

IPV6_SETTINGS: Final[Mapping[str, int]] = {"accept_dad": 0, "accept_ra": 0, "keep_addr_on_down": 1}
"""No duplicate detection (addresses are exclusive claims; it takes a second or two in which nothing can be sent), no
routes from router advertisements past our rules, and addresses that stay over a link flap as IPv4's do."""

_CACHED: Final = 16384
"""Wants remembered: each is planned several times in its life, and parsing its addresses is what a plan costs."""

MAIN_TABLE: Final = 254
_RESERVED_TABLES: Final = frozenset({0, 252, 253, 254, 255})
_IPV6_MINIMUM_MTU: Final = 1280
_DEFAULT: Final = {4: "0.0.0.0/0", 6: "::/0"}
_IPV6_METRIC: Final = 1024


@lru_cache(maxsize=_CACHED)
def routes_of(want: VfWant, device: int) -> tuple[Route, ...]:
    """The routes of a VF that has index `device`, in the order they must be added (a gateway needs its subnet)."""
    routes: list[Route] = []
    for cidr, gateway, rule in zip(want.addresses, want.gateways, want.rules, strict=True):
        family = family_of(cidr)
        subnet = str(ipaddress.ip_interface(cidr).network)
        metric = _IPV6_METRIC if family == 6 else 0
        default = _DEFAULT[family]
        routes += [
            Route(default, rule.table, metric=GUARD_METRIC, kind="unreachable"),
            Route(subnet, rule.table, device=device, metric=metric),
            Route(default, rule.table, via=gateway, device=device, metric=metric),
            Route(default, MAIN_TABLE, via=gateway, device=device, metric=MAIN_METRIC + want.rail),
        ]
    return tuple(routes)


def settings_of(want: VfWant) -> dict[str, int]:
    """The per-device settings, IPv6 ones with an `ipv6/` before their name; to be set before the device goes up."""
    settings = dict(ARP_SETTINGS)
    if any(family_of(address) == 6 for address in want.addresses):
        settings |= {f"ipv6/{name}": value for name, value in IPV6_SETTINGS.items()}
    return settings


def check_wants(wants: Sequence[VfWant]) -> None:
    """Refuses, before anything is changed, what the kernel would take and should not, or would refuse half way.

    Raises:
        NetworkRefused: names the VF and the field.
    """
    seen: dict[tuple[str, object], str] = {}
    for want in wants:
        _check_one(want)
        unique: list[tuple[str, object]] = [("name", want.name), ("VF", (want.rail, want.vf)), ("MAC", want.mac)]
        unique += [("address", cidr.partition("/")[0]) for cidr in want.addresses]
        unique += [("table", table) for table in {rule.table for rule in want.rules}]
        for what in unique:
            if what in seen:
                raise NetworkRefused(want.key, f"{what[0]} {what[1]} is also that of {seen[what]}")
            seen[what] = want.key


@lru_cache(maxsize=_CACHED)
def _check_one(want: VfWant) -> None:
    try:
        check_device_name(want.name)
        first_octet = int(want.mac.split(":")[0], 16)
    except (NameRefused, ValueError) as error:
        raise NetworkRefused(want.key, str(error)) from error
    if first_octet & 1 or want.mac == "00:00:00:00:00:00":
        raise NetworkRefused(want.key, f"MAC {want.mac} is not that of one station")
    if not 1 <= want.vlan <= 4094:
        # The kernel takes 4095 (notes/network.md section 2): no one else checks.
        raise NetworkRefused(want.key, f"VLAN {want.vlan} is not in 1 to 4094")
    if not want.addresses:
        raise NetworkRefused(want.key, "has no address")
    if not len(want.addresses) == len(want.gateways) == len(want.rules):
        counts = f"{len(want.addresses)} addresses, {len(want.gateways)} gateways, {len(want.rules)} rules"
        raise NetworkRefused(want.key, f"{counts}: each address needs its gateway and its rule")
    for cidr, gateway, rule in zip(want.addresses, want.gateways, want.rules, strict=True):
        try:
            interface = ipaddress.ip_interface(cidr)
            inside = ipaddress.ip_address(gateway) in interface.network
        except ValueError as error:
            raise NetworkRefused(want.key, str(error)) from error
        if str(interface) != cidr or str(ipaddress.ip_address(gateway)) != gateway:
            raise NetworkRefused(want.key, f"{cidr} via {gateway}: not in the kernel's spelling")
        if not inside or str(interface.ip) == gateway:
            raise NetworkRefused(want.key, f"gateway {gateway} is no other host of {interface.network}")
        if rule.source != f"{interface.ip}/{interface.max_prefixlen}":
            # A rule from the whole subnet catches other hosts' and other VFs' packets (plugins#478).
            raise NetworkRefused(
                want.key, f"rule from {rule.source}: expected {interface.ip}/{interface.max_prefixlen}"
            )
        if not 1 <= rule.priority <= 32765 or rule.table in _RESERVED_TABLES:
            raise NetworkRefused(
                want.key, f"rule priority {rule.priority}, table {rule.table}: reserved for the kernel"
            )
        if interface.version == 6 and want.mtu < _IPV6_MINIMUM_MTU:
            raise NetworkRefused(want.key, f"MTU {want.mtu} is below the 1280 of IPv6")
