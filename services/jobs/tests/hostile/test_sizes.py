"""Nothing a job may ask for makes a message longer than the broker takes."""

from __future__ import annotations

import desk as desks
import pytest
from desk import Desk, lacking, make

from railweave.contracts.envelope import MAX_BODY_BYTES, encode_event
from railweave.contracts.fabric import FabricLeaf, LeafVlan
from railweave.contracts.job import JobPlaced
from railweave.contracts.placement import JobState
from railweave.contracts.reasons import ReasonCode
from railweave_testing.clusters import ClusterBuilder

HEADERS = 1024


def longest(desk: Desk) -> int:
    """Bytes of the longest message stored or published."""
    stored = [event for store in desk.stores for event in store.events]
    return max(len(encode_event(event).body) for event in (*stored, *desk.said)) + HEADERS


def wide_cluster(nodes: int) -> ClusterBuilder:
    builder = ClusterBuilder()
    for number in range(nodes):
        builder.node(f"node-{number:04d}-rack-{number // 16:03d}", gpus=8, rails=8, vfs=16)
    # Room for a slot of every node on one leaf.
    vlans = [
        make(LeafVlan, rail=rail, vlan=100 + rail, subnet=f"10.{rail}.0.0/16", gateway=f"10.{rail}.0.1")
        for rail in range(8)
    ]
    builder.tell(make(FabricLeaf, leaf="leaf-1", revision=9, island="i", pod="p", vlans=vlans), "FABRIC")
    return builder


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of eight GPUs and eight rails."""
    monkeypatch.setattr(desks, "GPUS", 8)
    monkeypatch.setattr(desks, "RAILS", 8)
    monkeypatch.setattr(desks, "VFS", 8)


@pytest.mark.usefixtures("wide")
def test_a_gang_whose_whole_answer_is_no_message_any_more_is_told_without_addresses() -> None:
    desk = Desk(builder=wide_cluster(450))
    desk.place(workers=[{"count": 3600, "per_node": 8, "gpus": 1}], network={})
    assert longest(desk) < MAX_BODY_BYTES
    placed = desk.told(JobPlaced)[0]
    assert (len(placed.nodes), len(placed.workers)) == (450, 3600)
    assert placed.workers[0].addresses == ()
    assert "in the placements alone" in placed.warnings[0]


@pytest.mark.usefixtures("wide")
def test_a_gang_of_ordinary_size_is_told_everything() -> None:
    desk = Desk(builder=wide_cluster(64))
    desk.place(workers=64, gpus=8, network={})
    placed = desk.told(JobPlaced)[0]
    assert (placed.warnings, len(placed.workers[63].addresses), len(placed.workers[63].gpus)) == ((), 8, 8)


def test_a_node_with_more_workers_than_its_placement_can_tell_is_refused() -> None:
    desk = Desk(builder=wide_cluster(1))
    desk.submit(workers=[{"count": 1024, "per_node": 1024, "name": "w" * 256}])
    desk.propose()
    assert desk.state_of() is JobState.PLACED
    desk.submit("k", workers=[{"count": 1024, "per_node": 1024, "name": "\U0001d11e" * 256}])
    desk.propose()
    assert (desk.state_of("k"), desk.codes("k")) == (JobState.REJECTED, [ReasonCode.TOO_LARGE])
    assert longest(desk) < MAX_BODY_BYTES


def test_of_very_many_reasons_the_first_are_kept() -> None:
    desk = Desk()
    desk.submit(workers=1)
    desk.refuse("j", *(lacking(text="x" * 1000) for _ in range(2000)))
    assert len(desk.head().reasons) == 64
    assert desk.codes()[0] is ReasonCode.INSUFFICIENT_GPUS
    assert longest(desk) < MAX_BODY_BYTES
