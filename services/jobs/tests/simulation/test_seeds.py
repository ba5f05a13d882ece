"""The committer in a world that delays, repeats, reorders and crashes, under many seeds."""

from __future__ import annotations

import os

import pytest
from world import World

SHORT = int(os.environ.get("RAILWEAVE_SEEDS", "150"))


def run(seed: int, steps: int = 600) -> World:
    world = World(seed)
    for _ in range(steps):
        world.step()
        world.check()
    world.quiesce()
    return world


@pytest.mark.parametrize("block", range(10))
def test_whatever_happens_no_claim_is_held_twice_and_nothing_is_left(block: int) -> None:
    for seed in range(block * SHORT // 10, (block + 1) * SHORT // 10):
        try:
            run(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
