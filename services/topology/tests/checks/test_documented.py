"""Every kind of finding is in the page that says what to do about it."""

from __future__ import annotations

import re
from pathlib import Path

from railweave.topology.checks import FindingKind

PAGE = Path(__file__).parents[4] / "docs" / "operate" / "checking.md"


def test_the_page_has_every_kind_and_no_other() -> None:
    assert re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text(), re.MULTILINE) == [str(kind) for kind in FindingKind]
