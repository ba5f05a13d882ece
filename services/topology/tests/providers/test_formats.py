"""Each format read from small inline files: what it tells becomes the graph, and what it cannot tell is noted."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from railweave.topology.model import Graph, Role
from railweave.topology.providers import PROVIDERS, Imported, ImportOptions
from railweave.topology.yaml_tree import FileError

Files = Mapping[str, str | object]


def imported(format_name: str, files: Files | str, **options: object) -> Imported:
    given = {"input": files} if isinstance(files, str) else files
    content = {name: (body if isinstance(body, str) else json.dumps(body)).encode() for name, body in given.items()}
    return PROVIDERS[format_name].read(content, ImportOptions(**options)).imported()  # type: ignore[arg-type]


def refused(format_name: str, files: Files | str, **options: object) -> FileError:
    with pytest.raises(FileError) as caught:
        imported(format_name, files, **options)
    return caught.value


def hanging(graph: Graph) -> dict[str, list[tuple[int, str, str]]]:
    """Rail, leaf and port of every compute port, by node."""
    return {
        str(node.name): [
            (int(p.rail), str(p.leaf), p.port.partition(":")[2] or p.port) for p in node.ports if p.role is Role.COMPUTE
        ]
        for node in graph.nodes
    }


TREE = """\
# a tree
SwitchName=Spine Switches=leaf[1-2] LinkSpeed=100
switchname=leaf1 nodes=n[01-02],N01
SwitchName=LEAF2 \\
    Nodes=n03
"""


def test_slurm_names_are_one_whatever_their_case_and_lines_may_go_on() -> None:
    found = imported("slurm", TREE, rails=2)
    assert [leaf.name for leaf in found.graph.leaves] == ["LEAF2", "leaf1"]
    assert hanging(found.graph)["n03"] == [(0, "LEAF2", "0"), (1, "LEAF2", "1")]
    assert sorted(hanging(found.graph)) == ["n01", "n02", "n03"]


def test_a_slurm_node_under_several_leaves_has_a_rail_on_each() -> None:
    text = "SwitchName=s Switches=r0,r1\nSwitchName=r0 Nodes=n[1-2]\nSwitchName=r1 Nodes=n[1-2]\n"
    found = imported("slurm", text)
    assert hanging(found.graph)["n1"] == [(0, "r0", "0"), (1, "r1", "1")]
    assert found.notes == ("2 nodes stand under several switches: a rail on each, in the order written",)


def test_slurm_blocks_are_leaves_of_one_fabric() -> None:
    found = imported("slurm", "BlockName=b1 Nodes=n[1-4]\nBlockName=b2 Nodes=n[5-8]\nBlockSizes=4,8\n")
    assert (len(found.graph.leaves), len(found.graph.nodes), found.graph.island_count) == (2, 8, 1)
    assert "tell nothing of the network between them" in found.notes[0]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("SwitchName=a Switches=b\n", 1, "there is no switch 'b'"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\n", 1, "a is above itself"),
        ("SwitchName=r Switches=a\nSwitchName=a Switches=b\nSwitchName=b Switches=a\n", 2, "a is above itself"),
        ("SwitchName=a Nodes=n1 Switches=b\nSwitchName=b Nodes=n2\n", 1, "both switches and nodes"),
        ("SwitchName=a\n", 1, "nothing under it"),
        ("SwitchName=a Nodes=n1\nSwitchName=A Nodes=n2\n", 2, "used twice"),
        ("SwitchName=a Nodes=n[1-\n", 1, "bracket"),
        ("SwitchName=a Nodes=n[1-9999999]\n", 1, "more than 200000"),
        ("SwitchName=a Nodes=b\nSwitchName=b Nodes=c\n", 1, "a switch has the same name"),
        ("SwitchName=a Knots=b\n", 1, "unknown key"),
        ("a b\n", 1, "expected KEY=VALUE"),
        (f"SwitchName={'x' * 65} Nodes=n\n", 1, "at most 64"),
        ("SwitchName=a Nodes=n1\nBlockName=b Nodes=n2\n", 2, "both switches and blocks"),
        ("SwitchName=a Nodes=n1 \\\n", 1, "goes on"),
        ("RingName=a Nodes=n1\n", 1, "expected SwitchName="),
        ("# nothing\n", None, "no SwitchName"),
    ],
)
def test_a_topology_conf_that_cannot_be_is_refused_at_its_line(text: str, line: int | None, says: str) -> None:
    error = refused("slurm", text)
    assert says in error.reason, str(error)
    assert error.line == line, str(error)


SLURM_YAML = """\
- topology: flat
  flat: true
- topology: trees
  cluster_default: true
  tree:
    switches:
      - {switch: top, children: "l[1-2]"}
      - {switch: l1, nodes: "n[1-2]"}
      - {switch: l2, nodes: n3}
- topology: blocks
  block:
    block_sizes: [2]
    blocks: [{block: b, nodes: "n[1-3]"}]
"""


def test_of_several_slurm_topologies_the_default_is_taken() -> None:
    found = imported("slurm-yaml", SLURM_YAML)
    assert ([leaf.name for leaf in found.graph.leaves], len(found.graph.nodes)) == (["l1", "l2"], 3)
    assert found.notes == ("taken of 3 topologies: 'trees'",)
    assert len(imported("slurm-yaml", "- {block: {blocks: [{block: b, nodes: n1}]}}").graph.leaves) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tree: {}", "expected a list"),
        ("- {topology: a, flat: true}", "found flat: that tells no leaves"),
        ("- {topology: a, flat: true, ring: {}}", "expected one of"),
        ("- {topology: a, tree: {switches: [{switch: s, nods: n}]}}", "unknown key"),
        ("- {topology: a, tree: {switches: [{switch: s, children: t}]}}", "no switch 't'"),
        ("- {topology: a, tree: {}}", "no switches"),
    ],
)
def test_a_topology_yaml_that_tells_nothing_is_refused(text: str, says: str) -> None:
    assert says in refused("slurm-yaml", text).reason


DUMP = """\
vendid=0x2c9
Switch\t65 "S-1"\t\t# "MF0;leaf-1:MQM9701/U1" enhanced port 0 lid 1 lmc 0
[1]\t"H-a1"[1](a1) \t\t# "n1 mlx5_0" lid 5 4xNDR
[2]\t"H-b1"[1](b1) \t\t# "n2 mlx5_0" lid 6 4xNDR
[3]\t"H-b2"[1](b2) \t\t# "n2 mlx5_1" lid 6 4xNDR
[4]\t"H-c"[1](c) \t\t# "MT4129 ConnectX7" lid 6 4xNDR
[33]\t"S-2"[1]\t\t# "MF0;spine-1:MQM9701/U1" lid 9 4xNDR
[65]\t"H-s"[1](s) \t\t# "Mellanox Technologies Aggregation Node" lid 9 4xNDR

Switch\t65 "S-2"\t\t# "MF0;spine-1:MQM9701/U1" enhanced port 0 lid 9 lmc 0
[1]\t"S-1"[33]\t\t# "MF0;leaf-1:MQM9701/U1" lid 1 4xNDR

Ca\t1 "H-a1"\t\t# "n1 mlx5_0"
[1](a1) \t"S-1"[1]\t\t# lid 5 lmc 0 "MF0;leaf-1:MQM9701/U1" lid 1 4xNDR
Ca\t1 "H-b1"\t\t# "n2 mlx5_0"
[1](b1) \t"S-1"[2]\t\t# lid 5
Ca\t1 "H-b2"\t\t# "n2 mlx5_1"
[1](b2) \t"S-1"[3]\t\t# lid 5
Ca\t1 "H-c"\t\t# "MT4129 ConnectX7"
[1](c) \t"S-1"[4]\t\t# lid 5
Ca\t1 "H-s"\t\t# "Mellanox Technologies Aggregation Node"
[1](s) \t"S-1"[65]\t\t# lid 5
"""


def hexed(dump: str) -> str:
    """The dump with GUIDs of hexadecimal digits alone."""
    return dump.replace("H-s", "H-5").replace("(s)", "(5)")


def test_infiniband_adapters_are_nics_of_their_hosts_and_switches_own_ones_are_none() -> None:
    found = imported("ibnetdiscover", hexed(DUMP))
    assert hanging(found.graph) == {
        "ca-c": [(0, "leaf-1", "4")],
        "n1": [(0, "leaf-1", "1")],
        "n2": [(0, "leaf-1", "2"), (1, "leaf-1", "3")],
    }
    assert [spine.name for spine in found.graph.spines] == ["spine-1"]
    assert found.notes == ("5 channel adapters: 1 of switches left out, 1 without host name named by GUID",)


def test_an_infiniband_link_that_one_end_does_not_know_is_half() -> None:
    found = imported("ibnetdiscover", hexed(DUMP).replace('[1]\t"S-1"[33]', '[1]\t"S-1"[34]'))
    assert len(found.graph.links) == 0
    assert sum("half link" in note for note in found.notes) == 2


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("vendid=0x2c9", "what is this", 1, "expected a device"),
        ("Switch\t65", "[1]\t", 2, "expected a device"),
        ('Ca\t1 "H-b1"', 'Ca\t1 "H-a1"', 15, "there already, at line 13"),
    ],
)
def test_a_dump_that_is_none_is_refused_at_its_line(old: str, new: str, line: int, says: str) -> None:
    assert old in DUMP
    error = refused("ibnetdiscover", hexed(DUMP).replace(old, new, 1))
    assert says in error.reason, str(error)
    assert error.line == line


def test_netq_knows_the_port_at_both_ends() -> None:
    def link(a: str, b: str) -> object:
        ends = [dict(zip(("node", "interface"), end.split(":"), strict=True)) for end in (a, b)]
        return {"id": "x", "compounded_links": [{"id": f"{a}-*-{b}", "interfaces": ends}]}

    def node(identity: str, name: str, tier: int) -> object:
        return {"id": identity, "name": name, "tier": tier, "device_type": "switch" if tier > 0 else "host"}

    links = [link("a:swp1", "b:eth0"), link("a:swp2", "b:eth1"), link("c:swp1", "a:swp3")]
    graph = {
        "nodes": [{"compounded_nodes": [node("a", "leaf", 1), node("b", "dgx", -1), node("c", "spine", 2)]}],
        "links": links,
    }
    found = imported("netq", {"graph.json": [graph]})
    assert hanging(found.graph) == {"dgx": [(0, "leaf", "swp1"), (1, "leaf", "swp2")]}
    links.append(link("a:swp1", "nobody:eth0"))
    error = refused("netq", {"graph.json": [graph]})
    assert error.key == "[0].links[3].compounded_links[0].interfaces[1].node", str(error)


CLAB = """\
name: lab
topology:
  defaults: {kind: nokia_srlinux}
  nodes:
    s1: {group: spine}
    l1:
    l2:
    c1: {kind: linux}
  links:
    - endpoints: ["l1:e1-1", "s1:e1-1"]
    - type: veth
      endpoints:
        - {node: l2, interface: e1-1}
        - {node: s1, interface: e1-2}
    - endpoints: ["c1:eth1", "l1:e1-3"]
    - endpoints: ["c1:eth2", "l2:e1-3"]
    - endpoints: ["l1:e1-9", "mgmt-net:l1"]
"""


def test_containerlab_nodes_are_hosts_by_kind_and_tiers_by_group() -> None:
    found = imported("containerlab", CLAB)
    assert hanging(found.graph) == {"c1": [(0, "l1", "e1-3"), (1, "l2", "e1-3")]}
    assert len(found.graph.links) == 2
    assert found.notes == ("1 links to the outside (host, management network) left out",)
    error = refused("containerlab", CLAB.replace('"l1:e1-1"', '"l7:e1-1"'))
    assert (error.line, error.reason) == (10, "there is no node 'l7'")


def test_a_csv_of_links_needs_no_devices_and_may_tell_rail_and_role() -> None:
    text = (
        "StartDevice,StartPort,EndDevice,EndPort,Rail,Role\n"
        "n1,eth0,leaf1,Ethernet0,3,\nn1,eth9,leaf1,Ethernet1,0,storage\nleaf1,Ethernet48,spine1,Ethernet0,,\n"
    )
    found = imported("links-csv", text)
    assert hanging(found.graph) == {"n1": [(3, "leaf1", "Ethernet0")]}
    assert [port.role for node in found.graph.nodes for port in node.ports] == [Role.COMPUTE, Role.STORAGE]
    assert "3 devices are in no devices file" in found.notes[0]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("StartDevice,StartPort,EndDevice\na,b,c\n", 1, "expected a first line"),
        ("StartDevice,StartPort,EndDevice,EndPort\na,b,c,d,e\n", 2, "expected 4 columns, found 5"),
        ('StartDevice,StartPort,EndDevice,EndPort\na,"b,c,d\n', 2, "not CSV"),
        ("StartDevice,StartPort,EndDevice,EndPort\na,,c,d\n", 2, "missing"),
        ("StartDevice,StartPort,EndDevice,EndPort,Rail\na,eth0,c,d,x\n", 2, "from 0 to 255"),
        ("StartDevice,StartPort,EndDevice,EndPort\na,eth0,s,p1\nb,eth0,s,p1\n", 3, "used twice"),
        ("Hostname,Type\na,Server\n", None, "no file of links"),
    ],
)
def test_a_csv_that_is_none_is_refused_at_its_line(text: str, line: int | None, says: str) -> None:
    error = refused("links-csv", text)
    assert says in error.reason, str(error)
    assert error.line == line, str(error)
