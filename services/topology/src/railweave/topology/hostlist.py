"""Names in Slurm's hostlist syntax: `srv11[01-08]`, `a[0-3,12],b7`. Counted before they are made.

A backslash before a bracket, comma, colon, backslash or space takes it literally: `sw\\[1\\]` is one name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Final, TypeVar

MOST_NAMES = 200_000
MOST_NAMES_IN_FILE: Final = 2_000_000
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?\Z", re.ASCII)
_ESCAPED: Final = re.compile(r"\\([\[\],:\\]|\s)")
_SPECIAL: Final = re.compile(r"[\[\],\\]|\A\s+|\s+\Z")
_FIRST_STAND_IN: Final = 0xD800
"""Surrogates stand for what is taken literally: no text that was read has them."""
_NUMBER: Final = re.compile(r"([0-9]+)")
_LONGEST_NUMBER: Final = 9


_T = TypeVar("_T")


class HostlistError(ValueError):
    """A hostlist that cannot be read; the message says what and where."""


def expand(text: str, *, most: int = MOST_NAMES) -> list[str]:
    """Return the names a hostlist stands for, in the order written.

    Raises:
        HostlistError: malformed, or more than `most` names.
    """
    if "\\" not in text:
        return _expanded(text, most)
    guarded, unguard = _guarded(text)
    return [unguard(name) for name in _expanded(guarded, most)]


def expand_ends(text: str, *, most: int = MOST_NAMES) -> list[tuple[str, str | None]]:
    """Return the ends of cables a hostlist stands for: `leaf[1-2]:Ethernet48` is a switch and its port, twice.

    Raises:
        HostlistError: as `expand`.
    """
    guarded, unguard = _guarded(text)
    ends = (name.partition(":") for name in _expanded(guarded, most))
    return [(unguard(name), unguard(port) if port else None) for name, _, port in ends]


class Hostlists:
    """The hostlists of one file: many small ones, each within its bounds, must not stand for billions of names."""

    def __init__(self, most: int = MOST_NAMES_IN_FILE) -> None:
        self._most = most
        self._left = most

    def expand(self, text: str) -> list[str]:
        """The names of the next one; raises HostlistError as `expand`, and where all together are too many."""
        return self._counted(expand(text))

    def expand_ends(self, text: str) -> list[tuple[str, str | None]]:
        """The ends of the next one; raises HostlistError as `expand_ends`, and where all together are too many."""
        return self._counted(expand_ends(text))

    def _counted(self, found: list[_T]) -> list[_T]:
        self._left -= len(found)
        if self._left < 0:
            raise HostlistError(f"the hostlists of the file expand to more than {self._most} names")
        return found


def escape(name: str, *, is_switch_of_end: bool = False) -> str:
    """The hostlist that stands for one name, whatever is in it.

    Args:
        name: as it is.
        is_switch_of_end: also for `expand_ends`, in front of the colon.
    """
    written = _SPECIAL.sub(lambda found: "".join("\\" + char for char in found[0]), name)
    return written.replace(":", "\\:") if is_switch_of_end else written


def compress(names: Iterable[str], *, only_at_end: bool = False) -> list[str]:
    """Write names as hostlists, in their order: expanded one after the other they are the same names.

    Args:
        names: each escaped already, where it has to be.
        only_at_end: brackets at the end of a name alone, as Slurm has them.
    """
    written: list[str] = []
    run: _Run | None = None
    for name in names:
        if run is None or not run.take(name, only_at_end=only_at_end):
            if run is not None:
                written.append(run.text())
            run = _Run(name)
    if run is not None:
        written.append(run.text())
    return written


@dataclass(slots=True)
class _Run:
    """Names that differ in one number alone."""

    first: str
    before: str = ""
    after: str = ""
    ranges: list[list[int]] = field(default_factory=list)
    """Lowest, highest, and how wide the numbers are where they begin with zeros."""

    def take(self, name: str, *, only_at_end: bool) -> bool:
        """Take in the next name, if it is of this run."""
        if not self.ranges and not self._begin(name, only_at_end=only_at_end):
            return False
        before, after = self.before, self.after
        number = name[len(before) : len(name) - len(after)]
        if not (
            name.startswith(before)
            and name.endswith(after)
            and 0 < len(number) <= _LONGEST_NUMBER
            and number.isascii()
            and number.isdecimal()
        ):
            return False
        self._add(number)
        return True

    def text(self) -> str:
        if not self.ranges:
            return self.first
        parts = (
            str(low).zfill(width) if low == high else f"{str(low).zfill(width)}-{str(high).zfill(width)}"
            for low, high, width in self.ranges
        )
        return f"{self.before}[{','.join(parts)}]{self.after}"

    def _begin(self, name: str, *, only_at_end: bool) -> bool:
        """Find the one number in which the second name differs from the first."""
        one, other = _NUMBER.split(self.first), _NUMBER.split(name)
        if len(one) != len(other):
            return False
        differing = [place for place, part in enumerate(one) if part != other[place]]
        if len(differing) != 1 or differing[0] % 2 == 0 or len(one[differing[0]]) > _LONGEST_NUMBER:
            return False
        place = differing[0]
        before, after = "".join(one[:place]), "".join(one[place + 1 :])
        if only_at_end and after:
            return False
        self.before, self.after = before, after
        self._add(one[place])
        return True

    def _add(self, number: str) -> None:
        value = int(number)
        if self.ranges:
            last = self.ranges[-1]
            if value == last[1] + 1 and number == str(value).zfill(last[2]):
                last[1] = value
                return
        self.ranges.append([value, value, len(number) if number[0] == "0" else 0])


def _guarded(text: str) -> tuple[str, Callable[[str], str]]:
    """The text with what is taken literally stood for, and what undoes that."""
    literal: dict[str, str] = {}

    def stand_in(found: re.Match[str]) -> str:
        mark = chr(_FIRST_STAND_IN + ord(found[1]) % 0x400)
        while literal.setdefault(mark, found[1]) != found[1]:
            mark = chr(ord(mark) + 1)
        return mark

    guarded = _ESCAPED.sub(stand_in, text)
    back = str.maketrans(literal)
    return guarded, lambda name: name.translate(back) if literal else name


def _expanded(text: str, most: int) -> list[str]:
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
