"""What became of jobs, folded from their events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from railweave.cli.replay.leaks import Leaks, Moved
from railweave.cli.replay.ledger import Ledger, Stage, percentile
from railweave.cli.replay.outcome import outcome, outcome_table
from railweave.contracts.query import CountsAnswer

BEGIN = datetime(2026, 12, 1, tzinfo=UTC)


def at(milliseconds: int) -> datetime:
    return BEGIN + timedelta(milliseconds=milliseconds)


def told(*events: tuple[str, str, int]) -> Ledger:
    ledger = Ledger()
    for name, job, when in events:
        event, _, rest = name.partition("!")
        data = {"reasons": [{"code": rest}]} if rest not in {"", "requeued"} else {"requeued": rest == "requeued"}
        ledger.take(event, job, data, at(when))
    return ledger


LIFE = (
    ("submitted", "a", 0),
    ("placed", "a", 10),
    ("prepared", "a", 25),
    ("attached", "a", 30),
    ("released", "a", 100),
)


def test_a_whole_life_is_counted_once_with_its_times() -> None:
    ledger = told(*LIFE)
    assert (ledger.ended, ledger.prepared) == (1, 1)
    assert ledger.milliseconds_to(Stage.PLACED) == [10]
    assert ledger.milliseconds_to(Stage.PREPARED) == [25]
    assert ledger.busy_s == pytest.approx(0.1)


def test_a_job_that_is_given_back_waits_again_and_keeps_its_first_time() -> None:
    ledger = told(*LIFE[:3], ("released!requeued", "a", 50), ("placed", "a", 90))
    assert ledger.ended == 0
    assert ledger.stages[Stage.PLACED] == 1
    assert ledger.records["a"].given_back == 1
    assert ledger.milliseconds_to(Stage.PLACED) == [10]


def test_rejected_and_waiting_jobs_are_told_by_reason() -> None:
    ledger = told(
        ("submitted", "a", 0), ("rejected!ExceedsClusterCapacity", "a", 5),
        ("submitted", "b", 0), ("pending!InsufficientGpus", "b", 5), ("released", "b", 9),
        ("submitted", "c", 0),
    )  # fmt: skip
    assert ledger.rejected_by_reason == {"ExceedsClusterCapacity": 1}
    assert ledger.waiting_by_reason == {"InsufficientGpus": 1, "NotPlacedInTime": 1}


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1)])
def test_percentiles_are_values_that_were_measured(share: float, value: float) -> None:
    assert percentile(range(1, 101), share) == value


def test_of_nothing_there_is_no_percentile() -> None:
    assert percentile([], 0.5) is None


def test_the_result_has_the_keys_that_are_promised() -> None:
    counts = CountsAnswer.model_validate(
        {"instance": "x", "epoch": 1, "asks": 12, "complete_rounds": 11, "commits": 10, "conflicts": 1, "released": 10,
         "rejected": 0, "adopted": 0, "orphans": 0, "live": {}},
        strict=False,
    )  # fmt: skip
    result = outcome(told(*LIFE), Moved(hits=3, fetches=1), Leaks(), counts, 1.0)
    promised = {"jobs", "prepared", "waiting", "rejected", "leaks", "rounds_per_commit", "jobs_per_s"}
    promised |= {"submit_to_placed_ms", "submit_to_prepared_ms", "cache_hits", "bytes_fetched", "evictions"}
    assert promised | {"rejected_by_reason", "asks_per_commit", "duration_s"} <= result.keys()
    assert result["rounds_per_commit"] == 1.1
    assert result["submit_to_placed_ms"] == {"p50": 10.0, "p99": 10.0}
    assert (result["jobs"], result["prepared"], result["waiting"], result["leaks"]) == (1, 1, 0, 0)
    assert outcome_table(result, "replay").row_count == 14


def test_every_kind_of_leak_counts() -> None:
    assert Leaks(heads=1, placements=2, reports=3, agents=4, half_datasets=5).total == 15
