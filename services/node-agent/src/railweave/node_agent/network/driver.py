"""The network half as the agent sees it: one small interface, for asyncio code.

    wants    = [VfWant.of(interface) for interface in worker.network.interfaces]
    steps    = driver.plan_prepare(wants, await driver.observe(wants))
    ...write the steps into the journal, then...
    await driver.apply(steps)
    netns    = await driver.find_netns("/run/netns/worker")      # (dev, inode), to be journaled
    steps    = driver.plan_attach(wants, await driver.observe(wants, netns))
    ...
    await driver.undo(all_journaled_steps)                       # applied or not, crashed or not

A plan for what is attached already is its drift, and applying it mends it. Work on one node runs one piece at a time:
the kernel has one lock for all of it anyway (RTNL)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from railweave.node_agent.network.model import Observed, Step, VfWant
from railweave.node_agent.network.planning import plan_attach, plan_prepare
from railweave.node_agent.network.provision import provision_vfs, remove_vfs
from railweave.node_agent.network.session import NodePorts
from railweave.node_agent.network.veth import VethDriver
from railweave.runtime.netlink import Kernel, NetnsRef

__all__ = ["NetworkDriver", "VethNetwork"]

T = TypeVar("T")


class NetworkDriver(Protocol):
    """Observe, plan, apply, undo. Planning is pure; the rest looks or acts."""

    async def find_netns(self, where: str | NetnsRef) -> NetnsRef:
        """Identity of the namespace at a path, or where a known one is now. Raises NetnsGone."""
        ...

    async def observe(self, wants: Sequence[VfWant], worker: NetnsRef | None = None) -> Observed:
        """What is. Raises KernelError."""
        ...

    def plan_prepare(self, wants: Sequence[VfWant], observed: Observed) -> list[Step]:
        """Steps of the PF side. Raises NetworkRefused."""
        ...

    def plan_attach(self, wants: Sequence[VfWant], observed: Observed) -> list[Step]:
        """Steps inside the worker's namespace. Raises NetworkRefused."""
        ...

    async def apply(self, steps: Sequence[Step]) -> None:
        """Applies in order. Raises StepFailed."""
        ...

    async def undo(self, steps: Sequence[Step]) -> None:
        """Undoes in reverse, whether or not applied. Raises UndoFailed after undoing all it could."""
        ...

    async def provision(self, vfs_per_pf: int) -> list[str]:
        """Makes the node's VFs, or finds them; the keys of new ones. Raises NetworkRefused, KernelError."""
        ...

    async def close(self) -> None:
        """Ends its thread, if it has one, after the work in it."""
        ...


class VethNetwork:
    """`NetworkDriver` over the veth driver. A kernel that blocks is used from one thread, one in memory directly."""

    def __init__(self, kernel: Kernel, ports: NodePorts) -> None:
        self._driver = VethDriver(kernel, ports)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"network-{ports.node}") if kernel.blocking else None

    async def _run(self, work: Callable[[], T]) -> T:
        if self._executor is None:
            return work()
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # The kernel cannot be called back: who is cancelled must not go on to undo while it still acts.
            await asyncio.wait([future])
            if not future.cancelled():
                future.exception()
            raise

    async def find_netns(self, where: str | NetnsRef) -> NetnsRef:
        """Identity of the namespace at a path, or where a known one is now. Raises NetnsGone."""
        return await self._run(lambda: self._driver.find_netns(where))

    async def observe(self, wants: Sequence[VfWant], worker: NetnsRef | None = None) -> Observed:
        """What is. Raises KernelError."""
        return await self._run(lambda: self._driver.observe(wants, worker))

    def plan_prepare(self, wants: Sequence[VfWant], observed: Observed) -> list[Step]:
        """Steps of the PF side. Raises NetworkRefused."""
        return plan_prepare(wants, observed)

    def plan_attach(self, wants: Sequence[VfWant], observed: Observed) -> list[Step]:
        """Steps inside the worker's namespace. Raises NetworkRefused."""
        return plan_attach(wants, observed)

    async def apply(self, steps: Sequence[Step]) -> None:
        """Applies in order. Raises StepFailed."""
        await self._run(lambda: self._driver.apply(steps))

    async def undo(self, steps: Sequence[Step]) -> None:
        """Undoes in reverse, whether or not applied. Raises UndoFailed after undoing all it could."""
        await self._run(lambda: self._driver.undo(steps))

    async def provision(self, vfs_per_pf: int) -> list[str]:
        """Makes the node's VFs, or finds them; the keys of new ones. Raises NetworkRefused, KernelError."""
        return await self._run(lambda: provision_vfs(self._driver.kernel, self._driver.ports, vfs_per_pf))

    async def remove(self) -> int:
        """Takes away the VFs that are on the node: for taking a local stack down."""
        return await self._run(lambda: remove_vfs(self._driver.kernel, self._driver.ports))

    async def close(self) -> None:
        """Ends its thread, if it has one, after the work in it."""
        if self._executor is not None:
            executor = self._executor
            await asyncio.get_running_loop().run_in_executor(None, executor.shutdown)
