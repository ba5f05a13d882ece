"""The settings of the topology service: where the fabric is described, and what VLANs and subnets are made of."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from railweave.contracts.types import VlanId
from railweave.runtime.settings import Section, register_section
from railweave.topology.fabric_file import load_fabric_file, read_bytes
from railweave.topology.model import Graph
from railweave.topology.plan import PlanConfig
from railweave.topology.pool import Network
from railweave.topology.providers import PROVIDERS, ImportOptions

_VLANS = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?\Z", re.ASCII)


class TopologySettings(Section):
    """The section `topology`."""

    fabric_file: Path | None = Field(default=None, description="the fabric; without one the stored records are kept")
    importer: str = Field(
        default="fabric", description="the format of fabric_file: fabric, or one that `railweave fabric formats` lists"
    )
    rails: int = Field(default=8, ge=1, le=256, description="rails of every node, where the format does not tell")
    vlan_ranges: tuple[str, ...] = Field(default=("100-999",), description="VLAN ids to give, such as 100-199")
    reserved_vlans: tuple[str, ...] = Field(default=(), description="VLAN ids never to give")
    pools: tuple[str, ...] = Field(default=("10.64.0.0/10",), description="IPv4 networks that subnets are cut from")
    pools6: tuple[str, ...] = Field(default=(), description="IPv6 networks that /64 subnets are cut from")
    reserved_networks: tuple[str, ...] = Field(default=(), description="networks that no subnet may overlap")
    vf_stride: int = Field(default=16, ge=1, le=256, description="addresses a port has: VFs it may ever have")
    headroom_percent: int = Field(default=50, ge=0, le=1000, description="slots kept for growth, in per cent of ports")
    mtu: int = Field(default=9000, ge=1280, le=9216, description="MTU of all VLANs, bytes")
    vlan_qos: int = Field(default=0, ge=0, le=7, description="VLAN priority of all VLANs")
    segments: int = Field(
        default=0, ge=0, le=4000, description="isolated segments: each is a VLAN a rail on every leaf"
    )
    segment_owner: Literal["tenant", "job"] = Field(
        default="tenant", description="who shares a segment: all jobs of a tenant, or each job has its own"
    )
    driver: Literal["none", "linux"] = Field(default="none", description="linux: make the fabric in this kernel")
    run: str = Field(
        default="rw",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,31}$",
        description="first part of the names of namespaces made",
    )

    @field_validator("importer")
    @classmethod
    def _is_a_format(cls, name: str) -> str:
        if name != "fabric" and name not in PROVIDERS:
            raise ValueError(f"expected fabric or one of {', '.join(PROVIDERS)}, found {name!r}")
        return name

    @field_validator("vlan_ranges", "reserved_vlans")
    @classmethod
    def _are_vlans(cls, ranges: tuple[str, ...]) -> tuple[str, ...]:
        _vlans(ranges)
        return ranges

    @field_validator("pools", "pools6", "reserved_networks")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        _networks(networks)
        return networks

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        for name, version in (("pools", 4), ("pools6", 6)):
            networks = _networks(getattr(self, name))
            for network in networks:
                if network.version != version:
                    raise ValueError(f"{name}: {network} is not IPv{version}")
            for one, other in combinations(networks, 2):
                if one.overlaps(other):
                    raise ValueError(f"{name}: {one} and {other} overlap; keep one of them")
        if not self.plan_config().vlan_ids:
            raise ValueError("vlan_ranges: nothing is left of them without reserved_vlans")
        return self

    def plan_config(self) -> PlanConfig:
        """What new VLANs are made of."""
        reserved = frozenset(_vlans(self.reserved_vlans))
        return PlanConfig(
            vlan_ids=tuple(vlan for vlan in dict.fromkeys(_vlans(self.vlan_ranges)) if vlan not in reserved),
            pools=tuple(ipaddress.IPv4Network(pool) for pool in self.pools),
            pools6=tuple(ipaddress.IPv6Network(pool) for pool in self.pools6),
            reserved=tuple(_networks(self.reserved_networks)),
            reserved_vlans=reserved,
            vf_stride=self.vf_stride,
            headroom_percent=self.headroom_percent,
            mtu=self.mtu,
            vlan_qos=self.vlan_qos,
            segments=self.segments,
        )

    def load(self) -> Graph | None:
        """Read the fabric; None where no file is set. Blocks. A directory stands for the files in it, one a switch.

        Raises:
            FileError: it cannot be read.
        """
        if self.fabric_file is None:
            return None
        if self.importer == "fabric":
            return load_fabric_file(self.fabric_file)
        path = self.fabric_file
        paths = [path]
        if path.is_dir():
            paths = sorted(each for each in path.iterdir() if each.is_file() and not each.name.startswith("."))
        files = {each.name: read_bytes(each) for each in paths}
        return PROVIDERS[self.importer].read(files, ImportOptions(rails=self.rails)).imported().graph


register_section("topology", TopologySettings)


def _vlans(ranges: Sequence[str]) -> list[VlanId]:
    vlans: list[VlanId] = []
    for text in ranges:
        found = _VLANS.match(text.strip())
        if found is None:
            raise ValueError(f"expected VLAN ids such as 100-199, found {text!r}")
        low, high = int(found[1]), int(found[2] or found[1])
        if low > high:
            raise ValueError(f"the range {text!r} goes down")
        vlans += [VlanId(vlan) for vlan in range(low, high + 1)]
    return vlans


def _networks(texts: Sequence[str]) -> list[Network]:
    return [ipaddress.ip_network(text.strip()) for text in texts]
