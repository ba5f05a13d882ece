"""A trace through real servers, services and simulated nodes, to the last release."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from railweave.cli.stack.design import Shape, fabric_text
from railweave_testing.command_line import command

pytestmark = pytest.mark.timeout(240)

PROMISED = {
    "jobs", "prepared", "waiting", "rejected", "leaks", "rounds_per_commit", "submit_to_placed_ms",
    "submit_to_prepared_ms", "jobs_per_s", "cache_hits", "bytes_fetched", "evictions", "rejected_by_reason",
    "asks_per_commit", "duration_s",
}  # fmt: skip


def write_gavel(path: Path, jobs: int) -> None:
    """Gangs of 1, 2 and 4, every third with a dataset, ten trace seconds apart and a hundred long."""
    lines = []
    for number in range(jobs):
        needs, command = (1, "%s/data/cifar10 -b 1") if number % 3 == 0 else (0, "main.py")
        gang = (1, 2, 4)[number % 3]
        lines.append(f"A3C\tpython3 {command}\t--n\t{needs}\t500\t{number * 10}.0\t{gang}")
    path.write_text("\n".join(lines) + "\n")


def write_openb(path: Path) -> None:
    head = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
    )
    rows = [
        f"openb-pod-{n},1,1,1,{milli},,LS,Running,{n},{n + 50},{n}" for n, milli in enumerate((460, 540, 1000, 250))
    ]
    rows.append("openb-pod-9,1,1,64,1000,,LS,Running,9,60,9")
    path.write_text("\n".join([head, *rows]) + "\n")


def replayed(tmp_path: Path, trace: Path, *options: str) -> dict[str, object]:
    fabric, result = tmp_path / "fabric.yaml", tmp_path / "result.json"
    fabric.write_text(fabric_text(Shape(nodes=6, leaves=2, rails=2)))
    said = command(
        "bench", "replay", str(trace), "--nodes-file", str(fabric), "--rails", "2", "--json", str(result), *options
    )
    document: dict[str, object] = json.loads(result.read_text())
    assert said.code == 0, document
    assert document.keys() >= PROMISED
    return document


def test_every_job_of_a_trace_is_released_and_nothing_leaks(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    write_gavel(trace, 24)
    document = replayed(tmp_path, trace, "--speed", "100", "--limit", "60")
    assert (document["jobs"], document["prepared"], document["leaks"], document["rejected"]) == (24, 24, 0, 0)
    assert document["cache_hits"]
    assert not document["was_cut_short"]


def test_pods_that_share_cards_are_placed_and_those_that_can_never_fit_are_rejected_with_their_reason(
    tmp_path: Path,
) -> None:
    trace = tmp_path / "pods.csv"
    write_openb(trace)
    document = replayed(tmp_path, trace, "--speed", "50", "--limit", "60")
    assert (document["jobs"], document["prepared"], document["leaks"]) == (5, 4, 0)
    assert document["rejected_by_reason"] == {"ExceedsClusterCapacity": 1}


@pytest.mark.long
def test_patience_that_is_over_ends_what_runs_and_still_nothing_leaks(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    write_gavel(trace, 40)
    document = replayed(tmp_path, trace, "--speed", "10", "--limit", "12")
    assert document["was_cut_short"]
    assert document["leaks"] == 0
