"""Traces are read as they are, or refused with the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from railweave.cli.exits import CommandFailed
from railweave.cli.replay import jobs
from railweave.cli.replay.traces import TraceJob, read_trace

GAVEL = (
    "ResNet-50 (batch size 16)\tcd %s/x && python3 main.py -b 16 %s/data/imagenet/pytorch\t--n\t1\t4000\t100.5\t8\n"
    "A3C\tcd %s/rl && python3 main.py\t--steps\t0\t50\t0.000000\t1\n"
)
OPENB = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
    "openb-pod-0001,6000,12288,1,460,,LS,Running,427061,12902960,427061\n"
    "openb-pod-0000,12000,16384,8,1000,,LS,Running,0,600,0\n"
    "openb-pod-0002,12000,16384,0,0,,LS,Running,5,600,5\n"
)


def written(directory: Path, text: str) -> Path:
    path = directory / "trace"
    path.write_text(text)
    return path


def test_a_gavel_job_has_its_gang_and_the_dataset_of_its_command(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, GAVEL))
    assert trace.kind == "gavel"
    assert [job.name for job in trace.jobs] == ["g2", "g1"]
    big = trace.jobs[1]
    assert (big.workers, big.gpus, big.dataset, big.dataset_bytes) == (8, 1, "imagenet", 150 * 10**9)
    assert big.arrival_s == 100.5
    assert trace.jobs[0].dataset is None
    assert trace.span_s == 100.5


def test_an_openb_pod_is_whole_cards_or_a_share_of_one(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, OPENB))
    whole, share = trace.jobs
    assert (whole.name, whole.gpus, whole.fraction_milli, whole.network) == ("pod-0000", 8, None, True)
    assert (share.gpus, share.fraction_milli, share.network) == (1, 460, False)
    assert share.duration_s == 12902960 - 427061
    assert trace.left_out == 1


def test_the_list_without_times_gets_them(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, "name,cpu_milli,memory_mib,num_gpu,gpu_milli\nopenb-pod-0,1,1,2,1000\n"))
    assert trace.jobs[0].duration_s == 600


@pytest.mark.parametrize(
    "text", ["", "hello\n", GAVEL.replace("\t8\n", "\tmany\n"), OPENB.replace(",1,460,", ",one,460,")]
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(CommandFailed) as caught:
        read_trace(written(tmp_path, text))
    assert caught.value.field == "FILE"


def test_a_job_becomes_events_that_keep_the_contract() -> None:
    job = TraceJob("g1", 0.0, 10.0, workers=4, gpus=1, dataset="imagenet", dataset_bytes=10)
    event = jobs.submitted(job, per_node=2)
    assert event.spec().slot_count == 2
    assert event.spec().wants_network
    assert [worker.worker for worker in jobs.started(job).workers] == [0, 1, 2, 3]
    assert jobs.ended(job).event_id() == "job.ended/replay/g1/1"
