"""What the broker says beside a message, read."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from railweave.runtime.jsapi import parse_time
from railweave.runtime.pull import delivered_as


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.ACK.JOBS.work.2.17.5.1790000000123456789.3",
        "$JS.ACK.hub.ACCHASH.JOBS.work.2.17.5.1790000000123456789.3",
        "$JS.ACK.hub.ACCHASH.JOBS.work.2.17.5.1790000000123456789.3.random",
    ],
)
def test_acknowledgement_subject_is_read_in_its_old_and_new_form(reply: str) -> None:
    delivered = delivered_as(reply)
    assert (delivered.attempt, delivered.stream_sequence, delivered.consumer_sequence, delivered.pending) == (
        2,
        17,
        5,
        3,
    )
    assert delivered.stored_at == datetime.fromtimestamp(1790000000, UTC).replace(microsecond=123456)


def test_times_of_deliveries_and_of_reads_are_the_same_instant() -> None:
    """A follower compares one with the other to know its stream again."""
    nanoseconds = 1790000000_999999_999
    delivered = delivered_as(f"$JS.ACK.S.c.1.1.1.{nanoseconds}.0")
    assert parse_time("2026-09-21T14:13:20.999999999Z") == delivered.stored_at


@pytest.mark.parametrize(("text", "microsecond"), [("2026-12-01T00:00:00Z", 0), ("2026-12-01T00:00:00.5Z", 500000)])
def test_short_fractions_of_seconds_are_read(text: str, microsecond: int) -> None:
    assert parse_time(text) == datetime(2026, 12, 1, microsecond=microsecond, tzinfo=UTC)
