"""Which cards of a node are taken."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.gpu.choose import best_fit
from railweave.gpu.model import DeviceState
from railweave.runtime.gpu_shares import Card, GpuNeed


def devices(*free: int, sick: tuple[int, ...] = (), memory_mib: int = 81_559) -> list[DeviceState]:
    """Cards with these thousandths free; four to a NUMA node, two to a PCIe root."""
    return [
        DeviceState(index, "H100", memory_mib, milli, index not in sick, index // 4, f"root-{index // 2}")
        for index, milli in enumerate(free)
    ]


def whole(gpus: int, workers: int = 1) -> GpuNeed:
    return GpuNeed(workers=workers, gpus=gpus)


def fraction(milli: int, gpus: int = 1, workers: int = 1, memory_mib: int = 0) -> GpuNeed:
    return GpuNeed(workers=workers, gpus=gpus, fraction_milli=milli, memory_mib=memory_mib, is_shared=True)


def indices(cards: list[DeviceState], need: GpuNeed) -> list[list[int]] | None:
    chosen = best_fit(cards, need)
    return None if chosen is None else [[share.gpu for share in mine] for mine in chosen]


def test_two_whole_cards_are_of_one_pcie_root() -> None:
    assert indices(devices(0, 1000, 1000, 1000), whole(2)) == [[2, 3]]


def test_four_whole_cards_are_of_one_numa_node() -> None:
    assert indices(devices(1000, 1000, 0, 1000, 1000, 1000, 1000, 1000), whole(4)) == [[4, 5, 6, 7]]


def test_a_single_card_comes_from_the_pair_that_is_broken_already() -> None:
    assert indices(devices(1000, 1000, 0, 1000), whole(1)) == [[3]]


def test_workers_on_one_node_each_get_neighbours() -> None:
    assert indices(devices(*[1000] * 8), whole(2, workers=4)) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_worker_does_not_get_cards_of_two_models_where_one_model_has_enough() -> None:
    cards = [
        DeviceState(index, model, 81_559, 1000)
        for index, model in enumerate(["A10", "A10", "A10", "H100", "H100", "H100", "H100"])
    ]
    assert indices(cards, whole(4)) == [[3, 4, 5, 6]]


def test_a_whole_card_is_never_a_split_or_sick_one() -> None:
    assert indices(devices(999, 1000, 1000, sick=(1,)), whole(1)) == [[2]]
    assert indices(devices(999, 1000, sick=(1,)), whole(1)) is None


def test_a_fraction_goes_to_the_split_card_it_leaves_least_of() -> None:
    assert indices(devices(1000, 700, 500, 300), fraction(400)) == [[2]]


def test_a_fraction_splits_an_empty_card_only_where_no_split_one_has_room() -> None:
    assert indices(devices(1000, 300), fraction(400)) == [[0]]


def test_a_worker_never_gets_one_card_twice() -> None:
    assert indices(devices(1000, 400), fraction(400, gpus=2)) == [[0, 1]]
    assert indices(devices(1000), fraction(400, gpus=2)) is None


def test_best_fit_that_paints_itself_into_a_corner_is_not_the_last_word() -> None:
    # Best fit gives the first worker both small cards; the second then finds one card only.
    assert indices(devices(900, 300, 300), fraction(300, gpus=2, workers=2)) == [[0, 1], [0, 2]]


def test_memory_becomes_thousandths_rounded_up_by_the_real_size_of_the_card() -> None:
    chosen = best_fit(devices(1000), fraction(1, memory_mib=8192))
    assert chosen is not None
    assert int(chosen[0][0].milli) == 101


def test_a_card_with_too_little_memory_will_not_do() -> None:
    assert indices(devices(1000, memory_mib=16_384), GpuNeed(workers=1, gpus=1, memory_mib=20_000)) is None


needs = st.builds(
    GpuNeed,
    workers=st.integers(1, 4),
    gpus=st.integers(1, 3),
    fraction_milli=st.integers(1, 1000),
    memory_mib=st.sampled_from([0, 0, 4096, 40_000]),
    is_shared=st.booleans(),
)
cards = st.lists(
    st.builds(
        DeviceState,
        index=st.just(0),
        model=st.sampled_from(["H100", "A10"]),
        memory_mib=st.sampled_from([24_576, 81_559]),
        free_milli=st.one_of(st.integers(0, 1000), st.just(1000)),
        healthy=st.sampled_from([True, True, True, False]),
        numa_node=st.sampled_from([None, 0, 1]),
        pcie_root=st.sampled_from([None, "a", "b"]),
    ),
    max_size=6,
).map(lambda found: [_with_index(device, index) for index, device in enumerate(found)])


def _with_index(device: DeviceState, index: int) -> DeviceState:
    return replace(device, index=index)


@given(cards, needs)
@settings(deadline=None)
def test_nothing_is_given_beyond_what_is_free_and_everybody_gets_all_or_nobody_anything(
    found: list[DeviceState], need: GpuNeed
) -> None:
    chosen = best_fit(found, need)
    if chosen is None:
        return
    assert len(chosen) == need.workers
    left = {device.index: device.free_milli for device in found}
    by_index = {device.index: device for device in found}
    for mine in chosen:
        assert len({share.gpu for share in mine}) == need.gpus
        for share in mine:
            device = by_index[share.gpu]
            assert device.healthy
            assert int(share.milli) == need.milli_of(device.model, device.memory_mib) > 0
            left[share.gpu] -= int(share.milli)
    assert min(left.values()) >= 0


@given(cards, needs)
@settings(deadline=None)
def test_cards_are_found_exactly_where_the_choice_of_nodes_says_that_they_fit(
    found: list[DeviceState], need: GpuNeed
) -> None:
    fits = need.fits(Card(d.model, d.memory_mib, d.free_milli) for d in found if d.healthy)
    assert (best_fit(found, need) is not None) == fits


@given(cards.filter(lambda found: len(found) <= 4), needs.filter(lambda need: need.workers <= 2))
@settings(deadline=None)
def test_what_is_said_not_to_fit_does_not_fit_any_way(found: list[DeviceState], need: GpuNeed) -> None:
    def search(left: dict[int, int], workers: int) -> bool:
        if not workers:
            return True
        able = [index for index, free in left.items() if 0 < milli[index] <= free]
        return any(
            search({index: free - milli[index] * (index in mine) for index, free in left.items()}, workers - 1)
            for mine in combinations(able, need.gpus)
        )

    healthy = [device for device in found if device.healthy]
    milli = {device.index: need.milli_of(device.model, device.memory_mib) for device in healthy}
    possible = search({device.index: device.free_milli for device in healthy}, need.workers)
    assert (best_fit(found, need) is not None) == possible
