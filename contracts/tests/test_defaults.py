"""What an absent field means. Documented in docs/reference/events.md; a change here is a change for every scheduler."""

from __future__ import annotations

import json
from typing import Any

import pytest

from railweave.contracts.catalogue.examples import examples_of
from railweave.contracts.desired import Dataset, Environment, NodeDesired, Tenant
from railweave.contracts.fabric import LeafVlan
from railweave.contracts.job import JobSpec, JobStarted, NetworkWanted
from railweave.contracts.proposal import Concern, concerns_of


def as_json(document: Any) -> Any:
    return json.loads(document.model_dump_json(by_alias=True))


def test_defaults_of_a_job() -> None:
    small = {"cluster": "lab", "job": "1", "attempt": 1, "workers": [{"count": 1}], "datasets": [{"name": "c4"}]}
    spec = JobSpec.model_validate_json(json.dumps(small))
    assert as_json(spec) == {
        "cluster": "lab",
        "job": "1",
        "attempt": 1,
        "uid": None,
        "name": None,
        "user": None,
        "tenant": "default",
        "account": None,
        "qos": None,
        "partition": None,
        "namespace": None,
        "owner": None,
        "queue": None,
        "labels": {},
        "array": None,
        "priority": 0,
        "preemptible": False,
        "requeue": False,
        "time_limit_s": None,
        "workers": [
            {
                "name": "worker",
                "count": 1,
                "per_node": 1,
                "gpus": 0,
                "gpu_model": None,
                "gpu_fraction_milli": None,
                "gpu_memory_mib": None,
                "mig_profile": None,
                "scratch_bytes": 0,
            }
        ],
        "nodes": {
            "node_list": None,
            "gpu_indices": None,
            "exclusive": False,
            "selector": {},
            "exclude": [],
            "topology": {"required": "island", "preferred": "leaf"},
        },
        "network": None,
        "datasets": [
            {
                "name": "c4",
                "version": "latest",
                "size_bytes": None,
                "source": None,
                "digest": None,
                "access": "read",
            }
        ],
        "prepare_deadline_s": 900,
        "attach_deadline_s": 120,
        "on_deadline": "give_back",
    }


def test_defaults_of_a_network_that_is_asked_for() -> None:
    assert as_json(NetworkWanted()) == {
        "profile": "default",
        "isolation": "rail",
        "vfs": "one-per-pf",
        "rdma": False,
        "mtu": None,
        "attach": "started",
    }


def test_what_a_job_does_not_ask_for_takes_no_part() -> None:
    def wants(**more: Any) -> tuple[Concern, ...]:
        job = {"cluster": "lab", "job": "1", "attempt": 1, "workers": [{"count": 1}], **more}
        return concerns_of(JobSpec.model_validate_json(json.dumps(job)))

    assert wants() == (Concern.NODES,)
    assert wants(workers=[{"count": 1, "gpus": 1}]) == (Concern.NODES, Concern.GPU)
    assert wants(network={}) == (Concern.NODES, Concern.FABRIC, Concern.NIC)
    assert wants(network={"vfs": "none"}) == (Concern.NODES,)
    assert wants(datasets=[{"name": "c4"}]) == (Concern.NODES, Concern.DATA)


@pytest.mark.parametrize(
    ("type_name", "defaults"),
    [
        ("railweave.job.started.v1", {"workers": [], "uid": None}),
        ("railweave.job.ended.v1", {"text": None}),
        ("railweave.job.updated.v1", {"priority": None, "nodes": None, "time_limit_s": None}),
        ("railweave.job.released.v1", {"round": 1, "reasons": [], "requeued": False}),
        ("railweave.node.v1", {"reason": None, "user": None, "until": None, "cordoned_rails": []}),
        (
            "railweave.tenant.v1",
            {
                "state": "present",
                "parent": None,
                "weight": 1,
                "quota": {
                    "gpus": {"guaranteed": 0, "limit": None},
                    "segments": None,
                    "cache_bytes": {"guaranteed": 0},
                    "environments": None,
                },
            },
        ),
        (
            "railweave.environment.v1",
            {
                "state": "present",
                "tenant": "default",
                "default_request": {"gpus": 1, "mode": "on_first_use"},
                "on_denied": "wait",
                "wait_deadline_s": 900,
                "max_lease_s": None,
                "idle": {"after_s": 1800, "action": "warn"},
                "preemptible": False,
                "grace_s": 120,
            },
        ),
        (
            "railweave.dataset.v1",
            {"version": "latest", "state": "present", "size_bytes": None, "digest": None, "readers": []},
        ),
        (
            "railweave.placement.v1",
            {"requires": [], "tenant": "default", "attach": "started", "started": False, "exclusive": False},
        ),
    ],
)
def test_defaults_of_what_else_is_written_from_outside(type_name: str, defaults: dict[str, Any]) -> None:
    minimal = as_json(examples_of(type_name)[0].event)
    assert {name: minimal[name] for name in defaults} == defaults


def test_headroom_of_a_vlan_s_subnet() -> None:
    vlan = LeafVlan.model_validate_json('{"rail": 0, "vlan": 1100, "subnet": "10.64.0.0/22", "gateway": "10.64.0.1"}')
    assert (vlan.segment, vlan.vlan_qos, vlan.mtu, vlan.first_offset, vlan.vf_stride) == (None, 0, 9000, 4, 16)


@pytest.mark.parametrize("model", [JobStarted, NodeDesired, Tenant, Environment, Dataset])
def test_documents_cannot_be_changed(model: type[Any]) -> None:
    event = next(found.event for found in examples_of(model.TYPE))
    with pytest.raises(ValueError, match="frozen"):
        event.generation = 2
