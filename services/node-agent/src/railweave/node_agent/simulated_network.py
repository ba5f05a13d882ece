"""The network concern for simulated nodes by the hundred: the table of a node's VFs instead of a kernel.

It keeps what matters to everyone else: a VF is held by one placement at a time, is prepared before it is attached, is
in one namespace, and is given back as it was. One step a worker and phase, so that a process with a hundred nodes has
time left. What the kernel does with each of some hundred single changes is `network/` over `MemoryKernel`, with the
same journal.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from railweave.contracts.inventory import Pf
from railweave.contracts.placement import Interface
from railweave.node_agent.applier import ApplyFailed, CannotDo, Work
from railweave.node_agent.model import EntryKey, Phase

VfId = tuple[str, int]
"""PF (PCI address) and VF index."""


@dataclass(frozen=True, slots=True)
class SetVfs:
    """One step: the VFs of a worker set on their PFs, or moved into its namespace."""

    worker: int
    vfs: tuple[VfId, ...]
    namespace: str | None = None
    """Where to, in the attach phase."""

    def describe(self) -> str:
        """In words."""
        where = "on their PFs" if self.namespace is None else f"into {self.namespace}"
        return f"{len(self.vfs)} VFs of worker {self.worker} {where}"

    def to_json(self) -> dict[str, Any]:
        """For the journal."""
        return {"worker": self.worker, "vfs": [list(vf) for vf in self.vfs], "namespace": self.namespace}


@dataclass(slots=True)
class VfUse:
    """A VF in use: whose, with which MAC and VLAN, and where it is."""

    key: EntryKey
    mac: str
    vlan: int
    namespace: str | None = None


class VfTable:
    """The VFs of one simulated node."""

    def __init__(self, pfs: Sequence[Pf]) -> None:
        self._count = {str(pf.pci): pf.vfs for pf in pfs}
        self._pfs = tuple(pfs)
        self._uses: dict[VfId, VfUse] = {}
        self._failing: list[str] = []

    def pfs(self) -> tuple[Pf, ...]:
        """The PFs as the inventory shows them."""
        return self._pfs

    @property
    def uses(self) -> Mapping[VfId, VfUse]:
        """VFs that are not as they were before anyone had them."""
        return self._uses

    def fail_next(self, error: str) -> None:
        """Let the next change fail with an errno name."""
        self._failing.append(error)

    def lose_all(self) -> None:
        """The machine was started anew."""
        self._uses.clear()

    def has(self, vf: VfId) -> bool:
        """Whether the node has such a VF."""
        return 0 <= vf[1] < self._count.get(vf[0], 0)

    def prepare(self, key: EntryKey, interface: Interface) -> None:
        """Set a VF for a placement."""
        self._maybe_fail(f"prepare VF {interface.vf} of {interface.pf}")
        vf = (str(interface.pf), int(interface.vf))
        held = self._uses.get(vf)
        if held is not None and held.key != key:
            raise ApplyFailed(f"prepare VF {vf[1]} of {vf[0]}", "EBUSY", f"it is held by {held.key}")
        if held is None:
            self._uses[vf] = VfUse(key, str(interface.mac), int(interface.vlan))

    def move(self, key: EntryKey, vf: VfId, namespace: str) -> None:
        """Put a prepared VF into a namespace."""
        self._maybe_fail(f"attach VF {vf[1]} of {vf[0]}")
        held = self._uses.get(vf)
        if held is None or held.key != key:
            raise ApplyFailed(f"attach VF {vf[1]} of {vf[0]}", "ENODEV", "it was not prepared for this placement")
        held.namespace = namespace

    def take_out(self, key: EntryKey, vf: VfId) -> None:
        """Bring a VF back to the node."""
        held = self._uses.get(vf)
        if held is not None and held.key == key:
            held.namespace = None

    def give_back(self, key: EntryKey, vf: VfId) -> None:
        """Make a VF as it was before."""
        held = self._uses.get(vf)
        if held is not None and held.key == key:
            del self._uses[vf]

    def _maybe_fail(self, step: str) -> None:
        if self._failing:
            error = self._failing.pop(0)
            raise ApplyFailed(step, error, "as the simulation was told", is_transient=error == "EBUSY")


class SimulatedNetwork:
    """Prepares and attaches in the table."""

    concern = "network"
    survives_boot = False

    def __init__(self, table: VfTable) -> None:
        self.table = table

    async def observe(self, work: Work, phase: Phase) -> Mapping[VfId, VfUse]:
        """The table."""
        return self.table.uses

    def plan(self, work: Work, phase: Phase, observed: Mapping[VfId, VfUse]) -> Sequence[SetVfs]:
        """A step for each worker whose VFs are not all where they must be."""
        if work.placement.attach == "host":
            return ()
        steps: list[SetVfs] = []
        for worker in work.placement.workers:
            network = worker.network
            if network is None or not network.interfaces:
                continue
            vfs = tuple((str(interface.pf), int(interface.vf)) for interface in network.interfaces)
            namespace = self._namespace(work, worker.worker) if phase is Phase.ATTACH else None
            for vf in vfs:
                if not self.table.has(vf):
                    raise CannotDo(f"{phase} network", "ENODEV", f"this node has no VF {vf[1]} of {vf[0]}")
                held = observed.get(vf)
                if held is not None and held.key != work.key:
                    raise CannotDo(f"{phase} network", "EBUSY", f"VF {vf[1]} of {vf[0]} is held by {held.key}")
            if not all(self._is_so(observed.get(vf), namespace) for vf in vfs):
                steps.append(SetVfs(worker.worker, vfs, namespace))
        return steps

    @staticmethod
    def _is_so(held: VfUse | None, namespace: str | None) -> bool:
        return held is not None and (namespace is None or held.namespace == namespace)

    @staticmethod
    def _namespace(work: Work, rank: int) -> str:
        told = work.namespace(rank)
        if told is None:
            text = "nobody said where the worker's network namespace is"
            raise CannotDo(f"attach worker {rank}: find its namespace", "ENOENT", text)
        return told.netns if told.netns is not None else f"/proc/{told.pid}/ns/net"

    async def apply(self, work: Work, phase: Phase, steps: Sequence[SetVfs]) -> None:
        """Carry out."""
        begun = time.perf_counter()
        interfaces = {
            (str(interface.pf), int(interface.vf)): interface
            for worker in work.placement.workers
            if worker.network is not None
            for interface in worker.network.interfaces
        }
        for step in steps:
            for vf in step.vfs:
                if step.namespace is None:
                    self.table.prepare(work.key, interfaces[vf])
                else:
                    self.table.move(work.key, vf, step.namespace)
        work.stopwatch.note(f"{phase} network: {sum(len(step.vfs) for step in steps)} VFs", begun)

    async def undo(self, work: Work, steps: Sequence[SetVfs]) -> None:
        """Out of the namespace, then as it was."""
        for step in reversed(steps):
            for vf in step.vfs:
                if step.namespace is None:
                    self.table.give_back(work.key, vf)
                else:
                    self.table.take_out(work.key, vf)

    def body_from_json(self, value: Mapping[str, Any]) -> SetVfs:
        """A step from the journal."""
        vfs = tuple((str(pf), int(vf)) for pf, vf in value["vfs"])
        return SetVfs(int(value["worker"]), vfs, value["namespace"])
