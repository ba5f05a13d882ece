"""Why a job is where it is, told as an expert would: headline, wants, blocked, next. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from railweave.contracts.inventory import ReportState
from railweave.contracts.job import JobSpec
from railweave.contracts.placement import Head, JobState
from railweave.contracts.query import JobRow, NodeProgress, Why
from railweave.contracts.reasons import Lack, Reason, ReasonCode
from railweave.contracts.types import NodeName
from railweave.jobs.rows import row_of

_GIB = 2**30
_DONE = {
    JobState.PLACED: frozenset({ReportState.PREPARED, ReportState.ATTACHED}),
    JobState.STARTED: frozenset({ReportState.ATTACHED}),
    JobState.RELEASING: frozenset({ReportState.UNDONE}),
}
"""What a node has reported when it is not waited for any more, in states that wait for nodes."""
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def explain(
    head: Head,
    pending: Sequence[JobRow],
    progress: Sequence[NodeProgress],
    now: datetime,
    silent: Collection[NodeName] = (),
) -> Why:
    """Explain a job.

    Args:
        head: as stored.
        pending: all waiting jobs, in any order.
        progress: what its nodes reported last.
        now: the time to count ages to.
        silent: nodes of it whose agents have no heartbeat: a hint, which says nothing of a node that is not waited for.
    """
    unreachable = tuple(
        _unreachable(head.state, item, now)
        for item in progress
        if item.node in silent and item.state not in _DONE.get(head.state, frozenset(ReportState))
    )
    row = row_of(head)
    queue = sorted(pending, key=lambda item: (-item.priority, item.submitted_at))
    places = [index for index, item in enumerate(queue, 1) if (item.cluster, item.job) == (head.cluster, head.job)]
    position = places[0] if places else None
    return Why(
        row=row,
        headline=_headline(head, position, len(queue), now),
        position=position,
        queue_length=len(queue),
        wants=_wants(head.spec),
        blocked=_blocked(head, progress, unreachable),
        next=_next(head, unreachable),
        reasons=(*head.reasons, *unreachable),
    )


def _headline(head: Head, position: int | None, length: int, now: datetime) -> str:
    code = f" {head.reasons[0].code}" if head.reasons else ""
    since = head.submitted_at if head.state is JobState.PENDING else head.times.get(head.state, head.submitted_at)
    parts = [f"{head.state.upper()}{code}", age(max(0.0, (now - since).total_seconds()))]
    if position is not None:
        parts.append(f"{_ordinal(position)} of {length} waiting")
    if head.attempt > 1:
        parts.append(f"attempt {int(head.attempt)}")
    if head.round > 1:
        parts.append(f"round {int(head.round)}")
    return ", ".join(parts)


def _ordinal(number: int) -> str:
    suffix = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def age(seconds: float) -> str:
    """Seconds as one would say it: `14 min`, `3 h`."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "0 s"


def _wants(spec: JobSpec | None) -> str:
    if spec is None:
        return "unknown: adopted from the nodes' journals after the record was lost"
    parts = []
    for group in spec.workers:
        gpus = f" x {group.gpus} GPUs" if group.gpus else ""
        if group.gpu_fraction_milli is not None:
            gpus = f" x {group.gpus} GPU at {int(group.gpu_fraction_milli)}/1000"
        model = f" ({group.gpu_model})" if group.gpu_model else ""
        per_node = f", {group.per_node} a node" if group.per_node > 1 else ""
        scratch = f", scratch {gib(int(group.scratch_bytes))}" if group.scratch_bytes else ""
        parts.append(f"{group.count} {group.name}{gpus}{model}{per_node}{scratch}")
    if spec.wants_network and spec.network is not None:
        parts.append(f"VFs {spec.network.vfs}, {spec.network.isolation} network")
    if spec.nodes.topology.required != "island":
        parts.append(f"in one {spec.nodes.topology.required}")
    if spec.nodes.node_list is not None:
        parts.append("on nodes chosen by the scheduler")
    parts += [
        item.dataset + (f" {gib(int(item.size_bytes))}" if item.size_bytes is not None else "")
        for item in spec.datasets
    ]
    return "; ".join(parts)


def gib(size: int) -> str:
    """Bytes in GiB, one decimal."""
    return f"{size / _GIB:,.1f} GiB"


def _unreachable(state: JobState, item: NodeProgress, now: datetime) -> Reason:
    numbers = {}
    last = "has reported nothing of this job"
    if item.reported_at is not None:
        silent_s = max(0, int((now - item.reported_at).total_seconds()))
        numbers["last_report_age_s"] = silent_s
        last = f"last reported {item.state} {age(silent_s)} ago, at {item.reported_at:%Y-%m-%dT%H:%M:%SZ}"
    remedy = f"see that the agent of {item.node} runs"
    if state is JobState.RELEASING:
        remedy += f"; where the node is gone for good: railweave node forget {item.node}"
    return Reason(
        code=ReasonCode.AGENT_UNREACHABLE,
        text=f"{item.node}: its agent has no heartbeat, and {last}",
        numbers=numbers,
        node=item.node,
        lacks=(Lack.AGENT,),
        remedy=remedy,
    )


def _blocked(head: Head, progress: Sequence[NodeProgress], unreachable: Sequence[Reason]) -> tuple[str, ...]:
    lines = [_line(reason) for reason in (*head.reasons, *unreachable)]
    if head.state in {JobState.PLACED, JobState.STARTED, JobState.RELEASING}:
        waiting = [item for item in progress if item.failure is not None]
        lines += [
            f"{item.node}: {item.failure.step}: {item.failure.error}: {item.failure.text}"
            for item in waiting
            if item.failure is not None
        ]
        done = sum(1 for item in progress if item.state is not None)
        lines.append(f"{done} of {len(head.nodes)} nodes have reported")
    return tuple(dict.fromkeys(lines))


def _line(reason: Reason) -> str:
    numbers = ", ".join(f"{name} {value}" for name, value in reason.numbers.items())
    return f"{reason.text} ({numbers})" if numbers and not any(char.isdigit() for char in reason.text) else reason.text


def _next(head: Head, unreachable: Sequence[Reason]) -> tuple[str, ...]:
    lines = [reason.remedy for reason in (*head.reasons, *unreachable) if reason.remedy]
    match head.state:
        case JobState.PENDING:
            if head.lacks:
                lines.append("asked again as soon as there is more " + ", ".join(head.lacks))
            elif not head.reasons:
                lines.append("its services have not answered yet; it is not known what it lacks")
        case JobState.PLACED:
            lines.append("its nodes prepare; then the workers may start")
        case JobState.PREPARED:
            lines.append("waits for the scheduler to start the workers")
        case JobState.STARTED:
            lines.append("its nodes attach VFs into the workers' namespaces")
        case JobState.RELEASING:
            lines.append("its nodes undo; what they held is free when they say so")
        case _:
            pass
    return tuple(dict.fromkeys(lines))
