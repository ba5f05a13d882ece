"""A gang is not starved by small jobs that always fit before it: over random arrivals, and for two large gangs."""

from __future__ import annotations

import random

import pytest
from desk import Desk, small_cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.contracts.inventory import ReportState
from railweave.contracts.placement import JobState
from railweave.jobs.model import CommitterConfig

KEEP_S = 10.0


class Crowd:
    """Small jobs that come, run for a while and go, for ever; and a gang among them."""

    def __init__(self, nodes: int, seed: int, *, per_second: float, runs_s: tuple[float, float]) -> None:
        config = CommitterConfig(retry_pending_s=5.0, keep_nodes_after_s=KEEP_S, conflicts_before_pending=2)
        self.desk = Desk(builder=small_cluster(nodes), config=config)
        self.rng = random.Random(seed)
        self.nodes = nodes
        self._per_second = per_second
        self._runs_s = runs_s
        self._ends: dict[str, float] = {}
        self._second = 0
        self._number = 0

    def pass_second(self) -> None:
        desk = self.desk
        self._second += 1
        for job in [job for job, end in self._ends.items() if end <= self._second]:
            del self._ends[job]
            desk.end(job)
            desk.report(job, ReportState.UNDONE)
        coming = int(self._per_second) + (self.rng.random() < self._per_second % 1)
        for _ in range(coming):
            self._number += 1
            desk.submit(f"s{self._number}", workers=1, gpus=self.rng.choice((1, 2)))
        desk.propose(most=10_000)
        desk.wait(1, step=1)
        desk.propose(most=10_000)
        for job in list(desk.book.jobs.values()):
            name = str(job.run.job)
            if name != "gang" and job.state is JobState.PLACED and name not in self._ends:
                self._ends[name] = self._second + self.rng.uniform(*self._runs_s)

    def is_gang_placed(self) -> bool:
        return self.desk.has_head("gang") and self.desk.state_of("gang") is JobState.PLACED

    def older_than_gang_wait(self) -> bool:
        """Whether a small job still waits that was there before the gang: it is its turn first."""
        gang = self.desk.live("gang")
        return any(
            job.state is JobState.PENDING and job.submitted_at < gang.submitted_at
            for job in self.desk.book.jobs.values()
        )


@pytest.mark.timeout(120)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), nodes=st.integers(3, 5), load=st.sampled_from([0.7, 1.0, 2.0]))
def test_a_gang_gets_its_nodes_once_those_before_it_are_over(seed: int, nodes: int, load: float) -> None:
    longest_s = 12.0
    crowd = Crowd(nodes, seed, per_second=load, runs_s=(2.0, longest_s))
    for _ in range(8):
        crowd.pass_second()
    crowd.desk.submit("gang", workers=nodes, gpus=2)
    # From when it is the first to wait: nodes are kept for it, what runs there ends, and it is asked again.
    limit_s = KEEP_S + longest_s + 8
    alone_s = 0
    while alone_s < limit_s:
        crowd.pass_second()
        if crowd.is_gang_placed():
            return
        alone_s = 0 if crowd.older_than_gang_wait() else alone_s + 1
    raise AssertionError(f"a gang of {nodes}, the first to wait, waits for more than {limit_s:g} s")


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("gang", "nodes"), [(64, 96), pytest.param(500, 600, marks=pytest.mark.long)])
def test_a_large_gang_is_placed_among_small_jobs(gang: int, nodes: int) -> None:
    crowd = Crowd(nodes, seed=1, per_second=nodes / 24, runs_s=(6.0, 20.0))
    for _ in range(22):
        crowd.pass_second()
    crowd.desk.submit("gang", workers=gang, gpus=2)
    crowd.desk.propose(most=10_000)
    assert not crowd.is_gang_placed(), "it fitted at once: the crowd is too small to show anything"
    for second in range(60):
        crowd.pass_second()
        if crowd.is_gang_placed():
            assert second > 2
            assert len(crowd.desk.nodes_of("gang")) == gang
            return
    raise AssertionError("the gang was starved")
