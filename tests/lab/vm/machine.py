"""A virtual machine that runs one command in this machine's own files, on another kernel: what it is made of.

Software emulation (tcg) throughout: no nested virtualisation is asked for."""

from __future__ import annotations

import gzip
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["TREE", "Machine", "build_initramfs", "guest_script", "needed_modules", "qemu_command"]

GUEST = Path(__file__).resolve().parent / "guest"
TREE = GUEST.parents[3]
PASSED_ON = ("RAILWEAVE_", "PYTEST_", "HYPOTHESIS_")
# virtio over PCI, the host's files, an overlay above them, and the port that output comes out of.
BOOT_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_console")


@dataclass(frozen=True)
class Machine:
    """What a guest gets. `parts` is the directory that fetch.sh filled, `nics` counts network cards with 7 VFs each."""

    parts: Path
    cpus: int = 1
    """One: emulated, a second one now and then loses its timer, and the guest stands still."""
    memory_mib: int = 2048
    nics: int = 2

    @property
    def modules(self) -> Path:
        """/lib/modules/VERSION of the guest's kernel."""
        (found,) = (self.parts / "kernel/lib/modules").iterdir()
        return found

    @property
    def kernel(self) -> Path:
        """What boots."""
        (found,) = (self.parts / "kernel/boot").glob("vmlinuz-*")
        return found

    def environment(self) -> dict[str, str]:
        """QEMU's: its libraries lie beside it, and are not installed."""
        libraries = [self.parts / "qemu" / path / "x86_64-linux-gnu" for path in ("usr/lib", "lib")]
        modules = self.parts / "qemu/usr/lib/x86_64-linux-gnu/qemu"
        return os.environ | {
            "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
            "QEMU_MODULE_DIR": str(modules),
        }


def needed_modules(dependencies: str, names: tuple[str, ...]) -> list[str]:
    """Paths of modules and all that they need, in an order in which they can be loaded.

    `dependencies` is a modules.dep: "kernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko ...". A name that is not in it is built
    into the kernel.
    """
    needs = {path: rest.split() for path, _, rest in (line.partition(":") for line in dependencies.splitlines())}
    by_name = {Path(path).stem.replace("-", "_"): path for path in needs}
    order: list[str] = []

    def add(path: str) -> None:
        if path in order:
            return
        for needed in needs.get(path, ()):
            add(needed)
        order.append(path)

    for name in names:
        if name in by_name:
            add(by_name[name])
    return order


def build_initramfs(machine: Machine, to: Path) -> None:
    """What the kernel starts with: busybox, the scripts of guest/ and the few modules that the root needs."""
    order = needed_modules((machine.modules / "modules.dep").read_text(), BOOT_MODULES)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        for directory in ("bin", "modules"):
            (root / directory).mkdir()
        shutil.copy(machine.parts / "busybox", root / "bin/busybox")
        for path in order:
            shutil.copy(machine.modules / path, root / "modules")
        (root / "modules/order").write_text("".join(f"{Path(path).name}\n" for path in order))
        for script in GUEST.iterdir():
            shutil.copy(script, root / script.name)
        (root / "init").chmod(0o755)
        names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
        archive = subprocess.run(
            [machine.parts / "busybox", "cpio", "-o", "-H", "newc"],
            input=names.encode(),
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        )
    to.write_bytes(gzip.compress(archive.stdout, compresslevel=1))


def qemu_command(machine: Machine, initramfs: Path, exchange: Path, output: int) -> list[str]:
    """QEMU's arguments: the host's root to read, `exchange` to write; what the command prints goes to `output`."""
    usr = machine.parts / "qemu/usr"
    command = [str(usr / "bin/qemu-system-x86_64"), "-L", str(usr / "share/qemu"), "-L", str(usr / "share/seabios")]
    command += ["-M", "q35,accel=tcg", "-cpu", "max,la57=off", "-smp", str(machine.cpus), "-m", str(machine.memory_mib)]
    command += ["-nodefaults", "-display", "none", "-no-reboot"]
    command += ["-kernel", str(machine.kernel), "-initrd", str(initramfs)]
    # assign-busses: a bus number for each network card's VFs. panic: QEMU then ends, and does not hang.
    command += ["-append", "console=ttyS0 nokaslr quiet panic=-1 pci=assign-busses net.ifnames=0 mitigations=off"]
    command += ["-chardev", f"file,id=console,path={_quoted(exchange / 'console.log')}", "-serial", "chardev:console"]
    # Not stdio: where its input has ended, QEMU tells the guest that nobody listens, and writing there waits for ever.
    command += ["-device", "virtio-serial", "-chardev", f"file,id=output,path=/dev/fd/{output}"]
    command += ["-device", "virtserialport,chardev=output,name=output"]
    # remap: files of several file systems come out of one share, and must not get one another's inode numbers.
    shared = "security_model=none,multidevs=remap"
    command += ["-virtfs", f"local,path=/,mount_tag=host,readonly=on,{shared}"]
    command += ["-virtfs", f"local,path={_quoted(exchange)},mount_tag=exchange,{shared}"]
    command += ["-device", "virtio-rng"]
    for number in range(machine.nics):
        # All on one wire: what one card sends, the others see.
        command += ["-device", f"pcie-root-port,id=port{number},chassis={number + 1},slot={number + 1}"]
        mac = f"52:54:00:00:00:{number + 1:02x}"
        command += ["-netdev", f"hubport,id=wire{number},hubid=0"]
        command += ["-device", f"igb,netdev=wire{number},bus=port{number},mac={mac}"]
    return command


def guest_script(command: list[str], directory: Path, environment: Mapping[str, str]) -> str:
    """What the guest's shell runs: the command, in the same directory, with what of the environment concerns tests."""
    kept = {name: value for name, value in environment.items() if name.startswith(PASSED_ON)}
    path = f"{TREE / '.venv/bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    kept |= {"PATH": path, "HOME": "/root", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in sorted(kept.items())]
    return "\n".join([*lines, f"cd {shlex.quote(str(directory))}", f"exec {shlex.join(command)}", ""])


def _quoted(path: Path) -> str:
    """A comma ends an option of QEMU's; twice it is one."""
    return str(path).replace(",", ",,")
