"""What a local stack is to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from railweave.cli.exits import CommandFailed
from railweave.cli.stack.design import Layout, Shape, design, fabric_text

DIRECTORY = Path("/tmp/stack")


def test_nodes_are_spread_over_the_leaves_in_order() -> None:
    shape = Shape(nodes=4, leaves=2)
    assert [shape.leaf_of(index) for index in range(4)] == ["leaf-1", "leaf-1", "leaf-2", "leaf-2"]


def test_more_leaves_than_nodes_leaves_some_empty() -> None:
    shape = Shape(nodes=2, leaves=4)
    assert [shape.leaf_of(index) for index in range(2)] == ["leaf-1", "leaf-2"]


def test_the_fabric_file_has_every_rail_of_every_node() -> None:
    document = yaml.safe_load(fabric_text(Shape(nodes=3, leaves=2, rails=2)))
    assert [leaf["name"] for leaf in document["leaves"]] == ["leaf-1", "leaf-2"]
    ports = [port["port"] for node in document["nodes"] for port in node["ports"]]
    assert len(ports) == len(set(ports)) == 6


def test_simulated_nodes_have_no_kernel_driver() -> None:
    made = design("rwx", Shape(simulated=True), Layout.ONE, DIRECTORY)
    assert "driver" not in made.settings["topology"]
    assert made.settings["agent"]["simulated"]["names"] == ["node-1", "node-2", "node-3", "node-4"]


def test_real_nodes_plug_into_the_namespaces_of_their_leaves() -> None:
    made = design("rwx", Shape(simulated=False, rails=2), Layout.ONE, DIRECTORY)
    last = made.settings["agent"]["nodes"][3]
    assert last["netns"] == "/run/netns/rwx-node-4"
    assert {port["leaf_netns"] for port in last["ports"]} == {"/run/netns/rwx-leaf-2"}
    assert made.leaf_netns("leaf-2") == "rwx-leaf-2"


@pytest.mark.parametrize(
    ("layout", "fabric", "count"),
    [
        (Layout.ONE, None, 1),
        (Layout.ONE, Path("f.yaml"), 2),
        (Layout.SPLIT, None, 2),
        (Layout.EACH, None, 6),
    ],
)
def test_services_are_grouped_by_process_and_agents_of_a_given_fabric_come_after_it(
    layout: Layout, fabric: Path | None, count: int
) -> None:
    groups = design("rwx", Shape(fabric=fabric), layout, DIRECTORY).groups
    assert len(groups) == count
    assert sorted(name for group in groups for name in group) == ["agent", "cache", "gpu", "jobs", "nic", "topology"]


def test_a_socket_path_that_would_be_too_long_is_put_elsewhere() -> None:
    made = design("rwx", Shape(), Layout.ONE, Path("/tmp") / ("d" * 100))
    assert len(made.settings["agent"]["socket"]) < 104


@pytest.mark.parametrize("bad", [{"nodes": 0}, {"rails": 17}, {"nodes": 65, "simulated": False}, {"gpus": -1}])
def test_a_shape_that_cannot_be_is_refused_by_its_option(bad: dict[str, Any]) -> None:
    with pytest.raises(CommandFailed) as caught:
        Shape(**bad)
    assert caught.value.field == f"--{next(iter(bad))}"
