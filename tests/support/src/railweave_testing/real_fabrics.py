"""Real fabric files that tests import, and what is in each. A row a file; a format that is not there yet is skipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class RealFabric:
    """Files of a format, and the counts that `railweave fabric import --json` prints of them."""

    format_name: str
    files: tuple[str, ...]
    """Below shared/data/topology."""
    counts: Mapping[str, int]
    rails: int = 1

    def paths(self, shared: Path) -> list[Path]:
        """Where the files are."""
        return [shared / "data/topology" / name for name in self.files]

    def __str__(self) -> str:
        return f"{self.format_name}-{self.files[0].partition('.')[0]}"


def _counts(leaves: int, spines: int, nodes: int, ports: int, links: int, islands: int, **more: int) -> dict[str, int]:
    return {
        "switches": leaves + spines,
        "leaves": leaves,
        "spines": spines,
        "nodes": nodes,
        "ports": ports,
        "links": links,
        "islands": islands,
        **more,
    }


REAL_FABRICS: Final = (
    RealFabric("topograph", ("topograph_large.yaml",), _counts(12, 7, 96, 768, 18, 1), rails=8),
    RealFabric("slurm", ("slurm_10000_nodes.topology.conf",), _counts(500, 29, 10_000, 80_000, 528, 1), rails=8),
    RealFabric("slurm", ("slurm_disconnected.topology.conf",), _counts(5, 2, 40, 40, 4, 3)),
)
