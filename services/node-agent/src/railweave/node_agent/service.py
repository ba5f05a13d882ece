"""The agent as a service of a process: `python -m railweave.node_agent`, or one of many in `railweave up`."""

from __future__ import annotations

import asyncio
import logging
import socket
from importlib import metadata

from railweave.contracts.types import NodeName
from railweave.node_agent.building import Built, build_node, build_simulated
from railweave.node_agent.fleet import Fleet, Surroundings
from railweave.node_agent.measures import Measures
from railweave.node_agent.model import EntryState
from railweave.node_agent.settings import AgentSettings, NodeSettings
from railweave.node_agent.socket import serve_socket
from railweave.runtime.service import ServiceContext
from railweave.runtime.settings import Settings

_log = logging.getLogger("railweave.agent")


def version() -> str:
    """The agent's version, as inventories say it."""
    try:
        return metadata.version("railweave-node-agent")
    except metadata.PackageNotFoundError:
        return "0.1.0"


class AgentService:
    """All agents that the settings name."""

    name = "agent"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings.section(AgentSettings)
        self._fleet: Fleet | None = None

    @property
    def ready(self) -> bool:
        """What is stored has been read and compared with what is."""
        return self._fleet is not None and self._fleet.is_ready

    @property
    def agents(self) -> tuple[Built, ...]:
        """The agents, for tools and tests in the same process; empty until `run` has made them."""
        return tuple(self._fleet.agents) if self._fleet is not None else ()

    async def run(self, ctx: ServiceContext) -> None:
        """Be the agents until asked to stop."""
        measures = Measures(ctx.metrics)
        fleet = Fleet(self._settings, Surroundings(ctx.bus, ctx.memory, measures, ctx.rng))
        try:
            await self._add_agents(fleet)
            measures.watch(
                held=lambda: sum(_held(built) for built in fleet.agents),
                mended=lambda: sum(built.agent.mended for built in fleet.agents),
                stale=lambda: sum(built.agent.refused_stale for built in fleet.agents),
            )
            self._fleet = fleet
            if any(not built.is_simulated for built in fleet.agents):
                path = self._settings.socket or self._settings.directory / "agent.sock"
                async with serve_socket(path, fleet):
                    await fleet.run(ctx.stop)
            else:
                await fleet.run(ctx.stop)
        finally:
            for built in fleet.agents:
                await built.close()

    async def _add_agents(self, fleet: Fleet) -> None:
        settings = self._settings
        simulated = settings.simulated.node_names()
        nodes = settings.nodes
        if not nodes and not simulated:
            nodes = (NodeSettings(name=NodeName(socket.gethostname())),)
        for node in nodes:
            fleet.add(await build_node(node, settings, voice=fleet.say, version=version(), later=fleet.later))
        for place, name in enumerate(simulated):
            fleet.add(
                await build_simulated(name, settings.simulated, voice=fleet.say, version=version(), later=fleet.later)
            )
            if place % 100 == 99:
                await asyncio.sleep(0)
        _log.info("agent of %d nodes, %d of them simulated", len(fleet.agents), len(simulated))


def _held(built: Built) -> int:
    return sum(1 for entry in built.journal.entries.values() if entry.state is not EntryState.REFUSED)


def create(settings: Settings) -> AgentService:
    """The entry point `agent`."""
    return AgentService(settings)
