"""Runs commands in this process, as the console script does."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from railweave.cli.main import main


@dataclass(frozen=True, slots=True)
class Done:
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What `--json` printed."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """What `--json` printed of an error."""
        assert self.out == ""
        found: dict[str, Any] = json.loads(self.err)["error"]
        return found


class Command:
    """`railweave`, run with arguments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Done:
        self._monkeypatch.setattr(sys, "argv", ["railweave", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = self._capsys.readouterr()
        return Done(int(ended.value.code or 0), captured.out, captured.err)
