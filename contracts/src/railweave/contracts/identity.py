"""Who holds what: the identity of a job and of one run of it (design: words, "job, attempt, uid")."""

from __future__ import annotations

from typing import NamedTuple, Self

from railweave.contracts.codec import encode_id_part
from railweave.contracts.types import Attempt, ClusterName, Document, JobName, RunUid


class JobKey(NamedTuple):
    """Names a job: at most one run of it holds anything at a time."""

    cluster: ClusterName
    job: JobName

    def __str__(self) -> str:
        return f"{self.cluster}/{self.job}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `cluster/job`, as the command line takes it.

        Raises:
            ValueError: there is no slash, or a name is malformed.
        """
        cluster, slash, job = text.partition("/")
        if not slash:
            raise ValueError(f"expected CLUSTER/JOB such as slurm-a/88121, found {text!r}")
        return cls(ClusterName(cluster), JobName(job))


class JobRun(NamedTuple):
    """One run of a job: what everything held is held by. A new uid under an old name is a new job."""

    cluster: ClusterName
    job: JobName
    attempt: Attempt
    uid: RunUid | None

    @property
    def key(self) -> JobKey:
        return JobKey(self.cluster, self.job)

    def __str__(self) -> str:
        return f"{self.cluster}/{self.job}#{self.attempt}"


class RunDocument(Document):
    """A document about one run; the fields are flat on the wire."""

    cluster: ClusterName
    """The scheduler's domain."""
    job: JobName
    """The scheduler's name of the job."""
    attempt: Attempt
    """Counts the starts of this run, from 1; one that goes back is an error."""
    uid: RunUid | None = None
    """The scheduler's own unique run identity, where it has one. Default: none, the name and attempt suffice."""

    @property
    def key(self) -> JobKey:
        return JobKey(self.cluster, self.job)

    @property
    def run(self) -> JobRun:
        return JobRun(self.cluster, self.job, self.attempt, self.uid)

    def _run_id(self) -> str:
        """`slurm-a/88121/2`, with `/uid` behind it where there is one.

        The uid is part of it because JetStream's duplicate window looks at the id alone: without it, a new run under an
        old name within two minutes of the old one would be swallowed as a repeat.
        """
        parts = [encode_id_part(self.cluster), encode_id_part(self.job), str(int(self.attempt))]
        if self.uid is not None:
            parts.append(encode_id_part(self.uid))
        return "/".join(parts)
