"""Answers as people read them: nothing is lost, nothing is taken for markup, 80 columns suffice."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from railweave.cli import render
from railweave.cli.output import document_of
from railweave.contracts.desired import NodeMode
from railweave.contracts.inventory import Failure, ReportState
from railweave.contracts.job import PlacedWorker
from railweave.contracts.placement import JobState
from railweave.contracts.query import DryRunAnswer, JobDetail, JobRow, NodeProgress, NodeRow, Why
from railweave.contracts.reasons import Reason, ReasonCode
from railweave.contracts.types import NodeName

NOW = datetime(2026, 12, 1, 10, 0, tzinfo=UTC)


def printed(renderable: Any, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(renderable)
    return out.getvalue()


def row(job: str = "88121", **fields: Any) -> JobRow:
    document: dict[str, Any] = {
        "cluster": "slurm-a",
        "job": job,
        "attempt": 1,
        "state": "pending",
        "round": 1,
        "node_slots": 64,
        "gpus": 512,
        "submitted_at": NOW - timedelta(minutes=14),
        "since": NOW - timedelta(minutes=14),
    }
    return JobRow.model_validate(document | fields, strict=False)


def reason(code: ReasonCode = ReasonCode.TOPOLOGY_FRAGMENTED, **fields: Any) -> Reason:
    document = {"code": code, "text": "71 nodes free, the largest pod has 38 of 64", "remedy": "allow preferred: pod"}
    return Reason.model_validate(document | fields, strict=False)


def test_a_waiting_job_shows_its_reason_where_a_placed_one_shows_its_nodes() -> None:
    text = printed(
        render.jobs_table(
            [row(reasons=("TopologyFragmented",)), row("88122", state="placed", nodes=("gpu-1", "gpu-2"))], NOW
        )
    )
    assert "TopologyFragmented" in text
    assert "gpu-1 gpu-2" in text
    assert "14 min" in text


def test_a_table_of_jobs_fits_80_columns_whatever_they_are_called() -> None:
    rows = [
        row("x" * 40, tenant="a tenant with a very long name indeed", nodes=tuple(f"gpu-{n:03}" for n in range(64)))
    ]
    assert all(len(line) <= 80 for line in printed(render.jobs_table(rows, NOW)).splitlines())


def test_names_are_never_taken_for_markup() -> None:
    assert "[red]j[/red]" in printed(render.jobs_table([row("[red]j[/red]")], NOW))


def test_why_is_told_in_the_order_of_an_expert() -> None:
    why = Why(
        row=row(),
        headline="PENDING TopologyFragmented, 14 min, 2nd of 7 in h100, attempt 2",
        wants="64 nodes x 8 GPUs in one pod",
        blocked=("71 nodes free: pod-1 38, pod-2 33.",),
        next=("allow topology preferred: pod", "slurm-a/87960 ends 16:40"),
        reasons=(reason(),),
    )
    lines = printed(render.why_text(why), 100).splitlines()
    assert [line.split()[0] for line in lines] == ["slurm-a/88121", "wants", "blocked", "next", "slurm-a/87960"]
    assert lines[0].split(None, 1)[1].startswith("PENDING TopologyFragmented")


def test_a_placed_job_is_waiting_and_not_blocked() -> None:
    why = Why(
        row=row(state="placed"), headline="PLACED, 3 s", wants="4 workers", blocked=("3 of 4 nodes have reported",)
    )
    assert "waiting   3 of 4" in printed(render.why_text(why))


def test_a_long_line_of_why_is_wrapped_below_itself() -> None:
    why = Why(row=row(), headline="PENDING", wants="w " * 60)
    lines = printed(render.why_text(why)).rstrip().splitlines()
    assert all(line.startswith(" " * 10) for line in lines[2:])
    assert all(len(line) <= 80 for line in lines)


def test_a_job_shows_times_workers_and_what_failed_where() -> None:
    detail = JobDetail(
        row=row(state="placed", nodes=("gpu-1",)),
        times={JobState.PLACED: NOW - timedelta(minutes=13, seconds=59)},
        placed=(PlacedWorker(worker=0, node="gpu-1", addresses=("10.64.0.18",), gpus=("GPU-1",)),),
        progress=(
            NodeProgress(
                node="gpu-1",
                state=ReportState.FAILED,
                failure=Failure(step="attach rail3: move into namespace", error="EBUSY", text="held by pid 41210"),
                reported_at=NOW,
            ),
        ),
        reasons=(reason(),),
    )
    text = " ".join(printed(render.job_text(detail, NOW), 120).split())
    for expected in ("placed after 1000 ms", "10.64.0.18", "EBUSY: held by pid 41210", "TopologyFragmented"):
        assert expected in text


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            DryRunAnswer(would_place=("n1", "n2"), fetch_bytes=2**30),
            ["would be placed now, on 2 nodes", "fetch 1.0 GiB"],
        ),
        (DryRunAnswer(reasons=(reason(),)), ["would wait", "71 nodes free", "allow preferred: pod"]),
        (DryRunAnswer(reasons=(reason(),), never=True), ["could never run as asked"]),
    ],
)
def test_a_dry_run_says_where_or_why_not(answer: DryRunAnswer, expected: list[str]) -> None:
    text = printed(render.dry_run_text(answer, "lab/1"))
    assert all(part in text for part in expected)


def test_a_node_with_problems_shows_them() -> None:
    node = NodeRow(
        node=NodeName("gpu-044"), mode=NodeMode.SCHEDULABLE, problems=("rail 5: link is down",), gpus=8, free_milli=3500
    )
    assert "rail 5: link is down" in printed(render.nodes_table([node], NOW), 120)
    assert "3.5/8" in printed(render.nodes_table([node], NOW), 120)
    assert "not heard of lately" in printed(render.node_text(node, NOW))


def test_json_has_the_wire_form() -> None:
    document = document_of({"row": row(), "at": NOW})
    assert document["row"]["submitted_at"] == "2026-12-01T09:46:00Z"
    assert document["at"] == "2026-12-01T10:00:00Z"
