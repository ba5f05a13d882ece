"""What one request, one answer and one namespace cost, ours beside pyroute2: `python tests/bench/netlink_codec.py`.
Root."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable

import pyroute2
from pyroute2 import IPRoute
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from railweave.runtime.netlink import AddRoute, LinuxKernel, Route, decode, encode
from railweave.runtime.netlink.channel import Channel
from railweave.runtime.netlink.codec import message


def median_us(work: Callable[[], object], rounds: int) -> float:
    times: list[float] = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e6


def encode_theirs() -> bytes:
    route = rtmsg()
    route["family"], route["dst_len"], route["table"], route["proto"], route["type"] = 2, 24, 101, 82, 1
    route["attrs"] = [("RTA_DST", "10.0.0.0"), ("RTA_OIF", 3), ("RTA_TABLE", 101), ("RTA_GATEWAY", "10.0.0.1")]
    route["header"]["type"], route["header"]["flags"], route["header"]["sequence_number"] = 24, 0x605, 1
    route.encode()
    return bytes(route.data)


def encode_ours() -> bytes:
    action = AddRoute(Route("10.0.0.0/24", 101, via="10.0.0.1", device=3))
    request = encode.request_of(action, lambda ref: 0)
    return message(request.type, request.flags, 1, request.payload)


def main() -> int:
    if os.geteuid() != 0:
        print("netlink_codec: needs root for a network namespace", file=sys.stderr)
        return 77
    kernel, name = LinuxKernel(), f"rwc{os.getpid():x}"
    channel = Channel()
    link = channel.dump(encode.dump_request(encode.RTM_GETLINK))[0]
    whole = message(link.type, link.flags, link.sequence, link.payload)
    channel.close()

    def open_theirs() -> None:
        with IPRoute(netns=name):
            pass

    def open_ours() -> None:
        with kernel.open(f"/run/netns/{name}"):
            pass

    kernel.create_netns(name)
    try:
        rows = {
            "encode a route": (median_us(encode_theirs, 500), median_us(encode_ours, 2000)),
            "decode a link": (
                median_us(lambda: ifinfmsg(whole).decode(), 300),
                median_us(lambda: decode.link_of(link.payload), 2000),
            ),
            "open a namespace": (median_us(open_theirs, 20), median_us(open_ours, 200)),
        }
    finally:
        kernel.delete_netns(name)
    print(f"pyroute2 {pyroute2.__version__}, Linux {platform.release()}, {os.cpu_count()} cores; medians in us")
    for what, (theirs, ours) in rows.items():
        print(f"{what:18} pyroute2 {theirs:9.1f}   ours {ours:7.1f}   ratio {theirs / ours:6.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
