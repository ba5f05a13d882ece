"""NATS comes back with a copy of its store that is two seconds older, or with an empty one, while jobs run.

What runs is kept as it is, what only nodes know is adopted, the epoch is raised, and everything can be ended later.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest
from kill_anything import REAL, SIMULATED
from rig.checks import dead_letters, find_leaks
from rig.namespaces import RealNamespaces
from rig.parts import wait_until
from rig.plan import make_datasets, make_lasting, make_plan
from rig.reports import ReportWatch
from rig.scheduler import Scheduler, Stage
from rig.stack import ChaosStack
from rig.watch import RecordWatch

from railweave.contracts.identity import JobRun
from railweave.contracts.placement import JobState

pytestmark = pytest.mark.timeout(300)

LASTING = 6
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces: run the tests with sudo")


@pytest.mark.parametrize("to", ["older", "empty"])
@pytest.mark.parametrize(
    "kind", ["simulated", pytest.param("real", marks=[pytest.mark.kernel, pytest.mark.long, needs_root])]
)
async def test_what_runs_is_kept_when_the_store_is_put_back(tmp_path: Path, to: str, kind: str) -> None:
    shape = SIMULATED if kind == "simulated" else REAL
    stack = ChaosStack(tmp_path, shape)
    namespaces = RealNamespaces(stack.run) if kind == "real" else None
    rng = random.Random(11)
    datasets = make_datasets(tmp_path / "datasets", rng)
    try:
        await stack.start()
        async with stack.bus() as bus, RecordWatch(bus) as record, ReportWatch(bus) as reports:
            # Two of the lasting ones come after the copy is made: only nodes and their scheduler know of them then.
            lasting = make_lasting(LASTING, 0.0, datasets=datasets if kind == "real" else ())
            plan = lasting[:-2] + make_plan(rng, 12, 20.0, shape.nodes, 2, datasets)
            scheduler = Scheduler(bus, plan, namespaces=namespaces)
            async with scheduler.at_work():
                first, last = ({job.lives[0].spec.run for job in part} for part in (lasting[:-2], lasting[-2:]))
                await wait_until(lambda: first <= scheduler.attached().keys(), 60, "the first jobs are attached")
                copy = tmp_path / "copy"
                await asyncio.to_thread(stack.nats.copy_store, copy)
                scheduler.add(lasting[-2:])
                await asyncio.sleep(2.0)
                await wait_until(lambda: last <= scheduler.attached().keys(), 60, "the last jobs are attached")
                epoch, running = record.epoch, {run: scheduler.runs[run].nodes for run in first | last}
                pictures = {run: namespaces.picture(run) for run in running} if namespaces else {}
                assert not any(reports.undone.get(run) for run in running)

                stack.nats.kill()
                await asyncio.to_thread(stack.nats.empty_store)
                if to == "older":
                    await asyncio.to_thread(stack.nats.restore_store, copy)
                await asyncio.to_thread(stack.nats.start)

                await wait_until(lambda: bool(record.resets), 60, "the record is there, and known to be another")
                await wait_until(lambda: _stands(record, running), 60, "every running job is in the record again")
                await asyncio.sleep(8.0)  # the agents compare everything, and the committer judges what is left over
                assert _stands(record, running), _heads(record, running)
                assert not any(reports.undone.get(run) for run in running), "a running job was undone"
                assert {run: namespaces.picture(run) for run in running if namespaces} == pictures
                assert record.epoch > epoch, "the epoch was not raised"
                print(f"{to}: {len(running)} running jobs kept, none undone; epoch {epoch} -> {record.epoch}")
                assert all(scheduler.runs[run].stage is Stage.ATTACHED for run in running)

                scheduler.end_all()
                assert await scheduler.wait_finished(60), scheduler.unfinished
                assert await find_leaks(stack, bus) == []
            assert namespaces is None or namespaces.not_empty == []
            assert record.violations == []
            assert stack.deaths == []
            assert await dead_letters(bus) == []
    finally:
        await stack.stop()


Running = Mapping[JobRun, Collection[str]]
"""Nodes by run."""


def _stands(record: RecordWatch, running: Running) -> bool:
    """Whether each run's head says attached, on its nodes."""
    heads = {head.run: head for head in record.heads.values()}
    return all(
        run in heads
        and heads[run].state is JobState.ATTACHED
        and {str(node) for node in heads[run].nodes} == set(nodes)
        for run, nodes in running.items()
    )


def _heads(record: RecordWatch, running: Running) -> dict[str, object]:
    return {
        str(head.run): (str(head.state), head.nodes, [reason.text for reason in head.reasons])
        for head in record.heads.values()
        if head.run in running
    }
