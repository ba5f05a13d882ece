"""What the netlink layer costs where the kernel itself has little to do: messages beside `ip`, opening a namespace
beside pyroute2's own way in. `python tests/bench/netlink.py`. Needs root and iproute2."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import pyroute2

from railweave.runtime.netlink import (
    AddRoute,
    AddRule,
    CreateVeth,
    DeleteRule,
    LinuxKernel,
    Namespace,
    Route,
    Rule,
    encode,
    settle_all,
)

RULES = 500
PAIRS = 50
NAME = f"rwc{os.getpid():x}"
PATH = f"/run/netns/{NAME}"


def took_ms(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1e3


def in_turns(rounds: int, ours: Callable[[], float], beside: Callable[[], float]) -> tuple[list[float], list[float]]:
    """Milliseconds of both, one after the other, so that what else the machine does falls on both."""
    ours(), beside()
    pairs = [(ours(), beside()) for _ in range(rounds)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def add_rules(inside: Namespace) -> tuple[list[float], list[float]]:
    rules = [Rule(1 + number, f"10.{number >> 8}.{number & 255}.1/32", 1000) for number in range(RULES)]
    lines = "".join(f"rule add from {rule.source} priority {rule.priority} lookup 1000\n" for rule in rules)

    def cleared(work: Callable[[], object]) -> float:
        ms = took_ms(work)
        settle_all(inside, [DeleteRule(rule) for rule in inside.rules()])
        return ms

    with tempfile.NamedTemporaryFile("w") as batch:
        batch.write(lines)
        batch.flush()
        command = ["ip", "-n", NAME, "-batch", batch.name]
        return in_turns(
            7,
            lambda: cleared(lambda: settle_all(inside, [AddRule(rule) for rule in rules])),
            lambda: cleared(lambda: subprocess.run(command, check=True)),
        )


def list_devices(inside: Namespace) -> tuple[list[float], list[float]]:
    settle_all(inside, [CreateVeth(f"a{number}", f"b{number}") for number in range(PAIRS)])
    command = ["ip", "-n", NAME, "-details", "-json", "link"]
    return in_turns(
        15,
        lambda: took_ms(inside.links),
        lambda: took_ms(lambda: json.loads(subprocess.run(command, check=True, capture_output=True).stdout)),
    )


def open_namespace(kernel: LinuxKernel) -> tuple[list[float], list[float]]:
    def ours() -> None:
        with kernel.open(PATH):
            pass

    def theirs() -> None:
        with pyroute2.IPRoute(netns=NAME):
            pass

    return in_turns(15, lambda: took_ms(ours), lambda: took_ms(theirs))


def encode_route() -> float:
    """Microseconds of CPU for one request."""
    action = AddRoute(Route("10.0.0.0/24", 101, via="10.0.0.1", device=3))
    begun = time.thread_time()
    for _ in range(2000):
        encode.request_of(action, lambda ref: 0)
    return (time.thread_time() - begun) * 1e6 / 2000


def main() -> int:
    if os.geteuid() != 0:
        print("netlink: needs root for a network namespace", file=sys.stderr)
        return 77
    kernel = LinuxKernel()
    kernel.create_netns(NAME)
    try:
        with kernel.open(PATH) as inside:
            rows = {
                f"add {RULES} rules": ("ip -batch", add_rules(inside)),
                f"list {2 * PAIRS + 1} devices": ("ip -json", list_devices(inside)),
                "open a namespace": ("IPRoute(netns=)", open_namespace(kernel)),
            }
    finally:
        kernel.delete_netns(NAME)
    print(f"pyroute2 {pyroute2.__version__}, Linux {platform.release()}, {os.cpu_count()} cores; median (min to max)")
    for what, (beside, (ours, theirs)) in rows.items():
        mine, other = statistics.median(ours), statistics.median(theirs)
        print(
            f"{what:18} {mine:7.2f} ms ({min(ours):.2f} to {max(ours):.2f})   {beside:15} {other:7.2f} ms "
            f"({min(theirs):.2f} to {max(theirs):.2f})   ratio {mine / other:5.2f}"
        )
    print(f"encode a route     {encode_route():7.1f} us of CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
