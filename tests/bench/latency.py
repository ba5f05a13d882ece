"""From `submitted` stored to `placed` stored, beside its floor: `python tests/bench/latency.py [--json FILE]`.

An idle plane (all services in one process, simulated agents in another, real nats-server on a file store), an 8-node
job with GPUs and a VF group on each node, one at a time. Times are the stream's own: what it stamped on `submitted`
and on `placed`.

The floor is measured in turns with the jobs, on the same broker: the same number of bare JetStream hops and one bare
atomic batch of nine messages (floor.py). Spread over processes it is the floor of the plane's design; together in one
process that does nothing else it is the least that can be, shown beside it.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from datetime import datetime
from pathlib import Path

from floor import floors, milliseconds

from railweave.cli.stack.design import Layout, Shape
from railweave.cli.stack.local import LocalStack
from railweave.contracts.client import JobFollower, JobPublisher
from railweave.contracts.job import (
    JobEnded,
    JobPlaced,
    JobPrepared,
    JobReleased,
    JobSpec,
    NetworkWanted,
    Outcome,
    WorkerGroup,
)
from railweave.contracts.types import Attempt, ClusterName, JobName
from railweave_testing.benches import parser, percentile, report

HOPS = 5
"""submitted -> ask -> nodes -> gpu -> nic -> (batch) placed: five messages are taken up, each causes the next."""
NODES = 8
BATCH = NODES + 1
LAB = ClusterName("lab")


async def one_job(publisher: JobPublisher, follower: JobFollower, number: int) -> tuple[float, float]:
    """Submit, follow to released; milliseconds from submitted to placed, and to prepared."""
    name = JobName(f"latency-{number}")
    spec = JobSpec(
        cluster=LAB,
        job=name,
        attempt=Attempt(1),
        workers=(WorkerGroup(count=NODES, gpus=2),),
        network=NetworkWanted(),
    )
    await publisher.submit(spec)
    times: dict[str, datetime] = {}
    async for update in follower:
        if getattr(update.event, "job", None) != name:
            continue
        times[update.event.TYPE] = update.stored_at
        if isinstance(update.event, JobPrepared):
            ended = JobEnded(cluster=LAB, job=name, attempt=Attempt(1), outcome=Outcome.SUCCEEDED)
            await publisher.ended(ended)
        elif isinstance(update.event, JobReleased):
            break
    submitted = times["railweave.job.submitted.v1"]
    return (
        milliseconds(submitted, times[JobPlaced.TYPE]),
        milliseconds(submitted, times[JobPrepared.TYPE]),
    )


async def measure(repeats: int, nodes: int) -> list[dict[str, object]]:
    """Run jobs and floors in turns."""
    placed: list[float] = []
    prepared: list[float] = []
    spread_floor: list[float] = []
    together_floor: list[float] = []
    with tempfile.TemporaryDirectory(prefix="rw-latency-") as directory:
        stack = LocalStack(Path(directory), Shape(nodes=nodes, leaves=12, rails=4, gpus=8), layout=Layout.SPLIT)
        await stack.start(timeout_s=120)
        url = stack.nats.url
        try:
            async with (
                floors(url, HOPS, BATCH) as (spread, together),
                JobPublisher(url) as publisher,
                JobFollower(url, cluster=LAB) as follower,
            ):
                for number in range(-5, repeats):
                    took = await one_job(publisher, follower, number + 5)
                    bare = await spread.once(), await together.once()
                    if number >= 0:
                        placed.append(took[0])
                        prepared.append(took[1])
                        spread_floor.append(bare[0])
                        together_floor.append(bare[1])
        finally:
            await stack.stop()
    return [
        _row("floor: 5 bare hops, a process each, and a batch of 9", spread_floor, spread_floor),
        _row("the same, all in one process", together_floor, spread_floor),
        _row("submitted to placed", placed, spread_floor),
        _row("submitted to prepared (simulated agents)", prepared, spread_floor),
    ]


def _row(what: str, values: list[float], floor: list[float]) -> dict[str, object]:
    return {
        "what": what,
        "p50_ms": statistics.median(values),
        "p99_ms": percentile(values, 99),
        "times_the_floor_p50": statistics.median(values) / statistics.median(floor),
        "runs": len(values),
    }


def main() -> int:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--repeats", type=int, default=100)
    arguments.add_argument("--nodes", type=int, default=96)
    given = arguments.parse_args()
    rows = asyncio.run(measure(given.repeats, given.nodes))
    report("latency of an 8-node job on an idle plane", rows, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
