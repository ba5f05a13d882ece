"""SONiC: what is rendered is valid to SONiC's own rules; a patch is safe at every step and touches only ours."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.topology.switch_config import (
    IntentVlan,
    SwitchIntent,
    faults,
    patch_of,
    read_tables,
    tables_of,
)
from railweave.topology.yaml_tree import FileError

SHARED = Path(os.environ.get("RAILWEAVE_SHARED", Path(__file__).parents[5] / "shared"))
CASES = SHARED / "data/topology/sonic_yang_vlan_cases.json"

Tables = dict[str, dict[str, dict[str, Any]]]
OURS = ("VRF", "VLAN", "VLAN_MEMBER", "VLAN_INTERFACE")

VALID = {
    "VALID_VLAN",
    "VLAN_WITH_PORTCHANNEL_MEMBER",
    "VLAN_INTERFACE_VALID_NAT_ZONE_RANGE",
    "VLAN_INTERFACE_VALID_STATIC_ANYCAST_GATEWAY",
    "DHCP_SERVER_VALID_FORMAT",
    "DHCPV6_SERVER_VALID_FORMAT",
    "VLAN_INTERFACE_VALID_GRAT_ARP",
    "VLAN_INTERFACE_VALID_PROXY_ARP",
    "VLAN_INTERFACE_ENABLE_IPV6_LINK_LOCAL",
    "VLAN_INTERFACE_MAC_ADDR",
    "VLAN_INTERFACE_UPPER_MAC_ADDR",
    "VLAN_INTERFACE_WITH_VNET_AND_IP_PREFIXES",
}
SPECIAL = {"ALL_VLAN_TEST"}
"""`Vlan1-4094` in it stands for 4094 VLANs; tested apart."""
KEYS: Mapping[str, tuple[str, ...]] = {
    "VLAN_MEMBER_LIST": ("name", "port"),
    "VLAN_INTERFACE_IPPREFIX_LIST": ("name", "ip-prefix"),
    "PORTCHANNEL_MEMBER_LIST": ("name", "port"),
}


def as_tables(case: Mapping[str, Any]) -> Tables:
    """The rows of a case in SONiC's YANG form, as config_db has them."""
    tables: Tables = {}
    for module in case.values():
        for name, lists in module.items():
            table = tables.setdefault(name.partition(":")[2], {})
            for list_name, rows in lists.items():
                if isinstance(rows, list):
                    keys = KEYS.get(list_name, ("name",))
                    for row in rows:
                        fields = {key: value for key, value in row.items() if key not in keys}
                        table["|".join(str(row[key]) for key in keys)] = fields
    return tables


@pytest.mark.skipif(not CASES.is_file(), reason="the shared topology files are not here")
def test_sonics_own_valid_cases_pass_and_its_invalid_ones_do_not() -> None:
    cases = {name: as_tables(case) for name, case in json.loads(CASES.read_text()).items() if name not in SPECIAL}
    assert len(cases) == 40
    assert {name for name, tables in cases.items() if not faults(tables)} == VALID


def test_every_vlan_from_1_to_4094_is_one_and_no_other() -> None:
    assert faults({"VLAN": {f"Vlan{vlan}": {"vlanid": str(vlan)} for vlan in range(1, 4095)}}) == ()
    for name in ("Vlan0", "Vlan4095", "Vlan0100", "vlan7", "Vlan1-4094"):
        assert len(faults({"VLAN": {name: {}}})) == 1


def intent(vlans: Mapping[int, tuple[list[int], str | None]]) -> SwitchIntent:
    """VLANs by number, each with its ports and its VRF."""
    return SwitchIntent(
        "leaf1",
        tuple(
            IntentVlan(
                vlan,
                (f"10.{vlan // 100}.{vlan % 100}.1/24", f"fd00:{vlan}::1/64"),
                tuple(f"Ethernet{port}" for port in ports),
                9000,
                vrf,
            )
            for vlan, (ports, vrf) in sorted(vlans.items())
        ),
    )


def is_owned(vlan: int) -> bool:
    return 100 <= vlan < 200


def applied(config: Tables, operations: tuple[dict[str, Any], ...]) -> list[Tables]:
    """The configuration after each operation, by RFC 6902 and as strict: nothing is added below what is not there."""
    steps: list[Tables] = []
    now: Any = copy.deepcopy(config)
    for operation in operations:
        parts = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        where = now
        for part in parts[:-1]:
            where = where[part]
        if operation["op"] == "remove":
            del where[parts[-1]]
        else:
            assert (parts[-1] in where) is (operation["op"] == "replace")
            where[parts[-1]] = copy.deepcopy(operation["value"])
        steps.append(copy.deepcopy(now))
    return steps


def ours(config: Tables) -> Tables:
    """The rows of VLANs that are Railweave's, with the fields that it writes."""
    found: Tables = {}
    for table in OURS:
        for key, row in config.get(table, {}).items():
            name = key.partition("|")[0]
            is_ours = name.startswith("Vrf-s") if table == "VRF" else is_owned(int(name.removeprefix("Vlan")))
            if is_ours:
                written = {k: v for k, v in row.items() if k in {"vlanid", "mtu", "tagging_mode", "vrf_name"}}
                found.setdefault(table, {})[key] = written
    return found


def foreign(config: Tables) -> Tables:
    mine = ours(config)
    rows = {
        table: {key: row for key, row in rows.items() if key not in mine.get(table, {})}
        for table, rows in config.items()
    }
    return {table: kept for table, kept in rows.items() if kept}


intents = st.dictionaries(
    st.integers(100, 106),
    st.tuples(st.lists(st.integers(0, 5), unique=True, max_size=4), st.sampled_from([None, "Vrf-s0", "Vrf-s1"])),
    max_size=5,
).map(intent)


@st.composite
def runnings(draw: st.DrawFn) -> Tables:
    """A switch with Railweave's VLANs of before, others' VLANs, and fields of other features in both."""
    config: Tables = {
        "PORT": {f"Ethernet{port}": {"lanes": str(port)} for port in range(6)},
        "VLAN": {"Vlan5": {"vlanid": "5", "members": ["Ethernet5"]}},
        "VLAN_MEMBER": {"Vlan5|Ethernet5": {"tagging_mode": "untagged"}},
        "VLAN_INTERFACE": {"Vlan5": {}, "Vlan5|192.168.0.1/24": {}},
    }
    for table, rows in tables_of(draw(intents)).items():
        config.setdefault(table, {}).update(copy.deepcopy(rows))
    for key in list(config["VLAN"]):
        if draw(st.booleans()):
            config["VLAN"][key]["dhcp_servers"] = ["192.0.2.1"]
    for key in [key for key in config["VLAN_INTERFACE"] if "|" not in key]:
        if draw(st.booleans()):
            config["VLAN_INTERFACE"][key]["proxy_arp"] = "enabled"
    if draw(st.booleans()):
        for table in OURS:
            config.pop(table, None)
    return config


@settings(max_examples=300, deadline=None)
@given(runnings(), intents)
def test_a_patch_makes_what_is_ours_as_wanted_leaves_the_rest_and_is_valid_at_every_step(
    running: Tables, wanted: SwitchIntent
) -> None:
    before = copy.deepcopy(running)
    patch = patch_of(running, wanted, is_owned)
    assert running == before, "the caller's configuration is not changed"
    assert patch.conflicts == ()
    steps = applied(running, patch.operations)
    for step in steps:
        assert faults(step) == ()
        assert all(step.values()), "SONiC refuses empty tables"
    after = steps[-1] if steps else running
    assert ours(after) == ours(tables_of(wanted))
    assert foreign(after) == foreign(before)
    for key, row in before.get("VLAN", {}).items():
        if key in after.get("VLAN", {}):
            assert after["VLAN"][key].get("dhcp_servers") == row.get("dhcp_servers"), "sonic-utilities#813"
    for key, row in before.get("VLAN_INTERFACE", {}).items():
        if key in after.get("VLAN_INTERFACE", {}):
            assert after["VLAN_INTERFACE"][key].get("proxy_arp") == row.get("proxy_arp")
    assert patch_of(after, wanted, is_owned).operations == ()


WANTED = intent({100: ([0, 1], None), 102: ([0, 1], "Vrf-s0")})


def test_what_is_rendered_has_no_member_list_and_is_valid() -> None:
    tables = tables_of(WANTED)
    assert all("members" not in row for row in tables["VLAN"].values())
    assert faults(tables | {"PORT": {"Ethernet0": {}, "Ethernet1": {}}}) == ()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"INTERFACE": {"Ethernet0": {}, "Ethernet0|10.9.9.1/31": {}}}, "Ethernet0 has an address of its own"),
        ({"PORTCHANNEL_MEMBER": {"PortChannel1|Ethernet1": {}}}, "Ethernet1 is a member of PortChannel1"),
        ({"PORT": {"Ethernet0": {}}}, "Ethernet1 is not in PORT"),
        ({"LOOPBACK_INTERFACE": {"Loopback0|10.1.0.0/20": {}}}, "Vlan100: 10.1.0.0/24 overlaps"),
    ],
)
def test_what_stands_in_the_way_on_a_switch_is_left_out_and_said(more: Tables, says: str) -> None:
    running: Tables = {"PORT": {"Ethernet0": {}, "Ethernet1": {}}}
    running |= more
    patch = patch_of(running, WANTED, is_owned)
    assert any(says in conflict for conflict in patch.conflicts), patch.conflicts
    assert faults(applied(running, patch.operations)[-1]) == ()


def test_a_vlan_that_another_feature_refers_to_is_not_taken_away() -> None:
    relay = {"Vlan150": {"dhcpv6_servers": ["fd00::1"]}}
    running: Tables = {"VLAN": {"Vlan150": {"vlanid": "150"}}, "DHCP_RELAY": relay}
    patch = patch_of(running, SwitchIntent("leaf1", ()), is_owned)
    assert patch.operations == ()
    assert "DHCP_RELAY Vlan150 refers to it" in patch.conflicts[0]


def test_a_flat_dump_is_the_same_configuration() -> None:
    nested = {"VLAN": {"Vlan100": {"vlanid": "100"}}, "VLAN_MEMBER": {"Vlan100|Ethernet0": {"tagging_mode": "tagged"}}}
    flat = {f"{table}|{key}": row for table, rows in nested.items() for key, row in rows.items()}
    read = [read_tables(json.dumps(form).encode(), "config_db.json") for form in (nested, flat)]
    assert read[0] == read[1] == nested
    for wrong in ("[]", '{"VLAN": 7}', '{"VLAN": {"Vlan1": []}}', "{"):
        with pytest.raises(FileError):
            read_tables(wrong.encode(), "config_db.json")
