"""How the demo speaks: titles, commands with their output, and checks that count."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from railweave.cli.output import console


class Narrator:
    """Tells the demo and keeps the score."""

    def __init__(self) -> None:
        self._out = console()
        self._clock: Callable[[], float] = time.monotonic
        self._begun = self._clock()
        self.passed = 0
        self.failures: list[str] = []

    @property
    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return self._clock() - self._begun

    def title(self, text: str) -> None:
        """A new part."""
        self._out.print()
        self._out.print(Text(f"== {text}", style="bold cyan"))

    def say(self, text: str) -> None:
        """A line of the story."""
        self._out.print(Text(text))

    def command(self, text: str) -> None:
        """What one would type."""
        self._out.print(Text(f"$ {text}", style="bold"))

    def show(self, *parts: RenderableType) -> None:
        """What it prints, set in."""
        for part in parts:
            self._out.print(Padding(part, (0, 0, 0, 2)))

    def check(self, is_so: bool, claim: str, found: str = "") -> bool:
        """Assert a claim; the demo goes on, and fails in the end."""
        if is_so:
            self.passed += 1
            self._out.print(Text.assemble(("  ok      ", "green"), claim))
        else:
            self.failures.append(claim)
            self._out.print(Text.assemble(("  FAILED  ", "bold red"), claim, (f": {found}" if found else "", "red")))
        return is_so
