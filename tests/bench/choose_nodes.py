"""How long choosing nodes takes, against the number of nodes: `python tests/bench/choose_nodes.py [--json FILE]`.

A cluster of 32-node leaves, half of it in use, 40 datasets on random nodes. Each case is asked again and again; between
two asks a placement comes or goes, so that the survey has something to bring up to date. Medians in milliseconds of CPU
time of this process, which a machine busy with other things does not stretch.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from railweave.cache.model import CacheConfig
from railweave.cache.propose import Answered, propose
from railweave.cache.view import Survey
from railweave.runtime.outstanding import Outstanding
from railweave_testing.clusters import GIB, ClusterBuilder, ask, cached

NODES_PER_LEAF = 32
LEAVES_PER_POD = 8
DATASETS = 40
TARGET_MS = 2.0
"""For a job of 8 nodes at 1,000 nodes."""

CASES: dict[str, dict[str, Any]] = {
    "1 node, 1 GPU": {"gpus": 1},
    "1 node, 400/1000 GPU": {"gpus": 1, "gpu_fraction_milli": 400},
    "8 nodes x 8 GPUs": {"workers": 8, "gpus": 8, "network": {}},
    "8 nodes, data on some": {"workers": 8, "gpus": 8, "network": {}, "datasets": [f"set-3@1={200 * GIB}"]},
    "8 nodes, data nowhere": {"workers": 8, "gpus": 8, "network": {}, "datasets": [f"new@1={200 * GIB}"]},
    "8 nodes, must evict": {"workers": 8, "gpus": 8, "network": {}, "datasets": [f"new@1={900 * GIB}"]},
    "64 nodes x 8 GPUs": {"workers": 64, "gpus": 8, "network": {}},
    "no: too many GPUs wanted": {"workers": 8, "gpus": 8, "network": {}, "selector": {"half": "used"}},
}


def build(nodes: int, rng: random.Random) -> ClusterBuilder:
    """A cluster of that many nodes, every other one with four GPUs, two VF groups and a dataset in use."""
    cluster = ClusterBuilder()
    for index in range(nodes):
        leaf = index // NODES_PER_LEAF
        copies = [
            cached(f"set-{number}", rng.randrange(20, 200) * GIB, uses=rng.randrange(1, 50))
            for number in rng.sample(range(DATASETS), 4)
        ]
        half = "used" if index % 2 else "free"
        cluster.node(
            f"node-{index}",
            leaf=f"leaf-{leaf}",
            pod=f"pod-{leaf // LEAVES_PER_POD}",
            rails=8,
            labels={"gpu": "h100", "half": half},
            datasets=copies,
        )
        if half == "used":
            cluster.place(
                f"job-{index}",
                f"node-{index}",
                gpus=[(gpu, 1000) for gpu in range(rng.randrange(1, 5))],
                vfs=[(rail, 0) for rail in range(8)],
                use=[copies[0].dataset],
            )
    return cluster


def measure(cluster: ClusterBuilder, survey: Survey, wanted: dict[str, Any], budget_s: float) -> dict[str, float]:
    """Ask for the case until the budget is spent; milliseconds."""
    outstanding = Outstanding()
    taken: list[float] = []
    started = time.perf_counter()
    number = 0
    while time.perf_counter() - started < budget_s or number < 5:
        number += 1
        asked = ask(f"bench-{number}", **wanted)
        name = f"node-{number % len(survey.candidates)}"
        cluster.touched.clear()
        if number % 2:
            cluster.place("between", name, vfs=[(0, 7)])
        else:
            cluster.release("between", f"node-{(number - 1) % len(survey.candidates)}")
        survey.touch(cluster.touched)
        elapsed, answer = timed(lambda asked=asked: propose(asked, cluster.state, outstanding, survey.config, survey))
        taken.append(elapsed)
        # Two jobs' proposals are under way at any time, as between proposal and commit.
        outstanding.put(asked.round_key, answer.holds, float(number))
        if number > 2:
            outstanding.drop(ask(f"bench-{number - 2}").key)
    if number % 2:
        cluster.release("between", name)
        survey.touch(cluster.touched)
    ordered = sorted(taken)
    return {
        "median_ms": statistics.median(ordered),
        "p90_ms": ordered[int(len(ordered) * 0.9)],
        "worst_ms": ordered[-1],
        "runs": float(len(ordered)),
    }


def timed(work: Callable[[], Answered]) -> tuple[float, Answered]:
    """Milliseconds it took, and what came out."""
    started = time.process_time()
    answer = work()
    return (time.process_time() - started) * 1000, answer


def main() -> int:
    parser = argparse.ArgumentParser(description="Time of choosing nodes against the number of nodes")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    parser.add_argument("--nodes", default="100,1000,10000", help="numbers of nodes, comma-separated")
    parser.add_argument("--budget-s", type=float, default=0.5, help="seconds for each case")
    options = parser.parse_args()
    sizes = [int(part) for part in options.nodes.split(",")]
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for nodes in sizes:
        cluster = build(nodes, random.Random(nodes))
        started = time.process_time()
        survey = Survey.of(cluster.state, CacheConfig())
        survey_ms = (time.process_time() - started) * 1000
        figures.setdefault("survey of all nodes, once", {})[str(nodes)] = {"median_ms": survey_ms}
        for case, wanted in CASES.items():
            figures.setdefault(case, {})[str(nodes)] = measure(cluster, survey, wanted, options.budget_s)
    print(
        f"Choosing nodes, medians in ms (p90); {platform.python_implementation()} {platform.python_version()}, "
        f"{platform.machine()}"
    )
    print(f"{'':28}" + "".join(f"{nodes:>10} nodes     " for nodes in sizes))
    for case, by_size in figures.items():
        cells = "".join(
            f"{by_size[str(nodes)]['median_ms']:>10.2f} ({by_size[str(nodes)].get('p90_ms', 0.0):7.2f}) "
            for nodes in sizes
        )
        print(f"{case:28}{cells}")
    if "1000" in figures["8 nodes x 8 GPUs"]:
        median = figures["8 nodes x 8 GPUs"]["1000"]["median_ms"]
        print(f"target: {TARGET_MS:g} ms for 8 nodes of 1000; ratio {median / TARGET_MS:.2f}")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
