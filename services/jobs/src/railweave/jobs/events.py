"""The events by which the jobs service answers: each follows from a head and its placements alone. Pure.

So an event can be published again by whoever is active next, with the same id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from railweave.contracts.envelope import Event
from railweave.contracts.identity import JobRun
from railweave.contracts.job import (
    JobAttached,
    JobPending,
    JobPlaced,
    JobPrepared,
    JobRejected,
    JobReleased,
    JobReleasing,
    PlacedWorker,
)
from railweave.contracts.placement import Head, JobState, Placement
from railweave.contracts.types import Round, build
from railweave.runtime.held import segments_of

_MOST_BYTES = 700_000
"""Of a message's 1 MiB, for workers; nodes are told beside them."""
_BYTES_AROUND = 64


def event_of(head: Head, placements: Sequence[Placement]) -> Event | None:
    """The event that says what a head says; None for a state that has none."""
    about = identity(head.run, int(head.round))
    match head.state:
        case JobState.PENDING:
            return JobPending(**about, reasons=head.reasons) if head.reasons else None
        case JobState.PLACED:
            return placed(head.run, int(head.round), placements) if placements else None
        case JobState.PREPARED | JobState.STARTED:
            return JobPrepared(**about, nodes=head.nodes)
        case JobState.ATTACHED:
            return JobAttached(**about, nodes=head.nodes)
        case JobState.RELEASING:
            return JobReleasing(**about, reasons=head.reasons)
        case JobState.RELEASED:
            return JobReleased(**about, reasons=head.reasons)
        case JobState.REJECTED:
            return JobRejected(**about, reasons=head.reasons)


def identity(run: JobRun, round_number: int) -> dict[str, Any]:
    """The fields that every answer starts with."""
    return {
        "cluster": run.cluster,
        "job": run.job,
        "attempt": run.attempt,
        "uid": run.uid,
        "round": Round(max(round_number, 1)),
    }


def placed(run: JobRun, round_number: int, placements: Sequence[Placement]) -> JobPlaced:
    """The whole answer in one event. `placements` in rank order, at least one.

    Where that is more than a message holds, addresses and GPUs are left to the placements, and a warning says so.
    """
    workers = tuple(
        build(
            PlacedWorker,
            worker=worker.worker,
            node=placement.node,
            addresses=tuple(
                address.partition("/")[0]
                for interface in (worker.network.interfaces if worker.network is not None else ())
                for address in interface.addresses
            ),
            gpus=tuple(gpu.uuid for gpu in worker.gpus),
        )
        for placement in placements
        for worker in placement.workers
    )
    warnings: tuple[str, ...] = ()
    if _length(workers) > _MOST_BYTES:
        warnings = ("too many workers for one event: addresses and GPUs are in the placements alone",)
        workers = tuple(build(PlacedWorker, worker=item.worker, node=item.node) for item in workers)
        if _length(workers) > _MOST_BYTES:
            workers = ()
    return build(
        JobPlaced,
        **identity(run, round_number),
        nodes=tuple(placement.node for placement in placements),
        workers=workers,
        segment=next((segment for placement in placements for segment, _ in segments_of(placement)), None),
        rendezvous=placements[0].rendezvous,
        warnings=warnings,
        commit=placements[0].commit,
    )


def _length(workers: Sequence[PlacedWorker]) -> int:
    """About how many bytes workers are on the wire, at most."""
    return sum(
        _BYTES_AROUND + len(item.node.encode()) + sum(len(text) + 3 for text in (*item.addresses, *item.gpus))
        for item in workers
    )
