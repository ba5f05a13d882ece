"""The configuration of one leaf for each system, as it was approved (golden/); RAILWEAVE_RENEW=1 writes it anew."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from railweave.contracts.fabric import Attachment, FabricLeaf
from railweave.contracts.types import LeafName, Rail, Slot
from railweave.topology.inventory import Inventory, replan
from railweave.topology.switch_config import (
    ConfigTables,
    IntentRefused,
    SwitchIntent,
    cumulus_commands,
    intent_of,
    linux_commands,
    patch_of,
    tables_of,
)
from railweave_testing.fabrics import config, fabric

GOLDEN = Path(__file__).parent / "golden"
RUNNING: ConfigTables = {
    "PORT": {f"Ethernet{port}": {} for port in (0, 4, 8, 12)},
    "VLAN": {"Vlan101": {"vlanid": "101", "dhcp_servers": ["192.0.2.1"]}, "Vlan190": {"vlanid": "190"}},
    "VLAN_MEMBER": {"Vlan190|Ethernet0": {"tagging_mode": "tagged"}},
    "VLAN_INTERFACE": {"Vlan190": {}, "Vlan190|10.90.0.1/24": {}},
}


def intent(ports: str = "Ethernet{}") -> SwitchIntent:
    """A leaf with two nodes of two rails and one segment, IPv4 and IPv6."""
    cabling = {"n1": {0: "leaf1", 1: "leaf1"}, "n2": {0: "leaf1", 1: "leaf1"}}
    graph = fabric(cabling)
    given = config("10.64.0.0/16", pools6=("fd00:64::/48",), segments=1)
    found = replan(Inventory(), graph, given, lambda _node: False)
    assert isinstance(found, Inventory)
    attachments = [
        Attachment(rail=Rail(rail), leaf=LeafName("leaf1"), port=ports.format(8 * node + 4 * rail), slot=Slot(node))
        for node in range(2)
        for rail in range(2)
    ]
    leaf: FabricLeaf = found.leaves[LeafName("leaf1")]
    return intent_of(leaf, attachments)


def sonic() -> str:
    patch = patch_of(RUNNING, intent(), lambda vlan: 100 <= vlan < 200)
    assert patch.conflicts == ()
    return json.dumps(patch.operations, indent=2)


RENDERED: dict[str, Callable[[], str]] = {
    "sonic_config_db.json": lambda: json.dumps(tables_of(intent()), indent=2),
    "sonic_patch.json": sonic,
    "cumulus.txt": lambda: "\n".join(cumulus_commands(intent("swp{}"))),
    "linux_frr.txt": lambda: "\n".join(linux_commands(intent("swp{}"), asn=65101)),
}


@pytest.mark.parametrize("name", RENDERED)
def test_what_is_rendered_is_what_was_approved(name: str) -> None:
    text = RENDERED[name]() + "\n"
    path = GOLDEN / name
    if os.environ.get("RAILWEAVE_RENEW"):
        path.write_text(text)
    assert text == path.read_text(), f"{name} differs; RAILWEAVE_RENEW=1 writes it anew: then read the difference"


def test_every_line_of_commands_is_words_that_no_shell_changes() -> None:
    for line in (*cumulus_commands(intent("swp{}")), *linux_commands(intent("swp{}"))):
        words = shlex.split(line)
        assert words[0] in {"nv", "ip", "bridge", "vtysh"}
        assert not set(line) & set('$`;&|<>\\"!*?#\n')


def test_what_is_wanted_no_more_is_unset_before_what_is_new_is_set() -> None:
    wanted = intent("swp{}")
    fewer = SwitchIntent(wanted.switch, wanted.vlans[:2])
    lines = cumulus_commands(fewer, before=wanted)
    unset = [line for line in lines if line.startswith("nv unset")]
    assert lines[: len(unset)] == unset
    assert unset[-1] == "nv unset vrf Vrf-s0"
    assert "nv unset interface vlan102" in unset
    assert cumulus_commands(wanted, before=wanted) == cumulus_commands(wanted)


@pytest.mark.parametrize("port", ["n1:0", "eth0; reboot", "$(x)", "a" * 65, ""])
def test_a_port_that_no_switch_has_reaches_no_line(port: str) -> None:
    leaf = FabricLeaf(leaf=LeafName("leaf1"), revision=1, island="i", pod="p", vlans=())
    attachment = Attachment(rail=Rail(0), leaf=LeafName("leaf1"), port=port, slot=Slot(0))
    with pytest.raises(IntentRefused, match="is no port of a switch"):
        intent_of(leaf, [attachment])


def test_a_name_that_linux_cannot_have_is_refused() -> None:
    for render in (linux_commands, cumulus_commands):
        with pytest.raises(IntentRefused, match="is no interface of"):
            render(intent("Ethernet1/1/{}"))
    with pytest.raises(IntentRefused, match="AS number"):
        linux_commands(intent("swp{}"), asn=0)
