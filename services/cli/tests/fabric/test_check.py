"""`fabric check`: what it prints of findings, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from railweave.cli.exits import Exit
from railweave_testing.command import Command

RAIL_BY_RAIL = """\
version: 1
leaves: [{name: "rail[0-1]"}]
nodes:
  - {name: "n[1-5]", rails: 0-1, leaves: "rail[0-1]"}
  - {name: n6, rails: 0-1, leaves: "rail1,rail0"}
"""
SOUND = RAIL_BY_RAIL.replace("rail1,rail0", "rail[0-1]")


@pytest.fixture
def fabric(tmp_path: Path) -> Path:
    return tmp_path / "fabric.yaml"


def test_a_sound_fabric_ends_with_0_and_says_so(railweave: Command, fabric: Path) -> None:
    fabric.write_text(SOUND)
    done = railweave("fabric", "check", fabric)
    assert (done.code, done.out) == (Exit.DONE, "0 errors, 0 warnings\n")
    assert railweave("fabric", "check", fabric, "--json").json == {"errors": 0, "warnings": 0, "findings": []}


def test_two_nics_swapped_are_errors_with_device_port_and_what_was_expected(railweave: Command, fabric: Path) -> None:
    fabric.write_text(RAIL_BY_RAIL)
    done = railweave("fabric", "check", fabric, "--json")
    assert done.code == Exit.FAILED
    assert done.json["errors"] == 2
    for finding in done.json["findings"]:
        assert finding.keys() == {"kind", "is_error", "device", "port", "expected", "text", "file", "line"}
        assert (finding["kind"], finding["device"], finding["line"]) == ("miscabling", "n6", 5)
        assert finding["file"] == str(fabric)
        assert "rail" in finding["expected"]
    said = railweave("fabric", "check", fabric)
    assert said.code == Exit.FAILED
    lines = said.out.splitlines()
    assert lines[0].startswith(f"{fabric}:5: error: n6 ")
    assert lines[0].endswith("[miscabling]")
    assert lines[-1] == "2 errors, 0 warnings"


def test_a_warning_alone_ends_with_0(railweave: Command, fabric: Path) -> None:
    fabric.write_text(SOUND.replace('"rail[0-1]"}]', '"rail[0-1],spare"}]'))
    done = railweave("fabric", "check", fabric, "--json")
    assert (done.code, done.json["errors"], done.json["warnings"]) == (Exit.DONE, 0, 1)


def test_faults_that_leave_no_graph_are_all_found(railweave: Command, fabric: Path) -> None:
    fabric.write_text(SOUND + "  - {name: n7, rails: 0, leaf: rail7}\n  - {name: n8, rails: 0, leaf: rail8}\n")
    done = railweave("fabric", "check", fabric, "--json")
    assert done.code == Exit.FAILED
    found = [finding for finding in done.json["findings"] if finding["kind"] == "unknown-device"]
    assert [(finding["device"], finding["line"]) for finding in found] == [("n7", 6), ("n8", 7)]
    assert railweave("fabric", "import", "railweave", fabric).code == Exit.USAGE, "the import stops at the first"


def test_what_cannot_be_read_at_all_is_an_error_of_the_arguments(railweave: Command, fabric: Path) -> None:
    fabric.write_text("version: 1\nfoo: bar\n")
    done = railweave("fabric", "check", fabric, "--json")
    assert (done.code, done.error["field"]) == (Exit.USAGE, f"{fabric}:2")


def test_without_a_file_the_configured_one_is_checked(
    railweave: Command, fabric: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fabric.write_text(RAIL_BY_RAIL)
    assert railweave("fabric", "check").code == Exit.USAGE
    monkeypatch.setenv("RAILWEAVE_TOPOLOGY__FABRIC_FILE", str(fabric))
    assert railweave("fabric", "check").code == Exit.FAILED
