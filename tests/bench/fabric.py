"""The fabric of a large cluster: `python tests/bench/fabric.py [--json FILE] [--runs N]`.

A fabric of 10,000 nodes with 8 rails on 529 switches (and of 100 and 1,000 nodes beside it), as `fabric export` writes
it: import (read and make the graph), check, plan of all VLANs and subnets, each in fresh processes, medians with the
spread, and the memory at its highest. The same fabric with every port written out shows what the size of a file costs,
beside plain PyYAML (CSafeLoader) on that file. Then the fabric part of jobs of 64 nodes, proposed and rendered, on
clusters of those sizes, on VFs that had a job before (what goes on all day) and on VFs that never had one (cold).

Exits with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from railweave_testing.benches import parser, report

RAILS: Final = 8
PER_UNIT: Final = 160
"""Nodes that share their leaves, one a rail."""
SPINES: Final = 28
JOB_NODES: Final = 64
BARS: Final[Mapping[str, float]] = {"import": 3.0, "check": 5.0, "plan": 2.0}
"""Seconds, at the largest size."""
MEMORY_MIB: Final = 500.0
JOB_MS: Final = 5.0


def fabric(nodes: int) -> Iterator[str]:
    """The fabric with every port written out: units of 160 nodes on 8 leaves (half a unit on 4), 28 spines, a core."""
    leaves = nodes * RAILS // PER_UNIT if nodes >= PER_UNIT else RAILS
    yield "version: 1\nspines:\n  - {name: core1, tier: 3}\n"
    yield from (f"  - {{name: spine{spine + 1}, uplinks: core1}}\n" for spine in range(SPINES))
    yield "leaves:\n"
    yield from (f"  - name: leaf{leaf + 1}\n" for leaf in range(leaves))
    yield "links:\n"
    for leaf in range(leaves):
        for spine in range(SPINES):
            yield f"  - [leaf{leaf + 1}:Ethernet{200 + spine}, spine{spine + 1}:Ethernet{leaf}]\n"
    yield "nodes:\n"
    for node in range(nodes):
        first, place = node // PER_UNIT * RAILS, node % PER_UNIT
        width = min(RAILS, leaves - first)
        yield f"  - name: gpu{node + 1:05d}\n    ports:\n"
        for rail in range(RAILS):
            leaf, nth = first + rail * width // RAILS, rail % (RAILS // width)
            port = f"Ethernet{place * RAILS // width + nth}"
            yield f"      - {{rail: {rail}, leaf: leaf{leaf + 1}, port: {port}}}\n"


def flat_fabric(nodes: int) -> str:
    """The same number of nodes with all their rails on one leaf, 20 on each: every leaf has a VLAN for each rail."""
    entries = "".join(
        f"  - {{name: 'n{leaf}-[1-20]', leaf: leaf{leaf}, rails: 0-{RAILS - 1}}}\n"
        for leaf in range(1, nodes // 20 + 1)
    )
    leaves = f"leaves:\n  - {{name: 'leaf[1-{nodes // 20}]', uplinks: 'spine[1-{SPINES}]'}}\n"
    return f"version: 1\nspines:\n  - name: spine[1-{SPINES}]\n{leaves}nodes:\n{entries}"


def do_export(path: Path) -> dict[str, Any]:
    """Write a fabric as `fabric export` does, beside the file it was read from."""
    from railweave.topology.fabric_file import load_fabric_file
    from railweave.topology.fabric_writer import write_fabric_file

    graph = load_fabric_file(path)
    begun = time.perf_counter()
    text = write_fabric_file(graph)
    took = time.perf_counter() - begun
    short_of(path).write_text(text)
    if load_fabric_file(short_of(path)) != graph:
        raise RuntimeError("what was written does not read as the same graph")
    return {"s": took, "what": f"{len(text.splitlines())} lines"}


def short_of(path: Path) -> Path:
    """The file that `do_export` writes."""
    return path.with_suffix(".short.yaml")


def do_import(path: Path) -> dict[str, Any]:
    """Read a fabric file and make its graph."""
    from railweave.topology.fabric_file import read_bytes
    from railweave.topology.providers import PROVIDERS, ImportOptions

    provider = PROVIDERS["railweave"]
    begun = time.perf_counter()
    graph = provider.read({path.name: read_bytes(path)}, ImportOptions()).imported().graph
    took = time.perf_counter() - begun
    ports = sum(len(node.ports) for node in graph.nodes)
    return {"s": took, "what": f"{len(graph.leaves) + len(graph.spines)} switches, {ports} ports"}


def do_check(path: Path) -> dict[str, Any]:
    """Read a fabric file and look for faults."""
    from railweave.topology.checks import check
    from railweave.topology.fabric_file import read_bytes
    from railweave.topology.providers import PROVIDERS, ImportOptions

    provider = PROVIDERS["railweave"]
    begun = time.perf_counter()
    findings = check(provider.read({path.name: read_bytes(path)}, ImportOptions()))
    return {"s": time.perf_counter() - begun, "what": f"{len(findings)} findings"}


def do_plan(path: Path) -> dict[str, Any]:
    """Give every node its slots and every leaf its VLANs and subnets, from nothing."""
    from railweave.topology.fabric_file import load_fabric_file
    from railweave.topology.inventory import Inventory, replan
    from railweave.topology.plan import Refusal
    from railweave.topology.settings import TopologySettings

    config = TopologySettings().plan_config()
    graph = load_fabric_file(path)
    begun = time.perf_counter()
    planned = replan(Inventory(), graph, config, lambda _node: False)
    took = time.perf_counter() - begun
    if isinstance(planned, Refusal):
        raise RuntimeError(planned.text)
    return {"s": took, "what": f"{sum(len(leaf.vlans) for leaf in planned.leaves.values())} VLANs"}


def do_yaml(path: Path) -> dict[str, Any]:
    """Parse a file with PyYAML, and nothing else."""
    import yaml

    text = path.read_text()
    begun = time.perf_counter()
    yaml.load(text, Loader=yaml.CSafeLoader)
    return {"s": time.perf_counter() - begun, "what": f"{len(text) / 1e6:.2f} MB"}


def child(step: str, path: Path) -> None:
    """One step in this process; prints what it took."""
    found = STEPS[step](path)
    found["mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(found))


def in_fresh_process(step: str, path: Path) -> dict[str, Any]:
    """One step in a process of its own, the start of which counts for the memory and not for the time."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", step, "--file", str(path)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{step} of {path.name} failed: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def steps(directory: Path, sizes: list[int], runs: int) -> list[dict[str, object]]:
    """A row a size and step."""
    rows: list[dict[str, object]] = []
    for nodes in sizes:
        long, flat = directory / f"fabric-{nodes}.yaml", directory / f"flat-{nodes}.yaml"
        long.write_text("".join(fabric(nodes)))
        flat.write_text(flat_fabric(nodes))
        yaml_s: float | None = None
        for name, step, path in (
            ("export", "export", long),
            ("import", "import", short_of(long)),
            ("check", "check", short_of(long)),
            ("plan", "plan", short_of(long)),
            ("plan: a VLAN a rail on each leaf", "plan", flat),
            ("PyYAML: every port written", "yaml", long),
            ("import: every port written", "import", long),
        ):
            done = [in_fresh_process(step, path) for _ in range(runs)]
            taken = sorted(one["s"] for one in done)
            median, mib = statistics.median(taken), max(one["mib"] for one in done)
            yaml_s = median if step == "yaml" else yaml_s
            bar = BARS.get(name.partition(":")[0]) if nodes == max(sizes) and path is not long else None
            rows.append(
                {
                    "nodes": nodes,
                    "step": name,
                    "file_kb": path.stat().st_size / 1000,
                    "median_s": median,
                    "least_s": taken[0],
                    "most_s": taken[-1],
                    "bar_s": bar if bar is not None else "",
                    "memory_mib": mib,
                    "beside_yaml": f"{median / yaml_s:.2f}" if yaml_s is not None else "",
                    "found": done[0]["what"],
                    "held": (bar is None or median < bar) and (step == "yaml" or mib < MEMORY_MIB),
                }
            )
    return rows


def jobs(sizes: list[int], count: int) -> list[dict[str, object]]:
    """A row a size: what the fabric part of a job of 64 nodes costs."""
    rows: list[dict[str, object]] = []
    for nodes in sizes:
        cold, warm, whole = in_fresh_process("jobs", Path(f"{nodes}-{count}"))["ms"]
        median = statistics.median(warm)
        rows.append(
            {
                "nodes": nodes,
                "job_nodes": JOB_NODES,
                "median_ms": median,
                "least_ms": min(warm),
                "most_ms": max(warm),
                "first_time_median_ms": statistics.median(cold),
                "bar_ms": JOB_MS,
                "whole_placements_ms": statistics.median(whole),
                "beside_smallest": median / float(str(rows[0]["median_ms"])) if rows else 1.0,
                "held": median < JOB_MS,
            }
        )
    return rows


def do_jobs(path: Path) -> dict[str, Any]:
    """Jobs on VFs that never had one; on VFs that did; and those with all else that a placement says, milliseconds."""
    from plane_model import hosts, round_of

    from railweave.contracts.job import JobSpec, NetworkWanted, WorkerGroup
    from railweave.contracts.proposal import Ask, Concern, NicProposal, NodesProposal
    from railweave.contracts.types import Attempt, ClusterName, JobName, Round
    from railweave.jobs.render import render
    from railweave.jobs.render_network import render_network
    from railweave.topology.propose import propose

    nodes, count = map(int, path.name.split("-"))
    state, names = hosts(nodes, RAILS)
    # As a service does with itself (runtime/garbage.py).
    gc.set_threshold(20_000, 10, 10)
    gc.collect()
    gc.freeze()
    lab = ClusterName("lab")
    group = WorkerGroup(count=JOB_NODES, gpus=8)

    def job(number: int, turn: int) -> tuple[float, float]:
        spec = JobSpec(
            cluster=lab, job=JobName(f"j{turn}"), attempt=Attempt(1), workers=(group,), network=NetworkWanted()
        )
        proposals = {proposal.CONCERN: proposal for proposal in round_of(spec, names, number, rails=RAILS)}
        ask = Ask(cluster=lab, job=spec.job, attempt=spec.attempt, round=Round(1), spec=spec, concerns=tuple(proposals))
        chosen, vfs = proposals[Concern.NODES], proposals[Concern.NIC]
        assert isinstance(chosen, NodesProposal)
        assert isinstance(vfs, NicProposal)
        begun = time.perf_counter()
        proposals[Concern.FABRIC] = fabric = propose(ask, chosen, state)
        proposed = time.perf_counter()
        for name, worker in zip(chosen.nodes, vfs.workers, strict=True):
            render_network(spec, state.nodes[name], worker, fabric, state)
        rendered = time.perf_counter()
        placements = render(spec, 1, "commit", 1, proposals, state)
        placed = time.perf_counter()
        if len(placements) != JOB_NODES:
            raise RuntimeError("not every node has its placement")
        return (rendered - begun) * 1e3, (proposed - begun + placed - rendered) * 1e3

    places = min(max(nodes // JOB_NODES, 1), count)
    cold = [job(number, number) for number in range(places)]
    warm = [job(number % places, places + number) for number in range(count)]
    return {"ms": [[one for one, _ in cold], [one for one, _ in warm], [both for _, both in warm]]}


STEPS: Final[Mapping[str, Callable[[Path], dict[str, Any]]]] = {
    "import": do_import,
    "check": do_check,
    "plan": do_plan,
    "yaml": do_yaml,
    "export": do_export,
    "jobs": do_jobs,
}


def main() -> int:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--nodes", type=int, nargs="+", default=[100, 1000, 10_000])
    arguments.add_argument("--runs", type=int, default=5, help="of each step, in a fresh process each")
    arguments.add_argument("--jobs", type=int, default=40)
    arguments.add_argument("--child", choices=tuple(STEPS), help=argparse.SUPPRESS)
    arguments.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.child is not None:
        child(given.child, given.file)
        return 0
    with tempfile.TemporaryDirectory(prefix="railweave-fabric-") as directory:
        of_steps = steps(Path(directory), given.nodes, given.runs)
    report(f"Fabrics with {RAILS} rails: seconds in fresh processes", of_steps, None)
    of_jobs = jobs(given.nodes, given.jobs)
    report(f"Fabric proposal and rendering of a job of {JOB_NODES} nodes", of_jobs, None)
    if given.json is not None:
        given.json.write_text(json.dumps({"steps": of_steps, "jobs": of_jobs}, indent=1) + "\n")
    missed = [row for row in (*of_steps, *of_jobs) if not row["held"]]
    for row in missed:
        print(f"bar missed: {row}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
