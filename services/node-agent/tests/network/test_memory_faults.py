"""Failures that a real kernel gives only now and then, from the kernel in memory."""

from __future__ import annotations

import contextlib
import errno

import pytest

from railweave.node_agent.network import StepFailed, StepKind, UndoFailed, VethNetwork
from railweave.node_agent.network.memory import Killed
from railweave.node_agent.network.veth import VethDriver
from railweave.runtime.netlink import AddRule, Busy, SetLink


def test_busy_twice_is_tried_again_and_succeeds(memory_world, vf):
    # sriov-cni#34, hustcat#16: random EBUSY
    prepared = memory_world.prepare([vf(0)])
    memory_world.kernel.refuse(lambda a: isinstance(a, SetLink) and a.netns is not None, errno.EBUSY, times=2)
    inside = memory_world.plan_attach([vf(0)])
    memory_world.driver.apply(inside)
    assert memory_world.drift([vf(0)]) == []
    memory_world.driver.undo(prepared + inside)


def test_busy_for_good_fails_the_step_by_name_and_is_undone(memory_world, vf):
    before = memory_world.picture()
    prepared = memory_world.prepare([vf(0), vf(1)])
    inside = memory_world.plan_attach([vf(0), vf(1)])
    memory_world.kernel.refuse(lambda a: isinstance(a, SetLink) and a.netns is not None, errno.EBUSY, times=8)
    with pytest.raises(StepFailed) as failed:
        memory_world.driver.apply(inside)
    assert isinstance(failed.value.cause, Busy)
    assert failed.value.step.kind is StepKind.MOVE
    memory_world.driver.undo(prepared + inside)
    assert memory_world.picture() == before


def test_agent_killed_before_any_kernel_action_of_applying_can_undo_from_its_journal(memory_world, vf):
    wants = [vf(0), vf(1)]
    before = memory_world.picture()
    prepared = memory_world.prepare(wants)
    journal = prepared + memory_world.plan_attach(wants)
    memory_world.driver.undo(prepared)
    kernel = memory_world.kernel
    for offset in range(200):
        kernel.kill_at(kernel.actions_done + offset)
        try:
            memory_world.driver.apply(journal)
        except Killed:
            kernel.kill_at(None)
            VethDriver(kernel, memory_world.ports).undo(journal)
            assert memory_world.picture() == before, f"killed before action {offset}"
        else:
            kernel.kill_at(None)
            memory_world.driver.undo(journal)
            assert offset >= 30
            return
    pytest.fail("never came to the end")


def test_agent_killed_before_any_kernel_action_of_undoing_can_undo_again(memory_world, vf):
    wants = [vf(0), vf(1)]
    before = memory_world.picture()
    kernel = memory_world.kernel
    for offset in range(200):
        journal = memory_world.attach(wants)
        kernel.kill_at(kernel.actions_done + offset)
        try:
            memory_world.driver.undo(journal)
        except Killed:
            kernel.kill_at(None)
            VethDriver(kernel, memory_world.ports).undo(journal)
            assert memory_world.picture() == before, f"killed before action {offset}"
        else:
            kernel.kill_at(None)
            assert offset > 20
            return
    pytest.fail("never came to the end")


@pytest.mark.parametrize("number", [errno.EBUSY, errno.ENODEV, errno.EEXIST, errno.ENETUNREACH, errno.EINVAL])
def test_any_action_refused_with_any_errno_leaves_nothing_after_undo(memory_world, vf, number):
    wants = [vf(0), vf(1)]
    before = memory_world.picture()
    kernel = memory_world.kernel
    prepared = memory_world.prepare(wants)
    journal = prepared + memory_world.plan_attach(wants)
    memory_world.driver.undo(prepared)
    for offset in range(len(journal)):
        kernel.fail_at(kernel.actions_done + offset, number)
        with contextlib.suppress(StepFailed):  # of EEXIST it may find that the thing is there after all
            memory_world.driver.apply(journal)
        memory_world.driver.undo(journal)
        assert memory_world.picture() == before, f"errno {number} at action {offset}"


def test_undo_that_fails_at_one_step_undoes_all_others_and_names_it(memory_world, vf):
    before = memory_world.picture()
    journal = memory_world.attach([vf(0), vf(1)])
    memory_world.kernel.refuse(lambda a: isinstance(a, SetLink) and a.mac is not None, errno.EPERM, times=1)
    with pytest.raises(UndoFailed) as failed:
        memory_world.driver.undo(journal)
    assert [step.kind for step, _ in failed.value.failures] == [StepKind.MAC]
    memory_world.driver.undo(journal)
    assert memory_world.picture() == before


async def test_a_kernel_in_memory_is_used_without_a_thread(memory_world, vf):
    network = VethNetwork(memory_world.kernel, memory_world.ports)
    wants = [vf(0)]
    steps = network.plan_prepare(wants, await network.observe(wants))
    await network.apply(steps)
    netns = await network.find_netns(memory_world.worker.path)
    inside = network.plan_attach(wants, await network.observe(wants, netns))
    await network.apply(inside)
    assert any(isinstance(step.after.get("priority"), int) for step in inside)
    memory_world.kernel.refuse(lambda a: isinstance(a, AddRule), errno.EPERM)
    await network.undo(steps + inside)
    assert await network.provision(2) == []
    await network.close()
