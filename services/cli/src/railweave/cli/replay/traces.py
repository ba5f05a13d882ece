"""Traces as lists of jobs: gavel (tab-separated, with the dataset in the command) and openb (a CSV of pods). Pure.

What a trace does not say is filled in here and nowhere else, each with its reason.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from railweave.cli.exits import CommandFailed, Exit

_GB = 10**9
_MB = 10**6


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace. Times in seconds of the trace."""

    name: str
    arrival_s: float
    duration_s: float
    workers: int
    gpus: int
    """Of each worker."""
    fraction_milli: int | None = None
    dataset: str | None = None
    dataset_bytes: int = 0
    network: bool = True


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace: its kind, its jobs by arrival, and what was left out."""

    kind: str
    jobs: tuple[TraceJob, ...]
    left_out: int = 0
    """Rows that ask for no GPU."""

    @property
    def span_s(self) -> float:
        """From the first arrival to the last."""
        return self.jobs[-1].arrival_s - self.jobs[0].arrival_s if self.jobs else 0.0

    def first(self, count: int | None) -> Trace:
        """The first jobs of it."""
        return self if count is None else Trace(self.kind, self.jobs[:count], self.left_out)


def read_trace(path: Path) -> Trace:
    """Read a trace; which kind it is, is seen from its first line.

    Raises:
        CommandFailed: unreadable, of no known kind, or a row is malformed (with its line).
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(
            f"cannot read {path}: {error}",
            Exit.USAGE,
            field="FILE",
            remedy="the traces are in alibaba/clusterdata (openb) and stanford-futuredata/gavel; RAILWEAVE_DATA names "
            "the folder that has them",
        ) from error
    first = lines[0] if lines else ""
    if first.startswith("name,") and "gpu_milli" in first:
        return _read(path, "openb", lines, _openb)
    if first.count("\t") == 6:
        return _read(path, "gavel", lines, _gavel)
    raise CommandFailed(
        f"{path} is neither a gavel trace (7 tab-separated fields) nor an openb pod list (CSV with gpu_milli)",
        Exit.USAGE,
        field="FILE",
    )


_Reader = Callable[[Sequence[str]], Iterable[tuple[int, TraceJob | None]]]


def _read(path: Path, kind: str, lines: Sequence[str], reader: _Reader) -> Trace:
    jobs: list[TraceJob] = []
    left_out, line = 0, 0
    try:
        for number, job in reader(lines):
            line = number
            if job is None:
                left_out += 1
            else:
                jobs.append(job)
    except (ValueError, KeyError, TypeError) as error:
        raise CommandFailed(f"{path}, behind line {line}: {error}", Exit.USAGE, field="FILE") from error
    jobs.sort(key=lambda job: (job.arrival_s, job.name))
    return Trace(kind, tuple(jobs), left_out)


_DATASETS: dict[str, tuple[str, int]] = {
    # Folder in the command -> dataset and its published size (ImageNet as Hoard, arXiv 1812.00669, has it).
    "imagenet": ("imagenet", 150 * _GB),
    "ml-20m": ("ml-20m", 888 * _MB),
    "monet2photo": ("monet2photo", 291 * _MB),
    "cifar10": ("cifar10", 170 * _MB),
    "translation": ("multi30k", 40 * _MB),
    "wikitext2": ("wikitext2", 12 * _MB),
}
_DATA_PATH = re.compile(r"%s/data/([A-Za-z0-9_.-]+)")

_STEPS_PER_S: tuple[tuple[str, float], ...] = (
    # The trace has steps and no times. With these the longest job of each kind runs a week, which is the longest that
    # the trace's generator draws (10^4 minutes).
    ("ResNet-18", 170.0),
    ("ResNet-50", 40.0),
    ("Transformer", 38.0),
    ("LM (batch size 5)", 700.0),
    ("LM", 190.0),
    ("Recommendation", 2.4),
    ("CycleGAN", 7.7),
    ("A3C", 35.0),
)


def _gavel(lines: Sequence[str]) -> Iterator[tuple[int, TraceJob | None]]:
    for number, line in enumerate(lines, 1):
        kind, command, _steps_argument, needs_data, steps, arrival, scale = line.split("\t")
        dataset: tuple[str, int] | None = None
        if needs_data == "1":
            found = _DATA_PATH.search(command)
            if found is None:
                raise ValueError("a command that needs data and names none")
            dataset = _DATASETS.get(found[1], (found[1], _GB))
        rate = next((rate for start, rate in _STEPS_PER_S if kind.startswith(start)), 10.0)
        yield (
            number,
            TraceJob(
                name=f"g{number}",
                arrival_s=float(arrival),
                duration_s=int(steps) / rate,
                workers=int(scale),
                gpus=1,
                dataset=dataset[0] if dataset else None,
                dataset_bytes=dataset[1] if dataset else 0,
            ),
        )


_MINUTES_10 = 600.0


def _openb(lines: Sequence[str]) -> Iterator[tuple[int, TraceJob | None]]:
    for number, row in enumerate(csv.DictReader(lines), 2):
        cards, milli = int(row["num_gpu"]), int(row["gpu_milli"])
        if cards == 0:
            yield number, None
            continue
        # The list of multi-GPU pods has no times: one a second, ten minutes each.
        created = row.get("creation_time")
        arrival = float(created) if created else float(number)
        deleted = row.get("deletion_time")
        duration = float(deleted) - arrival if deleted else _MINUTES_10
        shared = cards == 1 and 0 < milli < 1000
        yield (
            number,
            TraceJob(
                name=row["name"].removeprefix("openb-"),
                arrival_s=arrival,
                duration_s=max(duration, 0.0),
                workers=1,
                gpus=cards,
                fraction_milli=milli if shared else None,
                # More fractions fit on a node than it has VF groups: those that share a card use the host's network.
                network=not shared,
            ),
        )
