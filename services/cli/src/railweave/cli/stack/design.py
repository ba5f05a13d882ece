"""What a local stack is to be: nodes, leaves, rails, and from them the fabric file and the services' settings. Pure."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from railweave.cli.exits import CommandFailed, Exit

PLANE = ("jobs", "topology", "nic", "gpu", "cache")
"""The services of the plane; the agents are apart, since they belong to nodes."""
AGENT = "agent"
SPINE = "spine-1"
READY_S = 90.0
"""How long `up` waits until a stack is ready."""
_GIB = 2**30
_SOCKET_PATH_BYTES = 104
_STOP_S = 3.0
"""What services may take of the five seconds in which a stack stops."""


class Layout(StrEnum):
    """Which services share a process."""

    ONE = "one"
    """All in one."""
    SPLIT = "split"
    """The plane in one, the agents in another."""
    EACH = "each"
    """One process each."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A cluster, by its numbers. Sizes in bytes, speed in bytes a second (0: a fetch takes no time)."""

    nodes: int = 4
    leaves: int = 2
    rails: int = 4
    vfs: int = 8
    gpus: int = 4
    gpu_model: str = "SIM-80G"
    cache_bytes: int = 200 * _GIB
    scratch_bytes: int = 100 * _GIB
    fetch_bytes_per_s: int = 0
    simulated: bool = True
    segments: int = 0
    """Of the fabric, for jobs that ask for isolation `tenant`."""
    fabric: Path | None = None
    """A fabric file or topograph model that says which nodes there are; `nodes` and `leaves` then say nothing."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("nodes", 1, 10_000 if self.simulated else 64),
            ("leaves", 1, 256),
            ("rails", 1, 16),
            ("vfs", 1, 64),
            ("gpus", 0, 64),
            ("segments", 0, 64),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise CommandFailed(f"expected {low} to {high}, found {value}", Exit.USAGE, field=f"--{name}")
        if not self.simulated and self.fabric is not None:
            raise CommandFailed(
                "a fabric file describes nodes that are elsewhere",
                Exit.USAGE,
                field="--fabric",
                remedy="add --simulated",
            )

    @property
    def node_names(self) -> tuple[str, ...]:
        """`node-1` and so on; empty where the fabric file says."""
        if self.fabric is not None:
            return ()
        width = len(str(self.nodes))
        return tuple(f"node-{number:0{width}}" for number in range(1, self.nodes + 1))

    def leaf_of(self, index: int) -> str:
        """The leaf of the node with that index: the first ones on the first leaf."""
        return f"leaf-{index * self.leaves // max(self.nodes, self.leaves) + 1}"


@dataclass(frozen=True, slots=True)
class Design:
    """What a stack is made of: what it writes, and what it runs."""

    run: str
    """Short name; namespaces begin with it."""
    shape: Shape
    layout: Layout
    fabric_text: str | None
    """The fabric file to write; None where one was given."""
    settings: Mapping[str, Any]
    """Of all services, but for servers and the nodes of a given fabric file."""
    groups: Sequence[tuple[str, ...]] = field(default=())
    """Services by process."""

    def node_netns(self, node: str) -> str:
        """The name of a node's network namespace."""
        return f"{self.run}-{node}"

    def leaf_netns(self, leaf: str) -> str:
        """The name of a leaf's network namespace, as the fabric driver makes it."""
        return f"{self.run}-{leaf}"


def design(run: str, shape: Shape, layout: Layout, directory: Path, extra: Mapping[str, Any] | None = None) -> Design:
    """Work out a stack.

    Args:
        run: its short name.
        shape: the cluster.
        layout: which services share a process.
        directory: its state directory.
        extra: settings by section that are laid over.
    """
    fabric_file = shape.fabric.absolute() if shape.fabric is not None else directory / "fabric.yaml"
    settings: dict[str, Any] = {
        "service": {"stop_deadline_s": _STOP_S},
        "topology": _topology(run, shape, fabric_file),
        "agent": _agent(run, shape, directory),
    }
    for section, values in (extra or {}).items():
        settings[section] = settings.get(section, {}) | dict(values)
    return Design(run, shape, layout, None if shape.fabric else fabric_text(shape), settings, _groups(shape, layout))


def _groups(shape: Shape, layout: Layout) -> list[tuple[str, ...]]:
    """Services by process, in the order of starting. Agents of a given fabric wait until topology has read it."""
    match layout:
        case Layout.ONE if shape.fabric is None:
            return [(*PLANE, AGENT)]
        case Layout.ONE | Layout.SPLIT:
            return [PLANE, (AGENT,)]
        case Layout.EACH:
            return [(name,) for name in (*PLANE, AGENT)]


def fabric_text(shape: Shape) -> str:
    """The fabric file of a shape: leaves under one spine, every rail of a node on its leaf."""
    leaves = [f"leaf-{number}" for number in range(1, shape.leaves + 1)]
    document = {
        "version": 1,
        "spines": [{"name": SPINE}],
        "leaves": [{"name": leaf, "pod": "pod-1", "uplinks": [SPINE]} for leaf in leaves],
        "nodes": [
            {
                "name": name,
                "ports": [
                    {"rail": rail, "leaf": shape.leaf_of(index), "port": port_name(index, rail)}
                    for rail in range(shape.rails)
                ],
            }
            for index, name in enumerate(shape.node_names)
        ],
    }
    return yaml.safe_dump(document, sort_keys=False)


def port_name(index: int, rail: int) -> str:
    """The leaf port of a node's rail: short, since the kernel takes 15 bytes and a VF's number comes behind it."""
    return f"h{index + 1}r{rail}"


def _topology(run: str, shape: Shape, fabric_file: Path) -> dict[str, Any]:
    section: dict[str, Any] = {"fabric_file": str(fabric_file), "segments": shape.segments}
    if not shape.simulated:
        section |= {"driver": "linux", "run": run}
    return section


def _socket(run: str, directory: Path) -> Path:
    """In the state directory, or, where its path is longer than a socket's may be, in the system's temporary one."""
    path = directory / "agent.sock"
    return path if len(os.fsencode(path)) < _SOCKET_PATH_BYTES else Path(tempfile.gettempdir()) / f"{run}-agent.sock"


def _agent(run: str, shape: Shape, directory: Path) -> dict[str, Any]:
    gpus = {"count": shape.gpus, "model": shape.gpu_model}
    section: dict[str, Any] = {
        "directory": str(directory / "nodes"),
        "socket": str(_socket(run, directory)),
        "file_roots": [str(directory / "datasets")],
    }
    if shape.simulated:
        section["simulated"] = {
            "names": list(shape.node_names),
            "rails": shape.rails,
            "vfs": shape.vfs,
            "gpus": gpus,
            "cache_bytes": shape.cache_bytes,
            "scratch_bytes": shape.scratch_bytes,
            "fetch_bytes_per_s": shape.fetch_bytes_per_s,
        }
        return section
    section["inventory_s"] = 1.0
    section["nodes"] = [
        {
            "name": name,
            "network": "veth",
            "netns": f"/run/netns/{run}-{name}",
            "ports": [
                {
                    "rail": rail,
                    "leaf_netns": f"/run/netns/{run}-{shape.leaf_of(index)}",
                    "port": port_name(index, rail),
                }
                for rail in range(shape.rails)
            ],
            "vfs": shape.vfs,
            "gpus": gpus,
            "cache_bytes": shape.cache_bytes,
            "scratch_bytes": shape.scratch_bytes,
        }
        for index, name in enumerate(shape.node_names)
    ]
    return section
