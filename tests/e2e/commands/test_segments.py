"""Isolation `tenant`: a tenant's jobs share a segment and who finds none waits and is told why."""

from __future__ import annotations

import ipaddress
import signal
from collections.abc import Callable
from typing import Any

import pytest

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
