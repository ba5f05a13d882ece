"""A trace that a scheduler begins goes on through every hop: ask, proposals, record, reports, answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from railweave.cli.stack.design import Layout, Shape
from railweave.cli.stack.local import LocalStack
from railweave.contracts.client import JobPublisher, wait_prepared
from railweave.contracts.job import JobSpec, NetworkWanted, WorkerGroup
from railweave.contracts.types import Attempt, ClusterName, JobName
from railweave.runtime.bus import Bus, BusSettings

pytestmark = pytest.mark.timeout(120)

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
LAB = ClusterName("lab")


async def test_every_message_of_a_job_carries_the_trace_it_was_submitted_with(tmp_path: Path) -> None:
    stack = LocalStack(tmp_path / "stack", Shape(nodes=2, leaves=1, rails=2, gpus=2), layout=Layout.ONE)
    await stack.start()
    try:
        spec = JobSpec(
            cluster=LAB,
            job=JobName("1"),
            attempt=Attempt(1),
            workers=(WorkerGroup(count=2, gpus=1),),
            network=NetworkWanted(),
        )
        async with JobPublisher(stack.nats.url) as publisher:
            await publisher.submit(spec, traceparent=f"00-{TRACE}-00f067aa0ba902b7-01")
            prepared = await wait_prepared(stack.nats.url, LAB, "1", 1, 30)
        hops = {
            "JOBS": ["rw.job.submitted.lab.1", "rw.job.placed.lab.1", "rw.job.prepared.lab.1"],
            "PROPOSALS": [
                "rw.propose.lab.1",
                *(f"rw.proposal.{name}.lab.1" for name in ("nodes", "fabric", "gpu", "nic")),
            ],
            "PLACEMENTS": ["rw.head.lab.1", *(f"rw.placement.{node}.lab.1.1" for node in prepared.nodes)],
            "NODES": [f"rw.report.{node}.lab.1.1" for node in prepared.nodes],
        }
        async with await Bus.connect(BusSettings(servers=(stack.nats.url,), name="test")) as bus:
            for stream, subjects in hops.items():
                for subject in subjects:
                    message = await bus.read_last(stream, subject)
                    assert message is not None, subject
                    assert message.headers.get("traceparent", "").split("-")[1:2] == [TRACE], subject
    finally:
        await stack.stop()
