"""rtnetlink replies to values. Pure; unknown attributes are ignored, and so is what is not ours to see."""

from __future__ import annotations

import ipaddress
import socket
import struct

from railweave.runtime.netlink.codec import attributes
from railweave.runtime.netlink.encode import IPV4_SETTINGS
from railweave.runtime.netlink.model import Address, Counters, Link, Route, Rule

__all__ = ["address_of", "link_of", "route_of", "rule_of"]

_IFF_UP = 0x1
_IFF_LOWER_UP = 0x10000
_STATS = struct.Struct("=8Q")
_TABLE_LOCAL = 255
_RTN = {1: "unicast", 7: "unreachable"}


def _number(raw: bytes | None) -> int:
    return struct.unpack("=I", raw)[0] if raw is not None and len(raw) == 4 else 0


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")


def _ip(raw: bytes) -> str:
    # IPv6 as Python spells it, everywhere: the C library writes ::ffff:0:0 as ::ffff:0.0.0.0, which would be drift.
    return socket.inet_ntop(socket.AF_INET, raw) if len(raw) == 4 else str(ipaddress.IPv6Address(raw))


def link_of(payload: bytes) -> Link:
    """A device from an RTM_NEWLINK."""
    _, _, index, flags, _ = struct.unpack_from("=BxHiII", payload)
    found = attributes(payload, 16)
    kind = attributes(found[18]).get(1, b"") if 18 in found else b""
    settings: dict[str, int] = {}
    if 26 in found:
        inet = attributes(found[26]).get(int(socket.AF_INET))
        values = attributes(inet).get(1, b"") if inet is not None else b""
        # The kernel shows the settings as one array, in the order of their numbers, which start at 1.
        settings = {
            name: struct.unpack_from("=i", values, 4 * (number - 1))[0]
            for name, number in IPV4_SETTINGS.items()
            if len(values) >= 4 * number
        }
    counters = None
    if 23 in found and len(found[23]) >= 64:
        rx, tx, rx_bytes, tx_bytes, _, _, rx_dropped, tx_dropped = _STATS.unpack_from(found[23])
        counters = Counters(rx, tx, rx_bytes, tx_bytes, rx_dropped, tx_dropped)
    mac = found.get(1, b"")
    return Link(
        index=index,
        name=_text(found.get(3, b"")),
        kind=_text(kind),
        mac=mac.hex(":") if len(mac) == 6 else "",
        mtu=_number(found.get(4)),
        up=bool(flags & _IFF_UP),
        carrier=bool(flags & _IFF_LOWER_UP),
        master=_number(found.get(10)),
        alias=_text(found.get(20, b"")),
        parent_device=_text(found.get(56, b"")),
        peer_index=_number(found.get(5)),
        ipv4=settings,
        counters=counters,
    )


def address_of(payload: bytes) -> Address | None:
    """An address from an RTM_NEWADDR; None for a link-local IPv6 one, which comes and goes with the device."""
    _, length, _, scope, index = struct.unpack_from("=BBBBI", payload)
    found = attributes(payload, 8)
    raw = found.get(2) or found.get(1)
    if raw is None or len(raw) not in {4, 16} or (len(raw) == 16 and scope == 253):
        return None
    return Address(index, f"{_ip(raw)}/{length}")


def route_of(payload: bytes) -> Route | None:
    """A route from an RTM_NEWROUTE; None for table local, IPv6 link-local, multipath, cached, and kinds
    we never make."""
    family, length, _, _, table, protocol, _, kind, flags = struct.unpack_from("=BBBBBBBBI", payload)
    found = attributes(payload, 12)
    table = _number(found[15]) if 15 in found else table
    if kind not in _RTN or table == _TABLE_LOCAL or flags & 0x200 or 9 in found:
        return None
    if family not in {int(socket.AF_INET), int(socket.AF_INET6)}:
        return None
    if 1 in found and found[1][:1] == b"\xfe" and found[1][1] & 0xC0 == 0x80:
        return None  # link-local IPv6 comes and goes with its device
    zero = "0.0.0.0" if family == socket.AF_INET else "::"  # noqa: S104 - a destination, not a bind
    return Route(
        to=f"{_ip(found[1]) if 1 in found else zero}/{length}",
        table=table,
        via=_ip(found[5]) if 5 in found else None,
        device=_number(found.get(4)),
        metric=_number(found.get(6)),
        kind="unicast" if kind == 1 else "unreachable",
        protocol=protocol,
    )


def rule_of(payload: bytes) -> Rule | None:
    """A rule from an RTM_NEWRULE; None unless it is `from SOURCE lookup TABLE` and nothing else."""
    family, to_length, from_length, _, table, _, _, action, _ = struct.unpack_from("=BBBBBBBBI", payload)
    found = attributes(payload, 12)
    if action != 1 or to_length or 2 not in found or family not in {int(socket.AF_INET), int(socket.AF_INET6)}:
        return None
    return Rule(
        priority=_number(found.get(6)),
        source=f"{_ip(found[2])}/{from_length}",
        table=_number(found[15]) if 15 in found else table,
        protocol=found[21][0] if 21 in found else 0,
    )
