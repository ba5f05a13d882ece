"""Fold equals live: at any moment of a seeded run, a fresh book read from the record knows what the live one knows."""

from __future__ import annotations

import os
from typing import Any

from world import World

from railweave.contracts.placement import Head, JobState, Placement
from railweave.jobs import recovery
from railweave.jobs.book import Book

SEEDS = max(3, int(os.environ.get("RAILWEAVE_SEEDS", "150")) // 10)


def known(book: Book) -> dict[str, Any]:
    """What of a book is in the record."""
    jobs = {
        key: (job.run, job.state, job.commit, job.reasons, job.started, job.requeue, job.exclude, job.claims)
        for key, job in book.jobs.items()
        if job.stored
    }
    placements = {
        (job.run, node): (held.placement, held.sequence)
        for job in book.jobs.values()
        for node, held in job.placements.items()
    }
    finished = {key: item.run for key, item in book.finished.items()}
    return {"jobs": jobs, "placements": placements, "finished": finished, "ledger": book.ledger.snapshot()}


def folded(world: World) -> Book:
    book = Book(world.state, world.config, "fold")
    messages = world.record.values()
    recovery.fold(
        book,
        [item.event for item in messages if isinstance(item.event, Head)],
        [(item.event, item.sequence) for item in messages if isinstance(item.event, Placement)],
    )
    return book


def test_a_folded_book_equals_the_live_one_at_any_moment() -> None:
    compared = 0
    for seed in range(SEEDS):
        world = World(seed)
        for number in range(500):
            world.step()
            if number % 5:
                continue
            book = world.committer.book
            live, anew = known(book), known(folded(world))
            for known_of in (live, anew):
                # A run that begins under the name of one that is over forgets it before its own head is stored.
                known_of["finished"] = {k: run for k, run in known_of["finished"].items() if k not in book.jobs}
            assert anew == live, f"seed {seed}, step {number}"
            compared += len(live["placements"])
    assert compared, "no seed held anything: the test shows nothing"


def test_runs_reach_every_state() -> None:
    """The world is worth something only if it leads jobs everywhere (few seeds exclude enough nodes to reject)."""
    seen: set[JobState] = set()
    for seed in range(SEEDS):
        world = World(seed)
        for _ in range(500):
            world.step()
            seen |= {job.state for job in world.committer.book.jobs.values()}
            seen |= {item.event.state for item in world.record.values() if isinstance(item.event, Head)}
    assert seen >= set(JobState) - {JobState.REJECTED}
