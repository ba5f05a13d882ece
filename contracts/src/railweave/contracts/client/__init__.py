"""The client that schedulers and scripts import: publish jobs, wait for them, follow placements."""

from railweave.contracts.client.errors import (
    ClientError,
    JobNotStarting,
    JobWasRejected,
    JobWasReleased,
    NotAnswered,
    NotStored,
    QueryFailed,
    Refused,
    StillWaiting,
    Unreachable,
)
from railweave.contracts.client.follow import JobFollower, JobUpdate, PlacementSubscriber, PlacementUpdate
from railweave.contracts.client.jobs import JobPublisher, wait_prepared
from railweave.contracts.client.link import Link
from railweave.contracts.client.questions import ask, dry_run
from railweave.contracts.client.store import Stored
from railweave.contracts.client.sync import SyncRailweave

__all__ = [
    "ClientError",
    "JobFollower",
    "JobNotStarting",
    "JobPublisher",
    "JobUpdate",
    "JobWasRejected",
    "JobWasReleased",
    "Link",
    "NotAnswered",
    "NotStored",
    "PlacementSubscriber",
    "PlacementUpdate",
    "QueryFailed",
    "Refused",
    "StillWaiting",
    "Stored",
    "SyncRailweave",
    "Unreachable",
    "ask",
    "dry_run",
    "wait_prepared",
]
