"""VLANs as switches were found to carry them: subnets given twice or one in another, ports in two VLANs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network, IPv6Network, ip_interface

from railweave.topology.checks.finding import Finding, FindingKind
from railweave.topology.providers.base import SwitchVlan

_Network = IPv4Network | IPv6Network


def faults(vlans: Iterable[SwitchVlan]) -> Iterator[Finding]:
    """Everything that is wrong with them."""
    vlans = list(vlans)
    networks: dict[_Network, list[SwitchVlan]] = {}
    for vlan in vlans:
        for gateway in vlan.gateways:
            try:
                network = ip_interface(gateway).network
            except ValueError as error:
                expected = "an address with prefix length such as 10.0.0.1/24"
                text = f"{_named(vlan)}: gateway {gateway[:80]!r}: {error}"
                yield Finding(FindingKind.BAD_GATEWAY, vlan.switch, _port(vlan), expected, text)
                continue
            holders = networks.setdefault(network, [])
            # Link-local addresses are the same on every link, and meant to be.
            if not network.is_link_local and vlan not in holders:
                holders.append(vlan)
    for network, holders in networks.items():
        yield from _subnet_twice(network, holders)
    yield from _overlapping({network: holders for network, holders in networks.items() if holders})
    yield from _untagged_twice(vlans)


def _subnet_twice(network: _Network, holders: list[SwitchVlan]) -> Iterator[Finding]:
    """The same subnet in two VLANs. One VLAN stretched over switches works as it is, and not with Railweave's plan."""
    for again in holders[1:]:
        first = next((vlan for vlan in holders if vlan.switch != again.switch and vlan.vlan == again.vlan), holders[0])
        is_stretched = first.vlan == again.vlan
        yield Finding(
            FindingKind.SUBNET_TWICE,
            again.switch,
            _port(again),
            f"a subnet of its own: {network} is that of {_named(first)}",
            f"{_named(again)}: has the subnet {network} of {_named(first)}"
            + (", one VLAN over both switches" if is_stretched else ""),
            is_error=not is_stretched,
        )


def _overlapping(networks: dict[_Network, list[SwitchVlan]]) -> Iterator[Finding]:
    """Each subnet within another, with the smallest that it is within."""
    around: list[_Network] = []
    for network in sorted(networks, key=lambda net: (net.version, int(net.network_address), net.prefixlen)):
        while around and not _is_within(network, around[-1]):
            around.pop()
        if around:
            outer = around[-1]
            inner, holder = networks[network][0], networks[outer][0]
            yield Finding(
                FindingKind.SUBNETS_OVERLAP,
                inner.switch,
                _port(inner),
                f"a subnet outside {outer} of {_named(holder)}",
                f"{_named(inner)}: its subnet {network} lies within {outer} of {_named(holder)}",
            )
        around.append(network)


def _is_within(inner: _Network, outer: _Network) -> bool:
    return inner.version == outer.version and int(inner.network_address) <= int(outer.broadcast_address)


def _untagged_twice(vlans: Iterable[SwitchVlan]) -> Iterator[Finding]:
    untagged: dict[tuple[str, str], list[SwitchVlan]] = defaultdict(list)
    for vlan in vlans:
        for member in vlan.members:
            if not member.tagged and vlan not in untagged[vlan.switch, member.port]:
                untagged[vlan.switch, member.port].append(vlan)
    for (switch, port), holders in untagged.items():
        if len(holders) > 1:
            ids = ", ".join(str(int(vlan.vlan)) for vlan in holders)
            text = f"{switch}:{port}: untagged in VLANs {ids}"
            yield Finding(FindingKind.UNTAGGED_TWICE, switch, port, "untagged in one VLAN at most", text)


def _port(vlan: SwitchVlan) -> str:
    return f"Vlan{int(vlan.vlan)}"


def _named(vlan: SwitchVlan) -> str:
    return f"{vlan.switch} {_port(vlan)}"
