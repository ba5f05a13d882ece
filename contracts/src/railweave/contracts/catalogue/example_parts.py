"""What several golden messages have in common: runs, jobs, a reason, a whole placement."""

from __future__ import annotations

from typing import Any

RUN: dict[str, Any] = {"cluster": "slurm-a", "job": "88121", "attempt": 2, "uid": "s9K2D7Q1"}

SMALLEST_JOB: dict[str, Any] = {"cluster": "lab", "job": "1234", "attempt": 1, "workers": [{"count": 1, "gpus": 1}]}

REASON: dict[str, Any] = {
    "code": "InsufficientGpus",
    "text": "wants 8 GPUs on each of 2 nodes; 1 node qualifies, gpu-003 has 6 of 8 free",
    "numbers": {"needed_nodes": 2, "qualifying_nodes": 1, "best_free_gpus": 6},
    "node": "gpu-003",
    "lacks": ["gpu"],
    "remedy": "ask for 6 GPUs a worker, or wait for slurm-a/87960",
}

CLAIM: dict[str, Any] = {"kind": "tenant_gpu_milli", "key": "nlp", "amount": 16000}
SEGMENT_CLAIM: dict[str, Any] = {"kind": "segment", "key": "7", "owner": "tenant/nlp"}

RICH_JOB: dict[str, Any] = {
    **RUN,
    "name": "llama-70b-sft",
    "user": {"name": "user1", "uid": 20417, "gid": 20417},
    "tenant": "nlp",
    "account": "nlp-prod",
    "qos": "high",
    "partition": "h100",
    "namespace": "training",
    "owner": "PyTorchJob/llama",
    "queue": "h100",
    "labels": {"team": "sft"},
    "array": "88100_21",
    "priority": 1000,
    "preemptible": True,
    "requeue": True,
    "time_limit_s": 259200,
    "workers": [
        {
            "name": "worker",
            "count": 2,
            "per_node": 1,
            "gpus": 8,
            "gpu_model": "H100-SXM",
            "gpu_fraction_milli": 500,
            "gpu_memory_mib": 40960,
            "mig_profile": "3g.40gb",
            "scratch_bytes": 429496729600,
        }
    ],
    "nodes": {
        "node_list": ["gpu-001", "gpu-002"],
        "gpu_indices": {"gpu-001": [0, 1, 2, 3, 4, 5, 6, 7]},
        "exclusive": True,
        "selector": {"gpu": "h100"},
        "exclude": ["gpu-017"],
        "topology": {"required": "pod", "preferred": "leaf"},
    },
    "network": {
        "profile": "roce",
        "isolation": "tenant",
        "vfs": "one-per-pf",
        "rdma": True,
        "mtu": 9000,
        "attach": "pyxis",
    },
    "datasets": [
        {
            "name": "fineweb-edu",
            "version": "2026-10",
            "size_bytes": 4398046511104,
            "source": "s3://datasets/fineweb-edu/2026-10",
            "digest": "sha256:9c56cc51b374c3ba189210d5b6d4bf57790d351c96c47c02190ecf1e430635ab",
            "access": "read",
        }
    ],
    "prepare_deadline_s": 1800,
    "attach_deadline_s": 60,
    "on_deadline": "retry",
}

PLACED_GPU: dict[str, Any] = {
    "index": 0,
    "uuid": "GPU-1b2c0c5e-7a11-4d53-9b0e-0a4d6f6d1a01",
    "pci": "0000:18:00.0",
    "numa_node": 0,
    "fraction_milli": 1000,
    "memory_mib": 81559,
}

HELD_PLACEMENT: dict[str, Any] = {
    **RUN,
    "node": "gpu-001",
    "state": "desired",
    "epoch": 3,
    "round": 3,
    "commit": "c-1f6c1c2e",
    "requires": ["veth"],
    "submitted_at": "2026-12-01T10:00:00.003Z",
    "tenant": "nlp",
    "user": {"uid": 20417, "gid": 20417},
    "attach": "pyxis",
    "node_rank": 0,
    "node_count": 2,
    "rendezvous": {"address": "10.64.0.18", "port": 29500},
    "started": True,
    "exclusive": True,
    "workers": [
        {
            "name": "worker",
            "worker": 0,
            "gpus": [PLACED_GPU],
            "network": {
                "vf_group": "g3",
                "isolation": {"mode": "tenant", "segment": 7, "vrf": "Vrf-s7", "owner": "tenant/nlp"},
                "interfaces": [
                    {
                        "name": "rail0",
                        "rail": 0,
                        "pf": "0000:19:00.0",
                        "vf": 3,
                        "pci": "0000:19:00.4",
                        "mac": "02:00:01:00:00:03",
                        "numa_node": 0,
                        "rdma": {"device": "mlx5_11", "char_devices": ["/dev/infiniband/uverbs11"]},
                        "leaf": "leaf-r0-p1",
                        "port": "Ethernet12",
                        "vlan": 1107,
                        "vlan_qos": 3,
                        "mtu": 9000,
                        "addresses": ["10.64.0.18/22"],
                        "gateways": ["10.64.0.1"],
                        "rules": [{"priority": 1000, "from": "10.64.0.18/32", "table": 1000}],
                        "spoof_check": True,
                        "trust": False,
                        "max_tx_mbps": 100000,
                    }
                ],
            },
            "env": {"MASTER_ADDR": "10.64.0.18", "MASTER_PORT": "29500", "NODE_RANK": "0"},
            "namespace": {"worker": 0, "netns": "/run/netns/llama-0"},
        }
    ],
    "datasets": [
        {
            "name": "fineweb-edu",
            "version": "2026-10",
            "action": "fetch",
            "bytes": 4398046511104,
            "source": "s3://datasets/fineweb-edu/2026-10",
            "digest": "sha256:9c56cc51b374c3ba189210d5b6d4bf57790d351c96c47c02190ecf1e430635ab",
            "peers": ["gpu-012"],
        }
    ],
    "evict": [{"dataset": "c4@3", "bytes": 912680550400, "reason": "LeastValue"}],
    "scratch": {"bytes": 429496729600},
    "claims": [CLAIM, SEGMENT_CLAIM],
}

_GANG: dict[str, Any] = {
    "cluster": "k8s-b",
    "job": "ft-311",
    "attempt": 1,
    "uid": "5f1c0e9a-2f53-4c6e-a7a5-1f6b1b0e7d11",
    "workers": [{"count": 64, "gpus": 8}],
    "network": {},
    "datasets": [{"name": "imagenet-22k", "version": "3"}],
}

ADDED: dict[str, dict[str, dict[str, Any]]] = {
    "railweave.job.submitted.v1": {
        "names that need the codec": {**SMALLEST_JOB, "job": 'Schüler "70B" 100%'},
        "a gang with network and data": _GANG,
    },
    "railweave.placement.v1": {
        "released": {
            **RUN,
            "node": "node1.rack2",
            "state": "released",
            "epoch": 3,
            "round": 3,
            "commit": "c-2a",
        },
    },
    "railweave.report.v1": {
        "undone": {
            **RUN,
            "node": "node1.rack2",
            "revision": 89,
            "boot_id": "1f6c1c2e-8a0b-4f7e-9a51-3f1b5f2f7f10",
            "fence": [3, 184500],
            "state": "undone",
            "steps": [{"name": "return VFs", "milliseconds": 7}],
        },
    },
}
"""Messages beyond minimal and rich, by type and name."""
