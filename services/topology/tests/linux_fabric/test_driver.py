"""The software fabric on the real kernel (root)."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from railweave.runtime.netlink import (
    Address,
    AddRoute,
    CreateBridge,
    CreateVeth,
    DeleteAddress,
    DeleteLink,
    DeleteRoute,
    KernelError,
    LinuxKernel,
    Route,
    SetLink,
    SetSysctl,
    settle_all,
)
from railweave.topology.linux_fabric import FabricRefused, FabricStepKind, plan, port

pytestmark = pytest.mark.kernel


def tamper(name, actions):
    with LinuxKernel().open(f"/run/netns/{name}") as inside:
        settle_all(inside, actions)


async def test_a_fabric_is_made_and_a_second_run_finds_nothing_to_do(fabric, make_plan, run):
    outcome = await fabric.sync(make_plan(run))
    assert len(outcome.steps) > 30
    assert (await fabric.sync(make_plan(run))).steps == ()


async def test_leaves_route_to_each_other_by_a_spine(fabric, make_plan, run):
    await fabric.sync(make_plan(run))
    with LinuxKernel().open(f"/run/netns/{run}-leaf-0") as leaf:
        routes = {route.to: route.via for route in leaf.routes() if route.protocol == 82}
        assert set(routes) == {"10.1.0.0/24", "10.1.1.0/24", "fd00:2:100::/64", "fd00:2:101::/64"}
        assert leaf.sysctl("ipv4/ip_forward") == "1"


async def test_whatever_is_taken_away_is_mended_by_the_next_run(fabric, make_plan, run):
    wanted = make_plan(run)
    await fabric.sync(wanted)
    leaf, spine = f"{run}-leaf-0", f"{run}-spine-1"
    kernel = LinuxKernel()
    with kernel.open(f"/run/netns/{leaf}") as inside:
        index = inside.links_named(["br100"])["br100"].index
        found = next(route for route in inside.routes() if route.protocol == 82)
        route = replace(found, device=0)
    for damage in (
        lambda: tamper(leaf, [DeleteRoute(route)]),
        lambda: tamper(leaf, [DeleteAddress(Address(index, "10.0.0.1/24"))]),
        lambda: tamper(leaf, [SetLink("br100", up=False), SetLink("br101", mtu=1400)]),
        lambda: tamper(leaf, [SetSysctl("ipv4/ip_forward", "0")]),
        lambda: tamper(leaf, [DeleteLink("br101")]),
        lambda: tamper(leaf, [DeleteLink("spine-1-up")]),
        lambda: tamper(leaf, [SetLink("spine-0-up", up=False)]),
        lambda: tamper(leaf, [DeleteRoute(route), AddRoute(Route(route.to, 254, "10.0.0.77"))]),
        lambda: kernel.delete_netns(spine),
    ):
        damage()
        assert (await fabric.sync(wanted)).steps != ()
        assert (await fabric.sync(wanted)).steps == ()


async def test_killed_before_any_step_the_next_run_finishes(fabric, make_plan, run):
    wanted = make_plan(run, leaves=1, spines=1, vlans=(100,))
    steps = plan(wanted, {})
    for count in range(len(steps) + 1):
        fabric.apply(steps[:count])
        await fabric.sync(wanted)
        assert (await fabric.sync(wanted)).steps == ()
        await fabric.remove()


async def test_namespace_made_and_not_yet_marked_is_taken(fabric, make_plan, run):
    LinuxKernel().create_netns(f"{run}-leaf-0")
    await fabric.sync(make_plan(run))
    assert (await fabric.sync(make_plan(run))).steps == ()


async def test_what_others_made_is_neither_used_nor_removed(fabric, make_plan, run):
    kernel = LinuxKernel()
    kernel.create_netns(f"{run}-leaf-0")
    tamper(f"{run}-leaf-0", [CreateBridge("docker0")])
    with pytest.raises(FabricRefused, match="not ours"):
        await fabric.sync(make_plan(run))
    kernel.delete_netns(f"{run}-leaf-0")
    kernel.create_netns(f"{run}-node-1")
    await fabric.sync(make_plan(run))
    tamper(f"{run}-leaf-1", [CreateVeth("x0", "x1"), SetLink("x0", alias="theirs")])
    await fabric.sync(make_plan(run, vlans=(100,)))
    with kernel.open(f"/run/netns/{run}-leaf-1") as leaf:
        assert {"x0", "x1"} <= {link.name for link in leaf.links()}
    await fabric.remove()
    assert [name for name in kernel.netns_names() if name.startswith(run)] == [f"{run}-node-1"]


async def test_vlan_with_a_port_plugged_in_stays_until_it_is_unplugged(fabric, make_plan, run):
    await fabric.sync(make_plan(run))
    path, far = port(run, "leaf-0", "Ethernet0", 0)
    name = path.rsplit("/", 1)[1]
    with LinuxKernel().open(path) as leaf:
        settle_all(leaf, [CreateVeth(far, "near")])
        settle_all(leaf, [SetLink(far, master=leaf.links_named(["br101"])["br101"].index)])
    outcome = await fabric.sync(make_plan(run, vlans=(100,)))
    assert outcome.kept == (f"{name}: 1 ports on br101",)
    tamper(name, [DeleteLink(far)])
    outcome = await fabric.sync(make_plan(run, vlans=(100,)))
    assert [step.kind for step in outcome.steps] == [FabricStepKind.DROP_DEVICE]
    assert outcome.kept == ()


async def test_200_runs_leak_no_descriptor(fabric, make_plan, run):
    small = make_plan(run, leaves=1, spines=1)
    await fabric.sync(small)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(200):
        await fabric.sync(small)
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_refused_step_says_what_was_asked_and_the_next_run_goes_on(fabric, make_plan, run):
    await fabric.sync(make_plan(run))
    tamper(f"{run}-leaf-0", [DeleteLink("br100")])
    steps = plan(make_plan(run), fabric.observe())
    tamper(f"{run}-leaf-0", [CreateVeth("br100", "squatter")])
    with pytest.raises((KernelError, FabricRefused)) as failed:
        fabric.apply(steps)
    assert "br100" in str(failed.value)
    tamper(f"{run}-leaf-0", [DeleteLink("br100")])
    await fabric.sync(make_plan(run))
    assert (await fabric.sync(make_plan(run))).steps == ()
