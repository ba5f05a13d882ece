"""Formats with a file a device (SONiC, LLDP, Cumulus) and NetBox: views must agree, VLANs are as they were found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from railweave.topology.model import Graph, Role
from railweave.topology.providers import PROVIDERS, Imported, ImportOptions
from railweave.topology.yaml_tree import FileError

Files = Mapping[str, Any]


def imported(format_name: str, files: Files, **options: Any) -> Imported:
    content = {name: (body if isinstance(body, str) else json.dumps(body)).encode() for name, body in files.items()}
    return PROVIDERS[format_name].read(content, ImportOptions(**options)).imported()


def refused(format_name: str, files: Files) -> FileError:
    with pytest.raises(FileError) as caught:
        imported(format_name, files)
    return caught.value


def ports(graph: Graph) -> dict[str, list[tuple[int, str, str]]]:
    return {str(node.name): [(int(p.rail), str(p.leaf), p.port) for p in node.ports] for node in graph.nodes}


def links(graph: Graph) -> list[tuple[str | None, ...]]:
    return [(*link.a, *link.b) for link in graph.links]


LEAF: dict[str, Any] = {
    "DEVICE_METADATA": {"localhost": {"hostname": "leaf1", "type": "ToRRouter"}},
    "PORT": {"Ethernet0": {"admin_status": "up"}, "Ethernet4": {"admin_status": "up"}, "Ethernet8": {}},
    "DEVICE_NEIGHBOR": {
        "Ethernet0": {"name": "n1", "port": "eth0"},
        "Ethernet4": {"name": "n1", "port": "eth1"},
        "Ethernet8": {"name": "spine1", "port": "Ethernet0"},
    },
    "DEVICE_NEIGHBOR_METADATA": {"n1": {"type": "Server"}, "spine1": {"type": "LeafRouter"}},
    "VLAN": {"Vlan100": {"vlanid": "100", "dhcp_servers": ["192.0.2.1"]}},
    "VLAN_MEMBER": {"Vlan100|Ethernet0": {"tagging_mode": "untagged"}},
    "VLAN_INTERFACE": {"Vlan100": {}, "Vlan100|10.0.0.1/24": {}},
    "DHCP_SERVER_IPV4": {"Vlan100": {"state": "enabled"}},
}
SPINE: dict[str, Any] = {
    "DEVICE_METADATA": {"localhost": {"hostname": "spine1"}},
    "DEVICE_NEIGHBOR": {"Ethernet0": {"name": "leaf1", "port": "Ethernet8"}},
}


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{table}|{key}": row for table, rows in config.items() for key, row in rows.items()}


def test_sonic_files_of_two_switches_are_one_fabric_nested_or_flat() -> None:
    found = imported("sonic", {"a.json": LEAF, "b.json": SPINE})
    assert ports(found.graph) == {"n1": [(0, "leaf1", "Ethernet0"), (1, "leaf1", "Ethernet4")]}
    assert links(found.graph) == [("leaf1", "Ethernet8", "spine1", "Ethernet0")]
    (vlan,) = found.vlans
    assert (vlan.switch, int(vlan.vlan), vlan.gateways) == ("leaf1", 100, ("10.0.0.1/24",))
    assert [(member.port, member.tagged) for member in vlan.members] == [("Ethernet0", False)]
    assert imported("sonic", {"a.json": flat(LEAF), "b.json": flat(SPINE)}) == found


def test_the_older_shape_of_neighbours_is_by_their_names() -> None:
    old = {"n1": {"local_port": "Ethernet0", "port": "eth0", "type": "Server"}}
    found = imported("sonic", {"leaf7.json": {"DEVICE_NEIGHBOR": old}})
    assert ports(found.graph) == {"n1": [(0, "leaf7", "Ethernet0")]}


def test_a_sonic_link_that_the_other_switch_does_not_know_is_half() -> None:
    """Uninett nav#1393: links linger from stale neighbours; both ends have to agree."""
    other = SPINE | {"DEVICE_NEIGHBOR": {"Ethernet0": {"name": "leaf1", "port": "Ethernet12"}}}
    found = imported("sonic", {"a.json": LEAF, "b.json": other})
    assert links(found.graph) == []
    assert sum("half link" in note for note in found.notes) == 2


def test_the_neighbour_of_a_port_that_is_down_is_stale() -> None:
    """Uninett nav#850."""
    down = LEAF | {"PORT": LEAF["PORT"] | {"Ethernet4": {"admin_status": "down"}}}
    found = imported("sonic", {"a.json": down})
    assert [port for _, _, port in ports(found.graph)["n1"]] == ["Ethernet0"]
    assert found.notes == ("a.json: neighbours of 1 ports that are down left out: Ethernet4",)


def test_an_old_member_list_that_disagrees_is_said_and_vlan_member_counts() -> None:
    """sonic-buildimage#2665 and #5594."""
    vlan = {"Vlan100": {"vlanid": "100", "members": ["Ethernet0", "Ethernet4"]}}
    found = imported("sonic", {"a.json": LEAF | {"VLAN": vlan}})
    assert [member.port for member in found.vlans[0].members] == ["Ethernet0"]
    assert found.notes == ("a.json: Vlan100 lists 2 members and VLAN_MEMBER has 1: it is as VLAN_MEMBER says",)
    as_dumped = {"Vlan100": {"vlanid": "100", "members@": "Ethernet0"}}
    assert imported("sonic", {"a.json": LEAF | {"VLAN": as_dumped}}).notes == ()


def test_a_vlan_member_that_is_no_port_is_said_and_kept() -> None:
    found = imported("sonic", {"a.json": LEAF | {"VLAN_MEMBER": {"Vlan100|Ethernet96": {"tagging_mode": "tagged"}}}})
    assert [member.port for member in found.vlans[0].members] == ["Ethernet96"]
    assert found.notes == ("a.json: VLAN members that are not in PORT: Ethernet96",)


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({"VLAN": {"Vlan0": {"vlanid": "0"}}}, "from 1 to 4094"),
        ({"VLAN": {"Vlan4095": {}}}, "from 1 to 4094"),
        ({"VLAN": {"Vlan5": {"vlanid": "6"}}}, "expected Vlan6"),
        ({"VLAN": {"blue": {"vlanid": "6"}}}, "expected Vlan6"),
        ({"VLAN": []}, "expected an object"),
        ({"VLAN": {"Vlan5": 7}}, "expected an object"),
        ({"VLAN": {"Vlan5": {}}, "VLAN_MEMBER": {"Vlan5": {}}}, "expected a key such as"),
        ({"VLAN": {"Vlan5": {}}, "VLAN_INTERFACE": {"Vlan5|10.0.0.300/24": {}}}, "expected an address"),
        ({"hello": "world"}, "expected tables"),
        ({"DEVICE_NEIGHBOR": {"Ethernet0": {"port": "eth0"}}}, "missing"),
    ],
)
def test_a_config_db_that_cannot_be_is_refused(tables: Any, says: str) -> None:
    error = refused("sonic", {"a.json": tables})
    assert says in error.reason, str(error)
    assert error.file == "a.json"


LLDPCLI = {
    "lldp": [
        {
            "interface": [
                {
                    "name": "Ethernet0",
                    "chassis": [{"name": [{"value": "n1"}], "capability": [{"type": "Bridge", "enabled": True}]}],
                    "port": [{"id": [{"type": "mac", "value": "2c:60:0c:ad:30:de"}], "descr": [{"value": "eth0"}]}],
                },
                {
                    "name": "Ethernet48",
                    "chassis": [
                        {"name": [{"value": "spine1.lab"}], "capability": [{"type": "Router", "enabled": True}]}
                    ],
                    "port": [{"id": [{"type": "ifname", "value": "Ethernet0"}]}],
                },
                {"name": "Ethernet9", "chassis": [{"id": [{"type": "mac", "value": "x"}]}], "port": []},
            ]
        }
    ]
}


def test_lldpcli_names_a_port_by_its_description_where_its_identity_is_a_mac() -> None:
    found = imported("lldp", {"leaf1.json": LLDPCLI})
    assert ports(found.graph) == {"n1": [(0, "leaf1", "Ethernet0")]}, "a host that bridges for containers is a host"
    assert [spine.name for spine in found.graph.spines] == ["spine1.lab"]
    assert found.notes == ("leaf1.json: 1 neighbours without a name left out",)


def test_napalm_and_lldpcli_views_join_whatever_domain_a_device_tells() -> None:
    napalm = {"Ethernet0": [{"hostname": "leaf1", "port": "Ethernet48"}]}
    found = imported("lldp", {"leaf1.json": LLDPCLI, "spine1.json": napalm})
    assert links(found.graph) == [("leaf1", "Ethernet48", "spine1", "Ethernet0")]
    detail = {
        "Ethernet0": [
            {"remote_system_name": "leaf1", "remote_port": "Ethernet48", "remote_system_enable_capab": ["bridge"]}
        ]
    }
    assert imported("lldp", {"leaf1.json": LLDPCLI, "spine1.json": detail}).graph == found.graph


def test_several_neighbours_behind_one_port_tell_nothing() -> None:
    napalm = {"Ethernet0": [{"hostname": "a", "port": "eth0"}, {"hostname": "b", "port": "eth0"}]}
    found = imported("lldp", {"leaf1.json": napalm | {"Ethernet1": [{"hostname": "c", "port": "eth0"}]}})
    assert list(ports(found.graph)) == ["c"]
    assert "1 ports see several neighbours" in found.notes[0]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"Ethernet0": {"hostname": "a"}}, "expected a list of neighbours"),
        ({"lldp": [{"interface": [7]}]}, "expected a mapping"),
        ("[1, 2]", "expected an object"),
        ("{", "not JSON"),
        ('{"a": NaN}', "NaN is no number"),
        ('{"a": [], "a": []}', "written twice"),
        ("[" * 100_000, "nested deeper"),
    ],
)
def test_what_is_no_lldp_is_refused(content: Any, says: str) -> None:
    assert says in refused("lldp", {"leaf1.json": content}).reason


def netbox_cable(a: str, b: str, **fields: Any) -> dict[str, Any]:
    def end(text: str) -> list[Any]:
        device, _, name = text.partition(":")
        return [{"object_type": "dcim.interface", "object_id": 1, "object": {"device": {"name": device}, "name": name}}]

    return {"id": 1, "a_terminations": end(a), "b_terminations": end(b), "status": {"value": "connected"}} | fields


def netbox_device(name: str, role: str, **fields: Any) -> dict[str, Any]:
    return {"id": 1, "name": name, "device_type": {"model": "x"}, "role": {"slug": role}} | fields


NETBOX: dict[str, list[dict[str, Any]]] = {
    "devices": [
        netbox_device("leaf1", "leaf-switch", location={"slug": "hall-1"}),
        netbox_device("spine1", "spine"),
        netbox_device("n1", "gpu-server"),
        netbox_device("panel", "patch-panel"),
    ],
    "interfaces": [
        {"id": 1, "device": {"name": "n1"}, "name": "bmc", "mgmt_only": True, "type": {"value": "1000base-t"}},
        {
            "id": 2,
            "device": {"name": "leaf1"},
            "name": "Ethernet0",
            "untagged_vlan": {"vid": 100},
            "tagged_vlans": [{"vid": 101}],
        },
    ],
    "cables": [
        netbox_cable("n1:eth0", "leaf1:Ethernet0"),
        netbox_cable("leaf1:Ethernet2", "n1:eth1"),
        netbox_cable("n1:bmc", "leaf1:Ethernet4"),
        netbox_cable("leaf1:Ethernet48", "spine1:Ethernet0"),
        netbox_cable("leaf1:Ethernet49", "spine1:Ethernet1", status={"value": "planned"}),
        netbox_cable("n1:psu", "panel:1", b_terminations=[{"object_type": "dcim.powerport", "object": {}}]),
    ],
}


def test_netbox_exports_are_one_file_or_several_pages_of_rows() -> None:
    found = imported("netbox", {"all.json": NETBOX})
    (node,) = found.graph.nodes
    assert [(port.role, int(port.rail), port.port) for port in node.ports] == [
        (Role.COMPUTE, 0, "Ethernet0"),
        (Role.COMPUTE, 1, "Ethernet2"),
        (Role.MANAGEMENT, 0, "Ethernet4"),
    ]
    assert found.graph.place("n1").pod == "hall-1"
    assert links(found.graph) == [("leaf1", "Ethernet48", "spine1", "Ethernet0")]
    assert [(int(vlan.vlan), [m.tagged for m in vlan.members]) for vlan in found.vlans] == [
        (100, [False]),
        (101, [True]),
    ]
    assert found.notes == ("1 cables left out: planned", "1 cables left out: not between interfaces")
    pages = {f"{kind}.json": {"count": 1, "next": None, "results": rows} for kind, rows in NETBOX.items()}
    assert imported("netbox", pages) == found


def test_netbox_cables_of_before_3_3_are_read() -> None:
    def old(cable: dict[str, Any]) -> dict[str, Any]:
        row: dict[str, Any] = {"id": 1, "status": cable["status"]}
        for side in ("a", "b"):
            end = cable[f"{side}_terminations"][0]
            row |= {f"termination_{side}_type": end["object_type"], f"termination_{side}": end["object"]}
        return row

    rows = NETBOX | {"cables": [old(cable) for cable in NETBOX["cables"]]}
    rows["devices"] = [
        {key: value for key, value in row.items() if key != "role"} | {"device_role": row["role"]}
        for row in NETBOX["devices"]
    ]
    assert imported("netbox", {"all.json": rows}) == imported("netbox", {"all.json": NETBOX})


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"a.json": {"count": 9, "next": "x", "results": []}}, "limit=0"),
        ({"a.json": {"devices": NETBOX["devices"]}}, "no cables"),
        ({"a.json": [{"what": 1}]}, "expected a device, an interface or a cable"),
        ({"a.json": {"cables": NETBOX["cables"], "interfaces": [{"device": {"name": "leaf1"}}]}}, "missing"),
        ({"a.json": {"results": 7}}, "expected a list of rows"),
    ],
)
def test_what_is_no_netbox_export_is_refused(files: Files, says: str) -> None:
    assert says in refused("netbox", files).reason


CUMULUS = """\
- header: {model: vx}
- set:
    bridge: {domain: {br_default: {vlan: {"100-101": {}}}}}
    interface:
      swp1-2,4: {type: swp, bridge: {domain: {br_default: {vlan: {"101": {}}, untagged: 100}}}}
      swp9: {type: swp, bridge: {domain: {br_default: {access: 100}}}}
      vlan100: {type: svi, vlan: 100, ip: {address: {10.0.0.1/24: {}}}}
    system: {hostname: leaf1}
"""
CUMULUS_LLDP = {
    "swp1": {"lldp": {"neighbor": {"n1": {"chassis": {"system-name": "n1"}, "port": {"name": "eth0"}}}}},
    "swp31": {
        "lldp": {
            "neighbor": {"s": {"chassis": {"capability": {"is-bridge": "on"}}, "port": {"name": "swp1"}}},
        }
    },
    "swp5": {},
}


def test_cumulus_tells_vlans_by_its_configuration_and_cables_by_lldp() -> None:
    found = imported("cumulus", {"leaf1.yaml": CUMULUS, "leaf1.lldp.json": CUMULUS_LLDP})
    assert ports(found.graph) == {"n1": [(0, "leaf1", "swp1")]}
    assert [spine.name for spine in found.graph.spines] == ["s"]
    told = {int(vlan.vlan): [(m.port, m.tagged) for m in vlan.members] for vlan in found.vlans}
    assert told == {
        100: [("swp1", False), ("swp2", False), ("swp4", False), ("swp9", False)],
        101: [("swp1", True), ("swp2", True), ("swp4", True)],
    }
    assert found.vlans[0].gateways == ("10.0.0.1/24",)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"100-101"', '"0-5"', "from 1 to 4094"),
        ('"100-101"', '"1-4095"', "from 1 to 4094"),
        ('"100-101"', '"101-100"', "goes down"),
        ('"100-101"', '"blue"', "such as 10 or 20-30"),
        ("access: 100", "access: 5000", "from 1 to 4094"),
        ("10.0.0.1/24", "10.0.0.1/99", "expected an address"),
        ("swp1-2,4", "swp1-9999", "expected ports"),
        ("- set:", "- sat:", "no `set`"),
    ],
)
def test_a_cumulus_configuration_that_cannot_be_is_refused(old: str, new: str, says: str) -> None:
    assert old in CUMULUS
    assert says in refused("cumulus", {"leaf1.yaml": CUMULUS.replace(old, new)}).reason
