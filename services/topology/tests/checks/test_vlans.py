"""VLANs found on switches: subnets given twice, one in another, ports untagged in two."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railweave.contracts.types import VlanId
from railweave.topology.cabling import Cabling
from railweave.topology.checks import Finding, FindingKind, check
from railweave.topology.providers.base import Found, SwitchVlan, VlanMember


def vlan(switch: str, number: int, *gateways: str, untagged: str = "", tagged: str = "") -> SwitchVlan:
    members = [VlanMember(port, False) for port in untagged.split()] + [
        VlanMember(port, True) for port in tagged.split()
    ]
    return SwitchVlan(switch, VlanId(number), gateways, tuple(members))


def findings(*vlans: SwitchVlan) -> list[Finding]:
    return list(check(Found(Cabling((), ()), vlans)))


def kinds(*vlans: SwitchVlan) -> list[tuple[FindingKind, str, str | None, bool]]:
    return [(one.kind, one.device, one.port, one.is_error) for one in findings(*vlans)]


def test_vlans_of_their_own_have_no_findings() -> None:
    assert (
        findings(
            vlan("leaf1", 100, "10.0.0.1/24", "fd00:1::1/64", untagged="e1", tagged="e2 e3"),
            vlan("leaf1", 101, "10.0.1.1/24", untagged="e2", tagged="e1 e3"),
            vlan("leaf2", 100, "10.0.2.1/24", untagged="e1"),
        )
        == []
    )


def test_the_same_subnet_on_two_leaves_names_both() -> None:
    (finding,) = findings(vlan("leaf1", 100, "10.0.0.1/24"), vlan("leaf2", 200, "10.0.0.254/24"))
    assert (finding.kind, finding.device, finding.port) == (FindingKind.SUBNET_TWICE, "leaf2", "Vlan200")
    assert finding.text == "leaf2 Vlan200: has the subnet 10.0.0.0/24 of leaf1 Vlan100"
    assert finding.is_error


def test_one_vlan_over_two_switches_is_no_error() -> None:
    assert kinds(vlan("leaf1", 100, "10.0.0.1/24"), vlan("leaf2", 100, "10.0.0.1/24")) == [
        (FindingKind.SUBNET_TWICE, "leaf2", "Vlan100", False)
    ]


def test_a_subnet_within_another_names_the_smallest_around_it() -> None:
    found = findings(
        vlan("leaf1", 100, "10.0.0.1/16"), vlan("leaf2", 200, "10.0.7.1/24"), vlan("leaf3", 300, "10.0.7.129/25")
    )
    assert [(one.device, one.expected) for one in found] == [
        ("leaf2", "a subnet outside 10.0.0.0/16 of leaf1 Vlan100"),
        ("leaf3", "a subnet outside 10.0.7.0/24 of leaf2 Vlan200"),
    ]
    assert {one.kind for one in found} == {FindingKind.SUBNETS_OVERLAP}


def test_link_local_addresses_are_the_same_everywhere() -> None:
    assert findings(vlan("leaf1", 100, "fe80::1/64"), vlan("leaf2", 200, "fe80::1/64", "169.254.0.1/16")) == []


def test_a_port_untagged_in_two_vlans_is_found_on_its_own_switch_only() -> None:
    assert kinds(
        vlan("leaf1", 100, untagged="e1 e2"),
        vlan("leaf1", 101, untagged="e2", tagged="e1"),
        vlan("leaf2", 102, untagged="e1"),
    ) == [(FindingKind.UNTAGGED_TWICE, "leaf1", "e2", True)]


@pytest.mark.parametrize("gateway", ["", "10.0.0.300/24", "10.0.0.1/33", "x" * 300, "10.0.0.1/24/24", "\x00"])
def test_a_gateway_that_is_no_address_is_found(gateway: str) -> None:
    assert kinds(vlan("leaf1", 100, gateway)) == [(FindingKind.BAD_GATEWAY, "leaf1", "Vlan100", True)]


@given(st.lists(st.tuples(st.integers(0, 15).map(lambda net: net << 4), st.integers(24, 31)), max_size=12))
def test_every_subnet_in_another_is_found_and_no_other(nets: list[tuple[int, int]]) -> None:
    found = findings(*(vlan(f"s{i}", 1 + i, f"10.0.0.{net}/{length}") for i, (net, length) in enumerate(nets)))
    subnets = {IPv4Network(f"10.0.0.{net}/{length}", strict=False) for net, length in nets}
    within = {net for net in subnets if any(net != other and net.subnet_of(other) for other in subnets)}
    assert sum(one.kind is FindingKind.SUBNETS_OVERLAP for one in found) == len(within)
    assert sum(one.kind is FindingKind.SUBNET_TWICE for one in found) == len(nets) - len(subnets)
