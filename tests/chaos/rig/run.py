"""One run of chaos: a stack, a scheduler with a plan, a killer, a watch on the record, and what was left at the end."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rig.checks import consumers, dead_letters, find_leaks, surplus_consumers
from rig.killer import Killer
from rig.namespaces import RealNamespaces
from rig.plan import make_datasets, make_plan
from rig.scheduler import Scheduler
from rig.stack import ChaosStack
from rig.watch import RecordWatch

from railweave.cli.stack.design import Shape


@dataclass(frozen=True, slots=True)
class Dose:
    """How much of it. Seconds."""

    seed: int = 1
    jobs: int = 60
    over_s: float = 30.0
    kill_every_s: float = 1.5
    puts_back: bool = False
    """NATS also loses two seconds, or everything."""
    finish_s: float = 90.0
    """Patience with the last jobs when the killing is over; once more where a busy machine is only slow with them."""


@dataclass(slots=True)
class Figures:
    """What a run came to."""

    seed: int
    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    submitted: int = 0
    attached: int = 0
    released: int = 0
    rejected: int = 0
    given_back: int = 0
    said_again: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    record_messages: int = 0
    record_checked: int = 0
    held_twice: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)
    dead_letters: list[str] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)
    """Processes that ended by themselves."""
    killed_at: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Everything that must not be."""
        return [*self.held_twice, *self.unfinished, *self.leaks, *self.dead_letters, *self.deaths]

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            "kills": dict(sorted(self.kills.items())),
            "total_kills": self.kills.total(),
            "jobs": self.submitted,
        }

    def text(self) -> str:
        """For people."""
        kills = ", ".join(f"{name} {count}" for name, count in sorted(self.kills.items()))
        lines = [
            f"seed {self.seed}: {self.seconds:.0f} s, {self.kills.total()} kills ({kills})",
            (
                f"  {self.submitted} runs: {self.attached} attached, {self.released} released, {self.rejected} rejected"
                f" {self.reasons or ''}, {self.given_back} given back, asked about {self.said_again} times"
            ),
            (
                f"  {self.record_messages} messages of the record, claims checked after {self.record_checked}:"
                f" held twice {len(self.held_twice)}; leaks {len(self.leaks)};"
                f" unfinished {len(self.unfinished)}; dead letters {len(self.dead_letters)}"
            ),
        ]
        lines += [f"  ! {problem}" for problem in self.problems]
        return "\n".join(lines)


async def run_chaos(directory: Path, shape: Shape, dose: Dose) -> Figures:
    """Kill everything while jobs flow; the figures, whatever they are."""
    rng = random.Random(dose.seed)
    figures = Figures(dose.seed)
    stack = ChaosStack(directory, shape)
    namespaces = None if shape.simulated else RealNamespaces(stack.run)
    begun = time.monotonic()
    try:
        await stack.start()
        async with stack.bus() as bus, RecordWatch(bus) as watch:
            datasets = make_datasets(directory / "datasets", rng)
            plan = make_plan(rng, dose.jobs, dose.over_s, shape.nodes, shape.gpus, datasets)
            scheduler = Scheduler(bus, plan, namespaces=namespaces)
            async with scheduler.at_work():
                before = await consumers(bus)
                killer = Killer(stack, rng, bus, every_s=dose.kill_every_s, puts_back=dose.puts_back)
                killing = asyncio.create_task(killer.run())
                try:
                    await asyncio.sleep(dose.over_s)
                    await scheduler.wait_finished(dose.over_s)
                finally:
                    killer.stop()
                    await killing
                for part in stack.parts:
                    await asyncio.to_thread(part.start)
                await _wait_finished(scheduler, dose.finish_s)
                figures.unfinished = scheduler.unfinished
                figures.leaks = await find_leaks(stack, bus)
                figures.leaks += await surplus_consumers(bus, before)
            figures.leaks += namespaces.not_empty if namespaces is not None else []
            figures.dead_letters = await dead_letters(bus)
            figures.deaths = stack.deaths
            figures.held_twice = watch.violations
            figures.record_messages, figures.record_checked = watch.seen, watch.checked
            figures.kills, figures.killed_at = killer.kills, killer.log
            for name in ("submitted", "attached", "released", "rejected", "given_back", "said_again"):
                setattr(figures, name, getattr(scheduler.tally, name))
            figures.reasons = dict(scheduler.tally.reasons)
    finally:
        figures.seconds = time.monotonic() - begun
        await stack.stop()
    return figures


async def _wait_finished(scheduler: Scheduler, patience_s: float) -> None:
    before = len(scheduler.unfinished)
    if not await scheduler.wait_finished(patience_s) and len(scheduler.unfinished) < before:
        await scheduler.wait_finished(patience_s)
