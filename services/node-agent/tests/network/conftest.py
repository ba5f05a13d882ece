"""One world for every test of the network half: a node with two rails, a leaf for each, and a worker; on the real
kernel (as root) and on the one in memory, with virtual devices that end with their namespace and with physical ones
that come back."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from railweave.node_agent.network import MemoryKernel, NodePort, NodePorts, Step, VfWant, plan_attach, plan_prepare
from railweave.node_agent.network.provision import provision_vfs
from railweave.node_agent.network.veth import VethDriver
from railweave.runtime.netlink import (
    Action,
    CreateBridge,
    Kernel,
    LinuxKernel,
    NetnsRef,
    Rule,
    SetLink,
    settle_all,
)

_numbers = itertools.count()
NOT_ROOT = "needs root: run as root, or in `unshare -Urnm sh -c 'mount -t tmpfs tmpfs /run && make test'`"


def is_root() -> bool:
    return os.geteuid() == 0


@dataclass
class World:
    kernel: Kernel
    prefix: str
    ports: NodePorts
    driver: VethDriver
    worker: NetnsRef

    def name(self, part: str) -> str:
        return f"{self.prefix}-{part}"

    def path(self, part: str) -> str:
        return f"/run/netns/{self.name(part)}"

    def tamper(self, part: str, actions: Sequence[Action]) -> None:
        """What somebody else does behind our back."""
        with self.kernel.open(self.path(part)) as inside:
            settle_all(inside, actions)

    def index(self, part: str, device: str) -> int:
        with self.kernel.open(self.path(part)) as inside:
            return inside.links_named([device])[device].index

    def prepare(self, wants: Sequence[VfWant]) -> list[Step]:
        steps = plan_prepare(wants, self.driver.observe(wants))
        self.driver.apply(steps)
        return steps

    def plan_attach(self, wants: Sequence[VfWant]) -> list[Step]:
        return plan_attach(wants, self.driver.observe(wants, self.worker))

    def attach(self, wants: Sequence[VfWant]) -> list[Step]:
        """Prepares and attaches; gives all steps, as the journal has them."""
        steps = self.prepare(wants)
        inside = self.plan_attach(wants)
        self.driver.apply(inside)
        return steps + inside

    def drift(self, wants: Sequence[VfWant]) -> list[Step]:
        observed = self.driver.observe(wants, self.worker)
        return plan_prepare(wants, observed) + plan_attach(wants, observed)

    def names(self, part: str) -> set[str]:
        with self.kernel.open(self.path(part)) as inside:
            return {link.name for link in inside.links()}

    def picture(self, *parts: str) -> dict[str, object]:
        """All that is in the namespaces, without what differs between two that are the same (indexes, random MACs)."""
        return {part: self._picture_of(part) for part in parts or ("node", "leaf0", "leaf1", "worker")}

    def _picture_of(self, part: str) -> object:
        with self.kernel.open(self.path(part)) as inside:
            links = inside.links()
            names = {link.index: link.name for link in links} | {0: ""}
            shown = {
                link.name: (
                    "" if link.alias.endswith("/far") else link.mac,
                    link.mtu,
                    link.up,
                    names[link.master],
                    link.alias,
                    tuple(sorted(link.ipv4.items())),
                )
                for link in links
            }
            addresses = sorted((names[a.index], a.cidr) for a in inside.addresses() if a.index != 1)
            routes = sorted(
                str(replace(r, device=0)) + (names[r.device] if r.kind == "unicast" else "")
                for r in inside.routes()
                if r.device != 1 or r.kind == "unreachable"
            )
            return shown, addresses, routes, sorted(str(rule) for rule in inside.rules())


def want(rail: int, vf: int = 0, *, ipv6: bool = False, vlan: int = 100, mtu: int = 8900) -> VfWant:
    """VF `vf` of a rail, as a placement would say it."""
    addresses, gateways = [f"10.{rail}.0.{10 + vf}/24"], [f"10.{rail}.0.1"]
    rules = [Rule(1000 + rail, f"10.{rail}.0.{10 + vf}/32", 1000 + rail)]
    if ipv6:
        addresses.append(f"fd00:1{rail}::{10 + vf}/64")
        gateways.append(f"fd00:1{rail}::1")
        rules.append(Rule(1000 + rail, f"fd00:1{rail}::{10 + vf}/128", 1000 + rail))
    return VfWant(
        name=f"rail{rail}",
        rail=rail,
        vf=vf,
        mac=f"02:00:00:07:{rail:02x}:{vf:02x}",
        mtu=mtu,
        vlan=vlan,
        addresses=tuple(addresses),
        gateways=tuple(gateways),
        rules=tuple(rules),
    )


def build(kernel: Kernel, prefix: str) -> World:
    for part in ("node", "leaf0", "leaf1", "worker"):
        kernel.create_netns(f"{prefix}-{part}")
    for rail in (0, 1):
        with kernel.open(f"/run/netns/{prefix}-leaf{rail}") as leaf:
            for number, vlan in enumerate((100, 200)):
                name = f"br{vlan}"
                settle_all(leaf, [CreateBridge(name, mac=f"02:ff:00:00:{rail:02x}:{number:02x}")])
                settle_all(leaf, [SetLink(name, mtu=9000), SetLink(name, up=True)])
    ports = NodePorts(
        node="gpu-001",
        netns=f"/run/netns/{prefix}-node",
        ports=tuple(NodePort(rail, f"/run/netns/{prefix}-leaf{rail}", f"Ethernet{rail}") for rail in (0, 1)),
    )
    provision_vfs(kernel, ports, 2)
    return World(kernel, prefix, ports, VethDriver(kernel, ports), kernel.find(f"/run/netns/{prefix}-worker"))


def worlds(kind: str) -> Iterator[World]:
    prefix = f"rwt{os.getpid():x}-{next(_numbers)}"
    if kind == "linux":
        if not is_root():
            pytest.skip(NOT_ROOT)
        kernel: Kernel = LinuxKernel()
    else:
        kernel = MemoryKernel(vfs_return=kind == "memory-physical", home=f"/run/netns/{prefix}-node")
    try:
        yield build(kernel, prefix)
    finally:
        for name in kernel.netns_names():
            if name.startswith(f"{prefix}-"):
                kernel.delete_netns(name)


@pytest.fixture(params=[pytest.param("linux", marks=pytest.mark.kernel), "memory", "memory-physical"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Every kernel in turn: the contract."""
    yield from worlds(request.param)


@pytest.fixture
def linux_world() -> Iterator[World]:
    yield from worlds("linux")


@pytest.fixture
def memory_world() -> Iterator[World]:
    yield from worlds("memory")


@pytest.fixture
def vf():
    """The builder of a wanted VF."""
    return want


@pytest.fixture
def physical_world() -> Iterator[World]:
    yield from worlds("memory-physical")
