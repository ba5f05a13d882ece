"""rtnetlink replies, as pyroute2 read them, to values. Pure; what is not ours to see is None."""

from __future__ import annotations

from ipaddress import IPv6Address
from socket import AF_INET, AF_INET6
from typing import Any

from pyroute2.netlink import nlmsg
from pyroute2.netlink.rtnl import rt_type
from pyroute2.netlink.rtnl.fibmsg import FR_ACT_TO_TBL
from pyroute2.netlink.rtnl.ifinfmsg import IFF_LOWER_UP, IFF_UP

from railweave.runtime.netlink.encode import IPV4_SETTINGS
from railweave.runtime.netlink.model import Address, Counters, Link, Route, Rule

__all__ = ["address_of", "link_of", "route_of", "rule_of"]

_SCOPE_LINK = 253
_TABLE_LOCAL = 255
_CLONED = 0x200
_FAMILIES = {int(AF_INET): "0.0.0.0", int(AF_INET6): "::"}  # noqa: S104 - a destination, not a bind


class _Attributes:
    """The attributes of a message by name. Each is read when it is asked for: most never are."""

    def __init__(self, message: nlmsg) -> None:
        self._slots = {slot.name: slot for slot in message["attrs"]}

    def __contains__(self, name: str) -> bool:
        return name in self._slots

    def __getitem__(self, name: str) -> Any:
        slot = self._slots.get(name)
        return None if slot is None else slot.value

    def number(self, name: str) -> int:
        value = self[name]
        return value if isinstance(value, int) else 0

    def text(self, name: str) -> str:
        value = self[name]  # bytes where they are no UTF-8, which a job that is root in its namespace may write
        return value.decode(errors="replace") if isinstance(value, bytes) else value or ""

    def ip(self, name: str) -> str | None:
        # IPv6 as Python spells it, everywhere: the C library writes ::ffff:0:0 as ::ffff:0.0.0.0, which would be drift.
        value = self[name]
        return str(IPv6Address(value)) if value is not None and ":" in value else value

    def mac(self, name: str) -> str:
        # The library takes the first six bytes of any hardware address: InfiniBand's has twenty, a tunnel's four.
        slot = self._slots.get(name)
        return str(slot.value) if slot is not None and slot.nla.length == 4 + 6 else ""


def link_of(reply: nlmsg) -> Link:
    """A device from an RTM_NEWLINK."""
    found = _Attributes(reply)
    info, families, stats = found["IFLA_LINKINFO"], found["IFLA_AF_SPEC"], found["IFLA_STATS64"]
    inet = families.get_attr("AF_INET") if families is not None else None
    return Link(
        index=reply["index"],
        name=found.text("IFLA_IFNAME"),
        kind=_Attributes(info).text("IFLA_INFO_KIND") if info is not None else "",
        mac=found.mac("IFLA_ADDRESS"),
        mtu=found.number("IFLA_MTU"),
        up=bool(reply["flags"] & IFF_UP),
        carrier=bool(reply["flags"] & IFF_LOWER_UP),
        master=found.number("IFLA_MASTER"),
        alias=found.text("IFLA_IFALIAS"),
        parent_device=found.text("IFLA_PARENT_DEV_NAME"),
        peer_index=found.number("IFLA_LINK"),
        ipv4={name: inet[name] for name in IPV4_SETTINGS} if inet is not None else {},
        counters=_counters(stats) if stats is not None else None,
    )


def _counters(stats: Any) -> Counters:
    return Counters(
        rx_packets=stats["rx_packets"],
        tx_packets=stats["tx_packets"],
        rx_bytes=stats["rx_bytes"],
        tx_bytes=stats["tx_bytes"],
        rx_dropped=stats["rx_dropped"],
        tx_dropped=stats["tx_dropped"],
    )


def address_of(reply: nlmsg) -> Address | None:
    """An address from an RTM_NEWADDR; None for a link-local IPv6 one, which comes and goes with the device."""
    if reply["family"] not in _FAMILIES or (reply["family"] == AF_INET6 and reply["scope"] == _SCOPE_LINK):
        return None
    found = _Attributes(reply)
    text = found.ip("IFA_LOCAL") or found.ip("IFA_ADDRESS")
    return None if text is None else Address(reply["index"], f"{text}/{reply['prefixlen']}")


def route_of(reply: nlmsg) -> Route | None:
    """A route from an RTM_NEWROUTE; None for table local, IPv6 link-local, multipath, cached, and kinds
    we never make."""
    found = _Attributes(reply)
    table = found["RTA_TABLE"] or reply["table"]
    if reply["family"] not in _FAMILIES or table == _TABLE_LOCAL or reply["flags"] & _CLONED:
        return None
    if reply["type"] not in {rt_type["unicast"], rt_type["unreachable"]} or "RTA_MULTIPATH" in found:
        return None
    to = found.ip("RTA_DST") or _FAMILIES[reply["family"]]
    if ":" in to and IPv6Address(to).is_link_local:
        return None  # comes and goes with its device
    return Route(
        to=f"{to}/{reply['dst_len']}",
        table=table,
        via=found.ip("RTA_GATEWAY"),
        device=found.number("RTA_OIF"),
        metric=found.number("RTA_PRIORITY"),
        kind="unicast" if reply["type"] == rt_type["unicast"] else "unreachable",
        protocol=reply["proto"],
    )


def rule_of(reply: nlmsg) -> Rule | None:
    """A rule from an RTM_NEWRULE; None unless it is `from SOURCE lookup TABLE` and nothing else."""
    found = _Attributes(reply)
    source = found.ip("FRA_SRC")
    if reply["family"] not in _FAMILIES or reply["action"] != FR_ACT_TO_TBL or reply["dst_len"] or source is None:
        return None
    return Rule(
        priority=found.number("FRA_PRIORITY"),
        source=f"{source}/{reply['src_len']}",
        table=found["FRA_TABLE"] or reply["table"],
        protocol=found.number("FRA_PROTOCOL"),
    )
