"""The terms of a score, one by one: each 0 to 1, and 1 is good."""

from __future__ import annotations

import pytest

from railweave.cache.model import Occupancy, Shape, SlotNeed
from railweave.cache.score import gpu_fit, has_data, leaf_fit, locality, nothing_lost
from railweave.cache.text import amount
from railweave.runtime.gpu_shares import Card, GpuNeed


def shape(*free: int) -> Shape:
    cards = tuple(Card("H100", 81_559, milli) for milli in free)
    return Shape(True, True, Occupancy.EMPTY, frozenset(), cards, 0, 0)


def need(gpus: int, milli: int | None = None) -> SlotNeed:
    gpu = GpuNeed(workers=1, gpus=gpus, fraction_milli=milli or 1000, is_shared=milli is not None) if gpus else None
    return SlotNeed(workers=1, gpu=gpu)


@pytest.mark.parametrize(
    ("free", "gpus", "milli", "expected"),
    [
        ((1000, 1000), 2, None, 1.0),
        ((1000, 1000, 1000, 1000), 2, None, 0.75),
        ((0, 0, 1000, 1000), 2, None, 1.0),
        ((1000, 500), 1, 500, 0.75),
        ((1000, 400), 1, 500, 0.5 * (1 - 900 / 2000)),
        ((), 0, None, 1.0),
        ((1000, 1000), 0, None, 0.0),
        ((0, 0), 0, None, 1.0),
    ],
)
def test_gpu_fit_is_better_the_less_is_left_over_and_where_no_empty_card_is_split(
    free: tuple[int, ...], gpus: int, milli: int | None, expected: float
) -> None:
    assert gpu_fit(shape(*free), need(gpus, milli)) == pytest.approx(expected)


def test_data_there_counts_by_bytes_and_a_job_without_data_has_all_of_it() -> None:
    assert has_data(25.0, 100) == 0.25
    assert has_data(0.0, 0) == 1.0


def test_losing_what_is_worth_as_much_as_what_comes_is_a_half() -> None:
    assert nothing_lost(0.0, 100) == 1.0
    assert nothing_lost(100.0, 100) == 0.5
    assert nothing_lost(300.0, 100) == 0.25


@pytest.mark.parametrize(
    ("leaves", "pods", "fewest", "preferred", "expected"),
    [
        (1, 1, 1, "leaf", 1.0),
        (2, 1, 1, "leaf", 0.5),
        (2, 2, 1, "leaf", 0.25),
        (8, 1, 8, "leaf", 1.0),
        (5, 1, 1, "pod", 1.0),
        (5, 2, 1, "pod", 0.5),
        (9, 9, 1, "island", 1.0),
    ],
)
def test_locality_falls_with_leaves_and_pods_beyond_what_is_preferred(
    leaves: int, pods: int, fewest: int, preferred: str, expected: float
) -> None:
    assert locality(leaves, pods, fewest, preferred) == pytest.approx(expected)


def test_a_leaf_that_is_used_up_fits_best() -> None:
    assert leaf_fit(4, 4, 32) == 1.0
    assert leaf_fit(32, 4, 32) == 0.125


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (2**30, "1 GiB"),
        (2**30 - 1, "1023 MiB"),
        (1_319_413_953_331, "1.1 TiB"),
        (900 * 2**30, "900 GiB"),
        (-(2**31), "-2 GiB"),
    ],
)
def test_amounts_are_rounded_down(size: int, text: str) -> None:
    assert amount(size) == text
