"""What one job costs all deciders together, by size of the cluster: `python tests/bench/cost_per_job.py [--json FILE]`.

An 8-node job with GPUs and a VF group on each node, on clusters of 100, 1,000 and 10,000 nodes, a third of each in
use: choosing nodes, isolation, GPUs and VF groups, and committing (rendering, ledger, head). Pure functions in one
process, nothing is sent; CPU milliseconds, medians. The last column is what the job costs beside the smallest cluster
in the same run.
"""

from __future__ import annotations

import statistics
import sys
import time
from datetime import UTC, datetime

from plane_model import hosts, round_of

from railweave.cache.model import CacheConfig
from railweave.cache.propose import propose as propose_nodes
from railweave.cache.view import Survey
from railweave.contracts.job import JobSpec, JobSubmitted, NetworkWanted, WorkerGroup
from railweave.contracts.placement import Head, Placement
from railweave.contracts.proposal import Ask, Proposal
from railweave.contracts.types import Attempt, ClusterName, JobName
from railweave.gpu.propose import GpuConfig
from railweave.gpu.propose import propose as propose_gpus
from railweave.jobs.committer import Committer, JobInput
from railweave.jobs.model import CommitterConfig, Effect, Publish, Store
from railweave.nic.propose import propose as propose_vfs
from railweave.runtime.outstanding import Outstanding
from railweave.topology.propose import propose as propose_fabric
from railweave_testing.benches import parser, report

LAB = ClusterName("lab")


class Plane:
    """All deciders over one state, the committer's stores folded back as its stream would tell them."""

    def __init__(self, nodes: int) -> None:
        self.state, self.names = hosts(nodes)
        self._survey = Survey.of(self.state, CacheConfig())
        self._outstanding = Outstanding()
        self._committer = Committer(self.state, CommitterConfig(), "bench")
        self._now = datetime.now(UTC)
        self._committer.start([], [], epoch=0, last_sequence=0, now=self._now)
        self._committer.book.settling_until = None
        self._sequence = 1
        self._number = 0

    def fill(self, share: float) -> None:
        """Commit one-node jobs that take all GPUs, until this share of the nodes is in use."""
        for number in range(int(len(self.names) * share)):
            spec = self._spec(1, 8)
            effects = self._submit(spec)
            for proposal in round_of(spec, self.names, number):
                effects += self._committer.handle(proposal, self._now)
            self._fold(effects)

    def job(self) -> dict[str, float]:
        """Decide one job, each part timed, in CPU milliseconds; it stays."""
        spec = self._spec(8, 2)
        took: dict[str, float] = {}
        effects = self._submit(spec)
        ask = next(effect.event for effect in effects if isinstance(effect, Publish) and isinstance(effect.event, Ask))
        made, took["nodes"] = _timed(
            lambda: propose_nodes(ask, self.state, self._outstanding, CacheConfig(), self._survey)
        )
        fabric, took["fabric"] = _timed(lambda: propose_fabric(ask, made.nodes, self.state))
        gpu, took["gpus"] = _timed(lambda: propose_gpus(ask, made.nodes, self.state, self._outstanding, GpuConfig()))
        vfs, took["vfs"] = _timed(lambda: propose_vfs(ask, made.nodes, gpu, self.state, self._outstanding))

        def commit() -> list[Effect]:
            done: list[Effect] = []
            for proposal in (made.nodes, fabric, gpu, vfs):
                done += self._take(proposal)
            return done + self._committer.wake(self._now)

        effects, took["commit"] = _timed(commit)
        self._fold(effects)
        return took

    def _take(self, proposal: Proposal) -> list[Effect]:
        if proposal.reasons:
            raise RuntimeError(f"refused: {proposal.reasons[0].text}")
        return self._committer.handle(proposal, self._now)

    def _spec(self, workers: int, gpus: int) -> JobSpec:
        self._number += 1
        group = WorkerGroup(count=workers, gpus=gpus)
        name = JobName(f"j{self._number}")
        return JobSpec(cluster=LAB, job=name, attempt=Attempt(1), workers=(group,), network=NetworkWanted())

    def _submit(self, spec: JobSpec) -> list[Effect]:
        submitted = JobInput(JobSubmitted.of(spec), self._number, self._now)
        return self._committer.handle(submitted, self._now) + self._committer.wake(self._now)

    def _fold(self, effects: list[Effect]) -> None:
        for effect in effects:
            for event in effect.events if isinstance(effect, Store) else ():
                self._sequence += 1
                if isinstance(event, Placement | Head):
                    self._survey.touch(self.state.apply_event(event, self._sequence, "PLACEMENTS").nodes)


def _timed(work):  # type: ignore[no-untyped-def]  # a benchmark's stopwatch
    begun = time.process_time_ns()
    made = work()
    return made, (time.process_time_ns() - begun) / 1e6


def measure(sizes: list[int], jobs: int) -> list[dict[str, object]]:
    """A row for each size."""
    rows: list[dict[str, object]] = []
    smallest = 0.0
    for nodes in sizes:
        plane = Plane(nodes)
        plane.fill(1 / 3)
        taken = [plane.job() for _ in range(jobs)][jobs // 5 :]
        parts = {name: statistics.median(one[name] for one in taken) for name in taken[0]}
        total = sum(parts.values())
        smallest = smallest or total
        rows.append(
            {
                "nodes": nodes,
                **{f"{name}_ms": value for name, value in parts.items()},
                "all_ms": total,
                "ratio": total / smallest,
            }
        )
    return rows


def main() -> int:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--nodes", type=int, nargs="+", default=[100, 1000, 10_000])
    arguments.add_argument("--jobs", type=int, default=25)
    given = arguments.parse_args()
    report("CPU of an 8-node job, all deciders", measure(given.nodes, given.jobs), given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
