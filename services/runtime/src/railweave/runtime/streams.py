"""The table of streams and durable consumers (design.md section 5): what bootstrap makes, and what services bind to.

Pure data. Making it so is bootstrap.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

SECOND_NS: Final = 1_000_000_000
_MINUTE_S: Final = 60
_HOUR_S: Final = 60 * _MINUTE_S
_DAY_S: Final = 24 * _HOUR_S

JOBS: Final = "JOBS"
SNAPSHOTS: Final = "SNAPSHOTS"
DESIRED: Final = "DESIRED"
PROPOSALS: Final = "PROPOSALS"
PLACEMENTS: Final = "PLACEMENTS"
NODES: Final = "NODES"
FABRIC: Final = "FABRIC"
DEAD: Final = "DEAD"
LEASES: Final = "LEASES"

TOMBSTONE_TTL_S: Final = 8 * _DAY_S
"""How long a tombstone of the record lives: longer than any message of JOBS that could start a dead job again."""


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """A stream as it must be. Times in seconds, 0 for no limit."""

    name: str
    subjects: tuple[str, ...]
    purpose: str
    max_age_s: int = 0
    per_subject: int = -1
    duplicate_window_s: int = 2 * _MINUTE_S
    allow_atomic: bool = False
    allow_msg_ttl: bool = False
    deny_purge: bool = False
    deny_delete: bool = False
    memory: bool = False

    def config(self, *, replicas: int, storage: str) -> dict[str, Any]:
        """The configuration as JetStream's API takes it."""
        window_s = min(self.duplicate_window_s, self.max_age_s) if self.max_age_s else self.duplicate_window_s
        return {
            "name": self.name,
            "description": self.purpose,
            "subjects": list(self.subjects),
            "retention": "limits",
            "storage": "memory" if self.memory else storage,
            "num_replicas": replicas,
            "discard": "old",
            "max_age": self.max_age_s * SECOND_NS,
            "max_msgs_per_subject": self.per_subject,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_msg_size": -1,
            "max_consumers": -1,
            "duplicate_window": window_s * SECOND_NS,
            "allow_atomic": self.allow_atomic,
            "allow_msg_ttl": self.allow_msg_ttl,
            # Markers would be written by the server into streams in which only their owner writes.
            "subject_delete_marker_ttl": 0,
            "deny_purge": self.deny_purge,
            "deny_delete": self.deny_delete,
            "allow_direct": False,
        }


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """A durable pull consumer as it must be. Services only bind to it."""

    stream: str
    durable: str
    filters: tuple[str, ...]
    purpose: str
    ack_wait_s: float = 30.0
    max_deliver: int = 8
    max_ack_pending: int = 1000
    backoff_s: tuple[float, ...] = field(default=())

    def config(self, *, replicas: int) -> dict[str, Any]:
        """The configuration as JetStream's API takes it."""
        config: dict[str, Any] = {
            "durable_name": self.durable,
            "name": self.durable,
            "description": self.purpose,
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "replay_policy": "instant",
            "ack_wait": int(self.ack_wait_s * SECOND_NS),
            "max_deliver": self.max_deliver,
            "max_ack_pending": self.max_ack_pending,
            "num_replicas": replicas,
        }
        if len(self.filters) == 1:
            config["filter_subject"] = self.filters[0]
        elif self.filters:
            config["filter_subjects"] = list(self.filters)
        if self.backoff_s:
            config["backoff"] = [int(step * SECOND_NS) for step in self.backoff_s]
        return config


STREAMS: Final[tuple[StreamSpec, ...]] = (
    StreamSpec(
        JOBS,
        ("rw.job.>",),
        "What schedulers say of jobs, and what became of them",
        max_age_s=7 * _DAY_S,
        duplicate_window_s=10 * _MINUTE_S,
    ),
    StreamSpec(SNAPSHOTS, ("rw.snapshot.>",), "The full list of live jobs of each scheduler", per_subject=1),
    StreamSpec(
        DESIRED,
        ("rw.env.>", "rw.tenant.>", "rw.dataset.>", "rw.node.>"),
        "What platforms and operators want",
        per_subject=1,
        allow_msg_ttl=True,
    ),
    StreamSpec(
        PROPOSALS,
        ("rw.propose.>", "rw.proposal.>"),
        "What is asked for a job, and what each concern would give",
        max_age_s=_HOUR_S,
        per_subject=1,
    ),
    StreamSpec(
        PLACEMENTS,
        ("rw.head.>", "rw.placement.>", "rw.grant.>", "rw.data.>", "rw.epoch"),
        "The record: what is held, by whom. Written by the active committer alone",
        per_subject=1,
        allow_atomic=True,
        allow_msg_ttl=True,
    ),
    StreamSpec(
        NODES,
        ("rw.inventory.>", "rw.report.>"),
        "What each node has and did, written by its agent alone",
        per_subject=1,
        allow_msg_ttl=True,
    ),
    StreamSpec(
        FABRIC,
        ("rw.fabric.>", "rw.fabricreport.>"),
        "The fabric's inventory and state",
        per_subject=1,
        # A fabric of 10,000 nodes is 10,500 records: one by one they took longer than a write may.
        allow_atomic=True,
        allow_msg_ttl=True,
    ),
    StreamSpec(
        DEAD,
        (
            "rw.dead.>",
            "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>",
            "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>",
        ),
        "What could not be handled, with its cause",
        max_age_s=30 * _DAY_S,
        duplicate_window_s=_HOUR_S,
    ),
    StreamSpec(LEASES, ("rw.lease.>",), "Who is active; a hint, the record's fence is the guard", per_subject=1),
)

CONSUMERS: Final[tuple[ConsumerSpec, ...]] = (
    ConsumerSpec(
        JOBS,
        "jobs",
        ("rw.job.submitted.>", "rw.job.updated.>", "rw.job.started.>", "rw.job.ended.>"),
        "The committer: each event of a scheduler once",
        # Runs that wait for others of their name to be undone, on nodes that may be dead, are acknowledged only then.
        max_ack_pending=10_000,
    ),
)

_BY_TOKEN: Final[Mapping[str, str]] = {
    subject.split(".")[1]: spec.name for spec in STREAMS for subject in spec.subjects if subject.startswith("rw.")
}


def stream_of(subject: str) -> str | None:
    """The stream of the table that has `subject`, or None."""
    tokens = subject.split(".", 2)
    return _BY_TOKEN.get(tokens[1]) if len(tokens) > 1 and tokens[0] == "rw" else None
