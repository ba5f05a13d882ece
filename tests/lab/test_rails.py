"""What the rules are for, shown with packets: each VF's traffic leaves by its own rail, across leaves; a lost rail
does not leak to another. On a software fabric of two leaves and two spines, hosts with two rails (root)."""

from __future__ import annotations

import errno
import itertools
import os
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from railweave.node_agent.network import NodePort, NodePorts, Step, VfWant, plan_attach, plan_prepare
from railweave.node_agent.network.provision import provision_vfs
from railweave.node_agent.network.veth import VethDriver
from railweave.runtime.netlink import AddRule, DeleteRule, LinuxKernel, NetnsRef, Rule, SetLink, settle_all
from railweave.runtime.netlink.netns import open_descriptor, run_inside
from railweave.topology.linux_fabric import (
    FabricPlan,
    LinuxFabric,
    SoftwareLeaf,
    SoftwareSpine,
    SoftwareVlan,
    mesh_links,
    port,
)

pytestmark = pytest.mark.kernel
RAILS = (0, 1)
_numbers = itertools.count()
kernel = LinuxKernel()


@dataclass
class Host:
    """A node on leaf `leaf`, with a worker that has a VF of each rail."""

    run: str
    leaf: int
    number: int
    driver: VethDriver = field(init=False)
    worker: NetnsRef = field(init=False)
    journal: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        name = f"{self.run}-node{self.leaf}{self.number}"
        kernel.create_netns(name)
        self.worker = kernel.create_netns(f"{name}-worker")
        ports = []
        for rail in RAILS:
            leaf_path, _ = port(self.run, f"leaf-{self.leaf}", self.port_name(rail))
            ports.append(NodePort(rail, leaf_path, self.port_name(rail)))
        node_ports = NodePorts(name, f"/run/netns/{name}", tuple(ports))
        provision_vfs(kernel, node_ports, 1)
        self.driver = VethDriver(kernel, node_ports)

    def port_name(self, rail: int) -> str:
        return f"Ethernet{self.number * len(RAILS) + rail}"

    def address(self, rail: int) -> str:
        return f"10.{self.leaf}.{rail}.{10 + self.number}"

    def address6(self, rail: int) -> str:
        return str(f"fd00:{self.leaf + 1}:{rail + 1}::{10 + self.number:x}")

    def mac(self, rail: int) -> str:
        return f"02:00:0{self.leaf}:0{self.number}:0{rail}:00"

    def wants(self, vlans: dict[int, int] | None = None) -> list[VfWant]:
        return [
            VfWant(
                name=f"rail{rail}",
                rail=rail,
                vf=0,
                mac=self.mac(rail),
                mtu=9000,
                vlan=(vlans or {0: 100, 1: 101})[rail],
                addresses=(f"{self.address(rail)}/24", f"{self.address6(rail)}/64"),
                gateways=(f"10.{self.leaf}.{rail}.1", f"fd00:{self.leaf + 1}:{rail + 1}::1"),
                rules=(
                    Rule(1000 + rail, f"{self.address(rail)}/32", 1000 + rail),
                    Rule(1000 + rail, f"{self.address6(rail)}/128", 1000 + rail),
                ),
            )
            for rail in RAILS
        ]

    def attach(self) -> None:
        wants = self.wants()
        prepared = plan_prepare(wants, self.driver.observe(wants))
        self.driver.apply(prepared)
        inside = plan_attach(wants, self.driver.observe(wants, self.worker))
        self.driver.apply(inside)
        self.journal = prepared + inside

    def run_as_worker(self, work):
        descriptor, _ = open_descriptor(self.worker)
        try:
            return run_inside(descriptor, work)
        finally:
            os.close(descriptor)

    def sent(self) -> dict[str, int]:
        """Packets that left by each rail."""
        with kernel.open(self.worker) as inside:
            links = inside.links(counters=True)
            return {link.name: link.counters.tx_packets for link in links if link.counters and link.name != "lo"}

    def change(self, *actions) -> None:
        with kernel.open(self.worker) as inside:
            settle_all(inside, list(actions))

    def index(self, name: str) -> int:
        with kernel.open(self.worker) as inside:
            return inside.links_named([name])[name].index


def _checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def ping(host: Host, target: str, source: str | None, count: int = 20) -> int:
    """Echo requests from `source` (None: whatever the kernel chooses); gives how many were answered.

    Raises:
        OSError: the kernel had no route.
    """
    is_6 = ":" in target
    family = socket.AF_INET6 if is_6 else socket.AF_INET
    protocol = socket.IPPROTO_ICMPV6 if is_6 else socket.IPPROTO_ICMP
    kind, answer_kind = (128, 129) if is_6 else (8, 0)
    identity = next(_numbers) + 1000

    def work() -> int:
        answered = 0
        with socket.socket(family, socket.SOCK_RAW, protocol) as raw:
            if source is not None:
                raw.bind((source, 0))
            raw.settimeout(1.0)
            for number in range(count):
                echo = struct.pack("!BBHHH", kind, 0, 0, identity, number) + b"railweave" * 4
                if not is_6:
                    echo = echo[:2] + struct.pack("!H", _checksum(echo)) + echo[4:]
                raw.sendto(echo, (target, 0))
                deadline = time.monotonic() + 1
                while time.monotonic() < deadline:
                    try:
                        answer = raw.recv(2048)
                    except TimeoutError:
                        break
                    body = answer if is_6 else answer[20:]
                    if body[0] == answer_kind and struct.unpack_from("!HH", body, 4) == (identity, number):
                        answered += 1
                        break
        return answered

    return host.run_as_worker(work)


def wait_for_link(host: Host, rail: int) -> None:
    """The bridge lets a port that came back forward when the kernel's link watch says so: up to a second later."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        gateways = (f"10.{host.leaf}.{rail}.1", f"fd00:{host.leaf + 1}:{rail + 1}::1")
        sources = (host.address(rail), host.address6(rail))
        if all(ping(host, gateway, source, 1) for gateway, source in zip(gateways, sources, strict=True)):
            return
    pytest.fail(f"rail {rail} of {host.run} never came back")


@pytest.fixture
def run() -> Iterator[str]:
    if os.geteuid() != 0:
        pytest.skip("needs root: run as root, or in `unshare -Urnm sh -c 'mount -t tmpfs tmpfs /run && make test'`")
    prefix = f"rwl{os.getpid():x}x{next(_numbers)}"
    yield prefix
    for name in kernel.netns_names():
        if name.startswith(f"{prefix}-"):
            kernel.delete_netns(name)


@pytest.fixture
def hosts(run: str) -> list[Host]:
    """Two hosts on each of two leaves, attached."""
    leaf_names, spine_names = ["leaf-0", "leaf-1"], ["spine-0", "spine-1"]
    leaves = tuple(
        SoftwareLeaf(
            name,
            tuple(
                SoftwareVlan(100 + rail, f"10.{leaf}.{rail}.1/24", f"fd00:{leaf + 1}:{rail + 1}::1/64")
                for rail in RAILS
            ),
        )
        for leaf, name in enumerate(leaf_names)
    )
    spines = tuple(SoftwareSpine(name) for name in spine_names)
    plan = FabricPlan(run, leaves, spines, mesh_links(leaf_names, spine_names, pool6="fd99::/64"))
    LinuxFabric(kernel, run).sync_blocking(plan)
    made = [Host(run, leaf, number) for leaf in (0, 1) for number in (0, 1)]
    for host in made:
        host.attach()
    # Learn the neighbours, so that ARP is not counted as traffic of a rail below.
    for host, rail in itertools.product(made, RAILS):
        wait_for_link(host, rail)
    return made


def left_by(host: Host, before: dict[str, int]) -> dict[str, int]:
    return {name: count - before[name] for name, count in host.sent().items()}


def test_20_pings_from_rail_1_leave_by_rail_1_with_our_rules_and_by_rail_0_without(hosts):
    here, there = hosts[0], hosts[2]
    before = here.sent()
    assert ping(here, there.address(1), here.address(1)) == 20
    with_rules = left_by(here, before)
    assert with_rules["rail1"] >= 20
    assert with_rules["rail0"] <= 2
    rule = Rule(1001, f"{here.address(1)}/32", 1001)
    here.change(DeleteRule(rule))
    before = here.sent()
    assert ping(here, there.address(1), here.address(1)) == 20
    without = left_by(here, before)
    assert without["rail0"] >= 20
    assert without["rail1"] <= 2
    here.change(AddRule(rule))


def test_ipv6_keeps_to_its_rail_too(hosts):
    here, there = hosts[0], hosts[2]
    before = here.sent()
    assert ping(here, there.address6(1), here.address6(1)) == 20
    found = left_by(here, before)
    assert found["rail1"] >= 20
    assert found["rail0"] <= 4


def test_lost_rail_answers_no_route_and_leaks_nothing_to_the_other(hosts):
    # plugins `sbr`: a rule to an empty table falls through to main
    here, there = hosts[0], hosts[2]
    here.change(SetLink(here.index("rail1"), up=False))
    before = here.sent()
    for target, source in ((there.address(1), here.address(1)), (there.address6(1), here.address6(1))):
        with pytest.raises(OSError) as failed:
            ping(here, target, source, 1)
        assert failed.value.errno in {errno.EHOSTUNREACH, errno.ENETUNREACH}
    assert left_by(here, before)["rail0"] == 0
    wants = here.wants()
    drift = plan_attach(wants, here.driver.observe(wants, here.worker))
    assert drift
    here.driver.apply(drift)
    wait_for_link(here, 1)
    assert ping(here, there.address(1), here.address(1), 5) == 5
    assert ping(here, there.address6(1), here.address6(1), 5) == 5


def test_link_down_and_up_loses_the_table_and_mending_brings_it_back(hosts):
    # notes/network.md fact 5: link up does not restore the routes
    here, there = hosts[0], hosts[2]
    here.change(SetLink(here.index("rail1"), up=False), SetLink(here.index("rail1"), up=True))
    with pytest.raises(OSError, match="No route to host"):
        ping(here, there.address(1), here.address(1), 1)
    wants = here.wants()
    here.driver.apply(plan_attach(wants, here.driver.observe(wants, here.worker)))
    wait_for_link(here, 1)
    assert ping(here, there.address(1), here.address(1), 5) == 5


def test_all_hosts_reach_each_other_from_every_rail_to_every_rail(hosts):
    for here, there in itertools.permutations(hosts, 2):
        for source, target in itertools.product(RAILS, RAILS):
            assert ping(here, there.address(target), here.address(source), 1) == 1


def test_connection_without_a_source_finds_a_way_across_leaves(hosts):
    # rendezvous: MASTER_ADDR is connected to before anyone binds an address
    assert ping(hosts[0], hosts[2].address(0), None, 3) == 3
    hosts[0].change(SetLink(hosts[0].index("rail0"), up=False))
    assert ping(hosts[0], hosts[2].address(1), None, 3) == 3


def test_arp_for_one_rail_is_answered_by_that_rail_alone(hosts):
    # NCCL#1269, rdma-shared#297: ARP flux
    asked, asker = hosts[0], hosts[1]
    both_on_100 = asked.wants({0: 100, 1: 100})
    asked.driver.apply(plan_prepare(both_on_100, asked.driver.observe(both_on_100, asked.worker)))

    def who_has() -> set[str]:
        macs: set[str] = set()
        ours = bytes.fromhex(asker.mac(0).replace(":", ""))
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806)) as raw:
            raw.bind(("rail0", 0x0806))
            raw.settimeout(0.4)
            source, target = socket.inet_aton(asker.address(0)), socket.inet_aton(asked.address(1))
            request = struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, 1, ours, source, b"\0" * 6, target)
            raw.send(b"\xff" * 6 + ours + b"\x08\x06" + request)
            deadline = time.monotonic() + 0.4
            while time.monotonic() < deadline:
                try:
                    frame = raw.recv(2048)
                except TimeoutError:
                    break
                if frame[20:22] == b"\0\2" and frame[28:32] == target:
                    macs.add(frame[22:28].hex(":"))
        return macs

    assert asker.run_as_worker(who_has) == {asked.mac(1)}
    for name in ("rail0", "rail1"):
        asked.change(SetLink(asked.index(name), ipv4={"arp_ignore": 0}))
    assert asker.run_as_worker(who_has) == {asked.mac(0), asked.mac(1)}  # what Linux does without our settings


def test_nothing_is_left_in_any_worker_and_no_port_on_any_vlan_after_the_job(hosts, run):
    for host in hosts:
        host.driver.undo(host.journal)
    for host in hosts:
        with kernel.open(host.worker) as inside:
            assert [link.name for link in inside.links()] == ["lo"]
            assert inside.rules() == []
            assert [route for route in inside.routes() if route.device != 1 or route.kind == "unreachable"] == []
    for leaf in (0, 1):
        with kernel.open(f"/run/netns/{run}-leaf-{leaf}") as inside:
            assert [link.name for link in inside.links() if link.master] == []
