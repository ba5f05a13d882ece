"""Plans of a software fabric: pure, without a kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from railweave.runtime.netlink import NameRefused
from railweave.topology.linux_fabric import (
    FabricPlan,
    FabricRefused,
    FabricStepKind,
    SoftwareLeaf,
    SoftwareSpine,
    SoftwareVlan,
    kept_in_use,
    mesh_links,
    netns_name,
    plan,
    port,
    render,
)


def kinds(steps):
    return [step.kind for step in steps]


def test_the_wanted_fabric_needs_no_step(make_plan):
    assert plan(make_plan(), render(make_plan())) == []


def test_from_nothing_every_namespace_bridge_and_link_is_made_once(make_plan):
    found = kinds(plan(make_plan(), {}))
    assert found.count(FabricStepKind.NETNS) == 4
    assert found.count(FabricStepKind.BRIDGE) == 4
    assert found.count(FabricStepKind.LINK) == 4
    assert found == sorted(found, key=list(FabricStepKind).index)


def test_vlan_that_is_not_wanted_any_more_goes_unless_a_port_is_on_it(make_plan):
    now = render(make_plan())
    fewer = make_plan(vlans=(100,))
    dropped = [step for step in plan(fewer, now) if step.kind is FabricStepKind.DROP_DEVICE]
    assert [(step.netns, step.device) for step in dropped] == [("rw1-leaf-0", "br101"), ("rw1-leaf-1", "br101")]
    leaf = now["rw1-leaf-0"]
    used = replace(leaf, devices={**leaf.devices, "br101": replace(leaf.devices["br101"], ports=3)})
    in_use = {**now, "rw1-leaf-0": used}
    dropped = [step for step in plan(fewer, in_use) if step.kind is FabricStepKind.DROP_DEVICE]
    assert [step.netns for step in dropped] == ["rw1-leaf-1"]
    assert kept_in_use(fewer, in_use) == ["rw1-leaf-0: 3 ports on br101"]


def test_leaf_that_is_not_wanted_any_more_goes_with_its_links(make_plan):
    steps = plan(make_plan(leaves=1), render(make_plan()))
    assert ("rw1-leaf-1", FabricStepKind.DROP_NETNS) in [(step.netns, step.kind) for step in steps]
    spine_steps = {(step.kind, step.device) for step in steps if step.netns == "rw1-spine-0"}
    assert (FabricStepKind.DROP_DEVICE, "leaf-1-dn") in spine_steps


def test_namespace_of_somebody_else_under_a_needed_name_is_refused(make_plan):
    with pytest.raises(FabricRefused, match="rw1-leaf-0 is there and not ours"):
        plan(make_plan(), {"rw1-leaf-0": None})


def test_device_of_somebody_else_under_a_needed_name_is_refused(make_plan):
    now = render(make_plan())
    now["rw1-leaf-0"] = replace(now["rw1-leaf-0"], foreign=frozenset({"br100"}))
    with pytest.raises(FabricRefused, match="br100"):
        plan(make_plan(), now)


def test_namespaces_of_others_under_the_prefix_are_never_dropped(make_plan):
    assert plan(make_plan(), {**render(make_plan()), "rw1-node-7": None}) == []


@pytest.mark.parametrize(
    ("vlans", "reason"),
    [
        ((SoftwareVlan(0, "10.0.0.1/24"),), "1 to 4094"),
        ((SoftwareVlan(4095, "10.0.0.1/24"),), "1 to 4094"),
        ((SoftwareVlan(5, "10.0.0.1/24"), SoftwareVlan(5, "10.0.1.1/24")), "distinct"),
        ((SoftwareVlan(5, "10.0.0.1/16"), SoftwareVlan(6, "10.0.7.1/24")), "overlap"),
    ],
)
def test_vlans_that_cannot_be_are_refused(vlans, reason):
    # antrea#7306: 10.0.0.0/24 inside 10.0.0.0/16
    with pytest.raises(FabricRefused, match=reason):
        render(FabricPlan("rw1", (SoftwareLeaf("a", vlans),)))


def test_two_leaves_with_one_subnet_are_refused():
    leaves = tuple(SoftwareLeaf(name, (SoftwareVlan(5, "10.0.0.1/24"),)) for name in "ab")
    with pytest.raises(FabricRefused, match="overlap"):
        render(FabricPlan("rw1", leaves))


def test_leaves_without_a_common_spine_get_no_route_to_each_other(make_plan):
    # Slurm: no common parent, no job across
    both = make_plan()
    islands = tuple(link for link in both.links if (link.leaf[-1]) == (link.spine[-1]))
    states = render(replace(both, links=islands))
    assert states["rw1-leaf-0"].routes == {}
    assert set(states["rw1-spine-0"].routes) == {"10.0.0.0/24", "10.0.1.0/24", "fd00:1:100::/64", "fd00:1:101::/64"}


def test_long_and_odd_names_become_distinct_namespaces_and_devices():
    names = ["leaf/../../etc", "leaf" * 40, "leaf" * 40 + "b", "längs"]
    plan_ = FabricPlan(
        "rw1", tuple(SoftwareLeaf(name, ()) for name in names), (SoftwareSpine("s"),), mesh_links(names, ["s"])
    )
    states = render(plan_)
    assert len(states) == 5
    assert all("/" not in name and len(name) <= 64 for name in states)
    devices = [device for state in states.values() for device in state.devices]
    assert all(len(device.encode()) <= 15 for device in devices)
    assert len(states[netns_name("rw1", "s")].devices) == 4


def test_a_port_of_a_leaf_is_found_by_name_alone():
    assert port("rw1", "leaf-0", "Ethernet12", 3) == ("/run/netns/rw1-leaf-0", "Ethernet12v3")
    _, long = port("rw1", "leaf-0", "FortyGigabitEthernet1/0/12", 3)
    assert len(long) == 15
    assert long.endswith("v3")


def test_empty_port_name_is_refused():
    with pytest.raises(NameRefused):
        port("rw1", "leaf-0", "", 3)


def test_appending_a_leaf_renumbers_no_link():
    assert set(mesh_links(["a", "b"], ["s"])) <= set(mesh_links(["a", "b", "c"], ["s", "t"]))


def test_link_pool_that_is_too_small_is_refused():
    with pytest.raises(FabricRefused, match="do not fit"):
        mesh_links(["a", "b"], ["s"], pool="100.64.0.0/25")
