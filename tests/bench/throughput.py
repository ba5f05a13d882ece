"""How many jobs a second: `python tests/bench/throughput.py [--json FILE] [--nodes 96 1000]`.

Two figures for each size of cluster, on one machine with a real nats-server on a file store:

- *commits alone*: the committer and its writer, fed with proposals of this process; 4-node jobs, as many in a batch
as are ready. - *to released*: the whole plane with all services in one process and simulated agents in another, jobs
of 1 to 8 nodes with
  GPUs and a VF group submitted faster than they are done; from the first `submitted` to the last `released`.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from plane_model import GPUS, hosts, round_of

from railweave.cli.replay.player import Pace
from railweave.cli.replay.running import replay_on
from railweave.cli.replay.traces import Trace, TraceJob
from railweave.cli.stack.design import Layout, Shape
from railweave.cli.stack.local import LocalStack
from railweave.contracts.job import JobSpec, JobSubmitted, WorkerGroup
from railweave.contracts.placement import Placement
from railweave.contracts.types import Attempt, ClusterName, JobName
from railweave.jobs.committer import Committer, JobInput
from railweave.jobs.model import CommitterConfig, Store
from railweave.jobs.recorder import Recorder
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.launch import loop_factory
from railweave.runtime.settings import Settings
from railweave_testing.benches import parser, report
from railweave_testing.buses import connected
from railweave_testing.servers import running_nats

IN_FLIGHT = 64
LAB = ClusterName("lab")


async def commits_alone(nodes: int, jobs: int) -> float:
    """Jobs committed a second."""
    with running_nats() as server:
        async with connected(server) as bus:
            await bootstrap(bus)
            state, names = hosts(nodes)
            committer = Committer(state, CommitterConfig(), "bench")
            now = datetime.now(UTC)
            recorder = Recorder(bus, 0, lambda _: None, "bench")
            stores = [
                effect
                for effect in committer.start([], [], epoch=0, last_sequence=0, now=now)
                if isinstance(effect, Store)
            ]
            committer.book.settling_until = None
            await recorder.store(stores)
            stored = 0
            begun = time.perf_counter()
            for first in range(0, jobs, IN_FLIGHT):
                ready: list[Store] = []
                for number in range(first, min(first + IN_FLIGHT, jobs)):
                    spec = _spec(number, 4)
                    effects = committer.handle(JobInput(JobSubmitted.of(spec), number + 1, now), now)
                    effects += committer.wake(now)
                    for proposal in round_of(spec, names, number):
                        effects += committer.handle(proposal, now)
                    ready += [effect for effect in effects if isinstance(effect, Store)]
                await recorder.store(ready)
                stored += sum(isinstance(event, Placement) for store in ready for event in store.events)
            took = time.perf_counter() - begun
            if stored != 4 * jobs:
                raise RuntimeError(f"{stored} placements stored of {4 * jobs}")
            return jobs / took


def _spec(number: int, workers: int) -> JobSpec:
    # A thousandth of a GPU: thousands of jobs are held at once, so that nothing but commits is measured.
    group = WorkerGroup(count=workers, gpus=1, gpu_fraction_milli=1)
    return JobSpec(cluster=LAB, job=JobName(f"j{number}"), attempt=Attempt(1), workers=(group,))


async def to_released(nodes: int, jobs: int) -> dict[str, object]:
    """The result of a replay of made-up jobs that come faster than they are done."""
    rng = random.Random(7)
    made = tuple(
        TraceJob(
            name=f"t{number}",
            arrival_s=number / 200,
            duration_s=0.05,
            workers=rng.choice([1, 1, 1, 2, 2, 4, 8]),
            gpus=rng.choice([1, 2, 4, 8]),
        )
        for number in range(jobs)
    )
    with tempfile.TemporaryDirectory(prefix="rw-throughput-") as directory:
        shape = Shape(nodes=nodes, leaves=max(nodes // 16, 1), rails=4, gpus=GPUS)
        stack = LocalStack(Path(directory), shape, layout=Layout.SPLIT)
        return await replay_on(stack, Trace("made-up", made), Pace(1.0, 300.0))


async def measure(sizes: list[int], jobs: int, commits: int) -> list[dict[str, object]]:
    """A row for each size."""
    rows: list[dict[str, object]] = []
    for nodes in sizes:
        alone = await commits_alone(nodes, commits)
        result = await to_released(nodes, jobs)
        rows.append(
            {
                "nodes": nodes,
                "commits_alone_per_s": alone,
                "released_per_s": result["jobs_per_s"],
                "jobs": result["jobs"],
                "rounds_per_commit": result["rounds_per_commit"],
                "asks_per_commit": result["asks_per_commit"],
                "leaks": result["leaks"],
            }
        )
    return rows


def main() -> int:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--nodes", type=int, nargs="+", default=[96, 1000])
    arguments.add_argument("--jobs", type=int, default=600)
    arguments.add_argument("--commits", type=int, default=2000)
    given = arguments.parse_args()
    with asyncio.Runner(loop_factory=loop_factory(Settings())) as runner:
        rows = runner.run(measure(given.nodes, given.jobs, given.commits))
    report("jobs a second", rows, given.json)
    return 0 if all(row["leaks"] == 0 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
