"""One replay from nothing: a stack of its own, the trace played on it, what is left counted."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from railweave.cli import words
from railweave.cli.replay.leaks import AGENTS_HELD, RecordWatch, find_leaks
from railweave.cli.replay.ledger import Stage
from railweave.cli.replay.outcome import outcome
from railweave.cli.replay.player import Pace, Player, Progress
from railweave.cli.replay.traces import Trace
from railweave.cli.session import Session, connected, ended_by_sigterm
from railweave.cli.stack.local import LocalStack
from railweave.contracts.query import COUNTS_SUBJECT, CountsAnswer, CountsQuery


def say(text: str) -> None:
    """A line on standard error: the result has standard output to itself."""
    sys.stderr.write(f"  {text}\n")


async def replay_on(stack: LocalStack, trace: Trace, pace: Pace) -> dict[str, Any]:
    """Bring a stack up, play a trace on it, take it down; the result."""
    with ended_by_sigterm():
        try:
            await stack.start(timeout_s=120.0)
            say(
                f"{words.plural(len(trace.jobs), 'job')} of a {trace.kind} trace on "
                f"{words.plural(len(stack.node_names), 'node')}, {pace.speed:,.0f} times as fast"
            )
            async with connected(stack.target) as session:
                return await _played(session, trace, pace, lambda: stack.gauge(AGENTS_HELD))
        finally:
            await stack.stop()


async def _played(session: Session, trace: Trace, pace: Pace, held: Callable[[], Awaitable[int]]) -> dict[str, Any]:
    player = Player(session.bus, trace, pace)
    begun = time.monotonic()
    async with RecordWatch(session.bus) as watch:
        try:
            await player.play(lambda progress: _progress(progress, time.monotonic() - begun))
        except* TimeoutError:
            say("jobs that were ended are not released in time: they are counted as leaks")
        duration_s = time.monotonic() - begun
        leaks = await find_leaks(session.bus, held)
    counts = await session.ask(COUNTS_SUBJECT, CountsQuery(), CountsAnswer)
    result = outcome(player.progress.ledger, watch.moved, leaks, counts, duration_s)
    return result | {"left_out": trace.left_out, "was_cut_short": player.progress.was_cut_short}


def _progress(progress: Progress, elapsed_s: float) -> None:
    stages = progress.ledger.stages
    runs = stages[Stage.PLACED] + stages[Stage.PREPARED] + stages[Stage.ATTACHED]
    reason = progress.ledger.waiting_for
    waits = f" ({reason})" if reason else ""
    late = f", submitting {progress.behind_s:.1f} s late" if progress.behind_s > 0.5 else ""
    say(
        f"{elapsed_s:6.1f} s  submitted {progress.submitted:,} of {progress.to_submit:,}  waiting "
        f"{stages[Stage.SUBMITTED]:,}{waits}  running {runs:,}  releasing {stages[Stage.RELEASING]:,}  released "
        f"{stages[Stage.RELEASED]:,}  rejected {stages[Stage.REJECTED]:,}{late}"
    )
