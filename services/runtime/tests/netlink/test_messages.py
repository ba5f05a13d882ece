"""Requests say what was asked, every attribute of it; replies are read as values; names are refused or shortened.

Nothing here needs a kernel: what pyroute2 lays out is read back, and beside it stand the bytes of the kernel's own
layout, written by hand from its headers, for what the library reads and writes in different ways or might drop.
"""

from __future__ import annotations

import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink import nlmsg
from pyroute2.netlink.rtnl import RTM_NEWLINK
from pyroute2.netlink.rtnl.marshal import MarshalRtnl

from railweave.runtime.netlink import (
    GUARD_METRIC,
    AddAddress,
    Address,
    AddRoute,
    AddRule,
    CreateBridge,
    CreateVeth,
    DeleteRoute,
    NameRefused,
    NetnsRef,
    Route,
    Rule,
    SetLink,
    check_device_name,
    check_netns_name,
    device_name,
    distinct_device_names,
)
from railweave.runtime.netlink.decode import address_of, link_of, route_of, rule_of
from railweave.runtime.netlink.encode import request_of

ELSEWHERE = NetnsRef("/run/netns/x", 4, 5)
v4_networks = st.tuples(st.ip_addresses(v=4), st.integers(0, 32)).map(
    lambda pair: str(ipaddress.ip_network((pair[0], pair[1]), strict=False))
)
v6_networks = st.tuples(st.ip_addresses(v=6), st.integers(0, 128)).map(
    lambda pair: str(ipaddress.ip_network((pair[0], pair[1]), strict=False))
)


def asked(action) -> bytes:
    return request_of(action, lambda ref: 7).data


def read(action) -> nlmsg:
    (found,) = MarshalRtnl().parse(asked(action))
    return found


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def link_reply(*attributes: bytes) -> nlmsg:
    body = struct.pack("=BxHiII", 0, 1, 9, 0x10001, 0) + b"".join(attributes)
    (found,) = MarshalRtnl().parse(struct.pack("=IHHII", 16 + len(body), RTM_NEWLINK, 0, 1, 0) + body)
    return found


@given(st.one_of(v4_networks, v6_networks), st.integers(1, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(1, 2**20))
def test_route_request_says_all_of_the_route(to, table, metric, device):
    found = read(AddRoute(Route(to, table, device=device, metric=metric)))
    length = int(to.partition("/")[2])
    assert found["dst_len"] == length
    if length:
        assert ipaddress.ip_address(found.get_attr("RTA_DST")) == ipaddress.ip_network(to).network_address
    assert found.get_attr("RTA_TABLE") == table
    assert (found.get_attr("RTA_PRIORITY") or 0) == metric
    assert (found.get_attr("RTA_OIF"), found["proto"], found["type"]) == (device, 82, 1)


@given(st.one_of(v4_networks, v6_networks), st.integers(256, 2**32 - 1), st.integers(1, 2**31), st.integers(1, 2**20))
def test_route_that_was_asked_for_is_the_route_that_is_read(to, table, metric, device):
    link_local = ipaddress.ip_network(to).network_address.is_link_local and ":" in to
    route = Route(to, table, device=device, metric=metric)
    assert route_of(read(AddRoute(route))) == (None if link_local else route)


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)), st.integers(1, 32765), st.integers(1, 2**32 - 1))
def test_rule_that_was_asked_for_is_the_rule_that_is_read(source, priority, table):
    rule = Rule(priority, f"{source}/{source.max_prefixlen}", table)
    assert rule_of(read(AddRule(rule))) == rule


@given(st.ip_addresses(v=4), st.integers(1, 32), st.integers(1, 2**20))
def test_addresses_are_read_back_and_carry_a_broadcast_where_there_is_one(host, length, index):
    address = Address(index, f"{host}/{length}")
    assert address_of(read(AddAddress(address))) == address
    broadcast = read(AddAddress(address)).get_attr("IFA_BROADCAST")
    network = ipaddress.ip_interface(address.cidr).network
    assert broadcast == (str(network.broadcast_address) if length < 31 else None)


def test_ipv6_addresses_are_not_tentative():
    assert read(AddAddress(Address(3, "fd00::1/64"))).get_attr("IFA_FLAGS") == 2


def test_guard_route_has_no_device_and_the_worst_metric():
    # notes/network.md 6B: `unreachable` with a device is refused
    found = read(AddRoute(Route("0.0.0.0/0", 1000, device=5, metric=GUARD_METRIC, kind="unreachable")))
    assert (found["type"], found.get_attr("RTA_OIF"), found.get_attr("RTA_PRIORITY")) == (7, None, GUARD_METRIC)


def test_deleted_route_is_found_whatever_its_scope():
    route = Route("10.0.0.0/24", 1000, device=5)
    assert (read(AddRoute(route))["scope"], read(DeleteRoute(route))["scope"]) == (253, 255)


def test_pair_is_made_with_its_peer_in_the_other_namespace():
    found = read(CreateVeth("r0v0", "far", ELSEWHERE, mac="02:00:00:00:00:01", mtu=9000))
    peer = found.get_attr("IFLA_LINKINFO").get_attr("IFLA_INFO_DATA").get_attr("VETH_INFO_PEER")
    assert (found.get_attr("IFLA_IFNAME"), found.get_attr("IFLA_ADDRESS")) == ("r0v0", "02:00:00:00:00:01")
    assert (peer.get_attr("IFLA_IFNAME"), peer.get_attr("IFLA_NET_NS_FD"), peer.get_attr("IFLA_MTU")) == (
        "far",
        7,
        9000,
    )


def test_bridge_is_made_without_spanning_tree_and_snooping():
    found = read(CreateBridge("br100")).get_attr("IFLA_LINKINFO")
    settings = found.get_attr("IFLA_INFO_DATA")
    assert found.get_attr("IFLA_INFO_KIND") == "bridge"
    assert (settings.get_attr("IFLA_BR_STP_STATE"), settings.get_attr("IFLA_BR_MCAST_SNOOPING")) == (0, 0)


def test_change_of_a_device_says_all_that_is_to_change_and_nothing_else():
    change = SetLink(3, up=True, mac="02:00:00:00:00:01", mtu=9000, name="rail0", master=0, alias="railweave/n/r0v0")
    found = read(change)
    assert (found["index"], found["flags"], found["change"]) == (3, 1, 1)
    assert {slot.name: slot.value for slot in found["attrs"]} == {
        "IFLA_ADDRESS": "02:00:00:00:00:01",
        "IFLA_MTU": 9000,
        "IFLA_IFNAME": "rail0",
        "IFLA_MASTER": 0,
        "IFLA_IFALIAS": "railweave/n/r0v0",
    }
    assert read(SetLink(3, mtu=9000))["change"] == 0


def test_arp_settings_are_laid_out_one_attribute_each():
    # pyroute2 has only the array that the kernel shows; numbers of include/uapi/linux/ip.h, IPV4_DEVCONF_*
    wanted = {"arp_ignore": 1, "arp_announce": 2, "rp_filter": 2, "forwarding": 1}
    each = [attribute(number, struct.pack("=I", value)) for number, value in ((18, 2), (19, 1), (1, 1), (8, 2))]
    conf = attribute(26, attribute(2, attribute(1, b"".join(each))))
    assert asked(SetLink(3, ipv4=wanted))[32:] == conf


def test_unknown_setting_is_refused_and_not_left_out():
    with pytest.raises(ValueError, match="arp_ingore"):
        asked(SetLink(3, ipv4={"arp_ingore": 1}))


@pytest.mark.parametrize(
    "action",
    [
        SetLink(3, mac="02:00:00:00:01"),
        SetLink(3, mac="02:00:00:00:00:zz"),
        SetLink(3, mtu=2**32),
        AddAddress(Address(3, "10.0.0.300/24")),
        AddRoute(Route("10.0.0.0/24", 1000, via="fd00::1", device=3)),
        AddRule(Rule(1000, "10.0.0.1/32", 2**32)),
    ],
    ids=str,
)
def test_value_that_no_request_can_say_is_an_error_of_that_request(action):
    with pytest.raises(ValueError):
        asked(action)


def test_per_device_settings_are_read_from_the_array_of_all():
    values = list(range(100, 133))  # IPV4_DEVCONF_FORWARDING is 1, and the array starts with it
    conf = attribute(1, struct.pack("=33i", *values))
    found = link_of(link_reply(attribute(3, b"a\0"), attribute(26, attribute(2, conf))))
    assert found.ipv4 == {"forwarding": 100, "rp_filter": 107, "arp_announce": 117, "arp_ignore": 118}


@pytest.mark.parametrize(
    ("raw", "mac"),
    [
        (bytes(range(6)), "00:01:02:03:04:05"),
        (bytes(20), ""),  # InfiniBand
        (b"\x0a\0\0\1", ""),  # a tunnel's
        (b"", ""),
    ],
)
def test_hardware_address_of_another_length_is_no_mac(raw, mac):
    assert link_of(link_reply(attribute(1, raw), attribute(3, b"a\0"))).mac == mac


def test_names_and_marks_that_are_no_text_are_read_all_the_same():
    # Whoever is root in a worker's namespace may give a device any bytes.
    found = link_of(link_reply(attribute(3, b"\xff\xfe\0"), attribute(20, b"railweave/\xff")))
    assert (found.name, found.alias) == ("\ufffd\ufffd", "railweave/\ufffd")


def test_unknown_attributes_and_kinds_are_left_alone():
    kind = attribute(18, attribute(1, b"later\0") + attribute(2, b"what it has"))
    found = link_of(link_reply(attribute(3, b"a\0"), kind, attribute(4000, b"later")))
    assert (found.index, found.name, found.kind, found.up, found.carrier) == (9, "a", "later", True, True)


def test_requests_can_follow_each_other_in_one_send_and_be_told_apart():
    requests = [request_of(SetLink(name, up=True), lambda ref: 7) for name in ("a", "abcd", "abcdefg")]
    found = list(MarshalRtnl().parse(b"".join(request.data for request in requests)))
    assert [one.get_attr("IFLA_IFNAME") for one in found] == ["a", "abcd", "abcdefg"]
    assert [one["header"]["sequence_number"] for one in found] == [request.sequence for request in requests]
    assert len({request.sequence for request in requests}) == 3


def test_a_move_together_with_a_rename_cannot_be_asked():
    # notes/network.md fact 2: EEXIST, and the device has moved all the same
    with pytest.raises(ValueError, match="alone"):
        asked(SetLink(3, name="rail0", netns=ELSEWHERE))


@pytest.mark.parametrize("name", ["", "a" * 16, "../x", "a/b", "-rf", "a b", "a\0", "ä", "all", "default", ".", ".."])
def test_names_that_could_be_paths_or_options_never_reach_the_kernel(name):
    with pytest.raises(NameRefused):
        check_device_name(name)


@pytest.mark.parametrize("name", ["", "../x", "a/b", "-rf", "a" * 65, ".", "a\n"])
def test_namespace_names_that_could_be_paths_are_refused(name):
    with pytest.raises(NameRefused):
        check_netns_name(name)


@given(st.text(min_size=1, max_size=80), st.sampled_from(["", "v0", "v127", "-up"]))
def test_every_name_becomes_an_interface_name_that_keeps_its_suffix(base, suffix):
    name = device_name(base, suffix)
    assert check_device_name(name) == name
    assert name.endswith(suffix)
    assert device_name(base, suffix) == name


def test_short_names_stay_as_they_are_and_shortened_ones_cannot_equal_them():
    assert device_name("Ethernet12", "v3") == "Ethernet12v3"
    assert "~" in device_name("FortyGigabitEthernet1/0/12", "v3")
    assert "~" in device_name("a~b")


def test_two_names_that_shorten_to_one_are_refused(monkeypatch):
    from railweave.runtime.netlink import names

    monkeypatch.setattr(names.hashlib, "sha256", lambda data: type("Same", (), {"digest": lambda self: b"\0" * 32})())
    with pytest.raises(NameRefused, match="both"):
        distinct_device_names(["FortyGigabitEthernet1/0/1", "FortyGigabitEthernet1/0/2"])
