"""How far apart nodes are, from the published records alone, of fabrics of every shape."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from railweave.contracts.fabric import FabricNode
from railweave.contracts.types import NodeName
from railweave.runtime.cluster import FABRIC, ClusterState, Distance
from railweave.topology.fabric_file import read_cabling
from railweave.topology.inventory import Inventory, difference, replan
from railweave.topology.providers import PROVIDERS
from railweave.topology.providers.base import Found, ImportOptions
from railweave_testing.fabrics import config

FILES = Path(os.environ.get("RAILWEAVE_SHARED", Path(__file__).parents[4] / "shared")) / "data" / "topology"

FAT_TREE = """\
version: 1
spines:
  - {name: "core[1-4]", tier: 3}
  - {name: "p-spine[1-2],q-spine[1-2]", uplinks: "core[1-4]"}
leaves:
  - {name: "p[1-2]-[0-3]", uplinks: "p-spine[1-2]"}
  - {name: "q[1-2]-[0-3]", uplinks: "q-spine[1-2]"}
  - {name: alone}
nodes:
  - {name: "p1-n[1-2]", rails: 0-3, leaves: "p1-[0-3]"}
  - {name: "p2-n[1-2]", rails: 0-3, leaves: "p2-[0-3]"}
  - {name: "q1-n[1-2]", rails: 0-3, leaves: "q1-[0-3]"}
  - {name: "p1-short", rails: 0-1, leaves: "p1-[0-1]"}
  - {name: "p1-odd", rails: 0-3, leaves: "p1-[0-2],p2-3"}
  - {name: "far", rails: 0-3, leaf: alone}
"""


def published(found: Found) -> ClusterState:
    """What a service knows that has heard the fabric's records."""
    inventory = replan(Inventory(), found.imported().graph, config(), lambda _node: False)
    assert isinstance(inventory, Inventory), inventory
    state = ClusterState()
    for sequence, record in enumerate(difference(Inventory(), inventory), 1):
        state.apply_event(record, sequence, FABRIC)
    return state


def real(provider: str, file: str) -> ClusterState:
    if not FILES.exists():
        pytest.skip(f"no real fabric files at {FILES}")
    return published(PROVIDERS[provider].read({file: (FILES / file).read_bytes()}, ImportOptions()))


def between(state: ClusterState, one: str, other: str) -> Distance:
    found = state.distance(NodeName(one), NodeName(other))
    assert state.distance(NodeName(other), NodeName(one)) is found
    return found


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("p1-n1", "p1-n1", Distance.SAME_NODE),
        ("p1-n1", "p1-n2", Distance.SAME_LEAF),
        ("p1-n1", "p1-short", Distance.SAME_LEAF),
        ("p1-n1", "p1-odd", Distance.SAME_POD),
        ("p1-n1", "p2-n1", Distance.SAME_POD),
        ("p1-n1", "q1-n1", Distance.SAME_ISLAND),
        ("p1-n1", "far", Distance.UNREACHABLE),
        ("p1-n1", "ghost", Distance.UNREACHABLE),
    ],
)
def test_a_fat_tree_of_rail_optimised_units(one: str, other: str, expected: Distance) -> None:
    assert between(published(Found(read_cabling(FAT_TREE, "fabric.yaml"))), one, other) is expected


def test_trunks_without_a_common_root_do_not_reach_each_other() -> None:
    state = real("slurm", "slurm_disconnected.topology.conf")
    apart = {other: between(state, "node1", other) for other in ("node2", "node9", "node17", "node33")}
    assert list(apart.values()) == [Distance.SAME_LEAF, Distance.SAME_POD, Distance.UNREACHABLE, Distance.UNREACHABLE]


def test_leaves_under_one_spine_are_nearer_than_those_across_the_core() -> None:
    state = real("topograph", "topograph_large.yaml")
    apart = [between(state, "srv1101", other) for other in ("srv1108", "srv1201", "srv2101")]
    assert apart == [Distance.SAME_LEAF, Distance.SAME_POD, Distance.SAME_ISLAND]


def test_units_of_an_infiniband_fabric_of_two_tiers_are_one_pod() -> None:
    state = real("ibnetdiscover", "ibnetdiscover_h100.txt")
    unit = "a08-p1-dgx-04"
    assert between(state, f"{unit}-c01", f"{unit}-c17") is Distance.SAME_LEAF
    assert between(state, f"{unit}-c01", "b05-p1-dgx-05-c01") is Distance.SAME_POD


def test_a_record_of_a_node_stays_small() -> None:
    """Two names say how near it is: nothing grows with the fabric."""
    state = real("slurm", "slurm_10000_nodes.topology.conf")
    sizes = [len(FabricNode.model_dump_json(node.fabric)) for node in state.nodes.values() if node.fabric is not None]
    assert len(sizes) == 10_000
    assert max(sizes) < 400
