"""`fabric import`, `export` and `formats`: files in, files out, and every refusal with its reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from railweave.cli.commands.fabric import COMMANDS, app
from railweave.cli.exits import Exit
from railweave.cli.later import Entry, Later
from railweave.cli.main import COMMANDS as ALL_COMMANDS
from railweave.topology.exporting import EXPORTERS
from railweave.topology.fabric_file import load_fabric_file
from railweave.topology.providers import PROVIDERS
from railweave_testing.command import Command
from railweave_testing.real_fabrics import REAL_FABRICS, RealFabric

SHARED = Path(os.environ.get("RAILWEAVE_SHARED", Path(__file__).parents[5] / "shared"))

FABRIC = """\
version: 1
spines:
  - name: spine1
leaves:
  - name: leaf[1-2]
    uplinks: spine1
nodes:
  - name: n[1-4]
    rails: 0-1
    leaf: leaf1
  - name: n[5-6]
    rails: 0-1
    leaf: leaf2
"""
COUNTS = {"switches": 3, "leaves": 2, "spines": 1, "nodes": 6, "ports": 12, "links": 2, "islands": 1}


@pytest.fixture
def fabric(tmp_path: Path) -> Path:
    path = tmp_path / "fabric.yaml"
    path.write_text(FABRIC)
    return path


def test_an_import_counts_what_it_found_and_writes_nothing_unless_told(railweave: Command, fabric: Path) -> None:
    done = railweave("fabric", "import", "railweave", fabric, "--json")
    assert (done.code, done.json) == (Exit.DONE, COUNTS | {"notes": [], "written": None})
    said = railweave("fabric", "import", "railweave", fabric)
    assert "3 switches, 2 leaves, 1 spine, 6 nodes, 12 ports, 2 links, 1 island" in said.out.replace("\n", " ")
    assert "nothing was written" in said.out
    assert [path.name for path in fabric.parent.iterdir()] == ["fabric.yaml"]


def test_what_an_import_writes_is_the_same_graph(railweave: Command, fabric: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.yaml"
    done = railweave("fabric", "import", "railweave", fabric, "-o", out, "--json")
    assert done.json["written"] == str(out)
    assert out.read_text() == FABRIC
    assert load_fabric_file(out) == load_fabric_file(fabric)
    assert out.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_file_that_is_there_is_not_written_over_unless_forced(
    railweave: Command, fabric: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.yaml"
    out.write_text("mine")
    refused = railweave("fabric", "import", "railweave", fabric, "--output", out, "--json")
    assert (refused.code, refused.error["field"]) == (Exit.USAGE, "--output")
    assert "--force" in refused.error["remedy"]
    assert out.read_text() == "mine"
    assert railweave("fabric", "import", "railweave", fabric, "--output", out, "--force").code == Exit.DONE
    assert out.read_text() == FABRIC
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fabric.yaml", "out.yaml"], "no half file is left"


def test_a_place_that_cannot_be_written_is_named(railweave: Command, fabric: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "out.yaml"
    done = railweave("fabric", "import", "railweave", fabric, "-o", missing, "--json")
    assert (done.code, done.error["field"]) == (Exit.FAILED, str(missing))
    assert "No such file" in done.error["message"]


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        (FABRIC.replace("leaf: leaf2", "leaf: leaf9"), "fabric.yaml:11", "there is no leaf 'leaf9'"),
        ("version: [", "fabric.yaml:2", "not YAML"),
        (b"\x00\xff", "fabric.yaml", "not "),
        ("", "fabric.yaml", "expected a mapping"),
        ("version: 1\nnodes: [{name: 'n[0-99999999]', rails: 0, leaf: l}]\n", "fabric.yaml:2", "more than 200000"),
    ],
)
def test_what_cannot_be_read_is_refused_with_file_line_and_reason(
    railweave: Command, fabric: Path, text: str | bytes, field: str, says: str
) -> None:
    fabric.write_bytes(text.encode() if isinstance(text, str) else text)
    done = railweave("fabric", "import", "railweave", fabric, "--json", "-o", fabric.with_name("out"))
    assert done.code == Exit.USAGE
    assert field in done.error["field"]
    assert says in done.error["message"]
    assert not fabric.with_name("out").exists()
    assert done.error["field"] in railweave("fabric", "import", "railweave", fabric).err.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "field", "says"),
    [
        (("import", "junos", "fabric.yaml"), "FORMAT", "known: railweave, topograph"),
        (("import", "railweave", "missing.yaml"), "missing.yaml", "No such file"),
        (("import", "railweave", "fabric.yaml", "second.yaml"), "FILE", "takes one file, 2 are given"),
        (("import", "railweave", "empty"), "FILE", "empty has no files"),
        (("export", "junos", "fabric.yaml"), "FORMAT", "known: railweave, slurm"),
        (("export", "slurm", "fabric.yaml", "--format", "junos"), "FORMAT", "no format 'junos'"),
        (("export", "slurm", "bare.yaml"), "FORMAT", "no node has a compute port"),
        (("export", "slurm"), "FILE", "topology.fabric_file is not set"),
    ],
)
def test_arguments_that_cannot_be_are_refused_with_what_is_known(
    railweave: Command, fabric: Path, arguments: tuple[str, ...], field: str, says: str
) -> None:
    fabric.with_name("second.yaml").write_text(FABRIC)
    fabric.with_name("bare.yaml").write_text("version: 1\nleaves: [{name: leaf1}]\n")
    fabric.with_name("empty").mkdir()
    done = railweave("fabric", *arguments)
    assert (done.code, done.out) == (Exit.USAGE, "")
    assert f"error: {field}: " in done.err
    assert says in " ".join(done.err.split())


def test_a_directory_stands_for_the_files_in_it(railweave: Command, fabric: Path, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "fabric.yaml").write_text(FABRIC)
    (inside / ".hidden").write_text("not this")
    assert railweave("fabric", "import", "railweave", inside, "--json").json == COUNTS | {"notes": [], "written": None}


def test_a_file_without_end_is_read_to_the_limit_only(railweave: Command) -> None:
    done = railweave("fabric", "import", "railweave", "/dev/zero", "--json")
    assert (done.code, done.error["field"]) == (Exit.USAGE, "/dev/zero")
    assert "expected at most" in done.error["message"]


def test_a_fabric_is_exported_to_slurm(railweave: Command, fabric: Path, tmp_path: Path) -> None:
    done = railweave("fabric", "export", "slurm", fabric)
    assert (done.code, done.err) == (Exit.DONE, "")
    assert done.out.splitlines() == [
        "SwitchName=spine1 Switches=leaf[1-2]",
        "SwitchName=leaf1 Nodes=n[1-4]",
        "SwitchName=leaf2 Nodes=n[5-6]",
    ]
    out = tmp_path / "topology.conf"
    assert railweave("fabric", "export", "slurm", fabric, "-o", out).code == Exit.DONE
    assert out.read_text() == done.out


def test_what_an_export_cannot_say_is_said_beside_it(railweave: Command, fabric: Path) -> None:
    fabric.write_text(FABRIC + "  - {name: spare, ports: []}\n")
    done = railweave("fabric", "export", "slurm", fabric)
    assert done.err == "note: nodes without a compute port, left out: spare\n"
    assert "spare" not in done.out


def test_the_configured_fabric_file_is_what_is_exported_without_a_name(
    railweave: Command, fabric: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAILWEAVE_TOPOLOGY__FABRIC_FILE", str(fabric))
    assert railweave("fabric", "export", "railweave").out == FABRIC
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"topology: {{fabric_file: {fabric}}}\n")
    monkeypatch.delenv("RAILWEAVE_TOPOLOGY__FABRIC_FILE")
    assert railweave("--config", settings, "fabric", "export", "railweave").out == FABRIC


def test_formats_are_listed_with_what_they_tell(railweave: Command) -> None:
    said = railweave("fabric", "formats", "--json").json
    assert {row["format"]: row["about"] for row in said["import"]} == {
        each.name: each.about for each in PROVIDERS.values()
    }
    assert [row["format"] for row in said["export"]] == list(EXPORTERS)
    table = railweave("fabric", "formats").out
    assert all(name in table for name in (*PROVIDERS, *EXPORTERS))


def test_the_group_alone_shows_and_a_word_it_does_not_know_is_refused(railweave: Command) -> None:
    nowhere = ("--nats", "nats://127.0.0.1:9")
    for arguments in ((), ("--nodes",), ("--json",), ("show",)):
        assert railweave(*nowhere, "fabric", *arguments).code == Exit.UNREACHABLE
    assert railweave("fabric", "shwo").code == Exit.USAGE
    helped = railweave("fabric", "--help")
    assert helped.code == Exit.DONE
    assert all(entry.name in helped.out for entry in COMMANDS)


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_the_list_says_of_a_command_what_the_command_says_of_itself(entry: Entry) -> None:
    assert entry.load().help.partition("\n\n")[0].replace("\n", " ") == entry.help


@pytest.mark.skipif(not (SHARED / "data/topology").is_dir(), reason="the shared topology files are not here")
@pytest.mark.parametrize("real", REAL_FABRICS, ids=str)
def test_every_real_file_has_the_counts_it_is_known_for(railweave: Command, real: RealFabric, tmp_path: Path) -> None:
    out = tmp_path / "fabric.yaml"
    done = railweave(
        "fabric", "import", real.format_name, *real.paths(SHARED), "--rails", real.rails, "--json", "-o", out
    )
    assert done.err == ""
    assert {name: count for name, count in done.json.items() if name not in {"notes", "written"}} == dict(real.counts)
    again = railweave("fabric", "import", "railweave", out, "--json", "-o", tmp_path / "again.yaml").json
    assert {name: again[name] for name in COUNTS} == {name: real.counts[name] for name in COUNTS}
    assert (tmp_path / "again.yaml").read_bytes() == out.read_bytes()
    checked = railweave("fabric", "check", "--format", real.format_name, *real.paths(SHARED), "--json")
    assert checked.code == (Exit.FAILED if real.errors else Exit.DONE)
    assert (checked.json["errors"], checked.json["warnings"]) == (real.errors, real.warnings)
    exported = railweave("fabric", "export", "slurm", out)
    assert exported.code in {Exit.DONE, Exit.USAGE}
    assert exported.out.startswith("SwitchName=") or "FORMAT" in exported.err


def test_the_fabric_of_the_main_list_is_this_group() -> None:
    entry = next(entry for entry in ALL_COMMANDS if entry.name == "fabric")
    assert app.info.help == entry.help
    assert all(isinstance(command, Later) for command in entry.load().commands.values())
