"""One local stack: brings servers, namespaces and services up in order, waits until all is ready, takes all down.

Only one process may have a state directory. What this process starts dies with it, however it ends; the namespaces it
made are taken away when it stops, or by whoever has the directory next.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import yaml

from railweave.cli.exits import CommandFailed, Exit
from railweave.cli.session import Session, connected
from railweave.cli.stack import namespaces, probing
from railweave.cli.stack.design import AGENT, Design, Layout, Shape, design
from railweave.cli.stack.hosting import host, stack_settings
from railweave.cli.stack.rights import may_make_namespaces
from railweave.cli.target import Target
from railweave.cli.where import Context, ProcessEntry, read_context, start_ticks
from railweave.contracts.client import ClientError
from railweave.contracts.query import (
    COUNTS_SUBJECT,
    NODES_SUBJECT,
    CountsAnswer,
    CountsQuery,
    NodesAnswer,
    NodesQuery,
)
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.cluster import FABRIC
from railweave.runtime.health import HealthServer
from railweave.runtime.local_servers import (
    LocalNatsServer,
    LocalServer,
    LocalServerError,
    LocalValkeyServer,
    ServerBinaryMissingError,
)
from railweave.runtime.netlink import KernelError
from railweave.runtime.spawn import spawn

_STOP_S = 3.5
_SERVER_STOP_S = 1.5
_LOOK_S = 0.05
Say = Callable[[str], None]
S = TypeVar("S", bound=LocalServer)


@dataclass(slots=True)
class _Hosted:
    """Services that run: in this process (`task`), or in a child (`child`)."""

    names: tuple[str, ...]
    health: str | None = None
    task: asyncio.Task[int] | None = None
    stop: asyncio.Event | None = None
    child: subprocess.Popen[bytes] | None = None
    announce: Path | None = None

    @property
    def title(self) -> str:
        return "+".join(self.names)

    @property
    def has_ended(self) -> bool:
        return self.task.done() if self.task is not None else self.child is not None and self.child.poll() is not None


class LocalStack:
    """A stack in a state directory.

    Args:
        directory: made when missing.
        shape: the cluster.
        layout: which services share a process.
        in_this_process: run the services of Layout.ONE here instead of in a child.
        settings: by section, laid over what the stack sets.
        say: told of each step.
    """

    def __init__(
        self,
        directory: Path,
        shape: Shape,
        *,
        layout: Layout = Layout.ONE,
        in_this_process: bool = False,
        settings: dict[str, Any] | None = None,
        say: Say = lambda _text: None,
    ) -> None:
        self.directory = directory.absolute()
        self._say = say
        self._in_this_process = in_this_process
        before = read_context(self.directory)
        self.run = before.run if before is not None else f"rw{secrets.token_hex(2)}"
        self.design: Design = design(self.run, shape, layout, self.directory, settings)
        self.nats = LocalNatsServer(self.directory / "nats", port=_port(before.nats if before else None))
        self.valkey = LocalValkeyServer(self.directory / "valkey", port=_port(before.redis if before else None))
        self.node_names: tuple[str, ...] = shape.node_names
        self._hosted: list[_Hosted] = []
        self._lock: IO[str] | None = None
        self._is_ready = False
        self._is_ours = False

    @property
    def shape(self) -> Shape:
        """The cluster."""
        return self.design.shape

    @property
    def target(self) -> Target:
        """Where commands reach it."""
        return Target(self.nats.url)

    @property
    def pids(self) -> dict[str, int]:
        """The processes of the services and servers, by name."""
        pids = {hosted.title: hosted.child.pid for hosted in self._hosted if hosted.child is not None}
        return pids | {server.PROGRAM: server.pid for server in (self.nats, self.valkey) if server.is_running}

    async def start(self, *, timeout_s: float = 60.0) -> None:
        """Bring everything up and wait until all nodes are there.

        Raises:
            CommandFailed: another process has the directory, a part could not start, or was not ready in time.
        """
        self._take_directory()
        try:
            async with asyncio.timeout(timeout_s):
                await self._bring_up()
        except TimeoutError:
            raise CommandFailed(
                f"the stack was not ready within {timeout_s:g} s: {await self._what_is_missing()}",
                remedy=f"the logs are in {self.directory / 'log'}",
            ) from None
        except (LocalServerError, KernelError) as error:
            raise CommandFailed(str(error)) from error

    async def _bring_up(self) -> None:
        for name in ("log", "nodes", "datasets"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        if may_make_namespaces():
            await asyncio.to_thread(namespaces.remove_all, self.run)
        self._say("starting nats-server and valkey-server")
        await self._start_servers()
        async with connected(self.target) as session:
            await bootstrap(session.bus)
            await self._prepare_nodes()
            self._write_settings()
            self._write_context()
            for names in self.design.groups:
                if AGENT in names and not self.node_names:
                    self.node_names = await self._nodes_of_fabric(session)
                    self._write_settings()
                self._say(f"starting {', '.join(names)}")
                self._hosted.append(self._start_group(names))
            self._say("waiting until the services are ready")
            await self._wait_healthy()
            self._write_context()
            await self._wait_nodes(session)
            await self._wait_committer(session)
        self._is_ready = True
        self._write_context()

    async def _start_servers(self) -> None:
        """On the ports they had; on others where somebody else has those by now."""
        nats, valkey = self.directory / "nats", self.directory / "valkey"
        self.nats, self.valkey = await asyncio.gather(
            asyncio.to_thread(_served, self.nats, lambda: LocalNatsServer(nats)),
            asyncio.to_thread(_served, self.valkey, lambda: LocalValkeyServer(valkey)),
        )

    async def _prepare_nodes(self) -> None:
        if self.design.fabric_text is not None:
            (self.directory / "fabric.yaml").write_text(self.design.fabric_text)
        if self.shape.simulated:
            return
        self._say(f"making {len(self.node_names)} nodes as network namespaces")
        await asyncio.to_thread(namespaces.make_nodes, [self.design.node_netns(name) for name in self.node_names])

    def _write_settings(self) -> None:
        document = json.loads(json.dumps(self.design.settings))
        if self.shape.simulated:
            document["agent"]["simulated"]["names"] = list(self.node_names)
        (self.directory / "settings.yaml").write_text(yaml.safe_dump(document, sort_keys=False))

    async def _nodes_of_fabric(self, session: Session) -> tuple[str, ...]:
        """The nodes of a given fabric file, as topology published them."""
        self._say("waiting for the fabric")
        last = -1
        while True:
            self._check_alive()
            state = await session.cluster([FABRIC])
            names = tuple(sorted(str(name) for name, node in state.nodes.items() if node.fabric is not None))
            if names and len(names) == last:
                return names
            last = len(names)
            await asyncio.sleep(0.2)

    def _start_group(self, names: tuple[str, ...]) -> _Hosted:
        config = self.directory / "settings.yaml"
        if self._in_this_process:
            hosted = _Hosted(names, stop=asyncio.Event())
            settings = stack_settings(names, config, self.nats.url, self.valkey.url)

            def started(server: HealthServer) -> None:
                hosted.health = server.url

            work = host(names, settings, stop=hosted.stop, on_started=started)
            hosted.task = asyncio.get_running_loop().create_task(work, name=f"host {hosted.title}")
            return hosted
        title = names[0] if len(names) == 1 else "plane"
        announce = self.directory / f"{title}.health"
        announce.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "railweave.cli.stack.hosting",
            "--config",
            str(config),
            "--nats",
            self.nats.url,
            "--redis",
            self.valkey.url,
            "--announce",
            str(announce),
            *names,
        ]
        with (self.directory / "log" / f"{title}.log").open("ab") as log:
            child = spawn(command, directory=self.directory, output=log.fileno())
        return _Hosted(names, child=child, announce=announce)

    async def _wait_healthy(self) -> None:
        waiting = list(self._hosted)
        while waiting:
            self._check_alive()
            for hosted in list(waiting):
                if hosted.health is None and hosted.announce is not None and hosted.announce.exists():
                    hosted.health = hosted.announce.read_text()
                if hosted.health is not None and await asyncio.to_thread(probing.is_ready, hosted.health):
                    waiting.remove(hosted)
            await asyncio.sleep(_LOOK_S)

    async def _wait_nodes(self, session: Session) -> None:
        self._say(f"waiting for {len(self.node_names)} nodes")
        while await self._missing_nodes(session):
            self._check_alive()
            await asyncio.sleep(_LOOK_S * 2)

    async def _wait_committer(self, session: Session) -> None:
        """Wait until jobs are placed: a standby is ready too, and after a crash there is nobody else for a while."""
        while not await self._has_committer(session):
            self._check_alive()
            await asyncio.sleep(_LOOK_S)
        # Active, it is ready when it knows what nodes hold.
        await self._wait_healthy()

    async def _has_committer(self, session: Session) -> bool:
        try:
            await session.ask(COUNTS_SUBJECT, CountsQuery(), CountsAnswer)
        except ClientError:
            return False
        return True

    async def _missing_nodes(self, session: Session) -> list[str]:
        try:
            answer = await session.ask(NODES_SUBJECT, NodesQuery(), NodesAnswer)
        except ClientError:
            return ["(the jobs service does not answer)"]
        whole = {
            str(row.node)
            for row in answer.nodes
            if row.agent_version is not None and row.leaves and not row.rails_down and row.vf_groups
        }
        return [name for name in self.node_names if name not in whole]

    async def _what_is_missing(self) -> str:
        for hosted in self._hosted:
            if hosted.health is None:
                return f"{hosted.title} did not start"
            told = await asyncio.to_thread(probing.readiness, hosted.health)
            if told:
                return f"{hosted.title}: {told}"
        if not self.nats.is_running:
            return "nats-server does not run"
        with contextlib.suppress(CommandFailed, TimeoutError):
            async with asyncio.timeout(3.0), connected(self.target) as session:
                missing = await self._missing_nodes(session)
                return f"{len(missing)} of {len(self.node_names)} nodes, such as {missing[0]}" if missing else "nothing"
        return "unknown"

    def _check_alive(self) -> None:
        ended = next((hosted for hosted in self._hosted if hosted.has_ended), None)
        if ended is not None:
            raise CommandFailed(
                f"{ended.title} ended while the stack came up", remedy=f"the logs are in {self.directory / 'log'}"
            )

    async def gauge(self, name: str) -> int:
        """The sum of a gauge over the processes of the stack, as their /metrics say it; 0 where none has it."""
        texts = await asyncio.gather(
            *(asyncio.to_thread(probing.metrics, hosted.health) for hosted in self._hosted if hosted.health is not None)
        )
        lines = [line.split() for text in texts for line in text.splitlines() if line.startswith(f"{name} ")]
        return round(sum(float(value) for _, value in lines))

    async def wait_ended(self) -> str:
        """Wait until any part of it has ended by itself; its name."""
        while True:
            for hosted in self._hosted:
                if hosted.has_ended:
                    return hosted.title
            for server in (self.nats, self.valkey):
                if not server.is_running:
                    return server.PROGRAM
            await asyncio.sleep(0.2)

    async def stop(self) -> None:
        """Take everything down, services first, within five seconds. The record stays in the directory."""
        if not self._is_ours:
            return
        hosted, self._hosted = self._hosted, []
        await asyncio.gather(*(self._stop_group(group) for group in hosted))
        await asyncio.gather(
            asyncio.to_thread(self.nats.stop, timeout_s=_SERVER_STOP_S),
            asyncio.to_thread(self.valkey.stop, timeout_s=_SERVER_STOP_S),
        )
        if not self.shape.simulated:
            await asyncio.to_thread(namespaces.remove_all, self.run)
        self._is_ready = False
        context = read_context(self.directory)
        if context is not None:
            context.model_copy(update={"is_ready": False, "processes": ()}).write(self.directory)
        self._release_directory()

    async def _stop_group(self, group: _Hosted) -> None:
        if group.task is not None and group.stop is not None:
            group.stop.set()
            await asyncio.wait([group.task], timeout=_STOP_S)
            if not group.task.done():
                group.task.cancel()
            await asyncio.gather(group.task, return_exceptions=True)
        if group.child is not None:
            with contextlib.suppress(ProcessLookupError):
                group.child.send_signal(signal.SIGTERM)
            try:
                await asyncio.to_thread(group.child.wait, _STOP_S)
            except subprocess.TimeoutExpired:
                group.child.kill()
                await asyncio.to_thread(group.child.wait)

    def _write_context(self) -> None:
        own = os.getpid()
        processes = [ProcessEntry(name="supervisor", pid=own, started=start_ticks(own) or 0)]
        for hosted in self._hosted:
            pid = hosted.child.pid if hosted.child is not None else own
            processes.append(
                ProcessEntry(name=hosted.title, pid=pid, started=start_ticks(pid) or 0, health=hosted.health)
            )
        processes += [
            ProcessEntry(name=server.PROGRAM, pid=server.pid, started=start_ticks(server.pid) or 0)
            for server in (self.nats, self.valkey)
        ]
        Context(
            run=self.run,
            directory=str(self.directory),
            nats=self.nats.url,
            redis=self.valkey.url,
            is_ready=self._is_ready,
            is_simulated=self.shape.simulated,
            nodes=self.node_names,
            processes=tuple(processes),
        ).write(self.directory)

    def _take_directory(self) -> None:
        self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        lock = (self.directory / "lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise CommandFailed(
                f"a stack runs in {self.directory} already", Exit.USAGE, remedy="`railweave down` ends it"
            ) from None
        self._lock = lock
        self._is_ours = True

    def _release_directory(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        self._is_ours = False


def _served(server: S, another: Callable[[], S]) -> S:
    """Start a server, or another one where its port is taken for good."""
    try:
        server.start(timeout_s=6.0)
    except ServerBinaryMissingError:
        raise
    except LocalServerError:
        server = another()
        server.start()
    return server


def _port(url: str | None) -> int | None:
    """The port of the last time, so that clients of a restarted stack find it again."""
    if url is None:
        return None
    digits = url.rpartition(":")[2].partition("/")[0]
    return int(digits) if digits.isdigit() else None
