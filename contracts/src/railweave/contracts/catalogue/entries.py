"""The table of events and streams: which subject, which id, which stream, written by whom.

The subjects and ids themselves are made by the events; tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from railweave.contracts import query
from railweave.contracts.codec import decode_token
from railweave.contracts.envelope import Event, registered_types

_DAY_S = 86_400
_RUN = "{cluster}/{job}/{attempt}[/{uid}]"


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """A JetStream stream. Times in seconds, 0 for no limit; `per_subject` -1 keeps all."""

    name: str
    subjects: tuple[str, ...]
    purpose: str
    max_age_s: int = 0
    per_subject: int = 1
    duplicate_window_s: int = 120
    allow_atomic: bool = False


@dataclass(frozen=True, slots=True)
class EventEntry:
    """One type of event."""

    name: str
    """The CloudEvents type."""
    subject: str
    """Template; a name in braces is one token of it, through the codec."""
    id: str
    """Template; a part in brackets is left out where there is no value."""
    stream: str
    writer: str
    is_from_outside: bool
    """Written by schedulers, platforms or operators: what an integrator publishes."""

    @property
    def event(self) -> type[Event]:
        return registered_types()[self.name]

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names in the subject, in order."""
        return tuple(token[1:-1] for token in self.subject.split(".") if token.startswith("{"))

    def names_in(self, subject: str) -> Mapping[str, str]:
        """The names that a subject of this type carries."""
        pairs = zip(self.subject.split("."), subject.split("."), strict=True)
        return {token[1:-1]: decode_token(value) for token, value in pairs if token.startswith("{")}


@dataclass(frozen=True, slots=True)
class QueryEntry:
    """One question by request and reply."""

    subject: str
    question: type[BaseModel]
    answer: type[BaseModel]


STREAMS = (
    StreamEntry(
        "JOBS",
        ("rw.job.>",),
        "What schedulers say of jobs, and what became of them",
        max_age_s=7 * _DAY_S,
        per_subject=-1,
        duplicate_window_s=600,
    ),
    StreamEntry("SNAPSHOTS", ("rw.snapshot.>",), "The full list of live jobs of each scheduler"),
    StreamEntry(
        "DESIRED", ("rw.env.>", "rw.tenant.>", "rw.dataset.>", "rw.node.>"), "What platforms and operators want"
    ),
    StreamEntry(
        "PROPOSALS",
        ("rw.propose.>", "rw.proposal.>"),
        "What is asked for a job, and what each concern would give",
        max_age_s=3600,
    ),
    StreamEntry(
        "PLACEMENTS",
        ("rw.head.>", "rw.placement.>", "rw.grant.>", "rw.data.>", "rw.epoch"),
        "The record: what is held, by whom",
        allow_atomic=True,
    ),
    StreamEntry("NODES", ("rw.inventory.>", "rw.report.>"), "What each node has and did"),
    StreamEntry("FABRIC", ("rw.fabric.>", "rw.fabricreport.>"), "The fabric's inventory and state", allow_atomic=True),
    StreamEntry(
        "DEAD",
        ("rw.dead.>",),
        "What could not be handled, with its cause",
        max_age_s=30 * _DAY_S,
        per_subject=-1,
        duplicate_window_s=3600,
    ),
)

_COMMITTER = "jobs, the active committer alone"


def _job(event: str, *, tail: str = "", is_from_outside: bool) -> EventEntry:
    return EventEntry(
        f"railweave.job.{event}.v1",
        f"rw.job.{event}.{{cluster}}.{{job}}",
        f"job.{event}/{_RUN}{tail}",
        "JOBS",
        "the cluster's scheduler" if is_from_outside else "jobs",
        is_from_outside,
    )


def _proposal(concern: str, service: str) -> EventEntry:
    return EventEntry(
        f"railweave.proposal.{concern}.v1",
        f"rw.proposal.{concern}.{{cluster}}.{{job}}",
        f"proposal.{concern}/{_RUN}/{{round}}",
        "PROPOSALS",
        service,
        False,
    )


EVENTS = (
    _job("submitted", is_from_outside=True),
    _job("updated", tail="/{revision}", is_from_outside=True),
    _job("started", is_from_outside=True),
    _job("ended", is_from_outside=True),
    EventEntry(
        "railweave.snapshot.v1",
        "rw.snapshot.{cluster}",
        "snapshot/{cluster}/{number}",
        "SNAPSHOTS",
        "the cluster's scheduler",
        True,
    ),
    *(
        _job(event, tail="/{round}", is_from_outside=False)
        for event in ("pending", "rejected", "placed", "prepared", "attached", "releasing", "released")
    ),
    EventEntry("railweave.node.v1", "rw.node.{node}", "node/{node}/{generation}", "DESIRED", "operators", True),
    EventEntry(
        "railweave.tenant.v1", "rw.tenant.{tenant}", "tenant/{tenant}/{generation}", "DESIRED", "platforms", True
    ),
    EventEntry(
        "railweave.environment.v1",
        "rw.env.{cluster}.{environment}",
        "environment/{cluster}/{environment}/{generation}",
        "DESIRED",
        "platforms",
        True,
    ),
    EventEntry(
        "railweave.dataset.v1", "rw.dataset.{dataset}", "dataset/{dataset}/{generation}", "DESIRED", "platforms", True
    ),
    EventEntry(
        "railweave.head.v1",
        "rw.head.{cluster}.{job}",
        f"head/{_RUN}/{{round}}/{{state}}/{{commit}}",
        "PLACEMENTS",
        _COMMITTER,
        False,
    ),
    EventEntry(
        "railweave.placement.v1",
        "rw.placement.{node}.{cluster}.{job}.{attempt}",
        f"placement/{_RUN}/{{node}}/{{round}}/{{stage}}",
        "PLACEMENTS",
        _COMMITTER,
        False,
    ),
    EventEntry(
        "railweave.grant.v1",
        "rw.grant.{node}.{lease}",
        "grant/{node}/{lease}/{state}",
        "PLACEMENTS",
        _COMMITTER,
        False,
    ),
    EventEntry(
        "railweave.data.v1",
        "rw.data.{node}.{dataset}",
        "data/{node}/{dataset}/{generation}/{state}",
        "PLACEMENTS",
        _COMMITTER,
        False,
    ),
    EventEntry("railweave.epoch.v1", "rw.epoch", "epoch/{epoch}", "PLACEMENTS", _COMMITTER, False),
    EventEntry(
        "railweave.propose.v1",
        "rw.propose.{cluster}.{job}",
        f"propose/{_RUN}/{{round}}",
        "PROPOSALS",
        "jobs",
        False,
    ),
    _proposal("nodes", "cache"),
    _proposal("data", "cache"),
    _proposal("fabric", "topology"),
    _proposal("gpu", "gpu"),
    _proposal("nic", "nic"),
    EventEntry(
        "railweave.inventory.hardware.v1",
        "rw.inventory.{node}.hardware",
        "inventory.hardware/{node}/{boot_id}/{revision}",
        "NODES",
        "the node's agent",
        False,
    ),
    EventEntry(
        "railweave.inventory.storage.v1",
        "rw.inventory.{node}.storage",
        "inventory.storage/{node}/{boot_id}/{revision}",
        "NODES",
        "the node's agent",
        False,
    ),
    EventEntry(
        "railweave.report.v1",
        "rw.report.{node}.{cluster}.{job}.{attempt}",
        "report/{node}/{boot_id}/{revision}",
        "NODES",
        "the node's agent",
        False,
    ),
    EventEntry(
        "railweave.fabric.node.v1",
        "rw.fabric.node.{node}",
        "fabric.node/{node}/{revision}",
        "FABRIC",
        "topology",
        False,
    ),
    EventEntry(
        "railweave.fabric.leaf.v1",
        "rw.fabric.leaf.{leaf}",
        "fabric.leaf/{leaf}/{revision}",
        "FABRIC",
        "topology",
        False,
    ),
    EventEntry(
        "railweave.fabricreport.v1",
        "rw.fabricreport.{leaf}",
        "fabricreport/{leaf}/{revision}/{outcome}",
        "FABRIC",
        "the leaf's driver",
        False,
    ),
    EventEntry(
        "railweave.deadletter.v1",
        "rw.dead.{service}",
        "deadletter/{service}/{stream}/{sequence}",
        "DEAD",
        "whoever could not handle it",
        False,
    ),
)

QUERIES = (
    QueryEntry(query.DRY_RUN_SUBJECT, query.DryRunRequest, query.DryRunAnswer),
    QueryEntry(query.JOBS_SUBJECT, query.JobsQuery, query.JobsAnswer),
    QueryEntry(query.JOB_SUBJECT, query.JobQuery, query.JobDetail),
    QueryEntry(query.WHY_SUBJECT, query.JobQuery, query.Why),
    QueryEntry(query.NODES_SUBJECT, query.NodesQuery, query.NodesAnswer),
)
