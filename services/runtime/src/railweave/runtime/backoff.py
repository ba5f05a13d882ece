"""Waits between attempts: exponential with full jitter, and nothing that sleeps or draws luck on its own.

The random source is passed in, so a seeded test sees the same waits twice.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """How waits grow: from `first_s` by `factor` up to `cap_s`, each spread by `jitter` (0 none, 1 full).

    Raises:
        ValueError: when the numbers cannot describe a growing wait.
    """

    first_s: float = 0.1
    cap_s: float = 10.0
    factor: float = 2.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if not (0 < self.first_s <= self.cap_s and self.factor >= 1 and 0 <= self.jitter <= 1):
            msg = f"backoff needs 0 < first_s <= cap_s, factor >= 1, 0 <= jitter <= 1; got {self}"
            raise ValueError(msg)

    def wait_s(self, attempt: int, rng: random.Random) -> float:
        """The wait in seconds after failed attempt number `attempt` (0 is the first), jitter taken off the top."""
        # Exponents are cut before they overflow a float: a process may fail for weeks.
        ceiling = min(self.cap_s, self.first_s * self.factor ** min(attempt, 64))
        return ceiling * (1 - self.jitter * rng.random())


@dataclass(slots=True)
class Backoff:
    """A run of waits under one policy: `next_s()` after a failure, `reset()` after a success."""

    policy: BackoffPolicy = field(default_factory=BackoffPolicy)
    rng: random.Random = field(default_factory=random.Random)
    attempt: int = 0

    def next_s(self) -> float:
        """The next wait in seconds."""
        wait = self.policy.wait_s(self.attempt, self.rng)
        self.attempt += 1
        return wait

    def reset(self) -> None:
        """Start over: the next wait is the first one again."""
        self.attempt = 0
