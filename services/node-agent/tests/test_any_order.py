"""Placements come twice, late and in any order: no older fence is applied, release wins, nothing is left at the end."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.contracts.placement import Fence
from railweave.node_agent.model import EntryState, Record

# What the committer stores over time of two jobs: (job, attempt, round, state), at sequence 1, 2, ...
HISTORY = (
    ("a", 1, 1, "desired"),
    ("b", 1, 1, "desired"),
    ("a", 1, 1, "started"),
    ("b", 1, 1, "releasing"),
    ("b", 1, 1, "released"),
    ("b", 1, 2, "desired"),
    ("a", 1, 1, "releasing"),
    ("a", 2, 2, "desired"),
    ("a", 1, 1, "released"),
    ("b", 1, 2, "started"),
    ("a", 2, 2, "releasing"),
    ("b", 1, 2, "releasing"),
    ("a", 2, 2, "released"),
    ("b", 1, 2, "released"),
)


def _placement(make: Any, index: int) -> Any:
    job, attempt, round_number, state = HISTORY[index]
    vf = 2 * "ab".index(job) + round_number - 1
    netns = "/run/netns/w" if state != "desired" else None
    return make.placement(
        job,
        attempt=attempt,
        round=round_number,
        state="desired" if state == "started" else state,
        workers=(make.worker(vf=vf, gpus=((vf, 500),), netns=netns),),
        started=state == "started",
        scratch=100,
    )


class _Checked:
    """Applies nothing older: watches every entry of the journal."""

    def __init__(self) -> None:
        self.highest: dict[Any, Fence] = {}

    def check(self, agent: Any) -> None:
        for key, entry in agent.journal.entries.items():
            assert entry.fence >= self.highest.get(key, Fence(0, 0)), "an older fence was applied"
            self.highest[key] = entry.fence
        for key, buried in agent.journal.buried.items():
            assert key not in agent.journal.entries
            assert buried.fence >= self.highest.get(key, Fence(0, 0))
            self.highest[key] = buried.fence


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_order_with_repeats_and_restarts_ends_with_nothing(data: st.DataObject, make: Any, new_rig: Any) -> None:
    deliveries = data.draw(st.lists(st.integers(0, len(HISTORY) - 1), max_size=30), label="early deliveries")
    restarts = data.draw(st.sets(st.integers(0, 30), max_size=4), label="restarts before")
    rest = data.draw(st.permutations(range(len(HISTORY))), label="everything, at last")

    async def run() -> None:
        rig = new_rig()
        await rig.start()
        rig.agent.record_ready()
        checked = _Checked()
        stored: dict[tuple[str, int], int] = {}
        for number, index in enumerate([*deliveries, *rest]):
            if number in restarts:
                await rig.start()
                for latest in sorted(stored.values()):  # what the stream holds is told again
                    await rig.tell(_placement(make, latest), sequence=latest + 1)
                rig.agent.record_ready()
            subject = HISTORY[index][:2]
            stored[subject] = max(index, stored.get(subject, 0))
            await rig.tell(_placement(make, index), sequence=index + 1)
            checked.check(rig.agent)
        assert rig.leftovers() == {}

    asyncio.run(run())


@settings(max_examples=100, deadline=None)
@given(
    releases=st.lists(st.booleans(), min_size=1, max_size=6),
    shuffled=st.randoms(use_true_random=False),
)
def test_release_wins_however_deliveries_are_shuffled(
    releases: list[bool], shuffled: Any, make: Any, new_rig: Any
) -> None:
    """Placements and releases of one run, rounds rising; the highest fence decides what stands."""

    async def run() -> None:
        rig = new_rig()
        await rig.start()
        rig.agent.record_ready()
        stored = [
            make.placement(round=number + 1, state="releasing" if is_release else "desired")
            for number, is_release in enumerate(releases)
        ]
        order = list(enumerate(stored, start=1))
        shuffled.shuffle(order)
        for sequence, placement in order:
            await rig.tell(placement, sequence=sequence)
        expected = None if releases[-1] else EntryState.PREPARED
        assert rig.state() is expected
        if releases[-1]:
            assert not rig.table.uses

    asyncio.run(run())


@settings(max_examples=60, deadline=None)
@given(order=st.permutations(range(len(HISTORY))), slices=st.lists(st.integers(1, 5), min_size=14, max_size=14))
def test_told_in_slices_side_by_side_ends_with_nothing(
    order: list[int], slices: list[int], make: Any, new_rig: Any
) -> None:
    """Several placements are taken before their jobs are reconciled, jobs side by side, as a process does it."""

    async def run() -> None:
        rig = new_rig()
        await rig.start()
        rig.agent.record_ready()
        waiting = list(order)
        for size in slices:
            jobs = set()
            for index in waiting[:size]:
                job = rig.agent.take(Record.of(_placement(make, index), Fence(1, index + 1)))
                if job is not None:
                    jobs.add(job)
            del waiting[:size]
            async with asyncio.TaskGroup() as group:
                for job in sorted(jobs):
                    group.create_task(rig.agent.reconcile(job))
        assert rig.leftovers() == {}

    asyncio.run(run())
