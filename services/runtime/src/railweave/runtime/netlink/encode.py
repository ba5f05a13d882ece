"""Actions to rtnetlink requests: one thin function per kernel action, laid out by pyroute2's message classes.

pyroute2 leaves out an attribute whose name it does not know, without a word: the tests read back each one asked for.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Interface
from socket import AF_INET, AF_INET6

from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, nla, nlmsg
from pyroute2.netlink.rtnl import (
    RTM_DELADDR,
    RTM_DELLINK,
    RTM_DELROUTE,
    RTM_DELRULE,
    RTM_GETADDR,
    RTM_GETLINK,
    RTM_GETROUTE,
    RTM_GETRULE,
    RTM_NEWADDR,
    RTM_NEWLINK,
    RTM_NEWROUTE,
    RTM_NEWRULE,
    rt_scope,
    rt_type,
)
from pyroute2.netlink.rtnl.fibmsg import FR_ACT_TO_TBL, fibmsg
from pyroute2.netlink.rtnl.ifaddrmsg import IFA_F_NODAD, ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import IFF_UP, ifinfbase, ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from railweave.runtime.netlink.model import (
    Action,
    AddAddress,
    Address,
    AddRoute,
    AddRule,
    CreateBridge,
    CreateVeth,
    DeleteAddress,
    DeleteLink,
    DeleteRoute,
    DeleteRule,
    NetnsRef,
    Route,
    Rule,
    SetLink,
    family_of,
)
from railweave.runtime.netlink.names import check_device_name

__all__ = [
    "IPV4_SETTINGS",
    "Request",
    "describe",
    "dump_addresses",
    "dump_links",
    "dump_routes",
    "dump_rules",
    "get_link",
    "request_of",
]

_NEW = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
_PLAIN = NLM_F_REQUEST | NLM_F_ACK
_DUMP = NLM_F_REQUEST | NLM_F_DUMP
_SKIP_STATS = 1 << 3

IPV4_SETTINGS = ("forwarding", "rp_filter", "arp_announce", "arp_ignore")
"""The per-device IPv4 sysctls that are read with a device and can be set in the request itself (IFLA_INET_CONF)."""

_FAMILY = {4: int(AF_INET), 6: int(AF_INET6)}
_Attributes = list[tuple[str, object]]
_sequences = itertools.count(1)


class _LinkChange(ifinfbase, nlmsg):  # type: ignore[misc]  # pyroute2's own messages are put together so
    """pyroute2's ifinfmsg, with per-device IPv4 settings as the kernel takes them: one attribute a setting. The
    library lays them out as the kernel shows them: all, in one array. (Not a subclass of ifinfmsg: it would inherit the
    table that is compiled from the attributes' classes.)"""

    class af_spec(nla):  # noqa: N801 - found by this name
        nla_map = ((int(AF_INET), "AF_INET", "inet"),)  # type: ignore[assignment]

        class inet(nla):  # noqa: N801
            nla_map = ((1, "IFLA_INET_CONF", "conf"),)  # type: ignore[assignment]

            class conf(nla):  # noqa: N801
                nla_map = tuple(  # type: ignore[assignment]
                    (number, name, "uint32")
                    for number, name in enumerate(ifinfmsg.af_spec_inet.inet.field_names)
                    if number  # the first is the array's own header
                )


@dataclass(frozen=True, slots=True)
class Request:
    """A netlink request: its bytes, and the number by which its answers are known."""

    sequence: int
    data: bytes
    about: Action | None = None


def _request(kind: int, flags: int, message: nlmsg, attributes: _Attributes, about: Action | None = None) -> Request:
    sequence = next(_sequences) & 0xFFFFFFFF
    message["header"].update(type=kind, flags=flags, sequence_number=sequence)
    message["attrs"] = attributes
    try:
        message.encode()
    except (OSError, struct.error) as error:  # what the C library and `struct` say of a value that does not fit
        raise ValueError(f"{describe(about) if about is not None else 'query'}: {error}") from error
    return Request(sequence, bytes(message.data), about)


def _of_device(message: nlmsg, device: int | str) -> _Attributes:
    """Says which device a message is about: in its header or, by name, in the attributes that it gives back."""
    if isinstance(device, str):
        return [("IFLA_IFNAME", device)]
    message["index"] = device
    return []


def create_veth(action: CreateVeth, netns_fd: Callable[[NetnsRef], int]) -> Request:
    """RTM_NEWLINK of a pair; the peer is born in its namespace, so that it never has to be moved."""
    peer: _Attributes = [("IFLA_IFNAME", check_device_name(action.peer))]
    if action.mtu is not None:
        peer.append(("IFLA_MTU", action.mtu))
    if action.peer_netns is not None:
        peer.append(("IFLA_NET_NS_FD", netns_fd(action.peer_netns)))
    return _create(action, "veth", [("VETH_INFO_PEER", {"attrs": peer})], mtu=action.mtu)


def create_bridge(action: CreateBridge) -> Request:
    """RTM_NEWLINK of a bridge: no spanning tree, no multicast snooping (one querier less to wait for)."""
    return _create(action, "bridge", [("IFLA_BR_STP_STATE", 0), ("IFLA_BR_MCAST_SNOOPING", 0)])


def _create(action: CreateVeth | CreateBridge, kind: str, settings: _Attributes, mtu: int | None = None) -> Request:
    info: _Attributes = [("IFLA_INFO_KIND", kind), ("IFLA_INFO_DATA", {"attrs": settings})]
    attributes: _Attributes = [("IFLA_IFNAME", check_device_name(action.name)), ("IFLA_LINKINFO", {"attrs": info})]
    if action.mac is not None:
        attributes.append(("IFLA_ADDRESS", action.mac))
    if mtu is not None:
        attributes.append(("IFLA_MTU", mtu))
    return _request(RTM_NEWLINK, _NEW, ifinfmsg(), attributes, action)


def set_link(action: SetLink, netns_fd: Callable[[NetnsRef], int]) -> Request:
    """RTM_NEWLINK of an existing device.

    Raises:
        ValueError: a move together with anything else (notes/network.md fact 2: not atomic), or an unknown setting.
    """
    message = _LinkChange()  # type: ignore[no-untyped-call]
    attributes = _of_device(message, action.device)
    if action.up is not None:
        message["flags"], message["change"] = (IFF_UP if action.up else 0), IFF_UP
    if action.name is not None and attributes:
        raise ValueError("a rename needs the device's index: a name in the request would be the new one")
    if action.netns is not None:
        others = (action.up, action.mac, action.mtu, action.name, action.master, action.alias, action.ipv4)
        if any(value is not None for value in others):
            raise ValueError("a move must be asked alone")
        attributes.append(("IFLA_NET_NS_FD", netns_fd(action.netns)))
    if action.mac is not None:
        attributes.append(("IFLA_ADDRESS", action.mac))
    if action.mtu is not None:
        attributes.append(("IFLA_MTU", action.mtu))
    if action.name is not None:
        attributes.append(("IFLA_IFNAME", check_device_name(action.name)))
    if action.master is not None:
        attributes.append(("IFLA_MASTER", action.master))
    if action.alias is not None:
        attributes.append(("IFLA_IFALIAS", action.alias))
    if action.ipv4:
        if unknown := action.ipv4.keys() - set(IPV4_SETTINGS):
            raise ValueError(f"unknown IPv4 settings {sorted(unknown)}")
        conf = {"attrs": sorted(action.ipv4.items())}
        attributes.append(("IFLA_AF_SPEC", {"attrs": [("AF_INET", {"attrs": [("IFLA_INET_CONF", conf)]})]}))
    return _request(RTM_NEWLINK, _PLAIN, message, attributes, action)


def delete_link(action: DeleteLink) -> Request:
    """RTM_DELLINK."""
    message = ifinfmsg()
    return _request(RTM_DELLINK, _PLAIN, message, _of_device(message, action.device), action)


def _address(kind: int, flags: int, address: Address, about: Action) -> Request:
    text, _, length = address.cidr.partition("/")
    family = family_of(text)
    message = ifaddrmsg()
    message["family"], message["prefixlen"], message["index"] = _FAMILY[family], int(length), address.index
    attributes: _Attributes = [("IFA_LOCAL", text)]
    if family == 6:
        # A tentative address cannot be used as a source for a second or more.
        attributes.append(("IFA_FLAGS", IFA_F_NODAD))
    else:
        attributes.append(("IFA_ADDRESS", text))
        if int(length) < 31:
            attributes.append(("IFA_BROADCAST", str(IPv4Interface(address.cidr).network.broadcast_address)))
    return _request(kind, flags, message, attributes, about)


def _route(kind: int, flags: int, route: Route, about: Action) -> Request:
    text, _, length = route.to.partition("/")
    unreachable = route.kind == "unreachable"
    family = family_of(text)
    scope = "link" if not unreachable and route.via is None and family == 4 else "universe"
    if kind == RTM_DELROUTE and family == 4:
        scope = "nowhere"  # any: the kernel compares it otherwise, and others' routes may have another
    message = rtmsg()
    message["family"], message["dst_len"] = _FAMILY[family], int(length)
    message["table"] = route.table if route.table < 256 else 0
    message["proto"], message["scope"], message["type"] = route.protocol, rt_scope[scope], rt_type[route.kind]
    attributes: _Attributes = [("RTA_TABLE", route.table)]
    if int(length):
        attributes.append(("RTA_DST", text))
    if route.via is not None:
        attributes.append(("RTA_GATEWAY", route.via))
    if route.device and not unreachable:
        attributes.append(("RTA_OIF", route.device))
    if route.metric:
        attributes.append(("RTA_PRIORITY", route.metric))
    return _request(kind, flags, message, attributes, about)


def _rule(kind: int, flags: int, rule: Rule, about: Action) -> Request:
    text, _, length = rule.source.partition("/")
    message = fibmsg()
    message["family"], message["src_len"], message["action"] = _FAMILY[family_of(text)], int(length), FR_ACT_TO_TBL
    message["table"] = rule.table if rule.table < 256 else 0
    attributes: _Attributes = [
        ("FRA_TABLE", rule.table),
        ("FRA_PRIORITY", rule.priority),
        ("FRA_SRC", text),
        ("FRA_PROTOCOL", rule.protocol),
    ]
    return _request(kind, flags, message, attributes, about)


def request_of(action: Action, netns_fd: Callable[[NetnsRef], int]) -> Request:  # noqa: PLR0911 - one line an action
    """The request of an action. `netns_fd` gives the open, verified descriptor of a namespace an action refers to.

    Raises:
        NameRefused: a name that must not reach the kernel.
        ValueError: values that no request can say.
    """
    match action:
        case CreateVeth():
            return create_veth(action, netns_fd)
        case CreateBridge():
            return create_bridge(action)
        case SetLink():
            return set_link(action, netns_fd)
        case DeleteLink():
            return delete_link(action)
        case AddAddress(address):
            return _address(RTM_NEWADDR, _NEW, address, action)
        case DeleteAddress(address):
            return _address(RTM_DELADDR, _PLAIN, address, action)
        case AddRoute(route):
            return _route(RTM_NEWROUTE, _NEW, route, action)
        case DeleteRoute(route):
            return _route(RTM_DELROUTE, _PLAIN, route, action)
        case AddRule(rule):
            return _rule(RTM_NEWRULE, _NEW, rule, action)
        case DeleteRule(rule):
            return _rule(RTM_DELRULE, _PLAIN, rule, action)
        case _:
            raise ValueError(f"{action} is no netlink request")


def dump_links(*, counters: bool = False) -> Request:
    """A question for all devices."""
    return _request(RTM_GETLINK, _DUMP, ifinfmsg(), [] if counters else [("IFLA_EXT_MASK", _SKIP_STATS)])


def dump_addresses() -> Request:
    """A question for all addresses."""
    return _request(RTM_GETADDR, _DUMP, ifaddrmsg(), [])


def dump_routes() -> Request:
    """A question for all routes, of every table and family."""
    message = rtmsg()
    message["family"] = 0  # the library's default is IPv4
    return _request(RTM_GETROUTE, _DUMP, message, [])


def dump_rules() -> Request:
    """A question for all rules, of every family."""
    return _request(RTM_GETRULE, _DUMP, fibmsg(), [])


def get_link(name: str) -> Request:
    """A question for one device by name."""
    attributes: _Attributes = [("IFLA_IFNAME", check_device_name(name)), ("IFLA_EXT_MASK", _SKIP_STATS)]
    return _request(RTM_GETLINK, NLM_F_REQUEST, ifinfmsg(), attributes)


def describe(action: Action) -> str:
    """An action in words, for errors and plans."""
    name = type(action).__name__
    values = {field: getattr(action, field) for field in action.__dataclass_fields__}
    return f"{name}({', '.join(f'{key}={value}' for key, value in values.items() if value is not None)})"
