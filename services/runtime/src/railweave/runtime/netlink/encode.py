"""Actions to rtnetlink requests: one thin function per kernel action. Pure."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from railweave.runtime.netlink import codec
from railweave.runtime.netlink.codec import attribute, nested, string, u32
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

__all__ = ["IPV4_SETTINGS", "Request", "describe", "dump_request", "get_link", "request_of"]

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR, RTM_DELADDR, RTM_GETADDR = 20, 21, 22
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWRULE, RTM_DELRULE, RTM_GETRULE = 32, 33, 34

_IFINFO = struct.Struct("=BxHiII")
_IFADDR = struct.Struct("=BBBBI")
_RTMSG = struct.Struct("=BBBBBBBBI")
_NEW = codec.NLM_F_REQUEST | codec.NLM_F_ACK | codec.NLM_F_CREATE | codec.NLM_F_EXCL
_PLAIN = codec.NLM_F_REQUEST | codec.NLM_F_ACK
_SKIP_STATS = 1 << 3

IPV4_SETTINGS: Mapping[str, int] = {"forwarding": 1, "rp_filter": 8, "arp_announce": 18, "arp_ignore": 19}
"""The per-device IPv4 sysctls that can be set in the request itself (IFLA_INET_CONF), by IPV4_DEVCONF number."""

_FAMILY = {4: int(socket.AF_INET), 6: int(socket.AF_INET6)}


@dataclass(frozen=True, slots=True)
class Request:
    """A netlink request without its sequence number."""

    type: int
    flags: int
    payload: bytes
    about: Action | None = None


def _mac(text: str) -> bytes:
    raw = bytes.fromhex(text.replace(":", ""))
    if len(raw) != 6:
        raise ValueError(f"MAC {text!r}")
    return raw


def _packed(address: str) -> bytes:
    return socket.inet_pton(_FAMILY[family_of(address)], address)


def _target(device: int | str) -> tuple[int, bytes]:
    return (device, b"") if isinstance(device, int) else (0, string(3, device))


def create_veth(action: CreateVeth, netns_fd: Callable[[NetnsRef], int]) -> Request:
    """RTM_NEWLINK of a pair; the peer is born in its namespace, so that it never has to be moved."""
    peer = _IFINFO.pack(0, 0, 0, 0, 0) + string(3, check_device_name(action.peer))
    if action.mtu is not None:
        peer += u32(4, action.mtu)
    if action.peer_netns is not None:
        peer += u32(28, netns_fd(action.peer_netns))
    info = nested(18, string(1, "veth"), nested(2, nested(1, peer)))
    body = _IFINFO.pack(0, 0, 0, 0, 0) + string(3, check_device_name(action.name)) + info
    if action.mac is not None:
        body += attribute(1, _mac(action.mac))
    if action.mtu is not None:
        body += u32(4, action.mtu)
    return Request(RTM_NEWLINK, _NEW, body, action)


def create_bridge(action: CreateBridge) -> Request:
    """RTM_NEWLINK of a bridge: no spanning tree, no multicast snooping (one querier less to wait for)."""
    settings = nested(2, u32(5, 0), attribute(23, b"\0"))
    body = _IFINFO.pack(0, 0, 0, 0, 0) + string(3, check_device_name(action.name))
    body += nested(18, string(1, "bridge"), settings)
    if action.mac is not None:
        body += attribute(1, _mac(action.mac))
    return Request(RTM_NEWLINK, _NEW, body, action)


def set_link(action: SetLink, netns_fd: Callable[[NetnsRef], int]) -> Request:
    """RTM_NEWLINK of an existing device.

    Raises:
        ValueError: a move together with anything else (notes/network.md fact 2: not atomic), or an unknown setting.
    """
    index, extra = _target(action.device)
    flags, change = (1 if action.up else 0, 1) if action.up is not None else (0, 0)
    if action.name is not None and not index:
        raise ValueError("a rename needs the device's index: a name in the request would be the new one")
    if action.netns is not None:
        others = (action.up, action.mac, action.mtu, action.name, action.master, action.alias, action.ipv4)
        if any(value is not None for value in others):
            raise ValueError("a move must be asked alone")
        extra += u32(28, netns_fd(action.netns))
    if action.mac is not None:
        extra += attribute(1, _mac(action.mac))
    if action.mtu is not None:
        extra += u32(4, action.mtu)
    if action.name is not None:
        extra += string(3, check_device_name(action.name))
    if action.master is not None:
        extra += u32(10, action.master)
    if action.alias is not None:
        extra += attribute(20, action.alias.encode())
    if action.ipv4:
        settings = [u32(IPV4_SETTINGS[key], value) for key, value in sorted(action.ipv4.items())]
        extra += nested(26, nested(socket.AF_INET, nested(1, *settings)))
    return Request(RTM_NEWLINK, _PLAIN, _IFINFO.pack(0, 0, index, flags, change) + extra, action)


def delete_link(action: DeleteLink) -> Request:
    """RTM_DELLINK."""
    index, extra = _target(action.device)
    return Request(RTM_DELLINK, _PLAIN, _IFINFO.pack(0, 0, index, 0, 0) + extra, action)


def _address(kind: int, flags: int, address: Address, about: Action) -> Request:
    text, _, length = address.cidr.partition("/")
    raw = _packed(text)
    body = _IFADDR.pack(_FAMILY[family_of(text)], int(length), 0, 0, address.index) + attribute(2, raw)
    if len(raw) == 4:
        host_bits = (1 << (32 - int(length))) - 1
        body += attribute(1, raw)
        if int(length) < 31:
            body += attribute(4, (int.from_bytes(raw, "big") | host_bits).to_bytes(4, "big"))
    else:
        body += u32(8, 0x02)  # IFA_F_NODAD: a tentative address cannot be used as a source for a second or more
    return Request(kind, flags, body, about)


def _route(kind: int, flags: int, route: Route, about: Action) -> Request:
    text, _, length = route.to.partition("/")
    unreachable = route.kind == "unreachable"
    family = _FAMILY[family_of(text)]
    scope = 253 if not unreachable and route.via is None and family == socket.AF_INET else 0
    if kind == RTM_DELROUTE and family == socket.AF_INET:
        scope = 255  # any: the kernel compares it otherwise, and others' routes may have another
    table = route.table if route.table < 256 else 0
    kind_number = 7 if unreachable else 1
    body = _RTMSG.pack(family, int(length), 0, 0, table, route.protocol, scope, kind_number, 0)
    body += u32(15, route.table)
    if int(length):
        body += attribute(1, _packed(text))
    if route.via is not None:
        body += attribute(5, _packed(route.via))
    if route.device and not unreachable:
        body += u32(4, route.device)
    if route.metric:
        body += u32(6, route.metric)
    return Request(kind, flags, body, about)


def _rule(kind: int, flags: int, rule: Rule, about: Action) -> Request:
    text, _, length = rule.source.partition("/")
    table = rule.table if rule.table < 256 else 0
    body = _RTMSG.pack(_FAMILY[family_of(text)], 0, int(length), 0, table, 0, 0, 1, 0)
    body += u32(15, rule.table) + u32(6, rule.priority) + attribute(2, _packed(text))
    body += attribute(21, bytes([rule.protocol]))
    return Request(kind, flags, body, about)


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


def dump_request(kind: int, *, counters: bool = False) -> Request:
    """A dump of links (RTM_GETLINK), addresses, routes or rules."""
    if kind == RTM_GETLINK:
        body = _IFINFO.pack(0, 0, 0, 0, 0) + (b"" if counters else u32(29, _SKIP_STATS))
    elif kind == RTM_GETADDR:
        body = _IFADDR.pack(0, 0, 0, 0, 0)
    else:
        body = _RTMSG.pack(0, 0, 0, 0, 0, 0, 0, 0, 0)
    return Request(kind, codec.NLM_F_REQUEST | codec.NLM_F_DUMP, body)


def get_link(name: str) -> Request:
    """A question for one device by name."""
    body = _IFINFO.pack(0, 0, 0, 0, 0) + string(3, check_device_name(name)) + u32(29, _SKIP_STATS)
    return Request(RTM_GETLINK, codec.NLM_F_REQUEST, body)


def describe(action: Action) -> str:
    """An action in words, for errors and plans."""
    name = type(action).__name__
    values = {field: getattr(action, field) for field in action.__dataclass_fields__}
    return f"{name}({', '.join(f'{key}={value}' for key, value in values.items() if value is not None)})"
