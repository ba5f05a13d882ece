"""What a scheduler will want, from a seed: jobs of all kinds, and how each will go. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from railweave.contracts.job import DatasetWanted, JobSpec, NetworkWanted, Outcome, WorkerGroup
from railweave.contracts.types import (
    Attempt,
    Bytes,
    ClusterName,
    DatasetName,
    DatasetVersion,
    JobName,
    Milli,
    RunUid,
    SourceUri,
    TenantName,
)

CLUSTER = ClusterName("chaos")
DATASETS = 4


@dataclass(frozen=True, slots=True)
class Life:
    """One run of a job, and how its scheduler will have it go. Seconds.

    `cancel_after_s`: ended so long after it was submitted, wherever it is by then.
    `takes_namespaces`: its containers are gone before anything is undone, as when a scheduler kills a job.
    `is_replaced`: its scheduler says nothing of its end; the next run under the name ends it.
    """

    spec: JobSpec
    runs_s: float
    outcome: Outcome = Outcome.SUCCEEDED
    cancel_after_s: float | None = None
    takes_namespaces: bool = False
    is_replaced: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """The runs under one name, one after the other; the first is submitted at `at_s`."""

    at_s: float
    lives: tuple[Life, ...]


def make_datasets(directory: Path, rng: random.Random) -> list[DatasetWanted]:
    """Real files for `file:` sources."""
    wanted = []
    for number in range(DATASETS):
        path = directory / f"set-{number}"
        size = rng.randrange(10_000, 3_000_000)
        path.write_bytes(rng.randbytes(size))
        wanted.append(
            DatasetWanted(
                name=DatasetName(f"set-{number}"),
                version=DatasetVersion("1"),
                size_bytes=Bytes(size),
                source=SourceUri(f"file:{path}"),
            )
        )
    return wanted


def make_plan(
    rng: random.Random, count: int, over_s: float, nodes: int, gpus: int, datasets: list[DatasetWanted]
) -> list[Job]:
    """So many names, submitted over so many seconds."""
    return [_job(rng, f"j{number}", over_s * number / count, nodes, gpus, datasets) for number in range(count)]


def make_lasting(count: int, over_s: float, *, workers: int = 2, datasets: Sequence[DatasetWanted] = ()) -> list[Job]:
    """Small jobs with a network that run until they are told to end."""
    return [
        Job(
            over_s * number / count,
            (
                Life(
                    JobSpec(
                        cluster=CLUSTER,
                        job=JobName(f"lasting-{number}"),
                        attempt=Attempt(1),
                        workers=(WorkerGroup(count=workers, gpus=1, gpu_fraction_milli=Milli(500)),),
                        network=NetworkWanted(),
                        datasets=tuple(datasets[:1]),
                        priority=9,
                    ),
                    runs_s=float("inf"),
                ),
            ),
        )
        for number in range(count)
    ]


def _job(rng: random.Random, name: str, at_s: float, nodes: int, gpus: int, datasets: list[DatasetWanted]) -> Job:
    spec = _spec(rng, name, nodes, gpus, datasets)
    draw = rng.random()
    if draw < 0.2:
        # Requeued: the same run identity starts again. Half of the time the scheduler says nothing of the first end.
        first = _life(rng, spec, outcome=Outcome.LOST, is_replaced=rng.random() < 0.5)
        lives = (first, _life(rng, spec.model_copy(update={"attempt": Attempt(2)})))
    elif draw < 0.35:
        # The name comes again for another job, which may be nothing like the first.
        other = _spec(rng, name, nodes, gpus, datasets).model_copy(update={"uid": RunUid(f"{name}-again")})
        lives = (_life(rng, spec, is_replaced=rng.random() < 0.5), _life(rng, other))
    elif draw < 0.4:
        # More than there will ever be: rejected.
        lives = (_life(rng, spec.model_copy(update={"workers": (WorkerGroup(count=nodes * 8, gpus=gpus),)})),)
    else:
        lives = (_life(rng, spec),)
    return Job(at_s, lives)


def _life(
    rng: random.Random, spec: JobSpec, *, outcome: Outcome = Outcome.SUCCEEDED, is_replaced: bool = False
) -> Life:
    return Life(
        spec=spec,
        runs_s=rng.uniform(0.1, 3.0),
        outcome=outcome,
        cancel_after_s=rng.uniform(0.0, 4.0) if rng.random() < 0.2 else None,
        takes_namespaces=rng.random() < 0.5,
        is_replaced=is_replaced,
    )


def _spec(rng: random.Random, name: str, nodes: int, gpus: int, datasets: list[DatasetWanted]) -> JobSpec:
    shared = rng.random() < 0.35
    wanted = rng.choice([0, 0, 1, 2])
    return JobSpec(
        cluster=CLUSTER,
        job=JobName(name),
        attempt=Attempt(1),
        uid=RunUid(f"{name}-first"),
        workers=(
            WorkerGroup(
                count=rng.choice([1, 1, 1, 2, 2, 3, nodes]),
                per_node=rng.choice([1, 1, 1, 2]),
                gpus=rng.choice([0, 1, 1, 2]) if not shared else 1,
                gpu_fraction_milli=Milli(rng.choice([100, 250, 500])) if shared else None,
                scratch_bytes=Bytes(rng.choice([0, 0, 1_000_000])),
            ),
        ),
        network=NetworkWanted(isolation=rng.choice(["rail", "rail", "tenant"])) if rng.random() < 0.75 else None,
        # More tenants than segments: some wait for one.
        tenant=TenantName(rng.choice(["red", "green", "blue", "grey"])),
        datasets=tuple(rng.sample(datasets, min(wanted, len(datasets)))),
        priority=rng.choice([0, 0, 0, 5]),
        prepare_deadline_s=120,
        attach_deadline_s=120,
    )
