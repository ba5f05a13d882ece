"""Amounts and ages as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from railweave.cli import words


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "?"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (610 * 2**30, "610 GiB"), (2**60, "1024 PiB")],
)
def test_bytes_are_said_in_binary_units_and_unknown_is_not_zero(count: int | None, text: str) -> None:
    assert words.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (40, "40 s"), (14 * 60, "14 min"), (3 * 3600, "3 h 00"), (30 * 3600, "30 h"), (5 * 86400, "5 d")],
)
def test_a_duration_has_one_or_two_numbers(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


def test_an_age_of_what_never_was_is_a_dash() -> None:
    now = datetime(2026, 12, 1, 10, tzinfo=UTC)
    assert words.age(None, now) == "-"
    assert words.age(now - timedelta(minutes=14), now) == "14 min"


@pytest.mark.parametrize(("milli", "text"), [(8000, "8"), (0, "0"), (460, "0.46"), (1500, "1.5")])
def test_thousandths_are_said_as_gpus(milli: int, text: str) -> None:
    assert words.gpus(milli) == text


def test_a_long_list_of_names_is_cut_and_counted() -> None:
    assert words.names([f"n{number}" for number in range(6)]) == "n0 n1 n2 n3 +2"
    assert words.names(["n0"]) == "n0"
