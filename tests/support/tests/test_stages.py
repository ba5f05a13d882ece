"""The scripts that run named stages under a time budget."""

from __future__ import annotations

import subprocess
from pathlib import Path

SCRIPTS = Path(__file__).parents[3] / "scripts"


def run_stages(tmp_path: Path, lines: str, *names: str) -> tuple[int, str, list[list[str]]]:
    conf, results = tmp_path / "stages.conf", tmp_path / "results.tsv"
    conf.write_text(lines)
    done = subprocess.run(
        [SCRIPTS / "stages.sh", conf, *names],
        env={"PATH": "/usr/bin:/bin", "STAGE_RESULTS": str(results)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    rows = [line.split("\t") for line in results.read_text().splitlines()] if results.exists() else []
    return done.returncode, done.stdout + done.stderr, rows


def test_stage_past_its_budget_fails_by_name_and_the_others_still_run(tmp_path: Path) -> None:
    status, output, rows = run_stages(tmp_path, "slow 1 sleep 30\nquick 9 echo done\n")
    assert status == 1
    assert "stages that failed: slow" in output
    assert [(row[0], row[3]) for row in rows] == [("slow", "PAST ITS BUDGET of 1 s"), ("quick", "passed")]


def test_failed_command_is_named_with_its_status(tmp_path: Path) -> None:
    status, output, _ = run_stages(tmp_path, "# a comment\n\nbroken 9 exit 3\n")
    assert status == 1
    assert "== broken: FAILED with status 3" in output


def test_named_stages_alone_are_run(tmp_path: Path) -> None:
    status, _, rows = run_stages(tmp_path, "one 9 true\ntwo 9 true\n", "two")
    assert (status, [row[0] for row in rows]) == (0, ["two"])


def test_stage_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    status, output, _ = run_stages(tmp_path, "one 9 true\n", "tow")
    assert status == 2
    assert "no such stage" in output


def test_command_that_reads_its_input_does_not_eat_the_list(tmp_path: Path) -> None:
    status, _, rows = run_stages(tmp_path, "reader 9 cat\nnext 9 true\n")
    assert (status, [row[0] for row in rows]) == (0, ["reader", "next"])
