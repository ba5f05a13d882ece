"""Runs pytest, or another command, in a virtual machine with this machine's files and a Debian kernel with modules.

python tests/lab/vm/run.py -- -q services/topology/tests/linux_fabric   pytest, with its own options
python tests/lab/vm/run.py --probe                                      the guest's kernel and what it can do
python tests/lab/vm/run.py --command -- ip -details link                any other command

Options of this program come before the --. It ends with the command's own status; 124 past --timeout, 70 where the
guest ended without one, 69 where the parts cannot be had. The guest sees all files of this machine; what it writes is
gone with it, except in /run/vm/exchange (--keep). As root on Debian; the first run fetches about 90 MB into .make/vm.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from machine import TREE, Machine, build_initramfs, guest_script, qemu_command

HERE = Path(__file__).resolve().parent
PARTS = TREE / ".make/vm"
PAST_TIME, NO_STATUS, NO_PARTS = 124, 70, 69


def main() -> int:
    given, arguments = _arguments()
    if given.probe:
        command = ["sh", str(HERE / "guest/probe")]
    elif given.command:
        command = arguments
    else:
        command = [str(TREE / ".venv/bin/pytest"), *arguments]
    if not command:
        print("nothing to run: see --help", file=sys.stderr)
        return 2
    if os.geteuid() != 0:
        print("vm: needs root, to share all files of this machine with the guest", file=sys.stderr)
        return NO_PARTS
    if subprocess.run([HERE / "fetch.sh", PARTS], check=False).returncode != 0:
        return NO_PARTS
    machine = Machine(PARTS, given.cpus, given.memory, given.nics)
    with _exchange(given.keep) as exchange:
        return run(machine, command, exchange, given.timeout)


def run(machine: Machine, command: list[str], exchange: Path, timeout: float) -> int:
    """Boots, streams what the command prints, and gives its status."""
    (exchange / "command").write_text(guest_script(command, Path.cwd(), os.environ))
    (exchange / "modules").write_text(f"{machine.modules}\n")
    build_initramfs(machine, exchange / "initramfs")
    started = time.monotonic()
    output, far_end = os.pipe()
    with (exchange / "qemu.log").open("wb") as log:
        qemu = subprocess.Popen(
            qemu_command(machine, exchange / "initramfs", exchange, far_end),
            env=machine.environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[far_end],
            # A session of its own: Ctrl-C and a stage's signal come here, and the guest is then ended below.
            start_new_session=True,
        )
    os.close(far_end)
    try:
        if not copy_until(output, started + timeout):
            print(f"vm: ended after {timeout:.0f} s, its --timeout. The guest's console:", file=sys.stderr)
            print(_logs(exchange), file=sys.stderr)
            return PAST_TIME
        qemu.wait(timeout=10)
    finally:
        qemu.kill()
        qemu.wait()
        os.close(output)
    took = time.monotonic() - started
    status = _number(exchange / "status")
    if status is None:
        print(f"vm: the guest ended without a status; QEMU with {qemu.returncode}. Its console:", file=sys.stderr)
        print(_logs(exchange), file=sys.stderr)
        return NO_STATUS
    booted, ended = _number(exchange / "booted") or 0, _number(exchange / "ended") or 0
    print(f"vm: booted in {booted:.1f} s, ran {ended - booted:.1f} s, in all {took:.1f} s", file=sys.stderr)
    return int(status)


def copy_until(output: int, deadline: float) -> bool:
    """Prints what comes out of a descriptor, until it ends (True) or the deadline passes (False)."""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([output], [], [], left)[0]:
            return False
        if not (piece := os.read(output, 65536)):
            return True
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    return False


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (FileNotFoundError, ValueError):
        return None


def _logs(exchange: Path) -> str:
    lines = [
        line
        for name in ("qemu.log", "console.log")
        if (exchange / name).exists()
        for line in (exchange / name).read_text(errors="replace").splitlines()[-30:]
    ]
    return "\n".join(lines)


@contextlib.contextmanager
def _exchange(keep: Path | None) -> Iterator[Path]:
    """The directory that host and guest share."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        for name in ("status", "booted", "ended"):
            (keep / name).unlink(missing_ok=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="railweave-vm-") as scratch:
        yield Path(scratch)


def _arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--probe", action="store_true", help="say what the guest's kernel can do, and run nothing else")
    parser.add_argument("--command", action="store_true", help="what follows is a command, not pytest's arguments")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds from boot to the end (600)")
    parser.add_argument("--cpus", type=int, default=1, help="1; more may stand still")
    parser.add_argument("--memory", type=int, default=2048, help="MiB (2048)")
    parser.add_argument("--nics", type=int, default=2, help="network cards with SR-IOV (2), eth0 and on")
    parser.add_argument("--keep", type=Path, help="a directory to share as /run/vm/exchange, and to keep")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="pytest's")
    given = parser.parse_args()
    arguments = given.arguments[1:] if given.arguments[:1] == ["--"] else given.arguments
    return given, arguments


def _stop(signum: int, _frame: object) -> None:
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    sys.exit(main())
