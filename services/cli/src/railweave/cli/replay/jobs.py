"""Jobs of a trace as events on the bus. Pure."""

from __future__ import annotations

from typing import Any

from railweave.cli.replay.traces import TraceJob
from railweave.contracts.job import JobEnded, JobSpec, JobStarted, JobSubmitted, Outcome, StartedWorker
from railweave.contracts.types import Attempt, ClusterName, JobName

CLUSTER = ClusterName("replay")
_FIRST = Attempt(1)


def submitted(job: TraceJob, *, per_node: int) -> JobSubmitted:
    """What the scheduler says first.

    Args:
        job: of the trace.
        per_node: workers that may share a node.
    """
    group: dict[str, Any] = {"count": job.workers, "gpus": job.gpus, "per_node": min(per_node, job.workers)}
    if job.fraction_milli is not None:
        group["gpu_fraction_milli"] = job.fraction_milli
    document: dict[str, Any] = {
        "cluster": CLUSTER,
        "job": job.name,
        "attempt": 1,
        "workers": [group],
        "network": {} if job.network else None,
        "datasets": [],
    }
    if job.dataset is not None:
        document["datasets"] = [
            {
                "name": job.dataset,
                "version": "1",
                "size_bytes": job.dataset_bytes,
                "source": f"file:/datasets/{job.dataset}",
            }
        ]
    return JobSubmitted.of(JobSpec.model_validate(document, strict=False))


def started(job: TraceJob) -> JobStarted:
    """Its workers exist, in namespaces that simulated nodes do not look into."""
    workers = tuple(
        StartedWorker(worker=rank, netns=f"/run/netns/{job.name}-{rank}")
        for rank in range(job.workers if job.network else 0)
    )
    return JobStarted(cluster=CLUSTER, job=JobName(job.name), attempt=_FIRST, workers=workers)


def ended(job: TraceJob, outcome: Outcome = Outcome.SUCCEEDED) -> JobEnded:
    """It is over."""
    return JobEnded(cluster=CLUSTER, job=JobName(job.name), attempt=_FIRST, outcome=outcome)
