"""What a virtual machine is started with."""

import shlex
import subprocess
from pathlib import Path

import pytest
from machine import Machine, guest_script, needed_modules, qemu_command

DEPENDENCIES = """\
kernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko kernel/fs/netfs/netfs.ko
kernel/net/9p/9pnet.ko:
kernel/fs/netfs/netfs.ko: kernel/fs/fscache/fscache.ko
kernel/fs/fscache/fscache.ko: kernel/fs/netfs/netfs-core.ko
kernel/fs/netfs/netfs-core.ko:
kernel/drivers/virtio/virtio-pci.ko: kernel/net/9p/9pnet.ko
"""


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    (tmp_path / "kernel/boot").mkdir(parents=True)
    (tmp_path / "kernel/boot/vmlinuz-6.1").touch()
    (tmp_path / "kernel/lib/modules/6.1").mkdir(parents=True)
    return tmp_path


def test_what_a_module_needs_is_loaded_before_it_and_once():
    order = [Path(path).stem for path in needed_modules(DEPENDENCIES, ("9p", "virtio_pci"))]
    assert order == ["9pnet", "netfs-core", "fscache", "netfs", "9p", "virtio-pci"]


def test_a_module_that_is_built_into_the_kernel_is_not_loaded():
    assert needed_modules(DEPENDENCIES, ("overlay",)) == []


@pytest.mark.parametrize("argument", ["a b", "-k not (x or y)", "it's", "$HOME", "two\nlines"])
def test_arguments_reach_the_guest_as_they_were_given(argument: str, tmp_path: Path):
    script = guest_script(["printf", "%s", argument], tmp_path, {})
    assert subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout == argument


def test_of_the_environment_what_concerns_tests_reaches_the_guest(tmp_path: Path):
    script = guest_script(["true"], tmp_path, {"RAILWEAVE_SEEDS": "a 'b'", "LD_LIBRARY_PATH": "/x", "PATH": "/nowhere"})
    words = shlex.split(script)
    assert "RAILWEAVE_SEEDS=a 'b'" in words
    assert not [word for word in words if "LD_LIBRARY_PATH" in word or "/nowhere" in word]


def test_every_network_card_has_a_port_and_an_address_of_its_own_on_one_wire(parts: Path, tmp_path: Path):
    command = qemu_command(Machine(parts, nics=3), tmp_path / "initramfs", tmp_path, 5)
    cards = [argument for argument in command if argument.startswith("igb,")]
    assert len({card.rpartition("mac=")[2] for card in cards}) == 3
    assert [card.partition("bus=")[2].partition(",")[0] for card in cards] == ["port0", "port1", "port2"]
    assert all("hubid=0" in argument for argument in command if argument.startswith("hubport,"))


def test_the_hosts_root_is_shared_to_be_read_and_a_comma_in_a_path_ends_no_option(parts: Path, tmp_path: Path):
    command = qemu_command(Machine(parts), tmp_path / "initramfs", tmp_path / "a,b", 5)
    root, exchange = (argument for argument in command if argument.startswith("local,"))
    assert "path=/," in root
    assert "readonly=on" in root
    assert f"path={tmp_path}/a,,b," in exchange
