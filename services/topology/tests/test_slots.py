"""Slots and ordinals are lasting."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.contracts.types import NodeName
from railweave.topology.model import LeafRail
from railweave.topology.slots import Assignment, assign
from railweave_testing.fabrics import Cabling, cablings, fabric, regular


def nobody(_node: NodeName) -> bool:
    return False


def everybody(_node: NodeName) -> bool:
    return True


def given_to(
    previous: Assignment, cabling: Cabling, *, capacity: int = 1000, claimed: frozenset[str] | None = frozenset()
) -> Assignment:
    graph = fabric(cabling)
    places = {LeafRail(port.leaf, port.rail): capacity for _, port in graph.compute_ports}
    return assign(
        previous, graph, capacity=places, is_claimed=everybody if claimed is None else lambda node: node in claimed
    )


def slot(assignment: Assignment, node: str, rail: int = 0) -> int:
    return next(int(at.slot) for at in assignment.nodes[NodeName(node)].attachments if at.rail == rail)


def test_slots_count_from_zero_in_the_order_of_names() -> None:
    found = given_to(Assignment(), regular(["leaf1"], 3, 2))
    assert [slot(found, f"leaf1-n{number}", rail) for rail in (0, 1) for number in (1, 2, 3)] == [0, 1, 2, 0, 1, 2]
    assert [node.ordinal for node in found.nodes.values()] == [0, 1, 2]


def test_a_node_that_comes_later_changes_nobody_elses_slot() -> None:
    before = given_to(Assignment(), {"b": {0: "leaf1"}, "c": {0: "leaf1"}})
    after = given_to(before, {"a": {0: "leaf1"}, "b": {0: "leaf1"}, "c": {0: "leaf1"}})
    assert [slot(after, name) for name in "abc"] == [2, 0, 1]


def test_a_moved_node_gets_its_slot_back_when_it_returns() -> None:
    start = given_to(Assignment(), {name: {0: "leaf1"} for name in "abc"})
    moved = given_to(start, {"a": {0: "leaf1"}, "b": {0: "leaf2"}, "c": {0: "leaf1"}})
    assert [(str(at.leaf), int(at.slot)) for at in moved.nodes[NodeName("b")].former] == [("leaf1", 1)]
    newcomer = given_to(moved, {"a": {0: "leaf1"}, "b": {0: "leaf2"}, "c": {0: "leaf1"}, "d": {0: "leaf1"}})
    assert slot(newcomer, "d") == 3
    back = given_to(newcomer, {name: {0: "leaf1"} for name in "abcd"})
    assert slot(back, "b") == 1


def test_a_former_slot_is_used_again_only_when_the_subnet_is_full_and_nothing_is_claimed_on_it() -> None:
    start = given_to(Assignment(), {"a": {0: "leaf1"}, "b": {0: "leaf1"}}, capacity=2)
    gone = given_to(start, {"b": {0: "leaf1"}}, capacity=2)
    in_use = given_to(gone, {"b": {0: "leaf1"}, "c": {0: "leaf1"}}, capacity=2, claimed=frozenset("a"))
    assert slot(in_use, "c") == 2, "past the capacity: the subnet has to grow"
    free = given_to(gone, {"b": {0: "leaf1"}, "c": {0: "leaf1"}}, capacity=2)
    assert slot(free, "c") == 0
    assert free.nodes[NodeName("a")].former == ()


def test_a_node_that_left_keeps_its_ordinal() -> None:
    start = given_to(Assignment(), {"a": {0: "leaf1"}, "b": {0: "leaf1"}})
    gone = given_to(start, {"b": {0: "leaf1"}})
    later = given_to(gone, {"b": {0: "leaf1"}, "c": {0: "leaf1"}})
    back = given_to(later, {name: {0: "leaf1"} for name in "abc"})
    assert [back.nodes[NodeName(name)].ordinal for name in "abc"] == [0, 1, 2]


def test_two_owners_of_a_slot_are_told_apart_and_the_one_in_use_keeps_it() -> None:
    one = given_to(Assignment(), {"a": {0: "leaf1"}})
    other = given_to(Assignment(), {"b": {0: "leaf1"}})
    torn = Assignment({**one.nodes, **other.nodes})
    mended = given_to(torn, {"a": {0: "leaf1"}, "b": {0: "leaf1"}}, claimed=frozenset("b"))
    assert (slot(mended, "a"), slot(mended, "b")) == (1, 0)
    assert mended.nodes[NodeName("a")].ordinal != mended.nodes[NodeName("b")].ordinal


def _check(assignment: Assignment) -> None:
    owners: dict[tuple[LeafRail, int], NodeName] = {}
    for name, node in assignment.nodes.items():
        for at in node.everywhere():
            key = (LeafRail(at.leaf, at.rail), int(at.slot))
            assert owners.setdefault(key, name) == name
    ordinals = [node.ordinal for node in assignment.nodes.values()]
    assert len(set(ordinals)) == len(ordinals)


@settings(max_examples=50, deadline=None)
@given(st.lists(cablings(), min_size=1, max_size=5), st.integers(1, 8), st.data())
def test_slots_never_change_while_in_use_whatever_is_re_cabled(
    history: list[dict[str, dict[int, str]]], capacity: int, data: st.DataObject
) -> None:
    assignment = Assignment()
    for cabling in history:
        claimed = (
            data.draw(st.frozensets(st.sampled_from(sorted(assignment.nodes)))) if assignment.nodes else frozenset()
        )
        following = given_to(assignment, cabling, capacity=capacity, claimed=claimed)
        _check(following)
        for name, node in assignment.nodes.items():
            assert following.nodes[name].ordinal == node.ordinal
            had = {(LeafRail(at.leaf, at.rail), int(at.slot)) for at in node.everywhere()}
            has = {(LeafRail(at.leaf, at.rail), int(at.slot)) for at in following.nodes[name].everywhere()}
            stays = {(LeafRail(at.leaf, at.rail), int(at.slot)) for at in node.attachments} & {
                (LeafRail(leaf, rail), slot) for rail, leaf in cabling.get(name, {}).items() for slot in range(20)
            }
            assert stays <= has
            if name in claimed:
                assert had <= has
        assignment = following


@settings(max_examples=50, deadline=None)
@given(cablings(), st.randoms(use_true_random=False))
def test_the_order_of_the_file_means_nothing(cabling: dict[str, dict[int, str]], rng: random.Random) -> None:
    first = given_to(Assignment(), cabling)
    shuffled = list(cabling.items())
    rng.shuffle(shuffled)
    assert given_to(first, dict(shuffled)) == first
    assert given_to(Assignment(), dict(shuffled)) == first
