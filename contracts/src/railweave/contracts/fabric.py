"""The fabric as topology publishes it, in stream FABRIC: where nodes hang, and what VLANs and subnets leaves carry."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from railweave.contracts.codec import encode_id_part, encode_token
from railweave.contracts.envelope import Event, register_event
from railweave.contracts.types import Document, IpAddress, IpNetwork, LeafName, NodeName, Rail, Slot, VlanId

VF_STRIDE_DEFAULT = 16


class Attachment(Document):
    """A node's port on a leaf."""

    rail: Rail
    leaf: LeafName
    port: str
    slot: Slot
    """Lasting: given once, kept when cables move."""


@register_event
class FabricNode(Event):
    """Where a node hangs."""

    TYPE = "railweave.fabric.node.v1"
    SOURCE = "/railweave/topology"
    node: NodeName
    revision: Annotated[int, Field(ge=1)]
    """Of the fabric inventory."""
    ordinal: Annotated[int, Field(ge=0, lt=2**24)]
    """Lasting number of the node; MACs follow from it."""
    island: str
    """Nodes of different islands never reach each other."""
    pod: str
    attachments: tuple[Attachment, ...]
    """By rail, ascending."""
    former: tuple[Attachment, ...] = ()
    """Where it hung before. Its slots there stay its own: nobody else gets them while anything is claimed on it."""

    def subject(self) -> str:
        return f"rw.fabric.node.{encode_token(self.node)}"

    def event_id(self) -> str:
        return f"fabric.node/{encode_id_part(self.node)}/{self.revision}"


class LeafVlan(Document):
    """One VLAN of a leaf and the subnets on it."""

    rail: Rail
    segment: Annotated[int, Field(ge=0, le=4094)] | None = None
    """None: the VLAN that all share in `rail` mode."""
    vlan: VlanId
    vlan_qos: Annotated[int, Field(ge=0, le=7)] = 0
    mtu: Annotated[int, Field(ge=1280, le=9216)] = 9000
    subnet: IpNetwork
    gateway: IpAddress
    subnet6: IpNetwork | None = None
    gateway6: IpAddress | None = None
    first_offset: Annotated[int, Field(ge=2)] = 4
    """Host offset of slot 0's VF 0; what is below is the network address, gateways and room for them."""
    vf_stride: Annotated[int, Field(ge=1, le=256)] = VF_STRIDE_DEFAULT
    """Addresses of one slot: the VFs a port may have, with headroom."""


@register_event
class FabricLeaf(Event):
    """What a leaf carries."""

    TYPE = "railweave.fabric.leaf.v1"
    SOURCE = "/railweave/topology"
    leaf: LeafName
    revision: Annotated[int, Field(ge=1)]
    island: str
    pod: str
    vlans: tuple[LeafVlan, ...]

    def subject(self) -> str:
        return f"rw.fabric.leaf.{encode_token(self.leaf)}"

    def event_id(self) -> str:
        return f"fabric.leaf/{encode_id_part(self.leaf)}/{self.revision}"


@register_event
class FabricReport(Event):
    """What a leaf's driver found after acting."""

    TYPE = "railweave.fabricreport.v1"
    leaf: LeafName
    revision: Annotated[int, Field(ge=1)]
    applied: bool
    text: str | None = None
    segments_in_use: tuple[int, ...] = ()
    """Segments that a port of this leaf is a member of: not to be given to anybody else yet."""

    def subject(self) -> str:
        return f"rw.fabricreport.{encode_token(self.leaf)}"

    def event_id(self) -> str:
        return f"fabricreport/{encode_id_part(self.leaf)}/{self.revision}/{'applied' if self.applied else 'failed'}"

    def source(self) -> str:
        return f"/leaf/{encode_id_part(self.leaf)}"
