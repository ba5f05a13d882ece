"""Jobs and nodes as people read them: pure functions from answers to tables and lines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from railweave.cli import words
from railweave.cli.output import Column, table
from railweave.contracts.desired import NodeMode
from railweave.contracts.inventory import ReportState
from railweave.contracts.placement import JobState
from railweave.contracts.query import DryRunAnswer, JobDetail, JobRow, NodeProgress, NodeRow, Why
from railweave.contracts.reasons import Reason

_STATE_STYLES = {
    JobState.PENDING: "yellow",
    JobState.PLACED: "cyan",
    JobState.PREPARED: "cyan",
    JobState.STARTED: "cyan",
    JobState.ATTACHED: "green",
    JobState.RELEASING: "blue",
    JobState.RELEASED: "dim",
    JobState.REJECTED: "red",
}
_MODE_STYLES = {
    NodeMode.SCHEDULABLE: "green",
    NodeMode.CORDONED: "yellow",
    NodeMode.DRAINING: "yellow",
    NodeMode.RETIRED: "red",
}
_LABEL_WIDTH = 10


def state_text(state: JobState) -> Text:
    """A job's state in its colour."""
    return Text(str(state), style=_STATE_STYLES.get(state, ""))


def jobs_table(rows: Sequence[JobRow], now: datetime) -> Table:
    """Jobs, a line each."""
    return table(
        [
            Column("JOB", keep=True),
            Column("STATE", keep=True),
            Column("AGE", right=True),
            Column("GPUS", right=True),
            Column("NODES", right=True),
            Column("TENANT"),
            Column("WHERE OR WHY", ratio=1),
        ],
        [
            (
                f"{row.cluster}/{row.job}" + (f"#{int(row.attempt)}" if row.attempt > 1 else ""),
                state_text(row.state),
                words.age(row.submitted_at, now),
                str(row.gpus),
                str(row.node_slots),
                str(row.tenant),
                words.names(row.nodes) if row.nodes else ", ".join(str(code) for code in row.reasons) or "-",
            )
            for row in rows
        ],
    )


def told(label: str, lines: Sequence[str]) -> Text:
    """`blocked   first line` and further lines below it, as the samples of `why` look."""
    out = Text()
    for number, line in enumerate(lines):
        head = label if number == 0 else ""
        if number:
            out.append("\n")
        out.append(head.ljust(_LABEL_WIDTH), style="bold")
        out.append(line)
    return out


def block(label: str, lines: Sequence[str]) -> Table:
    """As `told`, with long lines wrapped below themselves."""
    grid = Table.grid(padding=(0, 0))
    grid.add_column(width=_LABEL_WIDTH, no_wrap=True, style="bold")
    grid.add_column(overflow="fold")
    for number, line in enumerate(lines):
        grid.add_row(label if number == 0 else "", Text(line))
    return grid


def why_text(why: Why) -> Group:
    """Why a job is where it is, in the order an expert would tell it."""
    row = why.row
    head = Text(f"{row.cluster}/{row.job}".ljust(23), style="bold")
    head.append(why.headline, style=_STATE_STYLES.get(row.state, ""))
    parts: list[RenderableType] = [head, block("wants", [why.wants])]
    if why.blocked:
        waits = row.state in {JobState.PENDING, JobState.REJECTED, JobState.RELEASING, JobState.RELEASED}
        parts.append(block("blocked" if waits else "waiting", why.blocked))
    if why.next:
        parts.append(block("next", why.next))
    return Group(*parts)


def job_text(detail: JobDetail, now: datetime) -> Group:
    """Everything about one job."""
    row = detail.row
    head = Text(f"{row.cluster}/{row.job}", style="bold")
    head.append(f"  attempt {int(row.attempt)}, round {int(row.round)}  ", style="not bold")
    head.append(str(row.state), style=_STATE_STYLES.get(row.state, ""))
    facts = [f"{words.plural(row.workers, 'worker')}, {words.plural(row.gpus, 'GPU')}, tenant {row.tenant}"]
    if row.name or row.uid or row.queue:
        named = (("name", row.name), ("uid", row.uid), ("queue", row.queue))
        facts.append(", ".join(f"{key} {value}" for key, value in named if value))
    if detail.segment is not None:
        facts.append(f"segment {detail.segment}, isolated from other tenants")
    parts: list[RenderableType] = [head, block("job", facts)]
    times = sorted(detail.times.items(), key=lambda item: item[1])
    previous = row.submitted_at
    lines = [f"submitted {words.age(row.submitted_at, now)} ago"]
    for state, moment in times:
        lines.append(f"{state} after {words.milliseconds((moment - previous).total_seconds() * 1000)}")
        previous = moment
    parts.append(block("times", lines))
    if detail.reasons:
        parts.append(block("reasons", [reason_line(reason) for reason in detail.reasons]))
    if detail.exclude:
        parts.append(block("not on", [words.names(detail.exclude, 8)]))
    if detail.placed:
        parts.append(
            table(
                [
                    Column("WORKER", right=True),
                    Column("NODE", keep=True),
                    Column("GPUS", right=True),
                    Column("ADDRESSES", ratio=1),
                ],
                [
                    (str(worker.worker), str(worker.node), str(len(worker.gpus)), words.names(worker.addresses))
                    for worker in detail.placed
                ],
            )
        )
    if detail.progress:
        parts.append(progress_table(detail.progress, now))
    return Group(*parts)


def progress_table(progress: Sequence[NodeProgress], now: datetime) -> Table:
    """How far each node has come."""
    return table(
        [
            Column("NODE", keep=True),
            Column("REPORT", keep=True),
            Column("AGO", right=True),
            Column("TOOK", right=True),
            Column("FAILURE", ratio=1),
        ],
        [
            (
                str(item.node),
                Text(
                    str(item.state) if item.state is not None else "nothing yet",
                    style="red" if item.state in {ReportState.FAILED, ReportState.REFUSED} else "",
                ),
                words.age(item.reported_at, now),
                words.milliseconds(sum(step.milliseconds for step in item.steps)) if item.steps else "-",
                f"{item.failure.step}: {item.failure.error}: {item.failure.text}" if item.failure is not None else "",
            )
            for item in progress
        ],
    )


def reason_line(reason: Reason) -> str:
    """`InsufficientGpus (n1): 3 of 8 GPUs are free`."""
    where = f" ({reason.node})" if reason.node else ""
    return f"{reason.code}{where}: {reason.text}"


def dry_run_text(answer: DryRunAnswer, job: str) -> Group:
    """Where it would run, or why not."""
    parts: list[RenderableType] = []
    if answer.would_place is not None:
        nodes = answer.would_place
        parts.append(Text(f"{job} would be placed now, on {words.plural(len(nodes), 'node')}", style="bold"))
        parts.append(block("nodes", [words.names(nodes, 16)]))
        if answer.fetch_bytes or answer.evict_bytes:
            moved = f"fetch {words.size(int(answer.fetch_bytes))}, evict {words.size(int(answer.evict_bytes))}"
            parts.append(block("data", [moved]))
    else:
        verdict = "could never run as asked" if answer.never else "would wait"
        parts.append(Text(f"{job} {verdict}", style="bold"))
        parts.append(block("blocked", [reason_line(reason) for reason in answer.reasons]))
        remedies = list(dict.fromkeys(reason.remedy for reason in answer.reasons if reason.remedy))
        if remedies:
            parts.append(block("next", remedies))
    if answer.warnings:
        parts.append(block("warning", answer.warnings))
    return Group(*parts)


def nodes_table(rows: Sequence[NodeRow], now: datetime) -> Table:
    """Nodes, a line each: GPUs and VF groups as free/all, cache as used/all."""
    return table(
        [
            Column("NODE", keep=True),
            Column("MODE", keep=True),
            Column("HEARD", right=True),
            Column("GPUS", right=True),
            Column("VFS", right=True),
            Column("CACHE", right=True),
            Column("JOBS", right=True),
            Column("PROBLEMS", ratio=1),
        ],
        [
            (
                str(row.node),
                Text(str(row.mode), style=_MODE_STYLES.get(row.mode, "")),
                words.age(row.heard_at, now),
                f"{words.gpus(row.free_milli)}/{row.gpus}",
                f"{row.free_vf_groups}/{row.vf_groups}",
                f"{words.size(int(row.cache_used_bytes))}/{words.size(int(row.cache_total_bytes))}",
                str(len(row.jobs)),
                "; ".join(row.problems) or (str(row.mode_reason) if row.mode_reason else ""),
            )
            for row in rows
        ],
    )


def node_text(row: NodeRow, now: datetime) -> Group:
    """Everything about one node."""
    head = Text(str(row.node), style="bold")
    head.append(f"  {row.mode}", style=_MODE_STYLES.get(row.mode, ""))
    if row.mode_reason:
        head.append(f" ({row.mode_reason})", style="not bold")
    heard = f"last heard {words.age(row.heard_at, now)} ago" if row.heard_at else "not heard of lately"
    cache = f"cache {words.size(int(row.cache_used_bytes))} of {words.size(int(row.cache_total_bytes))}"
    cache += f" in {words.plural(row.datasets, 'dataset')}"
    parts: list[RenderableType] = [
        head,
        block("agent", [f"{row.agent_version or 'unknown version'}, {heard}"]),
        block("leaves", [words.names(row.leaves, 8) or "not in the fabric"]),
        block("gpus", [f"{row.free_gpus} of {row.gpus} wholly free, {words.gpus(row.free_milli)} GPUs' worth in all"]),
        block("vfs", [f"{row.free_vf_groups} of {row.vf_groups} groups free"]),
        block(
            "disk",
            [
                cache,
                f"scratch {words.size(int(row.scratch_free_bytes))} of {words.size(int(row.scratch_total_bytes))} free",
            ],
        ),
        block("jobs", [words.names(row.jobs, 12) or "none"]),
    ]
    if row.rails_down:
        parts.append(block("rails", [f"down: {', '.join(str(int(rail)) for rail in row.rails_down)}"]))
    if row.problems:
        parts.append(block("problems", row.problems))
    return Group(*parts)
