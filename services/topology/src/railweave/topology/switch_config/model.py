"""What a switch is to carry: VLANs with their gateways, VRFs and member ports. From the records, pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from railweave.contracts.fabric import Attachment, FabricLeaf
from railweave.contracts.types import Rail
from railweave.topology.inferring import natural

_PORT: Final = re.compile(r"[A-Za-z][A-Za-z0-9._/-]{0,63}", re.ASCII)


class IntentRefused(ValueError):
    """Something in the records that no switch takes; says what."""


@dataclass(frozen=True, slots=True)
class IntentVlan:
    """A VLAN of a switch. Every member sends it tagged: VFs have the tag set by their PF."""

    vlan: int
    gateways: tuple[str, ...]
    """Interface addresses with prefix length, IPv4 first."""
    members: tuple[str, ...]
    mtu: int
    vrf: str | None = None
    """None: the default one, which all shared VLANs are in."""


@dataclass(frozen=True, slots=True)
class SwitchIntent:
    """What Railweave wants of a switch; nothing of what else it does."""

    switch: str
    vlans: tuple[IntentVlan, ...]

    @property
    def vrfs(self) -> tuple[str, ...]:
        """The VRFs of its segments, in order."""
        return tuple(dict.fromkeys(vlan.vrf for vlan in self.vlans if vlan.vrf is not None))

    @property
    def ports(self) -> tuple[str, ...]:
        """Every port that is a member of anything."""
        return tuple(dict.fromkeys(port for vlan in self.vlans for port in vlan.members))


def intent_of(leaf: FabricLeaf, attachments: Iterable[Attachment]) -> SwitchIntent:
    """What a leaf is to carry.

    A node's port is a member of its rail's shared VLAN and of all segments' VLANs of that rail: trunked once, so that
    nothing has to be configured when a job comes.

    Args:
        leaf: its record.
        attachments: the ports of nodes; those of other leaves are passed over.

    Raises:
        IntentRefused: a port whose name no switch has.
    """
    ports: dict[Rail, list[str]] = {}
    for attachment in attachments:
        if attachment.leaf == leaf.leaf:
            if not _PORT.fullmatch(attachment.port):
                raise IntentRefused(
                    f"leaf {leaf.leaf}: {attachment.port!r} is no port of a switch; name the ports in the fabric file"
                )
            ports.setdefault(attachment.rail, []).append(attachment.port)
    return SwitchIntent(
        str(leaf.leaf),
        tuple(
            IntentVlan(
                int(vlan.vlan),
                tuple(
                    f"{gateway}/{network.rpartition('/')[2]}"
                    for gateway, network in ((vlan.gateway, vlan.subnet), (vlan.gateway6, vlan.subnet6))
                    if gateway is not None and network is not None
                ),
                tuple(sorted(ports.get(vlan.rail, ()), key=natural)),
                int(vlan.mtu),
                f"Vrf-s{vlan.segment}" if vlan.segment is not None else None,
            )
            for vlan in sorted(leaf.vlans, key=lambda vlan: vlan.vlan)
        ),
    )
