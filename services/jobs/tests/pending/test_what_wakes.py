"""What streams say becomes what the committer hears: a quota, a dataset or a fabric that changed wakes who waits."""

from __future__ import annotations

import pytest
from desk import START, make

from railweave.contracts.desired import Dataset, NodeDesired, Tenant
from railweave.contracts.envelope import Event
from railweave.contracts.fabric import FabricLeaf, FabricNode, FabricReport
from railweave.contracts.reasons import Lack
from railweave.contracts.wire import StoredMessage
from railweave.jobs.active import ActiveCommitter, StreamClock
from railweave.jobs.committer import Freed
from railweave.jobs.model import CommitterConfig
from railweave.runtime.cluster import ClusterState

MESSAGE = StoredMessage("DESIRED", "rw.x", 1, START, {}, b"")
NODE = make(NodeDesired, node="n0", generation=1, mode="schedulable")


@pytest.mark.parametrize(
    ("event", "lacks"),
    [
        (make(Tenant, tenant="t", generation=1), {Lack.QUOTA}),
        (make(Dataset, name="c4", generation=1), {Lack.DATASET}),
        (make(FabricLeaf, leaf="l", revision=1, island="i", pod="p", vlans=[]), {Lack.FABRIC, Lack.SEGMENT}),
        (
            make(FabricNode, node="n0", revision=1, ordinal=0, island="i", pod="p", attachments=[]),
            {Lack.FABRIC, Lack.SEGMENT},
        ),
        (make(FabricReport, leaf="l", revision=1, applied=True), {Lack.SEGMENT}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_change_is_heard_as_what_became_free(event: Event, lacks: set[Lack] | None) -> None:
    active = ActiveCommitter(None, ClusterState(), CommitterConfig(), "a", StreamClock(START, 0.0))  # type: ignore[arg-type]
    active.take_node_event(event, MESSAGE)
    assert list(active._inputs) == ([] if lacks is None else [Freed(frozenset(lacks))])


def test_a_wish_for_a_node_is_heard_as_it_is() -> None:
    active = ActiveCommitter(None, ClusterState(), CommitterConfig(), "a", StreamClock(START, 0.0))  # type: ignore[arg-type]
    active.take_node_event(NODE, MESSAGE)
    assert list(active._inputs) == [NODE]
