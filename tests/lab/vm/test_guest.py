"""What the guest's kernel has and this machine's may not: the reason for the virtual machine. Runs in it alone."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(not Path("/run/vm/exchange").exists(), reason="runs in the virtual machine: make test-vm"),
]


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def netns() -> Iterator[str]:
    ip("netns", "add", "vm-guest")
    yield "vm-guest"
    ip("netns", "delete", "vm-guest")


def test_a_bridge_filters_vlans_and_has_an_interface_in_each(netns: str):
    ip("-n", netns, "link", "add", "br0", "type", "bridge", "vlan_filtering", "1")
    ip("-n", netns, "link", "add", "link", "br0", "name", "br0.100", "type", "vlan", "id", "100")
    ip("netns", "exec", netns, "bridge", "vlan", "add", "dev", "br0", "vid", "100", "self")
    assert "vlan_filtering 1" in ip("-n", netns, "-d", "link", "show", "br0")


def test_devices_can_be_put_into_a_vrf(netns: str):
    ip("-n", netns, "link", "add", "red", "type", "vrf", "table", "1001")
    ip("-n", netns, "link", "add", "br0", "type", "bridge")
    ip("-n", netns, "link", "set", "br0", "master", "red")
    assert "master red" in ip("-n", netns, "link", "show", "br0")


def test_a_network_card_makes_virtual_functions_with_a_device_each():
    device = Path("/sys/class/net/eth0/device")
    assert (device / "sriov_totalvfs").read_text().strip() == "7"
    (device / "sriov_numvfs").write_text("2")
    try:
        found: list[Path] = []
        deadline = time.monotonic() + 30
        while len(found) < 2 and time.monotonic() < deadline:
            time.sleep(0.2)
            found = list(device.glob("virtfn*/net/*"))
        assert len(found) == 2
        ip("link", "set", "eth0", "vf", "1", "vlan", "100", "mac", "02:00:00:00:00:07")
        assert "vlan 100" in ip("link", "show", "eth0")
    finally:
        (device / "sriov_numvfs").write_text("0")
