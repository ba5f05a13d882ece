"""What switches are to be configured to, from the stored fabric, and what would change on one."""

from __future__ import annotations

import json
from pathlib import Path

from railweave.cli.exits import Exit
from railweave_testing.command_line import Up


def test_the_configuration_of_a_leaf_and_what_would_change_on_it(stack: Up, tmp_path: Path) -> None:
    wanted = stack.command("fabric", "config", "leaf-1").document
    assert sorted(wanted["VLAN"]) == ["Vlan100", "Vlan101", "Vlan102", "Vlan103"]
    assert len(wanted["VLAN_MEMBER"]) == 8, "two nodes with four rails"
    for system, word in (("cumulus", "nv set bridge"), ("frr", "vlan_filtering 1")):
        assert word in stack.command("fabric", "config", "leaf-1", "--for", system).out
    assert stack.command("fabric", "config", "leaf-9").code == Exit.NOT_FOUND

    running = tmp_path / "config_db.json"
    ports = {key.partition("|")[2]: {} for key in wanted["VLAN_MEMBER"]}
    running.write_text(json.dumps({"PORT": ports, "VLAN": {"Vlan7": {"vlanid": "7"}}}))
    patch = json.loads(stack.command("fabric", "diff", "leaf-1", str(running), "--patch").out)
    assert {operation["op"] for operation in patch} == {"add"}
    said = stack.command("fabric", "diff", "leaf-1", str(running))
    assert said.code == 0
    assert "+ VLAN Vlan100" in said.out
    assert "Vlan7" not in said.out

    running.write_text(json.dumps({"PORT": ports, **wanted}))
    assert stack.command("fabric", "diff", "leaf-1", str(running)).out.strip() == "leaf-1 is as it should be"
    running.write_text(json.dumps({"PORT": {}, "INTERFACE": {f"{next(iter(ports))}|10.0.0.1/31": {}}}))
    said = stack.command("fabric", "diff", "leaf-1", str(running))
    assert (said.code, "has an address of its own" in said.out) == (Exit.FAILED, True)
    running.write_text("{")
    assert stack.command("fabric", "diff", "leaf-1", str(running)).code == Exit.USAGE
