"""Preset VLANs and subnets, and the records of the whole fabric."""

from __future__ import annotations

import ipaddress
import itertools
import time
from collections.abc import Collection, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.contracts.addressing import vf_addresses, vf_mac
from railweave.contracts.fabric import LeafVlan
from railweave.contracts.types import LeafName, NodeName, Rail, Slot, VfIndex
from railweave.topology.inventory import Inventory, difference, replan
from railweave.topology.model import SHARED, VlanPlace
from railweave.topology.plan import PlanConfig, Refusal, slots_of
from railweave_testing.fabrics import Cabling, cablings, config, fabric, regular


def planned(
    known: Inventory,
    cabling: Cabling,
    wanted: PlanConfig | None = None,
    claimed: frozenset[str] = frozenset(),
    segments_in_use: Collection[int] = (),
) -> Inventory:
    found = replan(
        known, fabric(cabling), wanted or config(), lambda node: node in claimed, segments_in_use=segments_in_use
    )
    assert isinstance(found, Inventory), found
    return found


def refused(known: Inventory, cabling: Cabling, wanted: PlanConfig, claimed: frozenset[str] = frozenset()) -> Refusal:
    found = replan(known, fabric(cabling), wanted, lambda node: node in claimed)
    assert isinstance(found, Refusal), found
    return found


def vlan(inventory: Inventory, leaf: str, rail: int = 0) -> LeafVlan:
    return inventory.vlans()[VlanPlace(LeafName(leaf), Rail(rail))]


def test_every_leaf_has_a_vlan_a_rail_and_rail_k_is_the_same_vlan_everywhere() -> None:
    found = planned(Inventory(), regular(["leaf1", "leaf2"], 4, 3))
    assert [[int(v.vlan) for v in leaf.vlans] for leaf in found.leaves.values()] == [[100, 101, 102]] * 2


def test_a_subnet_holds_its_ports_times_their_vfs_with_headroom() -> None:
    found = planned(Inventory(), regular(["leaf1"], 20, 1), config(vf_stride=16, headroom_percent=50))
    assert vlan(found, "leaf1").subnet.endswith("/23")
    assert slots_of(vlan(found, "leaf1")) >= 30
    assert vlan(found, "leaf1").gateway == str(ipaddress.ip_network(vlan(found, "leaf1").subnet)[1])


def test_ipv6_is_added_to_what_is_in_use_without_changing_ipv4() -> None:
    cabling = regular(["leaf1"], 2, 2)
    before = planned(Inventory(), cabling)
    after = planned(before, cabling, config(pools6=("fd00:1::/48",)), claimed=frozenset(cabling))
    assert [(v.subnet, v.vlan) for v in before.vlans().values()] == [(v.subnet, v.vlan) for v in after.vlans().values()]
    assert [v.subnet6 for v in after.vlans().values()] == ["fd00:1::/64", "fd00:1:0:1::/64"]
    assert [v.gateway6 for v in after.vlans().values()] == ["fd00:1::1", "fd00:1:0:1::1"]


def test_nothing_differs_when_the_same_is_read_again() -> None:
    cabling = regular(["leaf1", "leaf2"], 4, 2)
    before = planned(Inventory(), cabling)
    after = planned(before, dict(reversed(cabling.items())))
    assert after == before
    assert difference(before, after) == []


def test_a_new_leaf_changes_no_other_record_of_a_leaf() -> None:
    before = planned(Inventory(), regular(["leaf2"], 4, 2))
    after = planned(before, regular(["leaf1", "leaf2"], 4, 2))
    assert vlan(after, "leaf2") == vlan(before, "leaf2")
    written = difference(before, after)
    # The island is named after its first leaf, which is another one now; nothing else about leaf2 changed.
    assert {type(record).__name__ for record in written} == {"FabricLeaf", "FabricNode"}
    assert all(record.revision == 2 for record in written)


def test_a_full_subnet_grows_where_it_is() -> None:
    small = config("10.0.0.0/16", headroom_percent=0)
    before = planned(Inventory(), regular(["leaf1"], 2, 1), small)
    assert vlan(before, "leaf1").subnet == "10.0.0.0/28"
    cabling = regular(["leaf1"], 9, 1)
    after = planned(before, cabling, small, claimed=frozenset(cabling))
    assert vlan(after, "leaf1").subnet == "10.0.0.0/26"
    assert vlan(after, "leaf1").gateway == vlan(before, "leaf1").gateway


def test_a_full_subnet_that_cannot_grow_is_replaced_unless_it_is_in_use() -> None:
    small = config("10.0.0.0/16", headroom_percent=0)
    before = planned(Inventory(), regular(["leaf1", "leaf2"], 2, 1), small)
    grown = regular(["leaf1"], 9, 1) | regular(["leaf2"], 2, 1)
    reason = refused(before, grown, small, claimed=frozenset({"leaf1-n1"}))
    assert reason.numbers == {"needed_slots": 9, "subnet_slots": 2}
    assert "10.0.0.0/28" in reason.text
    after = planned(before, grown, small)
    assert vlan(after, "leaf1").subnet == "10.0.0.64/26"
    assert vlan(after, "leaf2") == vlan(before, "leaf2")


def test_a_pool_too_small_is_refused_before_anything_is_given() -> None:
    reason = refused(Inventory(), regular(["leaf1", "leaf2"], 4, 8), config("10.0.0.0/24", headroom_percent=0))
    assert reason.numbers == {
        "needed_subnets": 16,
        "needed_addresses": 512,
        "free_addresses": 256,
        "pool_addresses": 256,
    }
    assert "10.0.0.0/24" in reason.text


def test_a_second_pool_keeps_what_was_given_of_the_first() -> None:
    small = regular(["leaf1", "leaf2"], 4, 4)
    before = planned(Inventory(), small, config("10.0.0.0/24", headroom_percent=0))
    more = regular(["leaf1", "leaf2", "leaf3"], 4, 4)
    refused(before, more, config("10.0.0.0/24", headroom_percent=0))
    after = planned(before, more, config("10.0.0.0/24", "10.9.0.0/24", headroom_percent=0))
    assert {place: v.subnet for place, v in after.vlans().items() if place.leaf != "leaf3"} == {
        place: v.subnet for place, v in before.vlans().items()
    }
    assert vlan(after, "leaf3").subnet.startswith("10.9.0.")


def test_too_few_vlan_ids_are_refused_with_the_numbers() -> None:
    reason = refused(Inventory(), regular(["leaf1"], 2, 4), config(vlans=range(100, 103)))
    assert reason.numbers == {"vlans_used": 3, "vlans_total": 3}


def test_reserved_ranges_are_never_given() -> None:
    found = planned(
        Inventory(),
        regular(["leaf1"], 2, 2),
        config("10.0.0.0/24", reserved=("10.0.0.0/25",), reserved_vlans=(100, 102)),
    )
    assert [str(v.subnet) for v in found.vlans().values()] == ["10.0.0.128/27", "10.0.0.160/27"]
    assert [int(v.vlan) for v in found.vlans().values()] == [101, 103]


def test_reserving_what_is_in_use_is_refused_and_what_is_not_moves() -> None:
    cabling = regular(["leaf1"], 2, 2)
    before = planned(Inventory(), cabling, config("10.0.0.0/24"))
    late = config("10.0.0.0/24", reserved=("10.0.0.0/27",), reserved_vlans=(101,))
    reason = refused(before, cabling, late, claimed=frozenset({"leaf1-n1"}))
    assert "drain its nodes first" in reason.text
    after = planned(before, cabling, late)
    assert [(int(v.vlan), v.subnet) for v in after.vlans().values()] == [(100, "10.0.0.32/27"), (102, "10.0.0.64/27")]


def test_a_leaf_that_is_gone_keeps_its_vlans_while_a_node_has_addresses_there() -> None:
    cabling = regular(["leaf1", "leaf2"], 2, 1)
    before = planned(Inventory(), cabling)
    only_one = regular(["leaf2"], 2, 1)
    in_use = planned(before, only_one, claimed=frozenset({"leaf1-n2"}))
    assert vlan(in_use, "leaf1") == vlan(before, "leaf1")
    free = planned(in_use, only_one)
    assert free.leaves[LeafName("leaf1")].vlans == ()
    assert difference(in_use, free)[-1] == free.leaves[LeafName("leaf1")]


def test_leaves_that_carry_something_are_written_before_their_nodes() -> None:
    written = difference(Inventory(), planned(Inventory(), regular(["leaf1"], 2, 1)))
    assert [type(record).__name__ for record in written] == ["FabricLeaf", "FabricNode", "FabricNode"]


def test_a_segment_is_one_more_vlan_a_rail_the_same_on_all_leaves_with_subnets_of_its_own() -> None:
    found = planned(Inventory(), regular(["leaf1", "leaf2"], 4, 2), config(segments=3))
    on_leaf = [[(v.segment, int(v.rail), int(v.vlan)) for v in leaf.vlans] for leaf in found.leaves.values()]
    assert on_leaf[0] == on_leaf[1]
    assert sorted(on_leaf[0], key=lambda row: row[2]) == [
        (None, 0, 100), (None, 1, 101),
        (0, 0, 102), (0, 1, 103), (1, 0, 104), (1, 1, 105), (2, 0, 106), (2, 1, 107),
    ]  # fmt: skip
    _check(found)
    assert len({v.subnet for v in found.vlans().values()}) == 16


def test_segments_are_added_and_taken_away_without_touching_anything_else() -> None:
    cabling = regular(["leaf1", "leaf2"], 4, 2)
    before = planned(Inventory(), cabling, config(segments=2), claimed=frozenset(cabling))
    more = planned(before, cabling, config(segments=4), claimed=frozenset(cabling))
    assert before.vlans().items() <= more.vlans().items()
    fewer = planned(more, cabling, config(segments=1), claimed=frozenset(cabling), segments_in_use={2})
    assert {place.segment for place in fewer.vlans()} == {SHARED, 0, 2}, "jobs are in segment 2: it stays"
    assert fewer.vlans().items() <= more.vlans().items()


def test_a_pool_too_small_for_the_segments_is_refused_with_how_many_there_are() -> None:
    leaves = [f"leaf{number:03d}" for number in range(529)]
    # 32 VLANs of segments on each leaf, each a /23: half of 10.0.0.0/8, and more than the half that is given.
    wide = config("10.0.0.0/9", vf_stride=16, segments=32)
    reason = refused(Inventory(), regular(leaves, 20, 1), wide)
    assert "17457 new subnets (16928 of segments, on 529 leaves) need 8937984 addresses" in reason.text
    assert "8388608 of 8388608 are free" in reason.text
    whole = planned(Inventory(), regular(leaves, 20, 1), config("10.0.0.0/8", vf_stride=16, segments=32))
    assert len(whole.vlans()) == 17457


def _live(inventory: Inventory, vfs: int, segments: Iterable[int] = range(SHARED, 4)) -> list[tuple[str, str]]:
    """(owner, address or MAC) of every VF there may be."""
    vlans = inventory.vlans()
    found = []
    for name, node in inventory.nodes.items():
        for at in node.attachments:
            for vf in range(vfs):
                owner = f"{name}/{int(at.rail)}/{vf}"
                found.append((owner, str(vf_mac(node.ordinal, at.rail, VfIndex(vf)))))
                for segment in segments:
                    given = vlans.get(VlanPlace(at.leaf, at.rail, segment))
                    addresses = vf_addresses(given, at.slot, VfIndex(vf)) if given is not None else ()
                    found += [(owner, address.partition("/")[0]) for address in addresses]
    return found


def _check(inventory: Inventory) -> None:
    subnets = [
        ipaddress.ip_network(subnet) for v in inventory.vlans().values() for subnet in (v.subnet, v.subnet6) if subnet
    ]
    for one, other in itertools.combinations(subnets, 2):
        assert one.version != other.version or not one.overlaps(other)
    for leaf in inventory.leaves.values():
        assert len({v.vlan for v in leaf.vlans}) == len(leaf.vlans)
    never = {
        str(address)
        for subnet in subnets
        for address in (subnet.network_address, subnet.network_address + 1, subnet.broadcast_address)
    }
    owners: dict[str, str] = {}
    for owner, address in _live(inventory, 4):
        assert owners.setdefault(address, owner) == owner
        assert address not in never


@settings(max_examples=60, deadline=None)
@given(st.lists(cablings(), min_size=1, max_size=4), st.integers(0, 60), st.booleans(), st.data())
def test_no_two_live_vfs_share_an_address_or_a_mac_through_growth_and_re_cabling(
    history: list[dict[str, dict[int, str]]], headroom: int, has_ipv6: bool, data: st.DataObject
) -> None:
    known = Inventory()
    held: dict[str, str] = {}  # address -> owner, of the nodes that are in use now
    pools6 = ("fd00::/56",) if has_ipv6 else ()
    for cabling in history:
        names = sorted(known.nodes)
        claimed = data.draw(st.frozensets(st.sampled_from(names))) if names else frozenset()
        in_use = data.draw(st.frozensets(st.integers(0, 3)))
        used = {address for _, address in _live(known, 4, (SHARED, *in_use))}
        held = {addr: owner for addr, owner in held.items() if owner.partition("/")[0] in claimed and addr in used}
        for owner, address in _live(known, 4, (SHARED, *in_use)):
            if owner.partition("/")[0] in claimed:
                held[address] = owner
        found = replan(
            known,
            fabric(cabling),
            config("10.0.0.0/21", pools6=pools6, headroom_percent=headroom, segments=data.draw(st.integers(0, 4))),
            lambda node, claimed=claimed: node in claimed,
            segments_in_use=in_use,
        )
        if isinstance(found, Refusal):
            assert found.numbers
            continue
        _check(found)
        for owner, address in _live(found, 4):
            # What a job holds since before the change is still nobody else's.
            if address in held:
                assert held[address].partition("/")[0] == owner.partition("/")[0]
        known = found


def test_a_vf_past_the_stride_has_no_address() -> None:
    found = planned(Inventory(), regular(["leaf1"], 2, 1))
    with pytest.raises(ValueError, match="past the 4 addresses"):
        vf_addresses(vlan(found, "leaf1"), Slot(0), VfIndex(4))


def test_ten_thousand_nodes_are_planned_quickly() -> None:
    leaves = [f"leaf{number:03d}" for number in range(500)]
    graph = fabric(regular(leaves, 20, 8))
    wide = config("10.64.0.0/10", vf_stride=16, pools6=("fd00::/44",))
    begun = time.process_time()
    first = replan(Inventory(), graph, wide, lambda _node: False)
    first_s = time.process_time() - begun
    assert isinstance(first, Inventory)
    begun = time.process_time()
    again = replan(first, graph, wide, lambda _node: True)
    again_s = time.process_time() - begun
    assert again == first
    assert len(first.nodes) == 10_000
    print(f"10,000 nodes x 8 rails: first plan {first_s:.2f} s, again {again_s:.2f} s")
    # The goal is 2 s; a loaded machine gets three times that before this test calls it slow.
    assert max(first_s, again_s) < 6.0


def test_the_first_revision_is_one_and_a_change_raises_only_what_changed() -> None:
    before = planned(Inventory(), regular(["leaf1"], 2, 1))
    assert {record.revision for record in (*before.nodes.values(), *before.leaves.values())} == {1}
    after = planned(before, regular(["leaf1"], 3, 1))
    assert {str(name): node.revision for name, node in after.nodes.items()} == {
        "leaf1-n1": 1,
        "leaf1-n2": 1,
        "leaf1-n3": 2,
    }


def test_records_put_back_to_an_older_copy_are_made_new_again_from_what_is_remembered() -> None:
    old = planned(Inventory(), regular(["leaf1"], 2, 1))
    new = planned(old, regular(["leaf1"], 3, 1))
    assert old.newest_of(new) == new
    assert new.newest_of(old) == new
    assert Inventory().newest_of(new) == new
    assert NodeName("leaf1-n3") in old.newest_of(new).nodes
