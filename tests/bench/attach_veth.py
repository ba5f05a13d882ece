"""Attaching and detaching 8 NICs: ours beside `ip -batch`, which is the floor. Needs root and iproute2.

    .venv/bin/python tests/bench/attach_veth.py [--rounds 15] [--json FILE]

Both move 8 veth ends into a fresh worker's namespace, rename them, and give each an address, a rule and a table of
connected route, default and guard. Ours also observes before, sets ARP settings, adds a default in `main`, and knows
its undo. The two take turns, so that what else the machine does falls on both. `detach` is ours alone: `ip` has no
memory of what was before."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

from railweave.node_agent.network import NodePort, NodePorts, VfWant, plan_attach, plan_prepare
from railweave.node_agent.network.provision import provision_vfs
from railweave.node_agent.network.veth import VethDriver
from railweave.runtime.netlink import GUARD_METRIC, CreateBridge, LinuxKernel, Rule, SetLink, settle_all

NICS = 8
RUN = f"rwb{os.getpid():x}"


def want(rail: int) -> VfWant:
    address = f"10.{rail}.0.10"
    return VfWant(
        name=f"rail{rail}",
        rail=rail,
        vf=0,
        mac=f"02:00:00:01:{rail:02x}:00",
        mtu=9000,
        vlan=100,
        addresses=(f"{address}/24",),
        gateways=(f"10.{rail}.0.1",),
        rules=(Rule(1000 + rail, f"{address}/32", 1000 + rail),),
    )


class Lab:
    """A node with 8 rails on one leaf."""

    def __init__(self) -> None:
        self.kernel = LinuxKernel()
        self.node = f"{RUN}-node"
        for name in (self.node, f"{RUN}-leaf"):
            self.kernel.create_netns(name)
        with self.kernel.open(f"/run/netns/{RUN}-leaf") as leaf:
            settle_all(leaf, [CreateBridge("br100"), SetLink("br100", mtu=9000), SetLink("br100", up=True)])
        ports = tuple(NodePort(rail, f"/run/netns/{RUN}-leaf", f"Ethernet{rail}") for rail in range(NICS))
        self.ports = NodePorts(self.node, f"/run/netns/{self.node}", ports)
        provision_vfs(self.kernel, self.ports, 1)
        self.driver = VethDriver(self.kernel, self.ports)
        self.wants = [want(rail) for rail in range(NICS)]
        self.driver.apply(plan_prepare(self.wants, self.driver.observe(self.wants)))

    def close(self) -> None:
        for name in self.kernel.netns_names():
            if name.startswith(f"{RUN}-"):
                self.kernel.delete_netns(name)

    def ours(self) -> tuple[float, float]:
        """Milliseconds to attach and to detach."""
        worker = self.kernel.create_netns(f"{RUN}-worker")
        begun = time.perf_counter()
        steps = plan_attach(self.wants, self.driver.observe(self.wants, worker))
        self.driver.apply(steps)
        attached = time.perf_counter()
        self.driver.undo(steps)
        undone = time.perf_counter()
        self.kernel.delete_netns(f"{RUN}-worker")
        return (attached - begun) * 1e3, (undone - attached) * 1e3

    def floor(self, directory: Path) -> float:
        """Milliseconds for the same by `ip -batch`, twice: in the node, then in the worker."""
        self.kernel.create_netns(f"{RUN}-worker")
        moves, inside = directory / "moves", directory / "inside"
        moves.write_text("".join(f"link set r{rail}v0 netns {RUN}-worker\n" for rail in range(NICS)))
        lines: list[str] = []
        for rail in range(NICS):
            name, table = f"rail{rail}", 1000 + rail
            lines += [
                f"link set r{rail}v0 name {name}",
                f"addr add 10.{rail}.0.10/24 dev {name}",
                f"link set {name} up",
                f"route add unreachable default metric {GUARD_METRIC} table {table}",
                f"route add 10.{rail}.0.0/24 dev {name} table {table}",
                f"route add default via 10.{rail}.0.1 dev {name} table {table}",
                f"rule add from 10.{rail}.0.10/32 priority {table} lookup {table}",
            ]
        inside.write_text("\n".join(lines) + "\n")
        begun = time.perf_counter()
        subprocess.run(["ip", "-n", self.node, "-batch", str(moves)], check=True)
        subprocess.run(["ip", "-n", f"{RUN}-worker", "-batch", str(inside)], check=True)
        took_ms = (time.perf_counter() - begun) * 1e3
        with self.kernel.open(f"/run/netns/{RUN}-worker") as worker:
            for rail in range(NICS):
                index = worker.links_named([f"rail{rail}"])[f"rail{rail}"].index
                settle_all(worker, [SetLink(index, up=False), SetLink(index, name=f"r{rail}v0")])
                settle_all(worker, [SetLink(index, netns=self.kernel.find(f"/run/netns/{self.node}"))])
        self.kernel.delete_netns(f"{RUN}-worker")
        return took_ms


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("attach_veth: needs root for network namespaces", file=sys.stderr)
        return 77
    lab = Lab()
    try:
        import tempfile

        with tempfile.TemporaryDirectory() as directory:
            lab.ours(), lab.floor(Path(directory))
            ours, undo, floor = [], [], []
            for _ in range(arguments.rounds):
                attach_ms, detach_ms = lab.ours()
                ours.append(attach_ms)
                undo.append(detach_ms)
                floor.append(lab.floor(Path(directory)))
    finally:
        lab.close()
    figures = {"attach": ours, "ip_batch": floor, "detach": undo}
    result = {
        name: {
            "median_ms": round(statistics.median(values), 1),
            "min_ms": round(min(values), 1),
            "max_ms": round(max(values), 1),
        }
        for name, values in figures.items()
    }
    ratio = round(statistics.median(ours) / statistics.median(floor), 3)
    print(f"{NICS} NICs, {arguments.rounds} rounds, Linux {platform.release()}, {os.cpu_count()} cores")
    print(f"{'':10} {'median':>9} {'min':>9} {'max':>9}")
    for name, row in result.items():
        print(f"{name:10} {row['median_ms']:6.1f} ms {row['min_ms']:6.1f} ms {row['max_ms']:6.1f} ms")
    print(f"attach / ip_batch = {ratio}")
    if arguments.json:
        machine = {"kernel": platform.release(), "cores": os.cpu_count(), "python": platform.python_version()}
        arguments.json.write_text(json.dumps({"nics": NICS, "machine": machine, "ratio": ratio, **result}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
