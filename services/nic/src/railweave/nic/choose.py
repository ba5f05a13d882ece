"""Which VFs make a worker's group, by the job's rule. Pure: values in, values out.

`one-per-pf`   VF j of every usable PF; group j is free when none of them is in use
`near-gpus`    a VF of the PF nearest to each of the worker's GPUs: same PCIe root, else same NUMA node, else any
`numa`         a VF of every usable PF of one NUMA node, that of the worker's GPUs where it has any
`count=n`      n VFs, of the least used PFs first

Different workers get different VFs. What a worker is given is marked as used in the PFs passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from railweave.contracts.inventory import Gpu, Pf
from railweave.contracts.proposal import VfRef
from railweave.contracts.types import VfIndex
from railweave.nic.model import PfState


@dataclass(frozen=True, slots=True)
class Group:
    """The VFs of one worker. The name says what they are to people and in logs."""

    name: str
    vfs: tuple[VfRef, ...]


Chooser = Callable[[Sequence[PfState], Sequence[Sequence[Gpu]]], list[Group] | None]
"""PFs of a node, and the GPUs of each worker there, to a group for each worker, or None: they cannot all have one."""


def chooser_of(rule: str) -> Chooser:
    """The function of a rule as jobs write it.

    Raises:
        ValueError: there is no such rule.
    """
    if rule == "one-per-pf":
        return one_per_pf
    if rule == "near-gpus":
        return near_gpus
    if rule == "numa":
        return numa
    word, equals, number = rule.partition("=")
    if word == "count" and equals and number.isdecimal() and int(number) > 0:
        return lambda pfs, workers: least_used(pfs, workers, int(number))
    raise ValueError(f"expected one-per-pf, near-gpus, numa or count=N, found {rule!r}")


def most_groups(rule: str, pfs: Sequence[Pf], *, has_gpus: bool) -> int:
    """How many workers a node could give groups to at the very most: nothing in use, whatever is up or cordoned."""
    vfs = [pf.vfs for pf in pfs]
    if rule.startswith("count="):
        return sum(vfs) // int(rule.removeprefix("count="))
    if rule == "near-gpus" and has_gpus:
        return sum(vfs)
    if rule == "numa":
        most: dict[int | None, int] = {}
        for pf in pfs:
            most[pf.numa_node] = max(pf.vfs, most.get(pf.numa_node, 0))
        return sum(most.values())
    return max(vfs, default=0)


def free_groups(pfs: Sequence[PfState]) -> list[int]:
    """The free groups of the rule one-per-pf, by index."""
    usable = [pf for pf in pfs if pf.fault is None]
    if not usable:
        return []
    taken = set().union(*(pf.used for pf in usable))
    return [index for index in range(min(pf.vfs for pf in usable)) if index not in taken]


def one_per_pf(pfs: Sequence[PfState], workers: Sequence[Sequence[Gpu]]) -> list[Group] | None:
    """The lowest free groups."""
    usable = [pf for pf in pfs if pf.fault is None]
    free = free_groups(pfs)
    if len(free) < len(workers):
        return None
    groups = []
    for index in free[: len(workers)]:
        for pf in usable:
            pf.used.add(index)
        vf = VfIndex(index)
        groups.append(Group(f"g{index}", tuple(VfRef(pf.index, vf) for pf in usable)))
    return groups


def near_gpus(pfs: Sequence[PfState], workers: Sequence[Sequence[Gpu]]) -> list[Group] | None:
    """A VF of the nearest PF for each GPU; GPUs that share their nearest PF share its VF. Without GPUs: one-per-pf."""
    if not any(workers):
        return one_per_pf(pfs, workers)
    groups = []
    for gpus in workers:
        mine: dict[int, PfState] = {}
        for gpu in gpus:
            pf = min(
                (pf for pf in pfs if pf.free > 0 or pf.index in mine),
                key=lambda pf, gpu=gpu: (_distance(pf, gpu), pf.index in mine, len(pf.used), pf.rail),  # type: ignore[misc]
                default=None,
            )
            if pf is None:
                return None
            mine[pf.index] = pf
        if not mine and (pf := max(pfs, key=lambda pf: pf.free, default=None)) is not None:
            mine[pf.index] = pf  # a worker without GPUs beside others that have some
        taken = _take(mine.values())
        if taken is None:
            return None
        groups.append(_named("near-gpus", taken))
    return groups


def numa(pfs: Sequence[PfState], workers: Sequence[Sequence[Gpu]]) -> list[Group] | None:
    """A VF of every usable PF of one NUMA node: that of most of the worker's GPUs, else the one with most left."""
    by_numa: dict[int | None, list[PfState]] = {}
    for pf in pfs:
        if pf.fault is None:
            by_numa.setdefault(pf.numa_node, []).append(pf)
    groups = []
    for gpus in workers:
        wanted = [gpu.numa_node for gpu in gpus]
        rooms = [(min(pf.free for pf in there), place) for place, there in by_numa.items()]
        able = [(wanted.count(place), room, place) for room, place in rooms if room > 0]
        if not able:
            return None
        _, _, best = max(able, key=lambda entry: (entry[0], entry[1], -(entry[2] if entry[2] is not None else -1)))
        taken = _take(by_numa[best])
        if taken is None:
            return None
        groups.append(_named("numa", taken))
    return groups


def least_used(pfs: Sequence[PfState], workers: Sequence[Sequence[Gpu]], count: int) -> list[Group] | None:
    """`count` VFs for each worker: of different PFs as far as there are, the least used first."""
    groups = []
    for _ in workers:
        taken: list[tuple[PfState, int]] = []
        mine: dict[int, int] = {}
        for _ in range(count):
            pf = min(
                (pf for pf in pfs if pf.free > 0),
                key=lambda pf: (mine.get(pf.index, 0), len(pf.used), pf.rail),
                default=None,
            )
            vf = pf.lowest_free() if pf is not None else None
            if pf is None or vf is None:
                return None
            pf.used.add(vf)
            mine[pf.index] = mine.get(pf.index, 0) + 1
            taken.append((pf, vf))
        taken.sort(key=lambda entry: (entry[0].rail, entry[1]))
        groups.append(_named(f"count={count}", taken))
    return groups


def _distance(pf: PfState, gpu: Gpu) -> int:
    if gpu.pcie_root is not None and pf.pcie_root == gpu.pcie_root:
        return 0
    return 1 if gpu.numa_node is not None and pf.numa_node == gpu.numa_node else 2


def _take(pfs: Iterable[PfState]) -> list[tuple[PfState, int]] | None:
    """The lowest free VF of each PF, marked as used."""
    taken: list[tuple[PfState, int]] = []
    for pf in sorted(pfs, key=lambda pf: pf.rail):
        vf = pf.lowest_free()
        if vf is None:
            return None
        pf.used.add(vf)
        taken.append((pf, vf))
    return taken


def _named(rule: str, taken: Sequence[tuple[PfState, int]]) -> Group:
    name = ",".join(f"r{pf.rail}v{vf}" for pf, vf in taken)
    return Group(f"{rule}:{name}", tuple(VfRef(pf.index, VfIndex(vf)) for pf, vf in taken))
