"""The network concern: a placement's interfaces through a `NetworkDriver`, prepared on their PFs and attached
worker by worker.

Which namespace a worker is in is settled once, when it is attached: by (device, inode), which the journaled move
names. A path or pid that leads elsewhere by then changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from railweave.contracts.placement import Placement
from railweave.node_agent.applier import ApplyFailed, CannotDo, UndoIncomplete, Work
from railweave.node_agent.model import Phase
from railweave.node_agent.network import (
    NetworkDriver,
    NetworkRefused,
    Observed,
    Step,
    StepFailed,
    StepKind,
    UndoFailed,
    VfWant,
)
from railweave.runtime.netlink import Busy, KernelError, KernelSilent, NetnsRef


@dataclass(frozen=True, slots=True)
class WorkerObserved:
    """One worker's wants, and what is."""

    rank: int
    wants: tuple[VfWant, ...]
    observed: Observed


class NetworkApplier:
    """Prepares, attaches and gives back VFs. One piece of work at a time: the kernel has one lock for all of it."""

    concern = "network"
    survives_boot = False

    def __init__(self, driver: NetworkDriver) -> None:
        self.driver = driver
        self._one_at_a_time = asyncio.Lock()

    async def observe(self, work: Work, phase: Phase) -> Sequence[WorkerObserved]:
        """What is: of each worker's VFs, their ends on the leaves and, where known, in its namespace."""
        workers = wants_of(work.placement)
        if not workers:
            return ()
        held = _held_namespaces(work)
        found: list[WorkerObserved] = []
        try:
            async with self._one_at_a_time:
                if phase is Phase.PREPARE and not held:
                    # Nothing is in a namespace yet: one look for all workers. Planned worker by worker all the same:
                    # names and tables are of a worker's namespace, and every worker has a `rail0`.
                    seen = await self.driver.observe([want for wants in workers.values() for want in wants])
                    return tuple(WorkerObserved(rank, wants, seen) for rank, wants in workers.items())
                for rank, wants in workers.items():
                    netns = next((held[want.key] for want in wants if want.key in held), None)
                    if netns is None and phase is Phase.ATTACH:
                        netns = await self._namespace(work, rank)
                    found.append(WorkerObserved(rank, wants, await self.driver.observe(wants, netns)))
        except KernelError as error:
            raise CannotDo(f"{phase} network: observe", error.errno_name, str(error)) from error
        return found

    async def _namespace(self, work: Work, rank: int) -> NetnsRef:
        told = work.namespace(rank)
        step = f"attach worker {rank}: find its namespace"
        if told is None:
            raise CannotDo(step, "ENOENT", "nobody said where the worker's network namespace is")
        path = told.netns if told.netns is not None else f"/proc/{told.pid}/ns/net"
        try:
            return await self.driver.find_netns(path)
        except KernelError as error:
            raise CannotDo(step, error.errno_name, f"{error}; the worker ended before it was attached") from error

    def plan(self, work: Work, phase: Phase, observed: Sequence[WorkerObserved]) -> Sequence[Step]:
        """The steps of all workers."""
        keys = [want.key for worker in observed for want in worker.wants]
        if len(set(keys)) < len(keys):
            raise CannotDo(f"{phase} network", "NetworkRefused", "two workers are given the same VF")
        plan = self.driver.plan_prepare if phase is Phase.PREPARE else self.driver.plan_attach
        steps: list[Step] = []
        for worker in observed:
            try:
                steps += plan(worker.wants, worker.observed)
            except NetworkRefused as refused:
                raise CannotDo(f"{phase} network", "NetworkRefused", str(refused)) from refused
        return steps

    async def apply(self, work: Work, phase: Phase, steps: Sequence[Step]) -> None:
        """Apply all steps; neighbours go to the kernel together."""
        begun = time.perf_counter()
        try:
            async with self._one_at_a_time:
                await self.driver.apply(steps)
        except StepFailed as failed:
            is_transient = isinstance(failed.cause, Busy | KernelSilent)
            raise ApplyFailed(
                f"{phase} network: {failed.step.describe()}",
                failed.errno_name,
                str(failed.cause),
                is_transient=is_transient,
            ) from failed
        except KernelError as error:
            raise ApplyFailed(f"{phase} network", error.errno_name, str(error)) from error
        vfs = len({step.vf for step in steps})
        work.stopwatch.note(f"{phase} network: {len(steps)} changes of {vfs} VFs", begun)

    async def undo(self, work: Work, steps: Sequence[Step]) -> None:
        """Give everything back as the journal says it was."""
        begun = time.perf_counter()
        try:
            async with self._one_at_a_time:
                await self.driver.undo(steps)
        except (UndoFailed, KernelError) as failed:
            raise UndoIncomplete(f"network: {failed}") from failed
        work.stopwatch.note(f"undo network: {len(steps)} changes", begun)

    def body_from_json(self, value: Mapping[str, Any]) -> Step:
        """A step from the journal."""
        return Step.from_json(value)


def wants_of(placement: Placement) -> dict[int, tuple[VfWant, ...]]:
    """The VFs of each worker that has any, by rank. In host mode there is no namespace to put them into."""
    if placement.attach == "host":
        return {}
    return {
        worker.worker: tuple(VfWant.of(interface) for interface in worker.network.interfaces)
        for worker in placement.workers
        if worker.network is not None and worker.network.interfaces
    }


def _held_namespaces(work: Work) -> dict[str, NetnsRef]:
    """Where each VF was moved to, by the journal."""
    return {
        step.body.vf: step.body.netns
        for step in work.steps
        if step.concern == "network" and step.body.kind is StepKind.MOVE and step.body.netns is not None
    }
