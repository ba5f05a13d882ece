"""A metric that nobody fills says 0, or nothing, of what is ill."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.metrics import MetricWrapperBase

from railweave.runtime.metrics import Metrics

SERVICES = Path(__file__).parents[3]
SOURCES = "".join(path.read_text() for path in SERVICES.glob("*/src/railweave/**/*.py") if path.name != "metrics.py")
OWN = (SERVICES / "runtime/src/railweave/runtime/metrics.py").read_text()


def attributes() -> list[str]:
    metrics = Metrics(process_metrics=False)
    return [name for name, value in vars(metrics).items() if isinstance(value, MetricWrapperBase)]


def counters() -> list[str]:
    return re.findall(r'^    \("([a-z_]+)", "', OWN, re.MULTILINE)


@pytest.mark.parametrize("name", attributes())
def test_every_metric_of_a_process_is_filled_somewhere(name: str) -> None:
    by_attribute = re.search(rf"metrics\.{name}\.", SOURCES + OWN)
    by_name = re.search(rf'took\(\s*"{name}"', SOURCES)
    assert by_attribute or by_name


@pytest.mark.parametrize("name", counters())
def test_every_counter_of_the_bus_is_counted_somewhere(name: str) -> None:
    assert re.search(rf'count\("{name}"', SOURCES)
