"""A stack of real processes: each service one, the committer twice for hot standby, agents in groups of nodes.

It is made of what `railweave up --processes` is made of; but here a part that dies is nobody's surprise.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from rig.parts import Part, ServerPart, ServicePart, wait_until

from railweave.cli.stack import namespaces
from railweave.cli.stack.design import Design, Layout, Shape, design
from railweave.contracts.client import ClientError, Link, ask
from railweave.contracts.query import COUNTS_SUBJECT, NODES_SUBJECT, CountsAnswer, CountsQuery, NodesAnswer, NodesQuery
from railweave.contracts.wire import StoredMessage
from railweave.runtime.bus import Bus
from railweave.runtime.connection import BusSettings
from railweave.runtime.local_servers import LocalNatsServer, LocalValkeyServer
from railweave.runtime.netlink import LinuxKernel
from railweave.runtime.spawn import port_to_try
from railweave.runtime.streams import LEASES

HOSTING = ("-m", "railweave.cli.stack.hosting")
QUICK: Mapping[str, dict[str, Any]] = {
    "jobs": {
        "lease_ttl_s": 2.0, "ask_timeout_s": 2.0, "retry_pending_s": 3.0, "orphan_grace_s": 1.0,
        "snapshot_grace_s": 20.0, "keep_nodes_after_s": 5.0,
    },
    "agent": {"resync_s": 5.0, "heartbeat_s": 2.0},
    # What stands in the logs of a killed process is what there is to find out why.
    "log": {"repeat_interval_s": 0},
}  # fmt: skip
"""Waits shortened, so that a short run goes through them."""

RUN_PREFIX = "rwchaos"
"""Of the names of namespaces; the process' id follows, since the machine may run two chaos tests at once."""


class ChaosStack:
    """The processes and where they are.

    Args:
        directory: state, logs and datasets.
        shape: the cluster.
        run: short name; namespaces begin with it. Without one it is made of this process' id.
        agents: processes of agents, among which the nodes are dealt.
        programs: instead of the usual hosting program, by service: a file beside this one.
        settings: by section, laid over.
    """

    def __init__(
        self,
        directory: Path,
        shape: Shape,
        *,
        run: str | None = None,
        agents: int = 2,
        programs: Mapping[str, str] | None = None,
        settings: Mapping[str, dict[str, Any]] | None = None,
    ) -> None:
        self.directory = directory
        self.shape = shape
        self.run = run = run or f"{RUN_PREFIX}{os.getpid()}"
        for name in ("log", "datasets", "nodes"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        extra = {section: dict(values) for section, values in QUICK.items()}
        for section, values in (settings or {}).items():
            extra[section] = extra.get(section, {}) | values
        self.design: Design = design(run, shape, Layout.EACH, directory, extra)
        monitoring = port_to_try()
        self.monitoring = f"http://127.0.0.1:{monitoring}"
        http = f'http: "127.0.0.1:{monitoring}"'
        self.nats = LocalNatsServer(directory / "nats", port=port_to_try(), extra_config=http)
        self.valkey = LocalValkeyServer(directory / "valkey", port=port_to_try())
        for server in (self.nats, self.valkey):
            server.directory.mkdir(exist_ok=True)
        urls = (self.nats.url, self.valkey.url)
        self.services: dict[str, ServicePart] = {}
        for name, service, document in self._configured(agents):
            config = directory / f"{name}.yaml"
            config.write_text(yaml.safe_dump(document, sort_keys=False))
            other = (programs or {}).get(service)
            program = HOSTING if other is None else (str(Path(__file__).with_name(other)),)
            self.services[name] = ServicePart(name, program, service, config, urls, directory)
        self.servers = (ServerPart(self.nats), ServerPart(self.valkey))

    def _configured(self, agents: int) -> list[tuple[str, str, dict[str, Any]]]:
        common = json.loads(json.dumps(self.design.settings))
        found = []
        for name in ("jobs-1", "jobs-2", "topology", "nic", "gpu", "cache"):
            service = name.partition("-")[0]
            found.append((name, service, common | {"service": common["service"] | {"instance": name}}))
        for number in range(agents):
            name = f"agent-{number + 1}"
            agent = dict(common["agent"])
            agent["socket"] = str(self.directory / f"{name}.sock")
            if self.shape.simulated:
                agent["simulated"] = agent["simulated"] | {"names": agent["simulated"]["names"][number::agents]}
            else:
                agent["nodes"] = agent["nodes"][number::agents]
            found.append((name, "agent", common | {"agent": agent, "service": common["service"] | {"instance": name}}))
        return found

    @property
    def parts(self) -> list[Part]:
        """All processes."""
        return [*self.servers, *self.services.values()]

    def part(self, name: str) -> Part:
        return next(part for part in self.parts if part.name == name)

    async def prepare(self) -> None:
        """What is there before any process: the fabric file and the hosts."""
        assert self.design.fabric_text is not None
        (self.directory / "fabric.yaml").write_text(self.design.fabric_text)
        if not self.shape.simulated:
            await asyncio.to_thread(_remove_leftovers, self.run)
            names = [self.design.node_netns(name) for name in self.shape.node_names]
            await asyncio.to_thread(namespaces.make_nodes, names)

    async def start(self, timeout_s: float = 60.0) -> None:
        """Start everything and wait until all nodes are whole."""
        await self.prepare()
        for part in self.parts:
            await asyncio.to_thread(part.start)
        await self.wait_whole(timeout_s)

    async def wait_whole(self, timeout_s: float = 60.0) -> None:
        """Wait until every process is ready and every node known with all it has."""
        for service in self.services.values():
            await wait_until(lambda part=service: part.is_ready, timeout_s, f"{service.name} is ready")
        async with self.bus() as bus:
            await wait_until(lambda: self._nodes_are_whole(bus), timeout_s, "all nodes are whole")

    async def _nodes_are_whole(self, bus: Bus) -> bool:
        try:
            answer = await ask(Link(bus.connection.client), NODES_SUBJECT, NodesQuery(), NodesAnswer)
        except ClientError:
            return False
        whole = {str(row.node) for row in answer.nodes if row.agent_version and row.leaves and row.vf_groups}
        return whole >= set(self.shape.node_names)

    async def stop(self) -> None:
        """End everything, services first."""
        living = [service for service in self.services.values() if service.pid is not None]
        await asyncio.gather(*(asyncio.to_thread(service.resume) for service in living))
        await asyncio.gather(*(asyncio.to_thread(service.terminate, 6.0) for service in living))
        for server in self.servers:
            await asyncio.to_thread(server.server.kill)
        if not self.shape.simulated:
            await asyncio.to_thread(namespaces.remove_all, self.run)

    # Looking

    @property
    def deaths(self) -> list[str]:
        """Ends of services that nobody asked for."""
        for service in self.services.values():
            service.note_death()
        return [death for service in self.services.values() for death in service.deaths]

    @contextlib.asynccontextmanager
    async def bus(self) -> AsyncIterator[Bus]:
        """A connection of our own, which waits where NATS is away."""
        settings = BusSettings(servers=(self.nats.url,), name="chaos")
        async with await Bus.connect(replace(settings, connect_patience_s=60.0)) as bus:
            yield bus

    async def active(self, bus: Bus) -> str | None:
        """The name of the committer that holds the lease, as the lease says."""
        found: StoredMessage | None = await bus.read_last(LEASES, "rw.lease.jobs")
        if found is None:
            return None
        said = json.loads(found.body)
        return None if said["released"] else str(said["holder"])

    async def counts(self, bus: Bus) -> CountsAnswer:
        """What the active committer counted."""
        return await ask(Link(bus.connection.client), COUNTS_SUBJECT, CountsQuery(), CountsAnswer, timeout=5.0)

    def logged(self, words: str) -> Sequence[str]:
        """Log lines of services with these words."""
        lines: list[str] = []
        for service in self.services.values():
            if service.log_path.exists():
                text = service.log_path.read_text(errors="replace")
                lines += [f"{service.name}: {line}" for line in text.splitlines() if words in line]
        return lines


def _remove_leftovers(run: str) -> None:
    """Take away what is left of earlier stacks of that name, and of those whose test was killed."""
    namespaces.remove_all(run)
    for name in LinuxKernel().netns_names():
        owner = name.partition("-")[0].removeprefix(RUN_PREFIX)
        if name.startswith(RUN_PREFIX) and owner.isdigit() and not Path(f"/proc/{owner}").exists():
            namespaces.remove_all(f"{RUN_PREFIX}{owner}")
