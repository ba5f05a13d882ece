"""What only the real kernel can show: descriptors, threads, namespaces that hide, the event loop."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time
from dataclasses import replace

import pytest

from railweave.node_agent.network import StepFailed, VethNetwork
from railweave.runtime.netlink import NetnsGone

pytestmark = pytest.mark.kernel


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.timeout(180)  # 20 s of CPU: more than a minute on a machine that does much else
def test_200_cycles_leak_no_descriptor_and_no_thread(linux_world, vf):
    # dranet PR#180, sriov-cni d7318f28
    wants = [vf(0)]
    linux_world.driver.undo(linux_world.attach(wants))
    linux_world.prepare(wants)
    before, threads = descriptors(), threading.active_count()
    stale = replace(linux_world.worker, inode=1)
    for _ in range(200):
        inside = linux_world.plan_attach(wants)
        linux_world.driver.apply(inside)
        with pytest.raises(StepFailed):
            linux_world.driver.apply([replace(inside[-1], netns=stale), replace(inside[0], vf="r7v0")])
        with pytest.raises(NetnsGone):
            linux_world.driver.find_netns(f"/run/netns/{linux_world.prefix}-none")
        assert linux_world.driver.observe(wants, stale).worker_gone
        linux_world.driver.undo(inside)
    assert descriptors() == before
    assert threading.active_count() == threads


def test_worker_found_by_pid_stays_known_when_its_name_is_removed(linux_world, vf):
    process = subprocess.Popen(["ip", "netns", "exec", linux_world.name("worker"), "sleep", "60"])
    try:
        by_pid = f"/proc/{process.pid}/ns/net"
        deadline = time.monotonic() + 5
        while linux_world.kernel.find(by_pid).inode != linux_world.worker.inode and time.monotonic() < deadline:
            time.sleep(0.01)
        wants = [vf(0)]
        before = linux_world.picture("node", "leaf0")
        journal = linux_world.attach(wants)
        linux_world.kernel.delete_netns(linux_world.name("worker"))
        assert not linux_world.driver.observe(wants, linux_world.worker).worker_gone
        assert linux_world.kernel.find(linux_world.worker).path == by_pid
        linux_world.driver.undo(journal)
        assert linux_world.picture("node", "leaf0") == before
    finally:
        process.kill()
        process.wait()


def test_namespace_hidden_by_an_open_descriptor_does_not_keep_the_vf_for_ever(linux_world, vf):
    # notes/network.md fact 9, multus#1134
    before = linux_world.picture("node", "leaf0")
    journal = linux_world.attach([vf(0)])
    held = os.open(linux_world.worker.path, os.O_RDONLY)
    try:
        linux_world.kernel.delete_netns(linux_world.name("worker"))
        assert linux_world.driver.observe([vf(0)], linux_world.worker).vfs["r0v0"].where == "out"
        linux_world.driver.undo(journal)
        assert linux_world.picture("node", "leaf0") == before
    finally:
        os.close(held)


def test_regular_file_where_a_namespace_was_counts_as_gone(linux_world, vf):
    # sriov-cni PR#447: teardown looped for ever
    before = linux_world.picture("node", "leaf0")
    journal = linux_world.attach([vf(0)])
    linux_world.kernel.delete_netns(linux_world.name("worker"))
    with open(linux_world.worker.path, "w", encoding="ascii"):
        pass
    try:
        assert linux_world.driver.observe([vf(0)], linux_world.worker).worker_gone
        linux_world.driver.undo(journal)
        assert linux_world.picture("node", "leaf0") == before
    finally:
        os.unlink(linux_world.worker.path)


async def test_the_event_loop_keeps_turning_while_the_kernel_moves_devices(linux_world, vf):
    network = VethNetwork(linux_world.kernel, linux_world.ports)
    wants = [vf(0), vf(1)]
    prepared = network.plan_prepare(wants, await network.observe(wants))
    await network.apply(prepared)
    inside = network.plan_attach(wants, await network.observe(wants, linux_world.worker))
    turns, longest_s, last = 0, 0.0, time.monotonic()
    work = asyncio.ensure_future(network.apply(inside))
    while not work.done():
        await asyncio.sleep(0.001)
        now = time.monotonic()
        longest_s, last, turns = max(longest_s, now - last), now, turns + 1
    await work
    await network.undo(prepared + inside)
    await network.close()
    assert turns > 5
    assert longest_s < 0.03  # moving two devices takes 36 ms in one system call


async def test_cancelled_apply_has_stopped_acting_before_it_is_reported_cancelled(linux_world, vf):
    network = VethNetwork(linux_world.kernel, linux_world.ports)
    wants = [vf(0), vf(1)]
    before = linux_world.picture()
    prepared = network.plan_prepare(wants, await network.observe(wants))
    await network.apply(prepared)
    inside = network.plan_attach(wants, await network.observe(wants, linux_world.worker))
    for delay_s in (0.0, 0.005, 0.02):
        work = asyncio.ensure_future(network.apply(inside))
        await asyncio.sleep(delay_s)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        await network.undo(inside)
    await network.undo(prepared)
    await network.close()
    assert linux_world.picture() == before


async def test_many_at_once_on_one_node_do_not_disturb_each_other(linux_world, vf):
    # sriov-cni#34, #213: same VF chosen twice, random EBUSY
    network = VethNetwork(linux_world.kernel, linux_world.ports)
    before = linux_world.picture()

    async def cycle(rail: int, index: int) -> None:
        wants = [vf(rail, index)]
        for _ in range(3):
            prepared = network.plan_prepare(wants, await network.observe(wants))
            await network.apply(prepared)
            await network.undo(prepared)

    async with asyncio.TaskGroup() as group:
        for rail in (0, 1):
            for index in (0, 1):
                group.create_task(cycle(rail, index))
    await network.close()
    assert linux_world.picture() == before
