"""The agent is killed at each point of its work and a new one started on the same machine: the placement ends
as desired or as it was, and nothing is left over.

A point is a boundary in the agent (before and after every write to the journal, every concern applied or undone,
every report), or, over a kernel, every single kernel action.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from railweave.contracts.inventory import ReportState
from railweave.node_agent.data import DataApplier
from railweave.node_agent.gpu import GpuApplier
from railweave.node_agent.journal_sqlite import SqliteStore
from railweave.node_agent.model import EntryState
from railweave.node_agent.network.memory import Killed as KernelKilled
from railweave.node_agent.simulated_network import SimulatedNetwork
from railweave.runtime.netlink import NetnsRef

Tell = Callable[[Any], Awaitable[None]]


class Points:
    """Counts the points of a run and dies at one of them."""

    def __init__(self, die_at: int | None, error: type[BaseException]) -> None:
        self.passed: list[str] = []
        self._die_at = die_at
        self._error = error

    def __call__(self, point: str) -> None:
        self.passed.append(point)
        if self._die_at is not None and len(self.passed) == self._die_at:
            raise self._error(point)


def _steps(make: Any, netns: str) -> list[Any]:
    """A life: desired, started, releasing, released."""
    fields: dict[str, Any] = {"scratch": 100, "datasets": (make.dataset(),)}
    return [
        make.placement(**fields),
        make.placement(netns=netns, **fields),
        make.placement(netns=netns, state="releasing", **fields),
        make.placement(state="released", **fields),
    ]


async def _points_of_a_life(new_rig: Any, make: Any, killed: type[BaseException]) -> int:
    rig = new_rig()
    points = Points(None, killed)
    await rig.start(points)
    for placement in _steps(make, "/run/netns/w"):
        await rig.tell(placement)
    return len(points.passed)


async def _live_and_die(rig: Any, make: Any, killed: type[BaseException], die_at: int, netns: str) -> None:
    """Go through a life, be killed at one point, start again, and go on."""
    await rig.start(Points(die_at, killed))
    for sequence, placement in enumerate(_steps(make, netns), start=1):
        try:
            await rig.tell(placement, sequence=sequence)
        except killed:
            await rig.start()
            await rig.tell(placement, sequence=sequence)
        if placement.state == "desired":
            expected = EntryState.ATTACHED if placement.started else EntryState.PREPARED
            assert rig.state() is expected, f"killed at point {die_at}"
            assert rig.last().state == str(expected)


async def test_killed_at_each_point_of_a_life(new_rig: Any, make: Any, killed: type[BaseException]) -> None:
    count = await _points_of_a_life(new_rig, make, killed)
    assert count > 20
    for die_at in range(1, count + 1):
        rig = new_rig()
        await _live_and_die(rig, make, killed, die_at, "/run/netns/w")
        assert rig.leftovers() == {}, f"killed at point {die_at}"
        assert rig.last().state is ReportState.UNDONE


async def test_killed_at_each_point_and_released_meanwhile(
    new_rig: Any, make: Any, killed: type[BaseException]
) -> None:
    count = await _points_of_a_life(new_rig, make, killed)
    for die_at in range(1, count + 1):
        rig = new_rig()
        await rig.start(Points(die_at, killed))
        try:
            for sequence, placement in enumerate(_steps(make, "/run/netns/w"), start=1):
                await rig.tell(placement, sequence=sequence)
        except killed:
            await rig.start()
        # The agent was away for the rest: it sees the release alone.
        await rig.tell(make.placement(state="releasing"), sequence=9)
        assert rig.last().state is ReportState.UNDONE
        await rig.tell(make.placement(state="released"), sequence=10)
        assert rig.leftovers() == {}, f"killed at point {die_at}"


async def test_killed_at_each_point_while_the_record_is_lost(
    new_rig: Any, make: Any, killed: type[BaseException]
) -> None:
    count = await _points_of_a_life(new_rig, make, killed)
    for die_at in range(1, count + 1):
        rig = new_rig()
        await rig.start(Points(die_at, killed))
        was_released = False
        try:
            for sequence, placement in enumerate(_steps(make, "/run/netns/w"), start=1):
                was_released = placement.state != "desired"
                await rig.tell(placement, sequence=sequence)
        except killed:
            await rig.start()
        held = dict(rig.agent.journal.entries)
        rig.agent.record_ready()
        for key in held:
            await rig.agent.reconcile(key.job_key)
        for key, entry in held.items():
            if entry.state is EntryState.UNDOING:
                assert was_released  # a stored release was journaled: finished without the record
                assert key not in rig.agent.journal.entries
            else:
                assert rig.last().state is ReportState.ORPHAN
                assert key in rig.agent.journal.entries


async def test_killed_at_each_point_with_the_journal_on_disk(
    new_rig: Any, make: Any, killed: type[BaseException], tmp_path: Path
) -> None:
    blank = new_rig()
    appliers = (SimulatedNetwork(blank.table), GpuApplier(blank.gpus), DataApplier(blank.space))
    bodies: dict[str, Any] = {applier.concern: applier.body_from_json for applier in appliers}
    numbers = itertools.count()
    count = await _points_of_a_life(new_rig, make, killed)
    for die_at in range(1, count + 1, 3):
        rig = new_rig()
        path = tmp_path / f"{next(numbers)}.sqlite"
        stores = [SqliteStore(path, bodies)]
        await rig.start(Points(die_at, killed), store=stores[0])
        for sequence, placement in enumerate(_steps(make, "/run/netns/w"), start=1):
            try:
                await rig.tell(placement, sequence=sequence)
            except killed:
                stores.append(SqliteStore(path, bodies))
                await rig.start(store=stores[-1])
                await rig.tell(placement, sequence=sequence)
        assert rig.leftovers() == {}, f"killed at point {die_at}"
        for store in stores:
            await store.close()


async def _kernel_life(rig: Any, world: Any, make: Any, netns: str) -> None:
    for sequence, placement in enumerate(_steps(make, netns), start=1):
        await rig.tell(placement, sequence=sequence)


async def test_two_workers_of_a_job_on_one_node_each_have_their_rails(
    new_rig: Any, make: Any, memory_world: Any
) -> None:
    # Every real node refused them: "name rail0 is also that of r0v0".
    world = memory_world
    driver = world.driver()
    await driver.provision(2)
    paths = [world.netns(f"w{rank}") for rank in range(2)]
    before = world.picture()
    rig = new_rig(driver=driver)
    await rig.start()
    bare = [make.worker(rank, vf=rank, gpus=()) for rank in range(2)]
    await rig.tell(make.placement(workers=bare))
    assert rig.last().state == "prepared"
    placed = [make.worker(rank, vf=rank, gpus=(), netns=paths[rank]) for rank in range(2)]
    await rig.tell(make.placement(workers=placed, started=True))
    assert rig.last().state == "attached"
    for rank in range(2):
        with world.kernel.open(paths[rank]) as inside:
            names = sorted(link.name for link in inside.links() if link.name != "lo")
        assert names == ["rail0", "rail1"]
    await rig.tell(make.placement(state="releasing"))
    assert rig.leftovers() == {}
    assert world.picture() == before


async def test_killed_at_each_action_of_the_kernel(new_rig: Any, make: Any, memory_world: Any) -> None:
    world = memory_world
    driver = world.driver()
    await driver.provision(2)
    world.netns("w")
    before = world.picture()
    kernel = world.kernel
    died = 0
    for die_at in itertools.count(1):
        rig = new_rig(driver=driver)
        await rig.start()
        kernel.kill_at(kernel.actions_done + die_at)
        deaths = 0
        for sequence, placement in enumerate(_steps(make, "/run/netns/t-w"), start=1):
            try:
                await rig.tell(placement, sequence=sequence)
            except KernelKilled:
                deaths += 1
                kernel.kill_at(None)
                await rig.start()
                await rig.tell(placement, sequence=sequence)
            if placement.state == "desired":
                expected = EntryState.ATTACHED if placement.started else EntryState.PREPARED
                assert rig.state() is expected, f"killed at action {die_at}"
        kernel.kill_at(None)
        assert rig.leftovers() == {}
        assert world.picture() == before, f"killed at action {die_at}"
        if not deaths:
            break
        died += deaths
    assert died > 40


async def test_killed_at_each_action_and_the_worker_dies_with_it(new_rig: Any, make: Any, memory_world: Any) -> None:
    world = memory_world
    driver = world.driver()
    await driver.provision(2)
    before = world.picture()
    kernel = world.kernel
    for die_at in itertools.count(1, 3):
        kernel.create_netns("t-w")
        rig = new_rig(driver=driver)
        await rig.start()
        kernel.kill_at(kernel.actions_done + die_at)
        is_dead = False
        try:
            await _kernel_life(rig, world, make, "/run/netns/t-w")
        except KernelKilled:
            is_dead = True
        kernel.kill_at(None)
        kernel.delete_netns("t-w")
        await rig.start()
        await rig.tell(make.placement(state="releasing"), sequence=9)
        await rig.tell(make.placement(state="released"), sequence=10)
        assert rig.leftovers() == {}
        assert world.picture() == before, f"killed at action {die_at}"
        if not is_dead:
            break


@pytest.mark.kernel
async def test_killed_at_points_on_a_real_kernel(
    new_rig: Any, make: Any, linux_world: Any, killed: type[BaseException]
) -> None:
    world = linux_world
    driver = world.driver()
    await driver.provision(2)
    netns = world.netns("w")
    before = world.picture()
    count = await _points_of_a_life(new_rig, make, killed)
    for die_at in range(1, count + 1):
        rig = new_rig(driver=driver)
        await _live_and_die(rig, make, killed, die_at, netns)
        assert rig.leftovers() == {}
        assert world.picture() == before, f"killed at point {die_at}"
    await driver.close()


@pytest.mark.kernel
async def test_killed_in_the_middle_of_a_send_on_a_real_kernel(new_rig: Any, make: Any, linux_world: Any) -> None:
    world = linux_world
    provisioning = world.driver()
    await provisioning.provision(2)
    netns = world.netns("w")
    before = world.picture()
    killing = _KillingKernel(world.kernel)
    world.kernel = killing
    driver = world.driver()
    total = 0
    for die_at in (*range(1, 12), *range(12, 90, 7)):
        rig = new_rig(driver=driver)
        await rig.start()
        killing.die_in(die_at)
        for sequence, placement in enumerate(_steps(make, netns), start=1):
            try:
                await rig.tell(placement, sequence=sequence)
            except KernelKilled:
                total += 1
                await rig.start()
                await rig.tell(placement, sequence=sequence)
        killing.die_in(None)
        assert rig.leftovers() == {}
        assert world.picture() == before, f"killed at action {die_at}"
    assert total > 15
    await provisioning.close()
    await driver.close()


class _KillingKernel:
    """The real kernel, whose caller dies before a certain action: those before it are done, the others never asked."""

    blocking = True

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self.left: int | None = None

    def die_in(self, actions: int | None) -> None:
        self.left = actions

    def open(self, where: str | NetnsRef) -> Any:
        return _KillingNamespace(self, self._kernel.open(where))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)


class _KillingNamespace:
    def __init__(self, kernel: _KillingKernel, inside: Any) -> None:
        self._owner = kernel
        self._inside = inside

    def execute(self, actions: Any) -> Any:
        left = self._owner.left
        if left is None or len(actions) < left:
            if left is not None:
                self._owner.left = left - len(actions)
            return self._inside.execute(actions)
        self._owner.left = None
        self._inside.execute(actions[: left - 1])
        raise KernelKilled

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        self._inside.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inside, name)
