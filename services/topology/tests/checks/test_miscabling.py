"""NIC i of every node of a unit goes to leaf i of that unit: who is found, and who is left in peace."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.topology.cabling import Cable, CablingBuilder, Device, End, Kind, Where
from railweave.topology.checks import Finding, FindingKind, check
from railweave.topology.providers.base import Found


@dataclass
class Fabric:
    """Nodes by name, each with the leaf of every NIC."""

    rows: dict[str, list[str]] = field(default_factory=dict)
    nics: dict[str, list[str]] = field(default_factory=dict)
    by_rail: bool = False

    def add(self, prefix: str, count: int, leaves: list[str], nics: list[str] | None = None) -> Fabric:
        for number in range(1, count + 1):
            self.rows[f"{prefix}-{number}"] = list(leaves)
            self.nics[f"{prefix}-{number}"] = nics or [f"mlx5_{place}" for place in range(len(leaves))]
        return self

    def units(self, units: int, nodes: int, rails: int, *, leaves: int | None = None) -> Fabric:
        """Rail-optimised units; rail i on leaf i, or on fewer leaves than rails."""
        for unit in range(units):
            self.add(f"u{unit}", nodes, [f"leaf-u{unit}-{rail % (leaves or rails)}" for rail in range(rails)])
        return self

    def findings(self) -> tuple[Finding, ...]:
        found = CablingBuilder()
        for number, (node, leaves) in enumerate(self.rows.items()):
            where = Where("fabric", number + 1)
            found.mention(Device(node, Kind.HOST, where))
            for rail, (leaf, nic) in enumerate(zip(leaves, self.nics[node], strict=True)):
                found.mention(Device(leaf, Kind.SWITCH, where))
                told = (None, rail) if self.by_rail else (nic or None, None)
                found.cable(Cable(End(node, told[0]), End(leaf, f"to-{node}-{rail}"), where, rail=told[1]))
        return tuple(one for one in check(Found(found.built())) if one.kind is not FindingKind.ISLAND)

    def miscabled(self) -> dict[tuple[str, str | None], str]:
        findings = self.findings()
        assert {finding.kind for finding in findings} <= {FindingKind.MISCABLING}
        return {(finding.device, finding.port): finding.expected for finding in findings}


REGULAR = {
    "a leaf for each rail": Fabric().units(4, 8, 8),
    "two rails a leaf": Fabric().units(3, 8, 8, leaves=4),
    "all rails on one leaf": Fabric().units(6, 4, 4, leaves=1),
    "one NIC a node": Fabric().units(8, 6, 1),
    "half-full units": Fabric().units(3, 8, 8).add("half", 2, [f"leaf-half-{rail}" for rail in range(8)]),
    "a unit of one node": Fabric().units(2, 8, 8).add("alone", 1, [f"leaf-alone-{rail}" for rail in range(8)]),
    "a unit without its fourth leaf": Fabric().units(2, 8, 8).add("short", 8, [f"leaf-s-{rail}" for rail in range(7)]),
    "storage servers with two NICs on leaves of a unit": Fabric()
    .units(2, 8, 8)
    .add("store", 2, ["leaf-u0-3", "leaf-u0-4"]),
    "hosts of an older kind with every second rail": Fabric()
    .units(1, 16, 8)
    .add("old", 4, [f"leaf-u0-{rail}" for rail in (0, 2, 4, 6)]),
    "rails the other way round in half of the nodes": Fabric()
    .add("a", 6, ["left", "left", "right", "right"])
    .add("b", 5, ["right", "right", "left", "left"]),
    "pairs of leaves in a ring": Fabric()
    .add("a", 10, ["leaf-1", "leaf-2"])
    .add("b", 10, ["leaf-2", "leaf-3"])
    .add("c", 8, ["leaf-3", "leaf-1"]),
    "a rail on two leaves, as one has too few ports": Fabric()
    .add("a", 12, ["leaf-0", "leaf-1", "leaf-2", "leaf-3"])
    .add("b", 8, ["leaf-0", "leaf-1", "leaf-2", "leaf-3b"]),
    "two nodes that differ": Fabric().add("a", 1, ["x", "y", "z", "w"]).add("b", 1, ["x", "y", "z", "v"]),
    "NICs named otherwise on half of the nodes": Fabric()
    .add("a", 8, ["leaf-0", "leaf-1", "leaf-2", "leaf-3"])
    .add("b", 8, ["leaf-0", "leaf-1", "leaf-2", "leaf-3"], ["HCA-1", "HCA-2", "HCA-3", "HCA-4"]),
    "NICs without names": Fabric().add("a", 8, ["leaf-0", "leaf-1", "leaf-2"], ["", "", ""]),
}


@pytest.mark.parametrize("fabric", REGULAR.values(), ids=REGULAR)
def test_nothing_is_wrong_with_a_regular_fabric(fabric: Fabric) -> None:
    assert fabric.findings() == ()
    assert replace(fabric, by_rail=True).findings() == ()


def test_a_nic_on_the_leaf_of_another_rail_is_named_with_where_it_belongs() -> None:
    fabric = Fabric().units(2, 8, 8)
    fabric.rows["u1-3"][5] = "leaf-u1-2"
    (finding,) = fabric.findings()
    assert finding.kind is FindingKind.MISCABLING
    assert (finding.device, finding.port) == ("u1-3", "mlx5_5")
    assert finding.expected == "leaf leaf-u1-5, as on 7 nodes that share its other leaves"
    assert finding.text.startswith("u1-3 mlx5_5: is on leaf-u1-2:to-u1-3-5, expected leaf-u1-5")
    assert str(finding.where) == "fabric:11"
    assert finding.is_error


def test_two_nics_swapped_on_one_node_are_both_found() -> None:
    fabric = Fabric().units(1, 4, 2)
    fabric.rows["u0-2"].reverse()
    assert set(fabric.miscabled()) == {("u0-2", "mlx5_0"), ("u0-2", "mlx5_1")}


def test_a_nic_in_another_unit_is_found_and_one_in_a_unit_nobody_knows() -> None:
    fabric = Fabric().units(3, 6, 4)
    fabric.rows["u0-1"][1] = "leaf-u2-1"
    fabric.rows["u1-4"][2] = "spare"
    assert set(fabric.miscabled()) == {("u0-1", "mlx5_1"), ("u1-4", "mlx5_2")}


def test_a_cable_out_is_no_miscabling_and_hides_none() -> None:
    fabric = Fabric().units(1, 8, 8)
    del fabric.rows["u0-1"][2], fabric.nics["u0-1"][2]
    assert fabric.findings() == ()
    fabric.rows["u0-1"][4] = "leaf-u0-0"
    assert set(fabric.miscabled()) == {("u0-1", "mlx5_5")}


def test_half_of_two_nics_in_another_unit_says_that_it_cannot_tell_which() -> None:
    fabric = Fabric().units(2, 8, 2)
    fabric.rows["u0-1"][1] = "leaf-u1-1"
    assert fabric.miscabled() == {
        ("u0-1", None): "all NICs on leaf-u0-0, leaf-u0-1 or leaf-u1-0, leaf-u1-1",
    }


def test_every_node_with_another_fault_still_leaves_a_majority_a_nic() -> None:
    fabric = Fabric().units(1, 4, 8)
    for node, rail in (("u0-1", 0), ("u0-2", 1), ("u0-3", 2), ("u0-4", 3)):
        fabric.rows[node][rail] = "elsewhere"
    assert set(fabric.miscabled()) == {("u0-1", "mlx5_0"), ("u0-2", "mlx5_1"), ("u0-3", "mlx5_2"), ("u0-4", "mlx5_3")}


def test_a_nic_without_a_name_is_found_by_the_leaf_that_it_is_missed_on() -> None:
    fabric = Fabric().add("a", 8, ["leaf-0", "leaf-1", "leaf-2"], ["", "", ""])
    fabric.rows["a-3"] = ["leaf-0", "leaf-9", "leaf-2"]
    ((device, port), expected) = next(iter(fabric.miscabled().items()))
    assert (device, port) == ("a-3", "a NIC")
    assert expected.startswith("leaf leaf-1,")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_exactly_the_cables_that_were_swapped_are_found(data: st.DataObject) -> None:
    """Random rail-optimised fabrics; at most a quarter of the nodes of a unit have a cable in the wrong place."""
    units, nodes, rails = (data.draw(st.integers(*bounds)) for bounds in ((1, 5), (4, 12), (3, 8)))
    fabric = Fabric(by_rail=data.draw(st.booleans())).units(units, nodes, rails)
    right = {node: list(leaves) for node, leaves in fabric.rows.items()}
    free = {unit: [f"u{unit}-{number}" for number in range(1, nodes + 1)] for unit in range(units)}
    left = dict.fromkeys(free, nodes // 4)
    for _ in range(data.draw(st.integers(0, units * 2))):
        one, other = data.draw(st.tuples(st.sampled_from(sorted(free)), st.sampled_from(sorted(free))))
        touched = 1 if one == other and data.draw(st.booleans()) else 2
        if left[one] < (touched if one == other else 1) or left[other] < 1:
            continue
        first = free[one].pop(data.draw(st.integers(0, len(free[one]) - 1)))
        second = first if touched == 1 else free[other].pop(data.draw(st.integers(0, len(free[other]) - 1)))
        left[one] -= 1
        left[other] -= touched == 2
        mine, theirs = data.draw(st.tuples(st.integers(0, rails - 1), st.integers(0, rails - 1)))
        rows = fabric.rows
        rows[first][mine], rows[second][theirs] = rows[second][theirs], rows[first][mine]
    swapped: dict[tuple[str, str | None], str] = {
        (node, f"rail {rail}" if fabric.by_rail else f"mlx5_{rail}"): right[node][rail]
        for node, rail in product(right, range(rails))
        if fabric.rows[node][rail] != right[node][rail]
    }
    found = fabric.miscabled()
    assert set(found) == set(swapped)
    for port, expected in found.items():
        assert expected.startswith(f"leaf {swapped[port]},")


@pytest.mark.parametrize(
    "leaf_of",
    [
        lambda node, nic: f"leaf-{nic}" if nic else f"own-{node}",
        lambda node, nic: f"leaf-{node * 7919 * (nic + 3) % 16}",
        lambda node, nic: f"leaf-{node // 50}-{nic}",
    ],
    ids=["a leaf of one's own", "no order at all", "units"],
)
def test_eight_times_the_nodes_take_eight_times_as_long(leaf_of: Callable[[int, int], str]) -> None:
    """A unit of nodes that each had a leaf of their own once took the square of their number."""

    def seconds(nodes: int) -> float:
        fabric = Fabric()
        for node in range(nodes):
            fabric.rows[f"n{node}"] = [leaf_of(node, nic) for nic in range(4)]
            fabric.nics[f"n{node}"] = [f"mlx5_{nic}" for nic in range(4)]
        start = time.process_time()
        fabric.findings()
        return time.process_time() - start

    assert seconds(4_000) < 8 * 3 * max(seconds(500), 0.01)
