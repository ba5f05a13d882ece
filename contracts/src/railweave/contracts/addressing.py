"""Addresses and MACs are computed, not allocated: anyone can do it by hand from the fabric's records.

    address = subnet + first_offset + slot * vf_stride + vf
    MAC     = 02 : ordinal (3 bytes) : rail : vf

They are claims all the same, so that a mistake is refused and not routed.
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from railweave.contracts.errors import ContractError
from railweave.contracts.fabric import LeafVlan
from railweave.contracts.types import MacAddress, Rail, Slot, VfIndex


@lru_cache(maxsize=65536)
def vf_mac(ordinal: int, rail: Rail, vf: VfIndex) -> MacAddress:
    """Return the MAC of a VF from its node's ordinal (0 to 2^24-1), rail and index. Locally administered, unicast."""
    if not 0 <= ordinal < 2**24:
        raise ContractError("ordinal", f"expected 0 to {2**24 - 1}, found {ordinal}")
    high = f"{ordinal >> 16:02x}:{ordinal >> 8 & 255:02x}:{ordinal & 255:02x}"
    return MacAddress(f"02:{high}:{int(rail):02x}:{int(vf):02x}")


def host_offset(vlan: LeafVlan, slot: Slot, vf: VfIndex) -> int:
    """Return the host offset of a VF in its VLAN's subnets.

    Raises:
        ContractError: the VF's index is past the stride: its address would be the next slot's.
    """
    if int(vf) >= vlan.vf_stride:
        raise ContractError(
            "vf", f"VF {int(vf)} is past the {vlan.vf_stride} addresses of a slot on VLAN {int(vlan.vlan)}"
        )
    return vlan.first_offset + int(slot) * vlan.vf_stride + int(vf)


def vf_addresses(vlan: LeafVlan, slot: Slot, vf: VfIndex) -> tuple[str, ...]:
    """Return a VF's addresses with prefix length: IPv4, and IPv6 where the VLAN has it.

    Raises:
        ContractError: the subnet has no such host; it names slot, VF and subnet.
    """
    offset = host_offset(vlan, slot, vf)
    return tuple(_host(subnet, offset, slot, vf) for subnet in (vlan.subnet, vlan.subnet6) if subnet is not None)


@lru_cache(maxsize=16384)
def _parsed(subnet: str) -> tuple[int, int, int, int]:
    """Version, first address, size and prefix length: a 500-node job asks for 4,000 addresses of a few subnets."""
    network = ipaddress.ip_network(subnet)
    return network.version, int(network.network_address), network.num_addresses, network.prefixlen


@lru_cache(maxsize=65536)
def _host(subnet: str, offset: int, slot: Slot, vf: VfIndex) -> str:
    version, first, size, prefix = _parsed(subnet)
    # The last address of an IPv4 subnet is its broadcast address; leaving it out of IPv6 too costs nothing.
    if offset >= size - 1:
        raise ContractError("slot", f"slot {int(slot)} VF {int(vf)} does not fit {subnet}: host {offset} of {size}")
    number = first + offset
    if version == 4:
        return f"{number >> 24}.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}/{prefix}"
    return f"{ipaddress.IPv6Address(number)}/{prefix}"
