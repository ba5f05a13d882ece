"""The most that each event says: every field, with values as on a real cluster."""

from __future__ import annotations

from typing import Any

from railweave.contracts.catalogue.example_parts import (
    CLAIM,
    HELD_PLACEMENT,
    PLACED_GPU,
    REASON,
    RICH_JOB,
    RUN,
    SEGMENT_CLAIM,
)

_NODES = ["gpu-001", "gpu-002"]
_DIGEST = "sha256:9c56cc51b374c3ba189210d5b6d4bf57790d351c96c47c02190ecf1e430635ab"
_BOOT = "1f6c1c2e-8a0b-4f7e-9a51-3f1b5f2f7f10"


def _proposal(**rest: Any) -> dict[str, Any]:
    return {**RUN, "round": 3, "based_on": {"PLACEMENTS": 184467, "NODES": 9120}, "reasons": [], "never": False, **rest}


RICH: dict[str, dict[str, Any]] = {
    "railweave.job.submitted.v1": RICH_JOB,
    "railweave.job.updated.v1": {
        **RUN,
        "revision": 2,
        "priority": 2000,
        "nodes": RICH_JOB["nodes"],
        "time_limit_s": 345600,
    },
    "railweave.job.started.v1": {
        **RUN,
        "workers": [{"worker": 0, "netns": "/run/netns/llama-0"}, {"worker": 1, "pid": 41210}],
    },
    "railweave.job.ended.v1": {**RUN, "outcome": "failed", "text": "exit code 137 on gpu-002"},
    "railweave.snapshot.v1": {
        "cluster": "slurm-a",
        "number": 12,
        "taken_at": "2026-12-01T09:59:58.250Z",
        "live": [{"job": "88121", "attempt": 2, "uid": "s9K2D7Q1"}, {"job": "88140", "attempt": 1}],
    },
    "railweave.job.pending.v1": {**RUN, "round": 3, "reasons": [REASON]},
    "railweave.job.rejected.v1": {
        **RUN,
        "round": 3,
        "reasons": [
            {
                "code": "ExceedsClusterCapacity",
                "text": "wants 512 nodes, the cluster has 96",
                "numbers": {"needed_nodes": 512, "cluster_nodes": 96},
                "lacks": [],
                "remedy": "ask for at most 96 nodes",
            }
        ],
    },
    "railweave.job.placed.v1": {
        **RUN,
        "round": 3,
        "nodes": _NODES,
        "workers": [
            {"worker": 0, "node": "gpu-001", "addresses": ["10.64.0.18", "10.64.1.18"], "gpus": [PLACED_GPU["uuid"]]},
            {"worker": 1, "node": "gpu-002", "addresses": ["10.64.0.34", "fd00:64::34"], "gpus": []},
        ],
        "segment": 7,
        "rendezvous": {"address": "10.64.0.18", "port": 29500},
        "warnings": ["the nodes are on 2 leaves, preferred was 1"],
        "commit": "c-1f6c1c2e",
    },
    "railweave.job.prepared.v1": {**RUN, "round": 3, "nodes": _NODES},
    "railweave.job.attached.v1": {**RUN, "round": 3, "nodes": _NODES},
    "railweave.job.releasing.v1": {**RUN, "round": 3, "reasons": [REASON]},
    "railweave.job.released.v1": {**RUN, "round": 3, "reasons": [REASON], "requeued": True},
    "railweave.node.v1": {
        "node": "node1.rack2",
        "generation": 4,
        "mode": "draining",
        "reason": "rail 5 shows no light",
        "user": "user1",
        "until": "2026-12-02T08:00:00Z",
        "cordoned_rails": [5],
    },
    "railweave.tenant.v1": {
        "tenant": "nlp",
        "generation": 12,
        "state": "present",
        "parent": "research",
        "weight": 2,
        "quota": {
            "gpus": {"guaranteed": 64, "limit": 96},
            "segments": 4,
            "cache_bytes": {"guaranteed": 54975581388800},
            "environments": 40,
        },
    },
    "railweave.environment.v1": {
        "cluster": "k8s-b",
        "environment": "nb-user1-1",
        "generation": 5,
        "state": "present",
        "node": "gpu-101",
        "pod_uid": "5f1c0e9a-2f53-4c6e-a7a5-1f6b1b0e7d11",
        "tenant": "nlp",
        "user": {"name": "user1", "uid": 20417, "gid": 20417},
        "quota": {"gpus": 2, "fraction_milli": 2000, "memory_mib": 81920, "gpu_seconds_per_day": 28800},
        "default_request": {"gpus": 1, "mode": "on_import"},
        "on_denied": "cpu",
        "wait_deadline_s": 600,
        "max_lease_s": 28800,
        "idle": {"after_s": 3600, "action": "release"},
        "preemptible": True,
        "grace_s": 60,
    },
    "railweave.dataset.v1": {
        "name": "fineweb-edu",
        "version": "2026-10",
        "generation": 3,
        "state": "present",
        "source_uri": "s3://datasets/fineweb-edu/2026-10",
        "size_bytes": 4398046511104,
        "digest": _DIGEST,
        "owner": "nlp",
        "readers": ["nlp", "tts"],
        "credentials": "secret/datasets-reader",
    },
    "railweave.head.v1": {
        **RUN,
        "state": "placed",
        "epoch": 3,
        "round": 3,
        "commit": "c-1f6c1c2e",
        "spec": RICH_JOB,
        "submitted_at": "2026-12-01T10:00:00.003Z",
        "times": {"pending": "2026-12-01T10:00:00.010Z", "placed": "2026-12-01T10:00:00.041Z"},
        "nodes": _NODES,
        "reasons": [REASON],
        "lacks": ["gpu"],
        "exclude": ["gpu-017"],
        "updated_revision": 2,
        "requeue": True,
        "outcome": "lost",
        "started": True,
        "namespaces": [{"worker": 0, "netns": "/run/netns/llama-0"}],
        "adopted": True,
        "claims": [CLAIM, SEGMENT_CLAIM],
    },
    "railweave.placement.v1": HELD_PLACEMENT,
    "railweave.grant.v1": {
        "cluster": "k8s-b",
        "environment": "nb-user1-1",
        "node": "gpu-101",
        "lease": "l-7",
        "epoch": 3,
        "state": "releasing",
        "tenant": "nlp",
        "gpus": [PLACED_GPU],
        "expires_at": "2026-12-01T18:00:00Z",
        "reasons": [REASON],
    },
    "railweave.data.v1": {
        "node": "gpu-001",
        "name": "c4",
        "version": "3",
        "epoch": 3,
        "generation": 2,
        "state": "evicting",
        "bytes": 912680550400,
        "pinned": False,
        "source_uri": "s3://datasets/c4/3",
        "reason": "LeastValue",
    },
    "railweave.epoch.v1": {
        "epoch": 4,
        "cause": "agent_ahead",
        "text": "gpu-001 has applied sequence 184467, the stream ends at 184401.",
    },
    "railweave.propose.v1": {
        **RUN,
        "round": 3,
        "spec": RICH_JOB,
        "concerns": ["nodes", "data", "gpu", "fabric", "nic"],
        "exclude": ["gpu-017"],
        "avoid": ["gpu-030", "gpu-031"],
        "dry_run": True,
    },
    "railweave.proposal.nodes.v1": _proposal(nodes=_NODES),
    "railweave.proposal.data.v1": _proposal(
        nodes=[
            {
                "node": "gpu-001",
                "use": ["c4@3"],
                "fetch": {"fineweb-edu@2026-10": 4398046511104},
                "evict": [{"dataset": "tts@5", "bytes": 966367641600, "reason": "LeastValue"}],
            }
        ]
    ),
    "railweave.proposal.fabric.v1": _proposal(mode="tenant", segment=7, owner="tenant/nlp"),
    "railweave.proposal.gpu.v1": _proposal(
        workers=[{"worker": 0, "gpus": [[0, 1000], [1, 1000]]}, {"worker": 1, "gpus": [[2, 250]]}]
    ),
    "railweave.proposal.nic.v1": _proposal(
        reasons=[REASON], never=True, workers=[{"worker": 0, "group": "g3", "vfs": [[0, 3], [1, 3]]}]
    ),
    "railweave.inventory.hardware.v1": {
        "node": "gpu-001",
        "revision": 9,
        "boot_id": _BOOT,
        "agent_version": "0.1.0",
        "features": ["veth", "datasets"],
        "labels": {"gpu": "h100"},
        "fence_seen": [3, 184467],
        "pfs": [
            {
                "pci": "0000:19:00.0",
                "rail": 0,
                "netdev": "ens1f0",
                "vfs": 16,
                "numa_node": 0,
                "pcie_root": "pci0000:17",
                "link_up": False,
                "mtu": 9000,
                "mac": "b8:3f:d2:00:10:02",
                "rdma": "mlx5_0",
                "driver": "mlx5_core",
            }
        ],
        "gpus": [
            {
                "index": 0,
                "uuid": PLACED_GPU["uuid"],
                "pci": "0000:18:00.0",
                "model": "H100-SXM",
                "memory_mib": 81559,
                "numa_node": 0,
                "pcie_root": "pci0000:17",
                "healthy": False,
                "fault": "Xid 79: fallen off the bus",
            }
        ],
    },
    "railweave.inventory.storage.v1": {
        "node": "gpu-001",
        "revision": 31,
        "boot_id": _BOOT,
        "cache": {
            "total_bytes": 7696581394432,
            "used_bytes": 1879048192000,
            "total_inodes": 468843606,
            "free_inodes": 468800000,
        },
        "scratch": {"total_bytes": 1099511627776, "used_bytes": 0},
        "datasets": [
            {
                "name": "c4",
                "version": "3",
                "bytes": 912680550400,
                "files": 1024,
                "state": "ready",
                "uses": 17,
                "last_used": 184467,
                "pinned": True,
                "source": "s3://datasets/c4/3",
                "digest": _DIGEST,
            }
        ],
    },
    "railweave.report.v1": {
        **RUN,
        "node": "gpu-001",
        "revision": 88,
        "boot_id": _BOOT,
        "fence": [3, 184467],
        "state": "orphan",
        "steps": [{"name": "attach rail0", "milliseconds": 12}],
        "failure": {
            "step": "attach rail3: move into namespace",
            "error": "EBUSY",
            "text": "the RDMA device mlx5_13 is held by pid 41210: end it, or drain the node",
        },
        "held": HELD_PLACEMENT,
    },
    "railweave.fabric.node.v1": {
        "node": "gpu-001",
        "revision": 2,
        "ordinal": 256,
        "island": "a",
        "pod": "p1",
        "attachments": [
            {"rail": 0, "leaf": "leaf-r0-p1", "port": "Ethernet12", "slot": 1},
            {"rail": 1, "leaf": "leaf-r1-p1", "port": "Ethernet12", "slot": 1},
        ],
        "former": [{"rail": 1, "leaf": "leaf-r1-p2", "port": "Ethernet4", "slot": 9}],
    },
    "railweave.fabric.leaf.v1": {
        "leaf": "leaf-r0-p1",
        "revision": 2,
        "island": "a",
        "pod": "p1",
        "vlans": [
            {
                "rail": 0,
                "segment": 7,
                "vlan": 1107,
                "vlan_qos": 3,
                "mtu": 9000,
                "subnet": "10.64.0.0/22",
                "gateway": "10.64.0.1",
                "subnet6": "fd00:64::/64",
                "gateway6": "fd00:64::1",
                "first_offset": 2,
                "vf_stride": 16,
            }
        ],
    },
    "railweave.fabricreport.v1": {
        "leaf": "leaf-r0-p1",
        "revision": 2,
        "applied": False,
        "text": "VLAN 1107 is in use by another bridge",
        "segments_in_use": [7],
    },
    "railweave.deadletter.v1": {
        "service": "jobs",
        "stream": "JOBS",
        "sequence": 4712,
        "original_subject": "rw.job.submitted.lab.1234",
        "original_headers": {"Nats-Msg-Id": "job.submitted/lab/1234/1"},
        "original_base64": "eyJzcGVjdmVyc2lvbiI6IjEuMCJ9",
        "stored_at": "2026-12-01T10:00:00Z",
        "cause": "type: expected a CloudEvents document with a type",
        "field": "type",
    },
}
"""By type."""
