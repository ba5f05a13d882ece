"""Tenants' segments on the real kernel (root): what is sent arrives within a segment and nowhere else, however forged.

Hosts are namespaces with an interface on a leaf's bridge. Every frame that a host gets is captured, so that what its
own stack would drop counts as arrived too.
"""

from __future__ import annotations

import itertools
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TypeVar

import pytest

from railweave.runtime.netlink import (
    AddAddress,
    Address,
    AddRoute,
    CreateVeth,
    LinuxKernel,
    NetnsRef,
    Route,
    SetLink,
    settle_all,
    vlan_bridge_name,
)
from railweave.runtime.netlink.netns import open_descriptor, run_inside
from railweave.topology.linux_fabric import (
    FabricPlan,
    FabricStepKind,
    LinuxFabric,
    SoftwareLeaf,
    SoftwareSpine,
    SoftwareVlan,
    mesh_links,
    netns_name,
)

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(120)]

T = TypeVar("T")
Ip = IPv4Address | IPv6Address
kernel = LinuxKernel()
MARK = b"railweave-segment-test:"
DOMAINS: dict[int | None, int] = {None: 100, 0: 110, 1: 111}
"""The VLAN of each segment; None is what all share."""
_ports = itertools.count()


def segmented(run: str, segments: Sequence[int | None] = (None, 0, 1)) -> FabricPlan:
    """Two leaves, two spines: leaf l has 10.<l>.<VLAN>.0/24 and fd00:<l + 1>:<VLAN>::/64."""
    leaves = ("leaf-0", "leaf-1")
    return FabricPlan(
        run,
        tuple(
            SoftwareLeaf(
                name,
                tuple(
                    SoftwareVlan(vlan, f"10.{number}.{vlan}.1/24", f"fd00:{number + 1}:{vlan}::1/64", segment=segment)
                    for segment, vlan in DOMAINS.items()
                    if segment in segments
                ),
            )
            for number, name in enumerate(leaves)
        ),
        (SoftwareSpine("spine-0"), SoftwareSpine("spine-1")),
        mesh_links(leaves, ("spine-0", "spine-1"), pool6="fd99::/64"),
    )


@dataclass
class Host:
    """A host on a leaf, in a segment."""

    run: str
    leaf: int
    segment: int | None
    number: int
    netns: NetnsRef
    mac: bytes = b""
    wire: socket.socket | None = None
    """Its interface, for frames as they are: what it sends, and everything that arrives."""

    @property
    def name(self) -> str:
        return f"{self.segment}@leaf-{self.leaf}.{self.number}"

    @property
    def vlan(self) -> int:
        return DOMAINS[self.segment]

    def address(self, *, is_6: bool = False) -> Ip:
        if is_6:
            return IPv6Address(f"fd00:{self.leaf + 1}:{self.vlan}::{self.number:x}")
        return IPv4Address(f"10.{self.leaf}.{self.vlan}.{self.number}")

    def gateway(self, *, is_6: bool = False) -> Ip:
        return ip_address(f"fd00:{self.leaf + 1}:{self.vlan}::1" if is_6 else f"10.{self.leaf}.{self.vlan}.1")

    def inside(self, work: Callable[[], T]) -> T:
        descriptor, _ = open_descriptor(self.netns)
        try:
            return run_inside(descriptor, work)
        finally:
            os.close(descriptor)

    def send(self, frame: bytes) -> None:
        assert self.wire is not None
        self.wire.send(frame)

    def got(self) -> set[str]:
        """The marks of all frames that arrived since it was asked last."""
        assert self.wire is not None
        found: set[str] = set()
        while True:
            try:
                frame = self.wire.recv(65_536)
            except BlockingIOError:
                return found
            # What the host sends is captured as well; it is told by its source.
            if MARK in frame and frame[6:12] != self.mac:
                found.add(frame.partition(MARK)[2].partition(b";")[0].decode())


def plug(run: str, leaf: int, segment: int | None, number: int) -> Host:
    """Make a host and plug it into its VLAN's bridge, as a node's agent does."""
    netns = kernel.create_netns(f"{run}-host{next(_ports)}")
    host = Host(run, leaf, segment, number, netns)
    leaf_path = f"/run/netns/{netns_name(run, f'leaf-{leaf}')}"
    far = f"p{next(_ports)}"
    with kernel.open(netns) as inside, kernel.open(leaf_path) as switch:
        settle_all(inside, [CreateVeth("eth0", far, switch.ref, mtu=9000), SetLink("lo", up=True)])
        bridge = vlan_bridge_name(host.vlan)
        settle_all(switch, [SetLink(far, master=switch.links_named([bridge])[bridge].index), SetLink(far, up=True)])
        link = inside.links_named(["eth0"])["eth0"]
        settle_all(inside, [SetLink("eth0", up=True)])
        settle_all(
            inside,
            [
                AddAddress(Address(link.index, f"{host.address()}/24")),
                AddAddress(Address(link.index, f"{host.address(is_6=True)}/64")),
                AddRoute(Route("0.0.0.0/0", 254, str(host.gateway()))),
                AddRoute(Route("::/0", 254, str(host.gateway(is_6=True)))),
            ],
        )
        host.mac = bytes.fromhex(link.mac.replace(":", ""))

    def listen() -> socket.socket:
        capture = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        capture.bind(("eth0", 0))
        capture.setblocking(False)
        return capture

    host.wire = host.inside(listen)
    return host


@pytest.fixture
async def hosts(run: str, fabric: LinuxFabric) -> AsyncIterator[Sequence[Host]]:
    """In each domain two hosts on the first leaf and one on the second."""
    await fabric.sync(segmented(run))
    made = [plug(run, leaf, segment, number) for segment in DOMAINS for leaf, number in ((0, 10), (0, 11), (1, 10))]
    yield made
    for host in made:
        if host.wire is not None:
            host.wire.close()


def say(host: Host, target: Ip, mark: str) -> None:
    """Send a datagram by the host's own stack: through its gateway where the target is elsewhere."""

    def work() -> None:
        family = socket.AF_INET6 if target.version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as out:
            out.sendto(MARK + mark.encode() + b";", (str(target), 9))

    host.inside(work)


def frame(sender: Host, to_mac: bytes, source: Ip, target: Ip, mark: str, *, is_echo: bool = False) -> bytes:
    """A frame as a host with raw sockets makes it: a datagram, or an echo request, which carries the mark back."""
    body = MARK + mark.encode() + b";"
    if is_echo and target.version == 4:
        body = struct.pack("!BBHHH", 8, 0, 0, 1, 1) + body
        body = body[:2] + struct.pack("!H", _checksum(body)) + body[4:]
        protocol = 1
    else:
        body = struct.pack("!HHHH", 9, 9, 8 + len(body), 0) + body
        protocol = 17
    if target.version == 4:
        head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(body), 0, 0, 64, protocol, 0) + source.packed + target.packed
        head = head[:10] + struct.pack("!H", _checksum(head)) + head[12:]
        return to_mac + sender.mac + b"\x08\x00" + head + body
    head = struct.pack("!IHBB", 6 << 28, len(body), protocol, 64) + source.packed + target.packed
    return to_mac + sender.mac + b"\x86\xdd" + head + body


def _checksum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return int(~(total + (total >> 16)) & 0xFFFF)


def macs_in(run: str, namespace: str) -> dict[str, bytes]:
    """The MAC of every device of a leaf or of a segment on it."""
    with kernel.open(f"/run/netns/{netns_name(run, namespace)}") as inside:
        return {link.name: bytes.fromhex(link.mac.replace(":", "")) for link in inside.links() if link.mac}


def arrived(hosts: Sequence[Host], expected: set[str], timeout_s: float = 5.0) -> dict[str, set[str]]:
    """The marks that arrived, by host: once all that are expected did, and everything else had as long again to.

    What comes back to its sender is a router's error about it, and is not counted.
    """
    found: dict[str, set[str]] = {host.name: set() for host in hosts}

    def look() -> None:
        for host in hosts:
            found[host.name] |= {mark for mark in host.got() if mark.partition(">")[0] != host.name}

    begun = time.monotonic()
    while time.monotonic() - begun < timeout_s and not set().union(*found.values()) >= expected:
        look()
        time.sleep(0.02)
    time.sleep(max(0.3, time.monotonic() - begun))
    look()
    return found


def test_within_a_segment_all_arrives_and_beyond_nothing_does(hosts: Sequence[Host]) -> None:
    pairs = list(itertools.permutations(hosts, 2))
    within = {(a.name, b.name) for a, b in pairs if a.segment == b.segment}
    for is_6 in (False, True):
        for a, b in pairs:
            say(a, b.address(is_6=is_6), f"{a.name}>{b.name}/{is_6}")
    expected = {f"{a}>{b}/{is_6}" for a, b in within for is_6 in (False, True)}
    found = arrived(hosts, expected)
    assert set().union(*found.values()) == expected
    for host in hosts:
        assert all(mark.partition(">")[2].startswith(host.name) for mark in found[host.name])


def test_what_is_forged_does_not_arrive_in_another_segment_and_the_same_frame_does_in_its_own(
    hosts: Sequence[Host], run: str
) -> None:
    """By the gateway, by a source of the other segment, by the MAC of any device of the leaf, by broadcast, by echo."""
    switch = {leaf: macs_in(run, f"leaf-{leaf}") for leaf in (0, 1)}
    routers = {
        (leaf, segment): macs_in(run, f"leaf-{leaf}" if segment is None else f"leaf-{leaf}.s{segment}")
        for leaf in (0, 1)
        for segment in DOMAINS
    }
    expected: set[str] = set()
    found: dict[str, set[str]] = {host.name: set() for host in hosts}
    attackers = [host for host in hosts if (host.leaf, host.number) == (0, 10)]
    for a, b in ((a, b) for a in attackers for b in hosts if b is not a):
        for is_6 in (False, True):
            name = f"{a.name}>{b.name}/{is_6}"
            source, target = a.address(is_6=is_6), b.address(is_6=is_6)
            device = vlan_bridge_name(a.vlan) if a.segment is None else f"gw{a.vlan}"
            a.send(frame(a, routers[a.leaf, a.segment][device], source, target, f"{name}/gateway"))
            if a.segment == b.segment:
                # The control: the very frame that is not to cross goes through where it may.
                expected.add(f"{name}/gateway")
                continue
            stranger = next(c for c in hosts if c.segment == b.segment and c is not b).address(is_6=is_6)
            every = {*switch[a.leaf].values(), *routers[a.leaf, a.segment].values(), b.mac, b"\xff" * 6}
            for number, mac in enumerate(sorted(every)):
                for kind, forged in (("own", source), ("stranger", stranger), ("gateway", b.gateway(is_6=is_6))):
                    a.send(frame(a, mac, forged, target, f"{name}/{number}/{kind}"))
                reflected = frame(a, mac, target, b.gateway(is_6=is_6), f"{name}/{number}/echo", is_echo=True)
                a.send(reflected)
        # Now, before the captures are full of what is sent.
        for host in hosts:
            found[host.name] |= host.got()
    for arrived_at, marks in arrived(hosts, expected - set().union(*found.values())).items():
        found[arrived_at] |= marks
    assert set().union(*found.values()) >= expected, "the frames are good ones"
    segment_of = {host.name: host.segment for host in hosts}
    came = [(mark, name) for name, marks in found.items() for mark in marks if mark.partition(">")[0] != name]
    crossed = {(mark, name) for mark, name in came if segment_of[mark.partition(">")[0]] != segment_of[name]}
    assert crossed == set()


async def test_a_second_look_finds_nothing_to_do_and_a_lost_setting_is_mended(fabric: LinuxFabric, run: str) -> None:
    await fabric.sync(segmented(run))
    assert (await fabric.sync(segmented(run))).steps == ()
    leaf = f"/run/netns/{netns_name(run, 'leaf-0')}"
    with kernel.open(leaf) as inside:
        index = inside.links_named(["up110"])["up110"].index
        settle_all(inside, [SetLink(index, master=0)])
    descriptor, _ = open_descriptor(kernel.find(leaf))
    try:
        run_inside(descriptor, lambda: Path("/proc/sys/net/ipv4/conf/br110/rp_filter").write_text("0"))
    finally:
        os.close(descriptor)
    steps = (await fabric.sync(segmented(run))).steps
    assert [(step.kind, step.device) for step in steps] == [
        (FabricStepKind.DEVICE_SETTING, "ipv4/conf/br110/rp_filter"),
        (FabricStepKind.MASTER, "up110"),
    ]
    assert (await fabric.sync(segmented(run))).steps == ()


async def test_a_segment_that_is_no_longer_wanted_goes_and_the_others_stay(fabric: LinuxFabric, run: str) -> None:
    await fabric.sync(segmented(run))
    made = set(kernel.netns_names())
    await fabric.sync(segmented(run, (None, 1)))
    gone = {name.removeprefix(f"{run}-") for name in made - set(kernel.netns_names())}
    assert gone == {"leaf-0.s0", "leaf-1.s0", "spine-0.s0", "spine-1.s0"}
    assert "br110" not in macs_in(run, "leaf-0")
    assert "up111" in macs_in(run, "leaf-0")
    assert (await fabric.sync(segmented(run, (None, 1)))).steps == ()
