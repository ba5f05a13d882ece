"""NATS comes back with an older copy of the record, or an empty one: what runs is kept, and the epoch is raised."""

from __future__ import annotations

import os

import pytest
from world import Message, World

from railweave.contracts.identity import JobKey, JobRun
from railweave.contracts.job import JobSubmitted
from railweave.contracts.placement import Head, JobState
from railweave.contracts.types import NodeName

SEEDS = int(os.environ.get("RAILWEAVE_SEEDS", "150")) // 10


def attached(world: World) -> dict[JobRun, tuple[NodeName, ...]]:
    """Runs that are attached and that nothing has been said against."""
    newest: dict[JobKey, JobRun] = {}
    for message in world.job_stream:
        if isinstance(message.event, JobSubmitted):
            newest[message.event.key] = message.event.run
    heads = [message.event for message in world.record.values() if isinstance(message.event, Head)]
    return {
        head.run: head.nodes for head in heads if head.state is JobState.ATTACHED and newest.get(head.key) == head.run
    }


@pytest.mark.parametrize("empty", [False, True], ids=["older", "empty"])
def test_what_runs_is_kept_when_the_record_is_put_back(empty: bool) -> None:
    seen = 0
    for seed in range(SEEDS):
        world = World(seed, nodes=6, jobs=4, ending=False)
        copies: list[tuple[dict[str, Message], int]] = []
        for number in range(600):
            world.step()
            world.check()
            if number % 20 == 0:
                copies.append((dict(world.record), world.last_sequence))
        world.plan = []
        running = attached(world)
        epoch = world.committer.book.epoch
        world.put_back(*(({}, 0) if empty else copies[-1 - world.rng.randrange(1, 6)]))
        for agent in list(world.agents) * 4:
            world.resync(agent)
        for _ in range(400):
            world.step()
        for run, nodes in running.items():
            assert all(run in world.agents[node].held for node in nodes), f"seed {seed}: {run} was undone"
        if running and empty:
            assert world.committer.book.epoch > epoch, f"seed {seed}: the epoch was not raised"
        world.check()
        world.quiesce()
        seen += len(running)
    assert seen, "no seed had a running job: the test shows nothing"
