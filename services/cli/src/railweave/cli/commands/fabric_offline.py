"""A fabric file planned from nothing, in this process: what its leaves would get of the pools of the settings."""

from __future__ import annotations

from pathlib import Path

from railweave.cli.commands.fabric_files import Source, imported_of, topology_settings
from railweave.cli.target import Target
from railweave.contracts.query import FabricPlanAnswer
from railweave.topology.changes import refused, whole_of
from railweave.topology.inventory import Inventory, replan
from railweave.topology.plan import Refusal


def planned(where: Target, file: Path, format_name: str, rails: int | None) -> FabricPlanAnswer:
    """What an apply would store, were nothing stored yet; raises CommandFailed."""
    settings = topology_settings(where)
    graph = imported_of(Source.of(format_name, [file], rails)).graph
    found = replan(Inventory(), graph, settings.plan_config(), lambda _node: False)
    if isinstance(found, Refusal):
        return refused(found)
    return whole_of(found, graph.island_count)
