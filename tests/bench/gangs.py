"""Whether large gangs get their nodes among small jobs: `python tests/bench/gangs.py [--json FILE] [--nodes 1000]`.

The whole plane, all services in one process and simulated agents in another. Small jobs of one to four whole nodes come
without end and keep the cluster full; gangs are submitted into them. Of each gang:

- *waits*: from submitted to placed; *small waits*: the median of the small jobs submitted meanwhile;
- *floor*: when enough nodes would have been free for it, had nobody come after it: what ran when it was submitted,
  drained;
- *passed*: jobs submitted after it and placed before it. The rule lets jobs pass until the gang is the first to wait
  and has waited `jobs.keep_nodes_after_s`; from then on others get only nodes that are not kept for it;
- *took*: of those that passed, the ones placed after that on nodes that the gang then got. More than
  `jobs.asks_at_once`, the rounds that were open when keeping began, is starving, and so is a gang that is placed only
  when no more small jobs come. Either makes the exit status 1.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from plane_model import GPUS

from railweave.cli.replay.leaks import AGENTS_HELD, find_leaks
from railweave.cli.replay.player import Pace, Player
from railweave.cli.replay.running import say
from railweave.cli.replay.traces import Trace, TraceJob
from railweave.cli.session import connected, ended_by_sigterm
from railweave.cli.stack.design import Layout, Shape
from railweave.cli.stack.local import LocalStack
from railweave.contracts.wire import StoredMessage
from railweave.jobs.model import CommitterConfig
from railweave.runtime.bus import Bus
from railweave.runtime.launch import loop_factory
from railweave.runtime.settings import Settings
from railweave.runtime.streams import JOBS
from railweave_testing.benches import parser, report

_SMALL = (1, 1, 2, 4)
"""Nodes of small jobs."""
_RUNS_S = (10.0, 20.0)
_FILL_S = 22.0
"""Until the cluster is full and the first small jobs have ended."""
_LOOK_S = 1.0
"""How often the committer looks for whom to keep nodes."""
_LEAST_JOBS_PER_S = 4.0
RULE = CommitterConfig()


def trace(nodes: int, gangs: Sequence[int], stream_s: float, load: float) -> Trace:
    """Small jobs that want `load` times the cluster, for `stream_s` seconds, and gangs when it is full."""
    rng = random.Random(11)
    per_job = statistics.mean(_SMALL) * statistics.mean(_RUNS_S)
    rate = max(nodes * load / per_job, _LEAST_JOBS_PER_S)
    small = [
        TraceJob(f"small-{number}", number / rate, rng.uniform(*_RUNS_S), rng.choice(_SMALL), GPUS)
        for number in range(int(stream_s * rate))
    ]
    large = [TraceJob(f"gang-{size}", _FILL_S + 2.0 * place, 5.0, size, GPUS) for place, size in enumerate(gangs)]
    return Trace("made-up", tuple(sorted((*small, *large), key=lambda job: job.arrival_s)))


@dataclass(slots=True)
class Life:
    """What the stream says of a job."""

    submitted_at: datetime
    placed_at: datetime | None = None
    released_at: datetime | None = None
    nodes: frozenset[str] = field(default_factory=frozenset)


def lives_of(messages: Sequence[StoredMessage]) -> dict[str, Life]:
    """All jobs, by name."""
    lives: dict[str, Life] = {}
    for message in messages:
        _, _, event, _, job = message.subject.split(".")
        if event == "submitted":
            lives[job] = Life(message.stored_at)
        elif event == "placed" and lives[job].placed_at is None:
            lives[job].placed_at = message.stored_at
            lives[job].nodes = frozenset(json.loads(message.body)["data"]["nodes"])
        elif event == "released":
            lives[job].released_at = message.stored_at
    return lives


def row_of(size: int, lives: dict[str, Life], nodes: Sequence[str], kept_from: datetime) -> dict[str, Any]:
    """The figures of one gang."""
    gang = lives[f"gang-{size}"]
    small = [life for job, life in lives.items() if job.startswith("small-")]
    row: dict[str, Any] = {"gang": size, "floor_s": floor_s(size, gang, lives, nodes)}
    if gang.placed_at is None:
        return row | {"waits_s": 0.0, "small_waits_s": 0.0, "passed": 0, "took": 0, "starved": "never placed"}
    behind = [life for life in small if life.submitted_at > gang.submitted_at and life.placed_at is not None]
    passed = [life for life in behind if life.placed_at is not None and life.placed_at < gang.placed_at]
    took = [
        life
        for life in passed
        if life.placed_at is not None
        and life.placed_at > kept_from + timedelta(seconds=_LOOK_S)
        and life.nodes & gang.nodes
    ]
    waits = [
        (life.placed_at - life.submitted_at).total_seconds()
        for life in behind
        if life.placed_at is not None and life.submitted_at < gang.placed_at
    ]
    starved = "no"
    if len(took) > RULE.asks_at_once:
        starved = "others took its nodes"
    elif gang.placed_at > max(life.submitted_at for life in small):
        starved = "until nobody else came"
    return row | {
        "waits_s": (gang.placed_at - gang.submitted_at).total_seconds(),
        "small_waits_s": statistics.median(waits) if waits else 0.0,
        "passed": len(passed),
        "took": len(took),
        "starved": starved,
    }


def floor_s(size: int, gang: Life, lives: dict[str, Life], nodes: Sequence[str]) -> float:
    """When as many nodes as the gang wants would have been free, had nobody come after it."""
    free_at = dict.fromkeys(nodes, gang.submitted_at)
    for life in lives.values():
        ran = life.placed_at is not None and life.placed_at <= gang.submitted_at
        if ran and life.released_at is not None:
            for node in life.nodes:
                free_at[node] = max(free_at[node], life.released_at)
    return (sorted(free_at.values())[size - 1] - gang.submitted_at).total_seconds()


async def told(bus: Bus) -> list[StoredMessage]:
    """Everything that was said of the replay's jobs."""
    found: list[StoredMessage] = []
    follower = bus.follow(
        JOBS, ("rw.job.>",), found.extend, on_reset=lambda _cause: None, start="all", whole_batches=False
    )
    async with follower:
        await follower.wait_ready(60.0)
    return found


async def measure(nodes: int, gangs: Sequence[int], stream_s: float, load: float) -> list[dict[str, Any]]:
    """A row for each gang."""
    made = trace(nodes, gangs, stream_s, load)
    with ended_by_sigterm(), tempfile.TemporaryDirectory(prefix="rw-gangs-") as directory:
        shape = Shape(nodes=nodes, leaves=max(nodes // 16, 1), rails=4, gpus=GPUS)
        stack = LocalStack(Path(directory), shape, layout=Layout.SPLIT, say=say)
        try:
            await stack.start(timeout_s=120.0)
            say(f"{len(made.jobs):,} jobs on {nodes:,} nodes, for {stream_s:g} s and until all have ended")
            async with connected(stack.target) as session:
                player = Player(session.bus, made, Pace(1.0, stream_s + 120.0))
                await player.play(lambda progress: None)
                leaks = await find_leaks(session.bus, lambda: stack.gauge(AGENTS_HELD))
                lives = lives_of(await told(session.bus))
        finally:
            await stack.stop()
    rows: list[dict[str, Any]] = []
    before: datetime | None = None
    for size in gangs:
        gang = lives[f"gang-{size}"]
        kept_from = gang.submitted_at + timedelta(seconds=RULE.keep_nodes_after_s)
        # Nodes are kept for one gang at a time, the first to wait.
        kept_from = max(kept_from, before) if before is not None else kept_from
        rows.append(row_of(size, lives, stack.node_names, kept_from) | {"leaks": leaks.total})
        before = gang.placed_at
    return rows


def main() -> int:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--nodes", type=int, default=1000)
    arguments.add_argument("--gangs", type=int, nargs="+", default=[64, 500])
    arguments.add_argument("--seconds", type=float, default=150.0, help="how long small jobs come")
    arguments.add_argument("--load", type=float, default=1.0, help="nodes that small jobs want, of those there are")
    given = arguments.parse_args()
    with asyncio.Runner(loop_factory=loop_factory(Settings())) as runner:
        rows = runner.run(measure(given.nodes, given.gangs, given.seconds, given.load))
    report(f"gangs among small jobs on {given.nodes:,} nodes", rows, given.json)
    return 0 if all(row["starved"] == "no" and row["leaks"] == 0 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
