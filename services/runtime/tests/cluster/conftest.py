"""Events of a small cluster, and a picture of a state that can be compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from railweave.runtime.cluster import ClusterState


def picture(state: ClusterState) -> dict[str, Any]:
    """All that can be asked of a state, in a form that can be compared."""
    names = sorted(state.nodes)
    return {
        "nodes": {
            name: (
                node.hardware,
                node.storage,
                node.mode,
                node.fabric,
                dict(sorted(node.holds.items(), key=str)),
                node.gpu_used,
                sorted(node.vfs_used),
                node.free_whole_gpus,
                node.cache_free_bytes(),
                node.scratch_free_bytes(),
                node.grants,
                node.data,
            )
            for name, node in state.nodes.items()
        },
        "heads": state.heads,
        "leaves": state.leaves,
        "tenants": state.tenants,
        "datasets": state.datasets,
        "environments": state.environments,
        "epoch": state.epoch,
        "sequences": state.sequences,
        "free": {count: sorted(n.name for n in state.nodes_with_free_gpus(count)) for count in range(9)},
        "milli": {tenant: state.tenant_gpu_milli(tenant) for tenant in ("default", "nlp", "cv")},
        "by_job": {job: sorted(state.nodes_held_by(job)) for job in state.heads},
        "by_dataset": {name: sorted(state.nodes_with_dataset(name)) for name in ("c4@1", "web@1")},
        "distance": [state.distance(one, other) for one in names for other in names],
    }


@pytest.fixture
def picture_of() -> Callable[[ClusterState], dict[str, Any]]:
    return picture
