"""`fabric show`: of a file, and of what is stored on a real broker."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from railweave.cli.commands.fabric_picture import shown_of
from railweave.cli.exits import Exit
from railweave.contracts.envelope import encode_event
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus, BusSettings
from railweave.runtime.local_servers import LocalNatsServer
from railweave.topology.fabric_file import read_fabric_file
from railweave.topology.inventory import Inventory, replan
from railweave_testing.clusters import ClusterBuilder
from railweave_testing.command import Command
from railweave_testing.fabrics import config
from railweave_testing.reading_svg import read_svg

SHARED = Path(os.environ.get("RAILWEAVE_SHARED", Path(__file__).parents[5] / "shared"))
PICTURE = Path(__file__).parents[4] / "docs/fabric.svg"

FABRIC = """\
version: 1
spines: [{name: spine1}]
leaves:
  - {name: "leaf[1-2]", uplinks: spine1}
nodes:
  - {name: "n[1-2]", leaf: leaf1, rails: 0-1}
  - {name: "n[3-4]", leaf: leaf2, rails: 0-1}
"""


@pytest.fixture
def fabric(tmp_path: Path) -> Path:
    path = tmp_path / "fabric.yaml"
    path.write_text(FABRIC)
    return path


def test_a_file_is_shown_as_a_tree_without_any_broker(railweave: Command, fabric: Path) -> None:
    done = railweave("fabric", "show", "--file", fabric, "--nodes")
    assert done.code == Exit.DONE
    assert [line.split() for line in done.out.splitlines()[2:5]] == [
        ["island", "leaf1:", "2", "leaves", "4:", "n[1-4]"],
        ["├─", "leaf", "leaf1,", "rails", "0-1", "2:", "n[1-2]"],
        ["└─", "leaf", "leaf2,", "rails", "0-1", "2:", "n[3-4]"],
    ]
    assert "leaf2:n4:0 leaf2:n4:1" in done.out


def test_or_as_json(railweave: Command, fabric: Path) -> None:
    found = railweave("fabric", "show", "--file", fabric, "--json").json
    assert found["islands"] == ["leaf1"]
    assert [leaf["name"] for leaf in found["leaves"]] == ["leaf1", "leaf2"]
    assert found["nodes"][0]["ports"][1] == {"role": "compute", "rail": 1, "leaf": "leaf1", "port": "n1:1"}


def test_a_picture_is_printed_or_written(railweave: Command, fabric: Path, tmp_path: Path) -> None:
    printed = railweave("fabric", "--svg", "--file", fabric)
    assert len(read_svg(printed.out).of("host")) == 4
    out = tmp_path / "fabric.svg"
    written = railweave("fabric", "show", "--svg", "--file", fabric, "-o", out)
    assert (written.code, out.read_text()) == (Exit.DONE, printed.out)
    again = railweave("fabric", "show", "--dot", "--file", fabric, "-o", out)
    assert again.code == Exit.USAGE
    assert "--force writes over it" in again.err
    assert railweave("fabric", "show", "--dot", "--file", fabric, "-o", out, "--force").code == Exit.DONE
    assert out.read_text().startswith("graph fabric {")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--svg", "--dot"], "one or the other"),
        (["--svg", "--json"], "one or the other"),
        (["--output", "x"], "for --svg and --dot"),
        (["--file", "nowhere.yaml"], "nowhere.yaml"),
        (["--file", "fabric.yaml", "--format", "visio"], "no format 'visio'"),
    ],
)
def test_what_does_not_go_together_is_refused(
    railweave: Command, fabric: Path, arguments: list[str], says: str
) -> None:
    done = railweave("fabric", "show", *arguments)
    assert done.code == Exit.USAGE
    assert says in done.err.replace("\n", " ")


def test_what_is_stored_is_shown_with_vlans_and_the_spines_of_the_fabric_file(
    railweave: Command, fresh_nats_server: LocalNatsServer, fabric: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(_publish(fresh_nats_server.url))
    where = ("--nats", fresh_nats_server.url, "fabric", "show")
    tree = railweave(*where)
    assert tree.code == Exit.DONE, tree.err
    assert tree.out.count("├─ rail 0") == 2
    assert "10.64.0.0/" in tree.out
    found = railweave(*where, "--json").json
    assert [leaf["leaf"] for leaf in found["leaves"]] == ["leaf1", "leaf2"]
    assert found["leaves"][0]["vlans"][0].keys() >= {"vlan", "subnet", "slots", "ports"}
    alone = railweave(*where, "--svg")
    assert "not stored" in alone.err
    assert read_svg(alone.out).of("spine") == []
    monkeypatch.setenv("RAILWEAVE_TOPOLOGY__FABRIC_FILE", str(fabric))
    whole = railweave(*where, "--svg")
    assert whole.err == ""
    drawn = read_svg(whole.out)
    assert [box.title for box in drawn.of("spine")] == ["spine1"]
    assert len([box for key, box in drawn.boxes.items() if box.kind == "badge" and not key.startswith("legend")]) == 4


async def _publish(url: str) -> None:
    graph = read_fabric_file(FABRIC, "fabric.yaml")
    found = replan(Inventory(), graph, config("10.64.0.0/16"), lambda _: False)
    assert isinstance(found, Inventory)
    async with await Bus.connect(BusSettings(servers=(url,))) as bus:
        await bootstrap(bus)
        await bus.publish_many([encode_event(record) for record in (*found.leaves.values(), *found.nodes.values())])


def test_nodes_and_vlans_that_jobs_hold_are_in_use() -> None:
    cluster = ClusterBuilder()
    cluster.fabric("n1", leaf="leaf1")
    cluster.fabric("n2", leaf="leaf1")
    cluster.place("j1", "n2", vfs=[(0, 0)])
    shown = shown_of(cluster.state)
    assert shown.in_use == {"n2"}
    assert {vlan.rail for vlan in shown.vlans["leaf1"] if vlan.is_occupied} == {
        vlan.rail for vlan in shown.vlans["leaf1"]
    }


def test_the_picture_in_the_docs_is_what_the_command_makes(railweave: Command) -> None:
    model = SHARED / "data/topology/topograph_large.yaml"
    if not model.exists():
        pytest.skip(f"no real data at {SHARED}")
    made = railweave("fabric", "show", "--svg", "--format", "topograph", "--rails", "8", "--file", model)
    assert made.out == PICTURE.read_text(encoding="utf-8")
    assert str(SHARED) not in made.out
