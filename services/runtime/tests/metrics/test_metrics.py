"""What is measured, and how it is named."""

from __future__ import annotations

import asyncio
import re
import time

import pytest

from railweave.runtime.metrics import Metrics, probe_loop_lag


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(process_metrics=False)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_handling_is_timed_by_service_type_and_outcome(metrics: Metrics) -> None:
    with metrics.handling("jobs", "submitted") as outcome:
        outcome.value = "rejected"
    with pytest.raises(ZeroDivisionError), metrics.handling("jobs", "submitted"):
        raise ZeroDivisionError
    with pytest.raises(asyncio.CancelledError), metrics.handling("jobs", "submitted"):
        raise asyncio.CancelledError
    for outcome_name in ("rejected", "error", "cancelled"):
        found = value(
            metrics,
            "railweave_handler_duration_seconds_count",
            service="jobs",
            type="submitted",
            outcome=outcome_name,
        )
        assert found == 1.0


def test_what_the_bus_counts_is_there(metrics: Metrics) -> None:
    metrics.count("redeliveries", 3, stream="JOBS")
    metrics.count("reconnects")
    metrics.count("something_new", kind="a")
    assert value(metrics, "railweave_redeliveries_total", stream="JOBS") == 3.0
    assert value(metrics, "railweave_reconnects_total") == 1.0
    assert value(metrics, "railweave_something_new_total", kind="a") == 1.0


def test_what_the_bus_times_is_there_whatever_the_order_of_its_labels(metrics: Metrics) -> None:
    metrics.took("publish", 0.002, stream="JOBS", outcome="stored")
    metrics.took("publish", 0.002, stream="JOBS", outcome="stored")
    metrics.took("publish", 0.002, outcome="stored", stream="JOBS")
    metrics.took("publish", 0.002, stream="stored", outcome="JOBS")
    name = "railweave_publish_duration_seconds_count"
    assert value(metrics, name, stream="JOBS", outcome="stored") == 3.0
    assert value(metrics, name, stream="stored", outcome="JOBS") == 1.0


def test_a_counter_keeps_its_labels(metrics: Metrics) -> None:
    with pytest.raises(ValueError, match="label"):
        metrics.count("redeliveries", consumer="x")


def test_names_have_base_units_and_labels_stay_few(metrics: Metrics) -> None:
    """A label by job, node, tenant or subject would be a time series for each of them."""
    for family in metrics.registry.collect():
        assert family.name.startswith("railweave_")
        assert not re.search(r"_(ms|millis|minutes|kb|mib|percent)$", family.name)
        for sample in family.samples:
            assert not {"job", "node", "tenant", "subject", "uid"} & sample.labels.keys()


def test_two_processes_in_one_do_not_share_a_registry() -> None:
    one, other = Metrics(process_metrics=False), Metrics(process_metrics=False)
    one.count("reconnects")
    assert value(other, "railweave_reconnects_total") == 0.0


def test_memory_and_descriptors_of_the_process_are_exported() -> None:
    text = Metrics().exposition().decode()
    assert "process_resident_memory_bytes" in text
    assert "process_open_fds" in text


async def test_something_that_blocks_the_loop_is_seen(metrics: Metrics) -> None:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(probe_loop_lag(metrics, stop=stop, every_s=0.01))
        await asyncio.sleep(0.03)
        time.sleep(0.15)  # noqa: ASYNC251 - what the probe is for
        await asyncio.sleep(0.03)
        stop.set()
    late = value(metrics, "railweave_loop_lag_seconds_count")
    in_time = value(metrics, "railweave_loop_lag_seconds_bucket", le="0.1")
    assert late is not None
    assert in_time is not None
    assert late > in_time
