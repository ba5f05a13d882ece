"""Physical VFs outlive the namespace they were in and come back under the wrong name (notes/network.md fact 1)."""

from __future__ import annotations

from railweave.node_agent.network import StepKind, plan_prepare
from railweave.runtime.netlink import CreateBridge


def test_vf_comes_home_under_its_container_name_and_is_given_its_own(physical_world, vf):
    wants = [vf(0)]
    before = physical_world.picture("node", "leaf0")
    journal = physical_world.attach(wants)
    physical_world.kernel.delete_netns(physical_world.name("worker"))
    assert "rail0" in physical_world.names("node")
    observed = physical_world.driver.observe(wants, physical_world.worker)
    assert observed.worker_gone
    assert [step.kind for step in plan_prepare(wants, observed)] == [StepKind.RENAME]
    physical_world.driver.undo(journal)
    assert physical_world.picture("node", "leaf0") == before


def test_vf_whose_container_name_is_taken_on_the_host_is_still_found(physical_world, vf):
    # sriov-cni#126: comes back as dev5
    physical_world.tamper("node", [CreateBridge("rail0")])
    before = physical_world.picture("node", "leaf0")
    journal = physical_world.attach([vf(0)])
    physical_world.kernel.delete_netns(physical_world.name("worker"))
    assert any(name.startswith("dev") for name in physical_world.names("node"))
    physical_world.driver.undo(journal)
    assert physical_world.picture("node", "leaf0") == before
