"""What every kernel and driver must keep: prepare, attach, undo, repeat, crash, drift. Runs on the real kernel and in
memory."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from railweave.node_agent.network import (
    NetworkRefused,
    Step,
    StepFailed,
    StepKind,
    UndoFailed,
    plan_attach,
    plan_prepare,
)
from railweave.node_agent.network.provision import provision_vfs
from railweave.node_agent.network.veth import VethDriver
from railweave.runtime.netlink import (
    GUARD_METRIC,
    Address,
    AddRoute,
    AddRule,
    AlreadyThere,
    CreateBridge,
    CreateVeth,
    DeleteAddress,
    DeleteLink,
    DeleteRoute,
    DeleteRule,
    GatewayUnreachable,
    NetnsGone,
    Route,
    Rule,
    SetLink,
)


def test_prepare_sets_vlan_mac_and_mtu_on_both_ends_and_has_nothing_left_to_do(world, vf):
    wants = [vf(0), vf(1, vlan=200)]
    world.prepare(wants)
    observed = world.driver.observe(wants)
    assert plan_prepare(wants, observed) == []
    for want in wants:
        state = observed.vfs[want.key]
        assert (state.where, state.name, state.mac, state.mtu) == ("node", want.key, want.mac, 8900)
        assert (state.vlan, state.port_mtu, state.port_up, state.up) == (want.vlan, 8900, True, False)


def test_attach_puts_each_vf_into_the_worker_with_its_own_table_and_guard(world, vf):
    wants = [vf(0), vf(1)]
    world.attach(wants)
    with world.kernel.open(world.worker) as inside:
        links = {link.name: link for link in inside.links()}
        assert set(links) == {"lo", "rail0", "rail1"}
        assert sorted((rule.priority, rule.source, rule.table) for rule in inside.rules()) == [
            (1000, "10.0.0.10/32", 1000),
            (1001, "10.1.0.10/32", 1001),
        ]
        for rail in (0, 1):
            link = links[f"rail{rail}"]
            assert link.up
            assert {key: link.ipv4[key] for key in ("arp_ignore", "arp_announce", "rp_filter")} == {
                "arp_ignore": 1,
                "arp_announce": 2,
                "rp_filter": 2,
            }
            assert Address(link.index, f"10.{rail}.0.10/24") in inside.addresses()
            in_table = {route.key() for route in inside.routes() if route.table == 1000 + rail}
            assert in_table == {
                (f"10.{rail}.0.0/24", 1000 + rail, None, link.index, 0, "unicast"),
                ("0.0.0.0/0", 1000 + rail, f"10.{rail}.0.1", link.index, 0, "unicast"),
                ("0.0.0.0/0", 1000 + rail, None, 0, GUARD_METRIC, "unreachable"),
            }
    assert world.drift(wants) == []


def test_ipv6_gets_a_rule_of_128_bits_and_a_guard_of_its_own(world, vf):
    wants = [vf(0, ipv6=True)]
    journal = world.attach(wants)
    with world.kernel.open(world.worker) as inside:
        assert Rule(1000, "fd00:10::10/128", 1000).key() in {rule.key() for rule in inside.rules()}
        guards = [route for route in inside.routes() if route.kind == "unreachable"]
        assert sorted(route.to for route in guards) == ["0.0.0.0/0", "::/0"]
        assert inside.sysctl("ipv6/conf/rail0/accept_ra") == "0"
    assert world.drift(wants) == []
    world.driver.undo(journal)
    with world.kernel.open(world.worker) as inside:
        assert inside.rules() == []
        assert [route for route in inside.routes() if route.table == 1000] == []


def test_undo_returns_everything_to_what_it_was_also_a_second_time(world, vf):
    before = world.picture()
    journal = world.attach([vf(0), vf(1)])
    assert world.picture() != before
    world.driver.undo(journal)
    assert world.picture() == before
    world.driver.undo(journal)
    assert world.picture() == before


def test_undo_gives_back_the_vlan_and_mac_that_were_there_before_us(world, vf):
    theirs = replace(vf(0, vlan=200, mtu=3333), mac="02:aa:aa:aa:aa:aa")
    world.prepare([theirs])
    before = world.picture()
    journal = world.attach([vf(0)])
    world.driver.undo(journal)
    assert world.picture() == before


def test_applying_twice_changes_nothing_the_second_time(world, vf):
    wants = [vf(0), vf(1)]
    prepared = world.prepare(wants)
    side = world.picture()
    world.driver.apply(prepared)
    assert world.picture() == side
    inside = world.plan_attach(wants)
    world.driver.apply(inside)
    attached = world.picture()
    world.driver.apply(inside)
    assert world.picture() == attached


def test_killed_after_any_step_the_journal_alone_brings_everything_back(world, vf):
    wants = [vf(0), vf(1)]
    before = world.picture()
    prepared = world.prepare(wants)
    journal = prepared + world.plan_attach(wants)
    world.driver.undo(prepared)
    for killed_after in range(len(journal) + 1):
        for step in journal[:killed_after]:
            world.driver.apply([step])
        written = json.loads(json.dumps([step.to_json() for step in journal]))
        restarted = VethDriver(world.kernel, world.ports)
        restarted.undo([Step.from_json(value) for value in written])
        assert world.picture() == before, f"killed after step {killed_after}: {journal[killed_after - 1].describe()}"


def test_killed_after_any_step_the_same_plan_can_be_finished_instead(world, vf):
    wants = [vf(0), vf(1)]
    world.attach(wants)
    attached = world.picture()
    journal = world.drift(wants)
    assert journal == []
    for killed_after in (1, 3, 7, 11):
        observed = world.driver.observe(wants, world.worker)
        assert observed.vfs["r0v0"].where == "worker"
        with world.kernel.open(world.worker) as inside:
            index = inside.links_named(["rail0"])["rail0"].index
        world.tamper("worker", [SetLink(index, up=False), DeleteRule(Rule(1000, "10.0.0.10/32", 1000))])
        mending = world.drift(wants)
        world.driver.apply(mending[:killed_after])
        world.driver.apply(world.drift(wants))
        assert world.picture() == attached


def test_worker_namespace_gone_before_undo_leaves_the_node_as_it_was(world, vf):
    before = world.picture("node", "leaf0", "leaf1")
    journal = world.attach([vf(0), vf(1)])
    world.kernel.delete_netns(world.name("worker"))
    world.driver.undo(journal)
    assert world.picture("node", "leaf0", "leaf1") == before
    assert provision_vfs(world.kernel, world.ports, 2) == []


def test_pid_or_path_that_leads_to_another_namespace_by_now_is_refused(world, vf):
    # kubernetes#100648: teardown hit the host, the path had been reused
    wants = [vf(0)]
    prepared = world.prepare(wants)
    inside = world.plan_attach(wants)
    world.kernel.delete_netns(world.name("worker"))
    other = world.kernel.create_netns(world.name("worker"))
    assert not other.is_same(world.worker)
    picture = world.picture()
    assert world.driver.observe(wants, world.worker).worker_gone
    with pytest.raises(NetworkRefused, match="gone"):
        world.plan_attach(wants)
    with pytest.raises(StepFailed) as failed:
        world.driver.apply(inside)
    assert isinstance(failed.value.cause, NetnsGone)
    assert failed.value.done == ()
    world.driver.undo(prepared + inside)
    assert world.picture("worker") == {"worker": picture["worker"]}


def test_name_taken_in_the_worker_is_refused_before_anything_moves(world, vf):
    world.tamper("worker", [CreateBridge("rail0")])
    wants = [vf(0)]
    world.prepare(wants)
    picture = world.picture()
    with pytest.raises(NetworkRefused, match="another device named rail0"):
        world.plan_attach(wants)
    assert world.picture() == picture


def test_name_taken_between_plan_and_rename_leaves_the_vf_where_undo_finds_it(world, vf):
    # notes/network.md bug 10: EEXIST, but the VF is gone from the host
    wants = [vf(0), vf(1)]
    before = world.picture("node", "leaf0", "leaf1")
    prepared = world.prepare(wants)
    inside = world.plan_attach(wants)
    world.tamper("worker", [CreateBridge("rail1")])
    with pytest.raises(StepFailed) as failed:
        world.driver.apply(inside)
    assert isinstance(failed.value.cause, AlreadyThere)
    assert (failed.value.step.kind, failed.value.step.vf, failed.value.errno_name) == (
        StepKind.RENAME,
        "r1v0",
        "EEXIST",
    )
    assert "r1v0" in world.names("worker")
    world.driver.undo(prepared + inside)
    assert world.picture("node", "leaf0", "leaf1") == before
    assert world.names("worker") == {"lo", "rail1"}


def test_gateway_that_is_unreachable_for_one_vf_leaves_no_rule_of_the_others(world, vf):
    # plugins `sbr`: no undo when a route fails after rules were added
    wants = [vf(0), vf(1)]
    before = world.picture()
    prepared = world.prepare(wants)
    inside = [
        replace(step, after={**step.after, "via": "192.0.2.1"}) if step.vf == "r1v0" and step.after.get("via") else step
        for step in world.plan_attach(wants)
    ]
    with pytest.raises(StepFailed) as failed:
        world.driver.apply(inside)
    assert isinstance(failed.value.cause, GatewayUnreachable)
    world.driver.undo(prepared + inside)
    assert world.picture() == before


def test_host_name_taken_meanwhile_keeps_the_vf_usable_until_it_is_free(world, vf):
    # plugins#147, #357: the name of the way back is blocked
    before = world.picture("node", "leaf0", "leaf1")
    journal = world.attach([vf(0)])
    world.tamper("node", [CreateBridge("r0v0")])
    with pytest.raises(UndoFailed) as failed:
        world.driver.undo(journal)
    assert any(step.kind is StepKind.MOVE for step, _ in failed.value.failures)
    assert "r0v0" in world.names("worker")
    world.tamper("node", [DeleteLink("r0v0")])
    world.driver.undo(journal)
    assert world.picture("node", "leaf0", "leaf1") == before


def test_job_that_changed_mtu_mac_and_name_does_not_leave_them_to_the_next(world, vf):
    # sriov-cni PR#316: stale MTU of an app with NET_ADMIN
    before = world.picture("node", "leaf0", "leaf1")
    journal = world.attach([vf(0)])
    index = world.index("worker", "rail0")
    changes = [SetLink(index, up=False), SetLink(index, mtu=4444), SetLink(index, mac="02:66:66:66:66:66")]
    world.tamper("worker", [*changes, SetLink(index, name="mine")])
    world.driver.undo(journal)
    assert world.picture("node", "leaf0", "leaf1") == before


def test_next_tenant_never_inherits_a_vlan(world, vf):
    # openshift/sriov-cni#25
    world.tamper("leaf0", [SetLink("Ethernet0v0", master=world.index("leaf0", "br200"))])
    world.prepare([vf(0, vlan=100)])
    assert world.driver.observe([vf(0)]).vfs["r0v0"].vlan == 100


TAMPERINGS = {
    "rule removed": lambda index: [DeleteRule(Rule(1000, "10.0.0.10/32", 1000))],
    "default route removed": lambda index: [DeleteRoute(Route("0.0.0.0/0", 1000, "10.0.0.1", index))],
    "guard removed": lambda index: [DeleteRoute(Route("0.0.0.0/0", 1000, metric=GUARD_METRIC, kind="unreachable"))],
    "address removed": lambda index: [DeleteAddress(Address(index, "10.0.0.10/24"))],
    "link down": lambda index: [SetLink(index, up=False)],
    "link down and up": lambda index: [SetLink(index, up=False), SetLink(index, up=True)],
    "arp settings reset": lambda index: [SetLink(index, ipv4={"arp_ignore": 0, "rp_filter": 1})],
    "mtu changed": lambda index: [SetLink(index, mtu=1500)],
    "mac changed": lambda index: [SetLink(index, mac="02:12:12:12:12:12")],
    "renamed": lambda index: [SetLink(index, up=False), SetLink(index, name="eth7")],
    "route replaced": lambda index: [
        DeleteRoute(Route("0.0.0.0/0", 1000, "10.0.0.1", index)),
        AddRoute(Route("0.0.0.0/0", 1000, "10.0.0.77", index)),
    ],
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_drift_is_seen_and_mended(world, vf, tampering):
    wants = [vf(0), vf(1)]
    journal = world.attach(wants)
    attached = world.picture()
    world.tamper("worker", TAMPERINGS[tampering](world.index("worker", "rail0")))
    drift = world.drift(wants)
    assert drift
    assert {step.vf for step in drift} == {"r0v0"}
    world.driver.apply(drift)
    assert world.drift(wants) == []
    assert world.picture() == attached
    world.driver.undo(journal)
    assert world.names("worker") == {"lo"}


def test_far_end_taken_off_its_vlan_is_drift_of_an_attached_vf(world, vf):
    wants = [vf(0)]
    world.attach(wants)
    world.tamper("leaf0", [SetLink("Ethernet0v0", master=0)])
    drift = world.drift(wants)
    assert [step.kind for step in drift] == [StepKind.VLAN]
    world.driver.apply(drift)
    assert world.drift(wants) == []


def test_vf_that_a_dying_namespace_gave_back_under_its_container_name_gets_its_host_name(world, vf):
    # notes/network.md fact 1, sriov-cni#126
    wants = [vf(0)]
    world.prepare(wants)
    prepared = world.picture("node")
    world.tamper("node", [SetLink(world.index("node", "r0v0"), name="rail0")])
    mending = plan_prepare(wants, world.driver.observe(wants))
    assert [(step.kind, step.after) for step in mending] == [(StepKind.RENAME, {"name": "r0v0"})]
    world.driver.apply(mending)
    assert world.picture("node") == prepared


def test_rules_and_routes_of_others_in_the_worker_are_left_alone(world, vf):
    theirs = Rule(500, "192.0.2.7/32", 77, protocol=4)
    world.tamper("worker", [CreateVeth("eth0", "eth0-peer"), AddRule(theirs)])
    world.tamper("worker", [SetLink("eth0", up=True)])
    before = world.picture("worker")
    journal = world.attach([vf(0)])
    world.driver.undo(journal)
    assert world.picture("worker") == before


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"vlan": 300}, "VLAN 300 is not on the leaf"),
        ({"vlan": 4095}, "not in 1 to 4094"),
        ({"mtu": 9001}, "above the 9000"),
        ({"mac": "01:00:5e:00:00:01"}, "not that of one station"),
        ({"vf": 9}, "VLAN|no such|missing|out"),
        ({"rail": 7}, "no such VF"),
        ({"gateways": ("10.9.0.1",)}, "no other host"),
        ({"gateways": ()}, "needs its gateway"),
        ({"rules": (Rule(1000, "10.0.0.0/24", 1000),)}, "alone|expected"),
        ({"rules": (Rule(32766, "10.0.0.10/32", 1000),)}, "kernel"),
        ({"rules": (Rule(1000, "10.0.0.10/32", 254),)}, "kernel"),
        ({"max_tx_mbps": 100}, "rate"),
        ({"name": "a/../../b"}, "name"),
    ],
)
def test_what_cannot_be_done_is_refused_before_any_change(world, vf, change, reason):
    before = world.picture()
    wants = [replace(vf(0), **change)]
    if "vf" in change:
        steps = plan_prepare(wants, world.driver.observe(wants))
        assert steps[0].kind is StepKind.CREATE  # a missing VF of the software fabric is made
    else:
        with pytest.raises(NetworkRefused, match=reason):
            plan_prepare(wants, world.driver.observe(wants))
    assert world.picture() == before


def test_vf_that_is_out_in_an_unknown_namespace_is_refused_with_that_reason(world, vf):
    # sriov-cni#349: a removed namespace with one open fd keeps the VF invisible
    world.attach([vf(0)])
    with pytest.raises(NetworkRefused, match="out in a namespace"):
        plan_prepare([vf(0)], world.driver.observe([vf(0)]))


def test_two_interfaces_with_one_table_are_refused(world, vf):
    # dranet#344: a hash of names gave two NICs the same table
    clash = replace(vf(1), rules=(Rule(1001, "10.1.0.10/32", 1000),))
    with pytest.raises(NetworkRefused, match="table 1000"):
        plan_prepare([vf(0), clash], world.driver.observe([vf(0), clash]))


def test_provisioning_twice_makes_nothing_new_and_counts_vfs_that_are_out(world, vf):
    assert provision_vfs(world.kernel, world.ports, 2) == []
    world.attach([vf(0)])
    assert provision_vfs(world.kernel, world.ports, 2) == []
    assert provision_vfs(world.kernel, world.ports, 3) == ["r0v2", "r1v2"]


def test_fewer_vfs_are_refused_while_one_of_them_is_in_use(world, vf):
    # openshift operator#131: running jobs lost their VFs; the kernel would not refuse it
    journal = world.attach([vf(0, vf=1)])
    with pytest.raises(NetworkRefused, match="in use"):
        provision_vfs(world.kernel, world.ports, 1)
    assert "rail0" in world.names("worker")
    world.driver.undo(journal)
    provision_vfs(world.kernel, world.ports, 1)
    assert {name for name in world.names("node") if name != "lo"} == {"r0v0", "r1v0"}


def test_one_vf_of_two_workers_each_keeps_to_its_own(world, vf):
    second = world.kernel.create_netns(world.name("second"))
    first_journal = world.attach([vf(0, vf=0)])
    attached = world.picture("worker")
    prepared = world.prepare([vf(0, vf=1)])
    inside = plan_attach([vf(0, vf=1)], world.driver.observe([vf(0, vf=1)], second))
    world.driver.apply(inside)
    world.driver.undo(prepared + inside)
    assert world.picture("worker") == attached
    world.driver.undo(first_journal)


def test_job_that_forges_our_mark_gets_no_device_of_its_own_onto_the_node(world, vf):
    before = world.picture("node", "leaf0", "leaf1")
    journal = world.attach([vf(0)])
    mark = world.ports.mark("r0v0")
    world.tamper("worker", [SetLink(world.index("worker", "rail0"), alias="mine"), CreateVeth("evil", "evil-peer")])
    world.tamper("worker", [SetLink("evil", alias=mark), CreateBridge("odd")])
    world.tamper("worker", [SetLink("odd", alias=world.ports.mark("../../x"))])
    assert world.driver.observe([vf(0)], world.worker).vfs["r0v0"].where == "out"
    world.driver.undo(journal)
    assert world.picture("node", "leaf0", "leaf1") == before
    assert world.names("worker") == {"lo", "evil", "evil-peer", "odd"}
