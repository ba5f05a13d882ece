"""What is free by count: a table of what could fit beside what, and a law that it never says no wrongly."""

from __future__ import annotations

import pytest
from desk import Desk, small_cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.contracts.desired import NodeMode
from railweave.contracts.types import NodeName
from railweave.jobs.room import Room, demand_of
from railweave_testing.clusters import ClusterBuilder, spec


def room(desk: Desk, *avoid: str) -> Room:
    return Room(desk.state.nodes.values(), desk.book.ledger, frozenset(NodeName(name) for name in avoid))


def desk_of(*gpus: int) -> Desk:
    builder = ClusterBuilder()
    for index, count in enumerate(gpus):
        builder.node(f"n{index}", gpus=count, rails=2, vfs=8)
    return Desk(builder=builder)


@pytest.mark.parametrize(
    ("gpus", "wants", "fits"),
    [
        ((2, 2), {"workers": 2, "gpus": 2}, True),
        ((2, 1), {"workers": 2, "gpus": 2}, False),
        ((2, 2), {"workers": 3, "gpus": 1}, False),
        ((4,), {"workers": 2, "per_node": 2, "gpus": 2}, True),
        ((4,), {"workers": 3, "per_node": 2, "gpus": 1}, False),
        ((4, 1), {"workers": 3, "per_node": 2, "gpus": 1}, True),
        ((1,), {"workers": 4, "per_node": 4, "gpus": 1, "gpu_fraction_milli": 250}, True),
        ((1,), {"workers": 5, "per_node": 5, "gpus": 1, "gpu_fraction_milli": 250}, False),
        ((0,), {"workers": 1}, True),
        ((), {"workers": 1}, False),
        ((4, 1), {"workers": [{"count": 1, "gpus": 4}, {"count": 1, "gpus": 1}]}, True),
        ((4, 1), {"workers": [{"count": 1, "gpus": 4}, {"count": 1, "gpus": 2}]}, False),
    ],
)
def test_what_fits_an_empty_cluster(gpus: tuple[int, ...], wants: dict[str, object], fits: bool) -> None:
    assert room(desk_of(*gpus)).could_fit(demand_of(spec(**wants))) is fits


@pytest.mark.parametrize(
    ("aside", "wants", "fits"),
    [
        ([{"workers": 2, "gpus": 4}], {"workers": 1, "gpus": 1}, False),
        ([{"workers": 1, "gpus": 4}], {"workers": 1, "gpus": 4}, True),
        ([{"workers": 1, "gpus": 4}], {"workers": 2, "gpus": 1}, True),  # the four may go to either node
        ([{"workers": 2, "gpus": 3}], {"workers": 1, "gpus": 2}, True),  # packing would say no
        ([{"workers": 2, "gpus": 3}], {"workers": 2, "gpus": 1}, True),
        ([{"workers": 1, "gpus": 3}, {"workers": 1, "gpus": 3}], {"workers": 1, "gpus": 3}, False),
        ([{"workers": 2, "gpus": 4}], {"workers": 2}, True),
    ],
)
def test_what_fits_beside_jobs_that_are_asked_for(
    aside: list[dict[str, object]], wants: dict[str, object], fits: bool
) -> None:
    free = room(desk_of(4, 4))
    for other in aside:
        free.set_aside(demand_of(spec(**other)))
    assert free.could_fit(demand_of(spec(**wants))) is fits


def test_nodes_that_are_kept_or_out_of_service_do_not_count() -> None:
    desk = desk_of(2, 2)
    wanted = demand_of(spec(workers=2, gpus=1))
    assert room(desk).could_fit(wanted)
    assert not room(desk, "n0").could_fit(wanted)
    desk.mode("n1", NodeMode.CORDONED)
    assert not room(desk).could_fit(wanted)


def test_a_node_somebody_has_alone_has_nothing_free() -> None:
    desk = desk_of(2)
    desk.place("alone", workers=1, exclusive=True)
    assert not room(desk).could_fit(demand_of(spec(workers=1)))


def test_who_wants_nodes_alone_needs_them_empty() -> None:
    desk = desk_of(2, 2)
    desk.place("runs", workers=1)
    assert room(desk).could_fit(demand_of(spec(workers=1, exclusive=True)))
    assert not room(desk).could_fit(demand_of(spec(workers=2, exclusive=True)))


@settings(max_examples=200, deadline=None)
@given(jobs=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(1, 2)), min_size=1, max_size=8))
def test_it_never_says_no_to_what_fits(jobs: list[tuple[int, int, int]]) -> None:
    """Jobs that the desk places one after the other must have fitted beside those before, by count."""
    desk = Desk(builder=small_cluster(4))
    empty = room(desk)
    for number, (workers, gpus, per_node) in enumerate(jobs):
        wants = {"workers": workers, "gpus": gpus, "per_node": per_node}
        demand = demand_of(spec(**wants))
        before = room(desk)
        desk.submit(f"j{number}", **wants)
        desk.propose(f"j{number}", most=3)
        if desk.has_head(f"j{number}") and desk.placements(f"j{number}"):
            assert before.could_fit(demand)
            assert empty.could_fit(demand)
            empty.set_aside(demand)
