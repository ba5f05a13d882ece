"""Real fabric files that tests import, and what is in each. A row a file."""

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
    errors: int = 0
    """What `railweave fabric check` finds."""
    warnings: int = 0

    def paths(self, shared: Path) -> list[Path]:
        """Where the files are."""
        return [shared / "data/topology" / name for name in self.files]

    def __str__(self) -> str:
        return "-".join((self.format_name, *(name.partition(".")[0] for name in self.files)))


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
    RealFabric("slurm", ("slurm_disconnected.topology.conf",), _counts(5, 2, 40, 40, 4, 3), warnings=3),
    # 582 channel adapters: 40 are those of the switches. Two of one node are swapped, 70 hosts have no name.
    RealFabric("ibnetdiscover", ("ibnetdiscover_h100.txt",), _counts(31, 9, 191, 542, 532, 1), errors=2, warnings=70),
    RealFabric("netq", ("netq_topology_graph.json",), _counts(2, 1, 8, 32, 47, 1)),
    RealFabric("containerlab", ("containerlab_clos02.clab.yml",), _counts(4, 6, 4, 4, 12, 1)),
    RealFabric("links-csv", ("sonic_lab_links.csv", "sonic_lab_devices.csv"), _counts(5, 4, 3, 9, 51, 3), warnings=3),
    # Without the devices nothing says which of two switches without hosts is above: their links look like loops.
    RealFabric("links-csv", ("sonic_lab_links.csv",), _counts(9, 2, 1, 1, 59, 3), errors=4),
    # Two VLANs of it have the same subnet.
    RealFabric("sonic", ("sonic_config_db_small.json",), _counts(1, 0, 2, 2, 0, 1, vlans=3, vlan_members=4), errors=1),
    RealFabric("sonic", ("sonic_multi_vlan.json",), _counts(1, 0, 0, 0, 0, 1, vlans=2, vlan_members=19), warnings=1),
    RealFabric("lldp", ("eos_lldp_neighbors_detail.json",), _counts(1, 1, 20, 40, 1, 1)),
)
