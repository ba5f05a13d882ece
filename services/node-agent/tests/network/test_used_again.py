"""The kernel gives the next namespace the inode of the last one that ended: it is another one all the same."""

from __future__ import annotations

import time

import pytest

from railweave.node_agent.network import Step, StepFailed, StepKind
from railweave.runtime.netlink import NetnsGone, NetnsRef


def _with_the_inode_of_the_worker(world) -> NetnsRef:
    """The worker ends, and the namespace of somebody else begins. Where others were free too, more are made."""
    world.kernel.delete_netns(world.name("worker"))
    for number in range(60):
        other = world.kernel.create_netns(world.name(f"other{number}"))
        if other.inode == world.worker.inode:
            return other
        time.sleep(0.05)  # the kernel ends a namespace in the background
    pytest.skip("the kernel gave the inode to nobody, or to others")


def test_attached_job_was_mended_into_the_namespace_of_the_next_job(world, vf):
    # Chaos on real namespaces, seed 13: the next job was given back, since its namespace had "another device" rail0.
    wants = [vf(0), vf(1)]
    journal = world.attach(wants)
    other = _with_the_inode_of_the_worker(world)
    part = other.path.rpartition("-")[2]
    assert not other.is_same(world.worker)
    assert world.driver.observe(wants, world.worker).worker_gone
    with pytest.raises(NetnsGone):
        world.driver.find_netns(world.worker)
    world.prepare(wants)
    with pytest.raises(StepFailed) as failed:
        world.driver.apply([step for step in journal if step.kind is StepKind.MOVE])
    assert isinstance(failed.value.cause, NetnsGone)
    world.driver.undo(journal)
    assert world.names(part) == {"lo"}


def test_journal_keeps_which_of_two_namespaces_with_one_inode_it_was(world, vf):
    move = next(step for step in world.attach([vf(0)]) if step.kind is StepKind.MOVE)
    assert move.netns is not None
    assert move.netns.cookie != 0
    again = Step.from_json(move.to_json())
    assert again.netns == move.netns
    old = move.to_json()
    del old["netns"]["cookie"]
    before_cookies = Step.from_json(old).netns
    assert before_cookies is not None
    assert before_cookies.is_same(move.netns), "written by an agent that knew no cookies"
