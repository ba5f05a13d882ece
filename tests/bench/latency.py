"""From `submitted` stored to `placed` stored, beside its floor: `python tests/bench/latency.py [--json FILE]`.

An idle plane (all services in one process, simulated agents in another, real nats-server on a file store), an 8-node
job with GPUs and a VF group on each node, one at a time. Times are the stream's own: what it stamped on `submitted`
and on `placed`.

The floor is measured in turns with the jobs, on the same broker: the same number of bare JetStream hops (a message is
fetched and the next one published with acknowledgement, plain nats-py, nothing decoded) and one bare atomic batch of
nine messages.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import uuid
from datetime import datetime
from pathlib import Path

import nats
from nats.js import JetStreamContext

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
BODY = b"x" * 900
LAB = ClusterName("lab")


class Floor:
    """The bare protocol: a chain of hops, then a batch, then the last message."""

    def __init__(self, connection: nats.NATS) -> None:
        self._connection = connection
        self._js: JetStreamContext = connection.jetstream()
        self._tag = uuid.uuid4().hex[:8]
        self._subscriptions: list[JetStreamContext.PullSubscription] = []
        self._last = 0

    async def prepare(self) -> None:
        """Make the streams and a durable for each hop."""
        for name, extra in (("FLOOR", {}), ("FLOORREC", {"allow_atomic": True, "max_msgs_per_subject": 1})):
            config = {"name": name, "subjects": [f"{name.lower()}.>"], "storage": "file", "num_replicas": 1, **extra}
            await self._connection.request(f"$JS.API.STREAM.CREATE.{name}", _json(config), timeout=5)
        for hop in range(HOPS):
            self._subscriptions.append(
                await self._js.pull_subscribe(f"floor.{self._tag}.{hop}", durable=f"{self._tag}-{hop}", stream="FLOOR")
            )

    async def once(self) -> float:
        """One chain; milliseconds between the stream's times of its first and last message."""
        relays = [asyncio.ensure_future(self._relay(hop)) for hop in range(HOPS)]
        await asyncio.sleep(0.02)
        first = await self._js.publish(f"floor.{self._tag}.0", BODY)
        await asyncio.gather(*relays)
        last = await self._js.get_last_msg("FLOOR", f"floor.{self._tag}.{HOPS}")
        begun = await self._js.get_msg("FLOOR", first.seq)
        return _milliseconds(begun.time, last.time)

    async def _relay(self, hop: int) -> None:
        [message] = await self._subscriptions[hop].fetch(1, timeout=5)
        if hop == HOPS - 1:
            await self._batch()
        await self._js.publish(f"floor.{self._tag}.{hop + 1}", BODY)
        await message.ack()

    async def _batch(self) -> None:
        batch_id = uuid.uuid4().hex
        for number in range(1, BATCH + 1):
            headers = {"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(number)}
            subject = f"floorrec.{number}"
            if number == BATCH:
                await self._connection.request(subject, BODY, timeout=10, headers=headers | {"Nats-Batch-Commit": "1"})
            elif number == 1:
                await self._connection.request(subject, BODY, timeout=10, headers=headers)
            else:
                await self._connection.publish(subject, BODY, headers=headers)


def _json(document: object) -> bytes:
    import json

    return json.dumps(document).encode()


def _milliseconds(begun: datetime | None, ended: datetime | None) -> float:
    assert begun is not None
    assert ended is not None
    return (ended - begun).total_seconds() * 1e3


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
        _milliseconds(submitted, times[JobPlaced.TYPE]),
        _milliseconds(submitted, times[JobPrepared.TYPE]),
    )


async def measure(repeats: int, nodes: int) -> list[dict[str, object]]:
    """Run jobs and floors in turns."""
    placed: list[float] = []
    prepared: list[float] = []
    floors: list[float] = []
    with tempfile.TemporaryDirectory(prefix="rw-latency-") as directory:
        stack = LocalStack(Path(directory), Shape(nodes=nodes, leaves=12, rails=4, gpus=8), layout=Layout.SPLIT)
        await stack.start(timeout_s=120)
        try:
            connection = await nats.connect(stack.nats.url)
            floor = Floor(connection)
            await floor.prepare()
            async with JobPublisher(stack.nats.url) as publisher, JobFollower(stack.nats.url, cluster=LAB) as follower:
                for number in range(-5, repeats):
                    took = await one_job(publisher, follower, number + 5)
                    bare = await floor.once()
                    if number >= 0:
                        placed.append(took[0])
                        prepared.append(took[1])
                        floors.append(bare)
            await connection.close()
        finally:
            await stack.stop()
    return [
        _row("floor: 5 bare hops and a batch of 9", floors, floors),
        _row("submitted to placed", placed, floors),
        _row("submitted to prepared (simulated agents)", prepared, floors),
    ]


def _row(what: str, values: list[float], floors: list[float]) -> dict[str, object]:
    return {
        "what": what,
        "p50_ms": statistics.median(values),
        "p99_ms": percentile(values, 99),
        "times_the_floor_p50": statistics.median(values) / statistics.median(floors),
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
