"""Puts the rig of these tests on their path, and shows their figures also when they pass."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Kills, jobs, leaks, memory: what a run of chaos is for."""
    for report in terminalreporter.stats.get("passed", ()):
        if report.capstdout.strip():
            terminalreporter.section(report.nodeid.rpartition("::")[2], "-")
            terminalreporter.write_line(report.capstdout.rstrip())
