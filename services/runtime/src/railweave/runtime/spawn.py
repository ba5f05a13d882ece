"""Child processes that die with this process, and where their programs and ports come from.

For programs that live as long as we do (local servers, the services of the local stack); not for short commands.
"""

from __future__ import annotations

import os
import queue
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final

LOOPBACK: Final = "127.0.0.1"

_LOWEST_PORT: Final = 10_240

# Runs first in the new process: prctl(PR_SET_PDEATHSIG, SIGKILL), then the program in its place. A stopped process
# would sleep through a SIGTERM. It is not a preexec_fn, which may deadlock in a process that has threads. The
# parent may be gone before prctl was called: then nobody is left to wait for.
_DIE_WITH_PARENT: Final = (
    "import ctypes,os,sys;"
    "ctypes.CDLL(None).prctl(1,9);"
    "os.getppid()==int(sys.argv[1]) or os._exit(1);"
    "os.execv(sys.argv[2],sys.argv[2:])"
)


def spawn(
    command: Sequence[str], *, directory: Path, output: int, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a program that is killed when this process ends, however it ends.

    It has a session of its own (the terminal's Ctrl-C is not for it) and no standard input.

    Args:
        command: the program's absolute path and its arguments.
        directory: its working directory.
        output: file descriptor for its standard output and error.
        env: its environment; None for ours.

    Raises:
        OSError: no process could be made. A program that cannot be executed ends with status 1 and says so in `output`.
    """
    return _SPAWNER.spawn(command, directory, output, env)


def port_to_try() -> int:
    """A random port below those that the kernel gives to clients.

    A client that reconnects to a stopped server on a port of that range can be given the very port it connects to: it
    then talks to itself, and the server cannot come back.
    """
    lowest_of_clients = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return random.SystemRandom().randrange(_LOWEST_PORT, max(_LOWEST_PORT + 1_000, min(lowest_of_clients, 32_768)))


class _Spawner:
    """Starts every child from one thread that lives as long as this process.

    PR_SET_PDEATHSIG is sent when the *thread* that forked ends: started from a worker of `asyncio.to_thread`, a child
    would be killed with that worker.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def spawn(
        self, command: Sequence[str], directory: Path, output: int, env: Mapping[str, str] | None
    ) -> subprocess.Popen[bytes]:
        """Start it in the thread and wait for the process."""
        done: Future[subprocess.Popen[bytes]] = Future()

        def start() -> None:
            try:
                # No shell; the command is made by our own code.
                process = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command],
                    cwd=directory,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            except BaseException as error:  # noqa: BLE001 - handed to the caller, who waits for it
                done.set_exception(error)
            else:
                done.set_result(process)

        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="railweave-spawner", daemon=True)
                self._thread.start()
        self._work.put(start)
        return done.result()

    def _run(self) -> None:
        while True:
            self._work.get()()


_SPAWNER: Final = _Spawner()
