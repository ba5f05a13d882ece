"""Requests are what pyroute2 reads back; replies of pyroute2's making are read; names are refused or shortened."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.fibmsg import fibmsg
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from railweave.runtime.netlink import (
    GUARD_METRIC,
    AddAddress,
    Address,
    AddRoute,
    AddRule,
    CreateVeth,
    NameRefused,
    Route,
    Rule,
    SetLink,
    check_device_name,
    check_netns_name,
    device_name,
    distinct_device_names,
)
from railweave.runtime.netlink.codec import attributes, message, messages
from railweave.runtime.netlink.decode import address_of, link_of, route_of, rule_of
from railweave.runtime.netlink.encode import request_of

v4_networks = st.tuples(st.ip_addresses(v=4), st.integers(0, 32)).map(
    lambda pair: str(ipaddress.ip_network((pair[0], pair[1]), strict=False))
)
v6_networks = st.tuples(st.ip_addresses(v=6), st.integers(0, 128)).map(
    lambda pair: str(ipaddress.ip_network((pair[0], pair[1]), strict=False))
)


def whole(action) -> bytes:
    request = request_of(action, lambda ref: 7)
    return message(request.type, request.flags, 1, request.payload)


def read(kind, action):
    decoded = kind(whole(action))
    decoded.decode()
    return decoded


@given(st.one_of(v4_networks, v6_networks), st.integers(1, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(1, 2**20))
def test_pyroute2_reads_our_routes(to, table, metric, device):
    found = read(rtmsg, AddRoute(Route(to, table, device=device, metric=metric)))
    length = int(to.partition("/")[2])
    assert found["dst_len"] == length
    if length:
        assert ipaddress.ip_address(found.get_attr("RTA_DST")) == ipaddress.ip_network(to).network_address
    assert found.get_attr("RTA_TABLE") == table
    assert (found.get_attr("RTA_PRIORITY") or 0) == metric
    assert (found.get_attr("RTA_OIF"), found["proto"], found["type"]) == (device, 82, 1)


@given(st.one_of(v4_networks, v6_networks), st.integers(256, 2**32 - 1), st.integers(1, 2**31), st.integers(1, 2**20))
def test_our_own_reading_gives_back_the_route_that_was_written(to, table, metric, device):
    link_local = ipaddress.ip_network(to).is_link_local and ":" in to
    route = Route(to, table, device=device, metric=metric)
    found = route_of(request_of(AddRoute(route), lambda ref: 7).payload)
    assert found == (None if link_local else route) or (link_local and found in {None, route})


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)), st.integers(1, 32765), st.integers(1, 2**32 - 1))
def test_rules_are_read_back_and_pyroute2_agrees(source, priority, table):
    rule = Rule(priority, f"{source}/{source.max_prefixlen}", table)
    assert rule_of(request_of(AddRule(rule), lambda ref: 7).payload) == rule
    found = read(fibmsg, AddRule(rule))
    assert (found["src_len"], found.get_attr("FRA_PRIORITY"), found.get_attr("FRA_TABLE")) == (
        source.max_prefixlen,
        priority,
        table,
    )
    assert ipaddress.ip_address(found.get_attr("FRA_SRC")) == source


@given(st.ip_addresses(v=4), st.integers(1, 32), st.integers(1, 2**20))
def test_addresses_are_read_back_and_carry_a_broadcast_where_there_is_one(host, length, index):
    address = Address(index, f"{host}/{length}")
    assert address_of(request_of(AddAddress(address), lambda ref: 7).payload) == address
    broadcast = read(ifaddrmsg, AddAddress(address)).get_attr("IFA_BROADCAST")
    network = ipaddress.ip_interface(address.cidr).network
    assert broadcast == (str(network.broadcast_address) if length < 31 else None)


def test_guard_route_has_no_device_and_the_worst_metric():
    # notes/network.md 6B: `unreachable` with a device is refused
    found = read(rtmsg, AddRoute(Route("0.0.0.0/0", 1000, device=5, metric=GUARD_METRIC, kind="unreachable")))
    assert (found["type"], found.get_attr("RTA_OIF"), found.get_attr("RTA_PRIORITY")) == (7, None, GUARD_METRIC)


def test_pair_is_made_with_its_peer_in_the_other_namespace():
    from railweave.runtime.netlink import NetnsRef

    found = read(ifinfmsg, CreateVeth("r0v0", "far", NetnsRef("/run/netns/x", 4, 5), mac="02:00:00:00:00:01", mtu=9000))
    peer = found.get_attr("IFLA_LINKINFO").get_attr("IFLA_INFO_DATA").get_attr("VETH_INFO_PEER")
    assert (found.get_attr("IFLA_IFNAME"), found.get_attr("IFLA_ADDRESS")) == ("r0v0", "02:00:00:00:00:01")
    assert (peer.get_attr("IFLA_IFNAME"), peer.get_attr("IFLA_NET_NS_FD"), peer.get_attr("IFLA_MTU")) == (
        "far",
        7,
        9000,
    )


def test_a_move_together_with_a_rename_cannot_be_asked():
    # notes/network.md fact 2: EEXIST, and the device has moved all the same
    from railweave.runtime.netlink import NetnsRef

    with pytest.raises(ValueError, match="alone"):
        request_of(SetLink(3, name="rail0", netns=NetnsRef("/run/netns/x", 4, 5)), lambda ref: 7)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_as_something_or_nothing_and_never_hang(data):
    for found in messages(data):
        attributes(found.payload)
    attributes(data)
    if len(data) >= 16:
        link_of(data)
    if len(data) >= 12:
        route_of(data)
        rule_of(data)
        address_of(data)


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
