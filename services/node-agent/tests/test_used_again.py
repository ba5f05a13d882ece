"""A worker is gone before its job ends, and the next job's namespace has the inode that the worker's had."""

from __future__ import annotations

from typing import Any

from railweave.contracts.inventory import ReportState


async def test_job_whose_worker_is_gone_is_not_mended_into_the_namespace_of_another(
    new_rig: Any, make: Any, memory_world: Any
) -> None:
    world = memory_world
    driver = world.driver()
    await driver.provision(2)
    netns = world.netns("w")
    inode = world.kernel.find(netns).inode
    rig = new_rig(driver=driver)
    await rig.start()
    await rig.tell(make.placement(netns=netns))
    assert rig.last().state is ReportState.ATTACHED
    world.kernel.delete_netns(netns.rpartition("/")[2])
    other = world.netns("x")
    assert world.kernel.find(other).inode == inode

    await rig.agent.reconcile(make.key().job_key, mend=True)
    with world.kernel.open(other) as inside:
        assert {link.name for link in inside.links()} == {"lo"}

    await rig.tell(make.placement(state="releasing"))
    assert rig.leftovers() == {}
    with world.kernel.open(other) as inside:
        assert {link.name for link in inside.links()} == {"lo"}
