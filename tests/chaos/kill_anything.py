"""Kills everything while jobs flow, and prints the figures. The tests run it too.

python tests/chaos/kill_anything.py --seed 7 --jobs 60 --seconds 30 [--real] [--puts-back] [--keep DIR] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from rig.run import Dose, run_chaos

from railweave.cli.stack.design import Shape
from railweave_testing.servers import scratch_directory

SIMULATED = Shape(nodes=4, leaves=2, rails=4, vfs=6, gpus=4, segments=3, simulated=True)
REAL = Shape(nodes=4, leaves=2, rails=4, vfs=4, gpus=4, segments=2, simulated=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long jobs are submitted and parts killed")
    parser.add_argument("--every", type=float, default=1.5, help="seconds between two kills, on average")
    parser.add_argument("--real", action="store_true", help="hosts and workers as network namespaces; needs root")
    parser.add_argument("--puts-back", action="store_true", help="NATS also loses two seconds, or everything")
    parser.add_argument("--keep", type=Path, help="state directory that stays, with all logs")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    given = parser.parse_args()
    dose = Dose(given.seed, given.jobs, given.seconds, given.every, puts_back=given.puts_back)
    shape = REAL if given.real else SIMULATED
    with scratch_directory() as scratch:
        directory = given.keep.absolute() if given.keep else scratch
        directory.mkdir(parents=True, exist_ok=True)
        figures = asyncio.run(run_chaos(directory, shape, dose))
    print(figures.text())
    if given.json:
        given.json.write_text(json.dumps(figures.document(), indent=2))
    return 1 if figures.problems else 0


if __name__ == "__main__":
    sys.exit(main())
