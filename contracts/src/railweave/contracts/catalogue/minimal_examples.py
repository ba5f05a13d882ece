"""The least that each event says: its required fields alone. Everything else has a documented default."""

from __future__ import annotations

from typing import Any

from railweave.contracts.catalogue.example_parts import SMALLEST_JOB

_LAB = {"cluster": "lab", "job": "1234", "attempt": 1}
_BOOT = "1f6c1c2e-8a0b-4f7e-9a51-3f1b5f2f7f10"

MINIMAL: dict[str, dict[str, Any]] = {
    "railweave.job.submitted.v1": SMALLEST_JOB,
    "railweave.job.updated.v1": {**_LAB, "revision": 1},
    "railweave.job.started.v1": _LAB,
    "railweave.job.ended.v1": {**_LAB, "outcome": "succeeded"},
    "railweave.snapshot.v1": {"cluster": "lab", "number": 1, "taken_at": "2026-12-01T09:59:58Z", "live": []},
    "railweave.job.pending.v1": {**_LAB, "reasons": []},
    "railweave.job.rejected.v1": {**_LAB, "reasons": []},
    "railweave.job.placed.v1": {**_LAB, "nodes": [], "workers": [], "commit": "c-1"},
    "railweave.job.prepared.v1": {**_LAB, "nodes": ["gpu-001"]},
    "railweave.job.attached.v1": {**_LAB, "nodes": ["gpu-001"]},
    "railweave.job.releasing.v1": {**_LAB, "reasons": []},
    "railweave.job.released.v1": _LAB,
    "railweave.node.v1": {"node": "gpu-001", "generation": 1, "mode": "schedulable"},
    "railweave.tenant.v1": {"tenant": "nlp", "generation": 1},
    "railweave.environment.v1": {"cluster": "k8s-b", "environment": "nb-user1-1", "generation": 1},
    "railweave.dataset.v1": {"name": "c4", "generation": 1},
    "railweave.head.v1": {
        **_LAB,
        "state": "pending",
        "epoch": 1,
        "round": 1,
        "commit": "c-1",
        "submitted_at": "2026-12-01T10:00:00Z",
    },
    "railweave.placement.v1": {
        **_LAB,
        "node": "gpu-001",
        "state": "desired",
        "epoch": 1,
        "round": 1,
        "commit": "c-1",
    },
    "railweave.grant.v1": {
        "cluster": "k8s-b",
        "environment": "nb-user1-1",
        "node": "gpu-101",
        "lease": "l-1",
        "epoch": 1,
        "state": "granted",
    },
    "railweave.data.v1": {
        "node": "gpu-001",
        "name": "c4",
        "version": "3",
        "epoch": 1,
        "generation": 1,
        "state": "present",
        "bytes": 912680550400,
    },
    "railweave.epoch.v1": {"epoch": 1, "cause": "bootstrap", "text": "The streams were made."},
    "railweave.propose.v1": {**_LAB, "round": 1, "spec": SMALLEST_JOB, "concerns": ["nodes", "gpu"]},
    "railweave.proposal.nodes.v1": {**_LAB, "round": 1},
    "railweave.proposal.data.v1": {**_LAB, "round": 1},
    "railweave.proposal.fabric.v1": {**_LAB, "round": 1},
    "railweave.proposal.gpu.v1": {**_LAB, "round": 1},
    "railweave.proposal.nic.v1": {**_LAB, "round": 1},
    "railweave.inventory.hardware.v1": {
        "node": "gpu-001",
        "revision": 1,
        "boot_id": _BOOT,
        "agent_version": "0.1.0",
    },
    "railweave.inventory.storage.v1": {
        "node": "gpu-001",
        "revision": 1,
        "boot_id": _BOOT,
        "cache": {"total_bytes": 0, "used_bytes": 0},
        "scratch": {"total_bytes": 0, "used_bytes": 0},
    },
    "railweave.report.v1": {
        **_LAB,
        "node": "gpu-001",
        "revision": 1,
        "boot_id": _BOOT,
        "fence": [1, 17],
        "state": "prepared",
    },
    "railweave.fabric.node.v1": {
        "node": "gpu-001",
        "revision": 1,
        "ordinal": 0,
        "island": "a",
        "pod": "p1",
        "attachments": [],
    },
    "railweave.fabric.leaf.v1": {"leaf": "leaf-r0-p1", "revision": 1, "island": "a", "pod": "p1", "vlans": []},
    "railweave.fabricreport.v1": {"leaf": "leaf-r0-p1", "revision": 1, "applied": True},
    "railweave.deadletter.v1": {
        "service": "jobs",
        "stream": "JOBS",
        "sequence": 4711,
        "original_subject": "rw.job.submitted.lab.1234",
        "original_base64": "e30=",
        "stored_at": "2026-12-01T10:00:00Z",
        "cause": "type: expected a CloudEvents document with a type",
    },
}
"""By type."""
