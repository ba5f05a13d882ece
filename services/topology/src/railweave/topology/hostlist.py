"""Names in Slurm's hostlist syntax: `srv11[01-08]`, `a[0-3,12],b7`. Counted before they are made."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

MOST_NAMES = 200_000
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?\Z", re.ASCII)


class HostlistError(ValueError):
    """A hostlist that cannot be read; the message says what and where."""


def expand(text: str, *, most: int = MOST_NAMES) -> list[str]:
    """Return the names a hostlist stands for, in the order written.

    Raises:
        HostlistError: malformed, or more than `most` names.
    """
    names: list[str] = []
    for item in _items(text):
        parts = list(_parts(item))
        size = 1
        for part in parts:
            size *= part.count if isinstance(part, _Counted) else 1
        if len(names) + size > most:
            raise HostlistError(f"{item!r} expands to more than {most} names")
        choices = [[part] if isinstance(part, str) else list(part.numbers()) for part in parts]
        names += ["".join(choice) for choice in product(*choices)]
    return names


class _Counted:
    """The numbers between brackets, counted before they are made."""

    def __init__(self, text: str) -> None:
        self._ranges: list[tuple[int, int, int]] = []
        for part in text.split(","):
            found = _RANGE.match(part.strip())
            if found is None:
                raise HostlistError(f"expected numbers and ranges such as 01-08 in brackets, found {part!r}")
            low, high = found[1], found[2] or found[1]
            if int(high) < int(low):
                raise HostlistError(f"the range {part!r} goes down")
            # A leading zero says how wide the numbers are, as in Slurm.
            self._ranges.append((int(low), int(high), len(low) if low.startswith("0") else 0))
        self.count = sum(high - low + 1 for low, high, _ in self._ranges)

    def numbers(self) -> Iterator[str]:
        for low, high, width in self._ranges:
            for number in range(low, high + 1):
                yield str(number).zfill(width)


def _items(text: str) -> Iterator[str]:
    """The parts between commas that are not in brackets."""
    depth, start = 0, 0
    for place, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        if depth not in {0, 1}:
            raise HostlistError(f"brackets do not match in {text[:80]!r}")
        if char == "," and depth == 0:
            yield _item(text[start:place], text)
            start = place + 1
    if depth:
        raise HostlistError(f"a bracket is not closed in {text[:80]!r}")
    yield _item(text[start:], text)


def _item(item: str, text: str) -> str:
    if not item.strip():
        raise HostlistError(f"an empty name in {text[:80]!r}")
    return item.strip()


def _parts(item: str) -> Iterator[str | _Counted]:
    rest = item
    while rest:
        before, bracket, rest = rest.partition("[")
        if before:
            yield before
        if bracket:
            inside, _, rest = rest.partition("]")
            yield _Counted(inside)
