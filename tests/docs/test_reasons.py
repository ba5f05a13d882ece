"""The page of states and reasons has every state, code and lack, and says of each code who says it."""

from __future__ import annotations

import re
from pathlib import Path

from railweave.contracts.placement import JobState
from railweave.contracts.reasons import Lack, ReasonCode

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "concepts" / "states-and-reasons.md").read_text()
SERVICES = ("cache", "gpu", "jobs", "nic", "runtime", "topology")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_code_has_a_row_in_order() -> None:
    assert [names(row[0])[0] for row in rows("Reasons")] == [
        code for code in ReasonCode if code is not ReasonCode.UNKNOWN
    ]


def test_every_row_says_who_says_it() -> None:
    sources = {
        service: "".join(path.read_text() for path in (ROOT / "services" / service / "src").rglob("*.py"))
        for service in SERVICES
    }
    for code, said_by, _ in rows("Reasons"):
        member = f"ReasonCode.{ReasonCode(names(code)[0]).name}"
        saying = [name for name, text in sources.items() if re.search(rf"{re.escape(member)}\b", text)]
        assert saying, f"nobody says {code}"
        assert said_by == ", ".join(saying), code


def test_every_state_has_a_row_in_order() -> None:
    assert [names(row[0])[0] for row in rows("States")] == list(JobState)


def test_every_lack_has_its_waking() -> None:
    assert sorted(name for row in rows("What is lacking") for name in names(row[0])) == sorted(Lack)
