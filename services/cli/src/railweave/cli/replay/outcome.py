"""The result of a replay: a document with stable keys, and the table made of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from railweave.cli import words
from railweave.cli.output import Column, table
from railweave.cli.replay.leaks import Leaks, Moved
from railweave.cli.replay.ledger import Ledger, Stage, percentile
from railweave.contracts.query import CountsAnswer


def outcome(ledger: Ledger, moved: Moved, leaks: Leaks, counts: CountsAnswer, duration_s: float) -> dict[str, Any]:
    """The document that `--json` writes.

    `waiting` are jobs that were never prepared nor rejected before patience was over. `rounds_per_commit` are rounds in
    which every wanted concern answered, for each job that was committed; `asks_per_commit` counts all asks.
    """
    jobs = len(ledger.records)
    prepared, rejected = ledger.prepared, ledger.stages[Stage.REJECTED]
    never_prepared = sum(1 for record in ledger.records.values() if record.prepared_at is None)
    released = ledger.stages[Stage.RELEASED]
    return {
        "jobs": jobs,
        "prepared": prepared,
        "waiting": never_prepared - rejected,
        "rejected": rejected,
        "leaks": leaks.total,
        "rounds_per_commit": _ratio(counts.complete_rounds, counts.commits),
        "submit_to_placed_ms": _spread(ledger, Stage.PLACED),
        "submit_to_prepared_ms": _spread(ledger, Stage.PREPARED),
        "jobs_per_s": round(released / ledger.busy_s, 2) if ledger.busy_s else 0.0,
        "released": released,
        "asks_per_commit": _ratio(counts.asks, counts.commits),
        "conflicts": counts.conflicts,
        "given_back": sum(record.given_back for record in ledger.records.values()),
        "cache_hits": moved.hits,
        "cache_fetches": moved.fetches,
        "bytes_fetched": moved.bytes_fetched,
        "evictions": moved.evictions,
        "bytes_evicted": moved.bytes_evicted,
        "rejected_by_reason": ledger.rejected_by_reason,
        "waiting_by_reason": ledger.waiting_by_reason,
        "leaks_found": leaks.document(),
        "duration_s": round(duration_s, 2),
    }


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 3) if whole else None


def _spread(ledger: Ledger, stage: Stage) -> dict[str, float | None]:
    values = ledger.milliseconds_to(stage)
    spread = {"p50": percentile(values, 0.5), "p99": percentile(values, 0.99)}
    return {name: None if value is None else round(value, 2) for name, value in spread.items()}


def outcome_table(result: Mapping[str, Any], title: str) -> Table:
    """The document as people read it."""
    accesses = result["cache_hits"] + result["cache_fetches"]
    rows: list[tuple[str, str]] = [
        ("jobs", f"{result['jobs']:,}"),
        ("prepared", f"{result['prepared']:,}"),
        ("waiting when patience was over", _with_reasons(result["waiting"], result["waiting_by_reason"])),
        ("rejected", _with_reasons(result["rejected"], result["rejected_by_reason"])),
        ("submitted to placed", _times(result["submit_to_placed_ms"])),
        ("submitted to prepared", _times(result["submit_to_prepared_ms"])),
        ("rounds per commit", _number(result["rounds_per_commit"])),
        ("asks per commit", _number(result["asks_per_commit"])),
        ("released jobs a second", f"{result['jobs_per_s']:.1f}"),
        (
            "datasets: had by the node",
            f"{result['cache_hits']:,} of {accesses:,}"
            + (f" ({result['cache_hits'] / accesses:.1%})" if accesses else ""),
        ),
        ("datasets: fetched", words.size(result["bytes_fetched"])),
        ("datasets: evicted", f"{result['evictions']:,} ({words.size(result['bytes_evicted'])})"),
        ("leaks", str(result["leaks"])),
        ("took", f"{result['duration_s']:.1f} s"),
    ]
    return table([Column(title, keep=True), Column("", ratio=1)], rows)


def _with_reasons(count: int, reasons: Mapping[str, int]) -> str:
    told = ", ".join(f"{reason} {number:,}" for reason, number in reasons.items())
    return f"{count:,}" + (f" ({told})" if told else "")


def _times(spread: Mapping[str, float | None]) -> str:
    if spread["p50"] is None or spread["p99"] is None:
        return "-"
    return f"p50 {words.milliseconds(spread['p50'])}, p99 {words.milliseconds(spread['p99'])}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
