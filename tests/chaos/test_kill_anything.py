"""Kill -9 of any one process, at any moment, while jobs flow: every job ends, nothing is held twice or left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kill_anything import REAL, SIMULATED
from rig.run import Dose, run_chaos

pytestmark = pytest.mark.timeout(400)

# That no job is given back is asserted too: no node had a reason, so what was given back would be a fault of ours (a
# job was, when another's devices had been put into its namespace).

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root for network namespaces: run the tests with sudo")


async def test_whatever_is_killed_no_job_is_lost_and_nothing_is_left(tmp_path: Path) -> None:
    figures = await run_chaos(tmp_path, SIMULATED, Dose(seed=1, jobs=40, over_s=25.0, kill_every_s=1.2))
    print(figures.text())
    assert figures.problems == []
    assert figures.given_back == 0, figures.reasons
    assert figures.kills.total() >= 10
    assert figures.attached >= 20


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3])
async def test_the_same_for_longer(tmp_path: Path, seed: int) -> None:
    figures = await run_chaos(tmp_path, SIMULATED, Dose(seed=seed, jobs=150, over_s=90.0, kill_every_s=1.2))
    print(figures.text())
    assert figures.problems == []
    assert figures.given_back == 0, figures.reasons
    assert len(figures.kills) >= 11, "not every process had its turn"


@pytest.mark.long
@pytest.mark.kernel
@needs_root
@pytest.mark.parametrize("seed", [4, 5])
async def test_the_same_on_real_namespaces_and_disks(tmp_path: Path, seed: int) -> None:
    figures = await run_chaos(tmp_path, REAL, Dose(seed=seed, jobs=100, over_s=75.0, kill_every_s=1.2))
    print(figures.text())
    assert figures.problems == []
    assert figures.given_back == 0, figures.reasons
    assert len(figures.kills) >= 11, "not every process had its turn"
