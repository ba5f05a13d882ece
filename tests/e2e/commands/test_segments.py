"""Isolation `tenant`: a tenant's jobs share a segment and who finds none waits and is told why."""

from __future__ import annotations

import ipaddress
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from railweave.runtime.netlink import LinuxKernel
from railweave_testing.command_line import Up, eventually

pytestmark = pytest.mark.timeout(120)


def submitted(up: Up, job: str, tenant: str, *, wait: str | None = "placed") -> None:
    file = up.job(job, tenant=tenant, network={"isolation": "tenant"}, workers=[{"count": 2, "gpus": 1}])
    waiting = ("--wait", wait, "--timeout", "20") if wait is not None else ()
    said = up.command("submit", file, *waiting)
    assert said.code == 0, said.out


def detail(up: Up, job: str) -> dict[str, Any]:
    found: dict[str, Any] = up.command("job", f"lab/{job}", "--json").document
    return found


def segment_of(up: Up, job: str) -> int:
    return int(detail(up, job)["segment"])


def addresses(up: Up, job: str) -> list[ipaddress.IPv4Address]:
    return [ipaddress.IPv4Address(text) for worker in detail(up, job)["placed"] for text in worker["addresses"]]


def test_tenants_never_share_a_segment_and_the_third_waits_for_one(fresh_stack: Callable[..., Up]) -> None:
    up = fresh_stack("--simulated", "--segments", "2")
    up.start()
    submitted(up, "a1", "nlp")
    submitted(up, "b1", "vision")
    submitted(up, "a2", "nlp")
    assert segment_of(up, "a1") == segment_of(up, "a2") != segment_of(up, "b1")
    assert f"segment {segment_of(up, 'a1')}, isolated" in up.command("job", "lab/a1").out
    vlans = up.command("fabric", "--json").document["leaves"][0]["vlans"]
    subnets = {vlan["segment"]: ipaddress.ip_network(vlan["subnet"]) for vlan in vlans if vlan["rail"] == 0}
    assert len(subnets) == 3
    for job in ("a1", "b1"):
        inside = {segment for segment, subnet in subnets.items() for address in addresses(up, job) if address in subnet}
        assert inside <= {segment_of(up, job)}, "no address of a subnet that others share"

    submitted(up, "c1", "speech", wait=None)

    def is_told() -> bool:
        reasons = up.command("why", "lab/c1", "--json").document["reasons"]
        return any(
            reason["code"] == "SegmentsExhausted" and reason["numbers"]["segments_total"] == 2 for reason in reasons
        )

    eventually(is_told)
    up.command("cancel", "lab/a1")
    # Its segment is the tenant's until the last of the tenant's jobs is gone.
    eventually(lambda: detail(up, "a1")["row"]["state"] == "released")
    assert detail(up, "c1")["row"]["state"] == "pending"

    # Who holds which segment is in the record: it outlives every process.
    up.end(signal.SIGTERM)
    up.start()
    assert segment_of(up, "a2") != segment_of(up, "b1")
    was = segment_of(up, "a2")
    up.command("cancel", "lab/a2")
    eventually(lambda: detail(up, "c1")["row"]["state"] in {"placed", "prepared"})
    assert segment_of(up, "c1") == was


@pytest.mark.kernel
@pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")
def test_workers_reach_their_own_tenants_and_no_others(fresh_stack: Callable[..., Up]) -> None:
    """In the kernel: from submitted to pings that arrive, pings that do not, and a segment that is free again."""
    up = fresh_stack("--nodes", "2", "--rails", "2", "--vfs", "4", "--segments", "2")
    up.start()
    kernel = LinuxKernel()
    names = {(job, rank): f"rwts{os.getpid()}{job}{rank}" for job in ("a", "b") for rank in (0, 1)}
    try:
        for name in names.values():
            kernel.create_netns(name)
        for job, tenant in (("a", "nlp"), ("b", "vision")):
            workers = [{"count": 2, "gpus": 1, "per_node": 1}]
            file = up.job(job, tenant=tenant, network={"isolation": "tenant"}, workers=workers)
            assert up.command("submit", file, "--wait", "prepared", "--timeout", "30").code == 0
            paths = [f"{rank}=/run/netns/{names[job, rank]}" for rank in (0, 1)]
            up.command("started", f"lab/{job}", "--netns", paths[0], "--netns", paths[1])
        for job in ("a", "b"):
            until_attached(up, job)
        ours, theirs = addresses(up, "a"), addresses(up, "b")
        assert len(detail(up, "a")["row"]["nodes"]) == 2, "across leaves"
        assert [answers(names["a", 0], target) for target in ours[2:]] == [True, True]
        assert [answers(names["b", 0], target) for target in theirs[2:]] == [True, True]
        assert not any(answers(names["a", 0], target) for target in theirs)
        assert not any(answers(names["b", 1], target) for target in ours)

        segment = segment_of(up, "a")
        up.command("cancel", "lab/a")
        eventually(lambda: detail(up, "a")["row"]["state"] == "released", 30.0)
        submitted(up, "c", "speech")
        assert segment_of(up, "c") == segment, "the leaf said that its last member had left"
    finally:
        for name in names.values():
            kernel.delete_netns(name)


def until_attached(up: Up, job: str) -> None:
    eventually(lambda: detail(up, job)["row"]["state"] == "attached", 30.0)


def answers(namespace: str, target: ipaddress.IPv4Address) -> bool:
    """Whether a ping from a worker is answered."""
    command = ["ip", "netns", "exec", namespace, "ping", "-c", "2", "-i", "0.2", "-W", "1", str(target)]
    return subprocess.run(command, capture_output=True, check=False, timeout=20).returncode == 0
