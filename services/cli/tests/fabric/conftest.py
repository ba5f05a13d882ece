"""Commands of the fabric, away from any settings and any local stack."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from railweave_testing.command import Command


@pytest.fixture
def railweave(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    for name in [name for name in os.environ if name.startswith("RAILWEAVE_") and name != "RAILWEAVE_SHARED"]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return Command(monkeypatch, capsys)
