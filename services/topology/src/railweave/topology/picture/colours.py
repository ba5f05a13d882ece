"""The colours of rails: told apart by people who see colours otherwise, on light ground and on dark.

The set of Okabe and Ito (Color Universal Design, 2008), its black made slate and its yellow deeper. From rail 8 on the
colours come again with another stroke.
"""

from __future__ import annotations

from typing import Final

COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#e6d71a", "#5a5f6b")
STROKES: Final = ("", "7 3", "2 3", "9 3 2 3")
"""Dashes, by how often the colours came before."""


def colour_of(rail: int) -> str:
    """The colour of a rail."""
    return COLOURS[rail % len(COLOURS)]


def stroke_of(rail: int) -> str:
    """Its dashes as SVG has them; empty where the line is whole."""
    return STROKES[rail // len(COLOURS) % len(STROKES)]


def ink_on(rail: int) -> str:
    """Black or white, whichever is read on the rail's colour."""
    return "#ffffff" if rail % len(COLOURS) in {0, 2, 5, 7} else "#111318"
