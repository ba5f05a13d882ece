"""How wide text is, and how it is made to fit; how many names are said in few words. Pure.

Widths are of the widest of the usual sans-serif fonts (DejaVu Sans), so that text fits in whatever font a viewer has.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from railweave.topology.hostlist import compress, escape
from railweave.topology.inferring import natural

_ASCII: Final = (
    (317, 400, 459, 837, 636, 950, 779, 274, 390, 390, 500, 837, 317, 360, 317, 336)  # space to /
    + (636,) * 10
    + (336, 336, 837, 837, 837, 556, 1015)  # : to @
    + (684, 686, 722, 770, 666, 610, 777, 751, 294, 500, 666, 557, 862)
    + (748, 787, 666, 787, 722, 666, 610, 731, 684, 988, 685, 666, 685)
    + (390, 336, 390, 837, 556, 500)  # [ to `
    + (612, 634, 549, 634, 615, 352, 634, 633, 277, 277, 579, 277, 974)
    + (633, 611, 634, 634, 411, 520, 392, 633, 591, 817, 591, 591, 524)
    + (636, 336, 636, 837)
)
"""Thousandths of the font's size, from the space on."""
_OTHER: Final = 1100
"""Of any other character: a wide ideograph, and more than most."""
_KNOWN: Final = {"…": 1000, "·": 317, "–": 500, "×": 837}
_BOLD: Final = 1.14
ELLIPSIS: Final = "…"


@lru_cache(maxsize=4096)
def width_of(text: str, size: float, *, is_bold: bool = False) -> float:
    """The width of a text, at most."""
    return sum(map(_advance, text)) * size / 1000 * (_BOLD if is_bold else 1.0)


def is_measured(text: str) -> bool:
    """Whether every character is one whose width is known. Others are squeezed into the width that is counted."""
    return all(" " <= char <= "~" or char in _KNOWN for char in text)


def elided(text: str, width: float, size: float, *, is_bold: bool = False) -> str:
    """The text if it fits, else its beginning and its end: names differ at the end more often than not."""
    if width_of(text, size, is_bold=is_bold) <= width:
        return text
    room = width - width_of(ELLIPSIS, size, is_bold=is_bold)
    scale = size / 1000 * (_BOLD if is_bold else 1.0)
    head, tail, used = 0, 0, 0.0
    while head + tail < len(text):
        is_tail = tail <= head
        char = text[len(text) - 1 - tail] if is_tail else text[head]
        used += _advance(char) * scale
        if used > room:
            break
        head, tail = head + (not is_tail), tail + is_tail
    return f"{text[:head]}{ELLIPSIS}{text[len(text) - tail :]}"


def clean(text: str, most: int = 4000) -> str:
    """Text that XML can hold and that reads in one direction: no control characters, not without end."""
    made = "".join("\ufffd" if _is_odd(char) else char for char in text)
    return made if len(made) <= most else f"{made[: most - 1]}{ELLIPSIS}"


def _is_odd(char: str) -> bool:
    return (
        (
            not char.isascii()
            and (unicodedata.category(char) in {"Cc", "Cs", "Cf", "Zl", "Zp", "Cn"} or ord(char) & 0xFFFE == 0xFFFE)
        )
        or char < " "
        or char == "\x7f"
    )


def _advance(char: str) -> int:
    if " " <= char <= "~":
        return _ASCII[ord(char) - 32]
    return _KNOWN.get(char, _OTHER)


def in_order(names: Iterable[str]) -> list[str]:
    """As people count: `n9` before `n10`."""
    return sorted(names, key=natural)


def listed(names: Sequence[str]) -> str:
    """Names in one text, `n[01-16]` where they are a row."""
    return ", ".join(compress(map(escape, names)))


def counted(number: int, thing: str, things: str | None = None) -> str:
    """`1 leaf`, `2 leaves`."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"


def rails_in_words(rails: Iterable[int]) -> str:
    """`rail 3`, `rails 0-7`, `8 rails` where they are no row."""
    numbers = sorted(set(rails))
    if not numbers:
        return "no rails"
    if len(numbers) == 1:
        return f"rail {numbers[0]}"
    if numbers[-1] - numbers[0] + 1 == len(numbers):
        return f"rails {numbers[0]}-{numbers[-1]}"
    return f"{len(numbers)} rails"
