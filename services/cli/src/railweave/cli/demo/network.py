"""What the demo does in the kernel: workers' namespaces as a scheduler would make them, pings by source address, and
the counters that tell by which NIC they left. Everything here blocks.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from railweave.runtime.netlink import DeleteRule, LinuxKernel, NetnsGone, settle_all
from railweave.topology.linux_fabric import MARK

PINGS = 2
"""Echo requests to each address."""
_PING_S = 5.0


@dataclass(frozen=True, slots=True)
class DemoWorker:
    """A worker of the demo: its namespace and its address on each rail."""

    rank: int
    node: str
    netns: str
    addresses: tuple[str, ...]

    @property
    def path(self) -> str:
        """Where its namespace is."""
        return f"/run/netns/{self.netns}"


def missing_programs() -> list[str]:
    """Programs that the network part needs and that are not there."""
    return [name for name in ("ip", "ping") if shutil.which(name) is None]


def make_namespaces(names: Sequence[str]) -> None:
    """An empty namespace for each worker, as a container runtime makes it."""
    kernel = LinuxKernel()
    for name in names:
        kernel.create_netns(name)


def remove_namespaces(names: Sequence[str]) -> None:
    """Take them away; those that are gone are fine."""
    kernel = LinuxKernel()
    for name in names:
        kernel.delete_netns(name)


def ip_output(netns: str, *arguments: str) -> str:
    """What `ip -n NETNS ...` prints."""
    return _output(["ip", "-n", netns, *arguments])


def _output(command: Sequence[str]) -> str:
    program = shutil.which(command[0]) or command[0]
    done = subprocess.run(  # noqa: S603 - our own words, no shell
        [program, *command[1:]], capture_output=True, text=True, check=False, timeout=_PING_S * 2
    )
    return (done.stdout or done.stderr).rstrip()


def sent_by_rail(worker: DemoWorker) -> dict[int, int]:
    """Packets that left a worker, by rail."""
    with LinuxKernel().open(worker.path) as inside:
        return {
            int(link.name.removeprefix("rail")): link.counters.tx_packets
            for link in inside.links(counters=True)
            if link.name.startswith("rail") and link.counters is not None
        }


def ping(worker: DemoWorker, source: str, destination: str) -> int:
    """Answers to `PINGS` requests from one address of a worker to another worker's."""
    options = ["-I", source, "-c", str(PINGS), "-i", "0.01", "-W", "2", "-w", str(int(_PING_S))]
    text = _output(["ip", "netns", "exec", worker.netns, "ping", "-n", "-q", *options, destination])
    for line in text.splitlines():
        if "received" in line:
            return int(line.split(",")[1].split()[0])
    return 0


@dataclass(frozen=True, slots=True)
class Traffic:
    """What an all-to-all ping showed."""

    left_by: Mapping[int, Mapping[int, int]]
    """Packets by the rail of their source address, then by the rail they left by."""
    sent: int
    answered: int

    @property
    def strayed(self) -> int:
        """Packets that left by another rail than that of their source."""
        return sum(count for rail, row in self.left_by.items() for by, count in row.items() if by != rail)

    @property
    def own(self) -> int:
        """Packets that left by the rail of their source."""
        return sum(row.get(rail, 0) for rail, row in self.left_by.items())


def ping_all(workers: Sequence[DemoWorker], senders: Sequence[DemoWorker] | None = None) -> Traffic:
    """From every address of every worker (or of `senders`) to every address of every other, one source at a time, so
    that the counters of the sender tell by which rail that source's packets left."""
    rails = range(len(workers[0].addresses))
    left_by: dict[int, dict[int, int]] = {rail: dict.fromkeys(rails, 0) for rail in rails}
    sent = answered = 0
    with ThreadPoolExecutor(16) as pool:
        for worker in workers if senders is None else senders:
            others = [address for other in workers if other is not worker for address in other.addresses]
            for rail in rails:
                before = sent_by_rail(worker)
                source = worker.addresses[rail]
                answered += sum(pool.map(lambda to, w=worker, s=source: ping(w, s, to), others))
                sent += PINGS * len(others)
                after = sent_by_rail(worker)
                for by in rails:
                    left_by[rail][by] += after.get(by, 0) - before.get(by, 0)
    return Traffic(left_by, sent, answered)


def take_rules_away(worker: DemoWorker) -> int:
    """Delete the policy rules of a worker; how many there were."""
    with LinuxKernel().open(worker.path) as inside:
        rules = inside.rules()
        settle_all(inside, [DeleteRule(rule) for rule in rules])
        return len(rules)


def rule_count(worker: DemoWorker) -> int:
    """Policy rules of a worker."""
    with LinuxKernel().open(worker.path) as inside:
        return len(inside.rules())


def devices(netns: str) -> list[str]:
    """Devices in a namespace but loopback; none where it is gone."""
    try:
        with LinuxKernel().open(f"/run/netns/{netns}") as inside:
            return sorted(link.name for link in inside.links() if link.name != "lo")
    except NetnsGone:
        return []


def bridge_members(netns: str) -> int:
    """Ports of nodes on any bridge of a leaf; what the fabric itself has on them (a segment's uplink) is none."""
    with LinuxKernel().open(f"/run/netns/{netns}") as inside:
        return sum(1 for link in inside.links() if link.master and not link.alias.startswith(MARK))


def namespace_names() -> list[str]:
    """All named namespaces of this machine."""
    return LinuxKernel().netns_names()
