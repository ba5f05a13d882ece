"""What the topology service is told to read: any format that is imported, of one file or of a directory of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from railweave.topology.settings import TopologySettings
from railweave.topology.yaml_tree import FileError


def test_the_fabric_can_be_read_from_a_schedulers_file_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "topology.conf"
    path.write_text("SwitchName=leaf1 Nodes=n[1-4]\n")
    graph = TopologySettings(fabric_file=path, importer="slurm", rails=2).load()
    assert graph is not None
    assert (len(graph.nodes), len(graph.compute_ports)) == (4, 8)
    path.write_text("SwitchName=leaf1 Knots=n[1-4]\n")
    with pytest.raises(FileError, match=r"topology\.conf:1"):
        TopologySettings(fabric_file=path, importer="slurm").load()


def test_a_directory_stands_for_the_files_of_all_switches(tmp_path: Path) -> None:
    for leaf in ("leaf1", "leaf2"):
        neighbours = {"Ethernet0": {"name": f"{leaf}-n1", "port": "eth0"}}
        (tmp_path / f"{leaf}.json").write_text(json.dumps({"DEVICE_NEIGHBOR": neighbours}))
    graph = TopologySettings(fabric_file=tmp_path, importer="sonic").load()
    assert graph is not None
    assert [str(leaf.name) for leaf in graph.leaves] == ["leaf1", "leaf2"]
    with pytest.raises(FileError, match="expected one file"):
        TopologySettings(fabric_file=tmp_path, importer="slurm").load()


def test_an_unknown_format_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ValidationError, match="expected fabric or one of railweave, topograph, slurm"):
        TopologySettings(importer="slrum")
    assert TopologySettings().load() is None
