"""A job in a line, from its head. Pure."""

from __future__ import annotations

from railweave.contracts.identity import JobKey
from railweave.contracts.job import JobSpec
from railweave.contracts.placement import Head
from railweave.contracts.query import JobRow
from railweave.runtime.redis_store import Projected

JOB_KIND = "job"
ALL_JOBS = "jobs"


def row_of(head: Head) -> JobRow:
    """The job's row in lists."""
    spec = head.spec
    return JobRow(
        cluster=head.cluster,
        job=head.job,
        attempt=head.attempt,
        uid=head.uid,
        name=spec.name if spec is not None else None,
        tenant=spec.tenant if spec is not None else JobRow.model_fields["tenant"].default,
        queue=spec.queue if spec is not None else None,
        state=head.state,
        round=head.round,
        priority=spec.priority if spec is not None else 0,
        workers=sum(group.count for group in spec.workers) if spec is not None else 0,
        node_slots=spec.slot_count if spec is not None else len(head.nodes),
        gpus=_gpus(spec),
        nodes=head.nodes,
        reasons=tuple(dict.fromkeys(reason.code for reason in head.reasons)),
        submitted_at=head.submitted_at,
        since=head.times.get(head.state, head.submitted_at),
    )


def _gpus(spec: JobSpec | None) -> int:
    return sum(group.count * group.gpus for group in spec.workers) if spec is not None else 0


def projected(head: Head, sequence: int, ttl_s: float) -> Projected:
    """The read model's document of a job, as of one stored head, and the indices it stands in."""
    row = row_of(head)
    score = row.submitted_at.timestamp()
    indices = {
        ALL_JOBS: score,
        f"{ALL_JOBS}:state:{row.state}": score,
        f"{ALL_JOBS}:cluster:{row.cluster}": score,
        f"{ALL_JOBS}:tenant:{row.tenant}": score,
        **{f"{ALL_JOBS}:node:{node}": score for node in row.nodes},
        **{f"{ALL_JOBS}:reason:{code}": score for code in row.reasons},
    }
    return Projected(
        kind=JOB_KIND,
        name=str(JobKey(head.cluster, head.job)),
        epoch=int(head.epoch),
        sequence=sequence,
        fields={"row": row.model_dump_json(exclude_none=True)},
        indices=indices,
        ttl_s=ttl_s,
    )
