"""The GPU concern over a simulated backend: devices from settings, reservations in thousandths, failures on
demand.

A reservation is state of the running machine, like a driver's: gone after a boot, and after a restart of a simulated
node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from railweave.contracts.inventory import Gpu
from railweave.node_agent.applier import ApplyFailed, CannotDo, Work
from railweave.node_agent.model import EntryKey, Phase

WHOLE_MILLI = 1000


@dataclass(frozen=True, slots=True)
class Reserve:
    """The one kind of step: so many thousandths of a device for a placement."""

    uuid: str
    milli: int

    def describe(self) -> str:
        """In words."""
        return f"reserve {self.milli} thousandths of {self.uuid}"

    def to_json(self) -> dict[str, Any]:
        """For the journal."""
        return {"uuid": self.uuid, "milli": self.milli}


class SimulatedGpus:
    """The devices of one node, and who has reserved how much of them."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._gpus = {str(gpu.uuid): gpu for gpu in gpus}
        self._held: dict[str, dict[EntryKey, int]] = {uuid: {} for uuid in self._gpus}
        self._failing: dict[str, str] = {}

    def gpus(self) -> tuple[Gpu, ...]:
        """The devices as the inventory shows them."""
        return tuple(self._gpus.values())

    def held(self, uuid: str) -> Mapping[EntryKey, int]:
        """Who holds how many thousandths of a device."""
        return self._held.get(uuid, {})

    def set_fault(self, uuid: str, fault: str | None) -> None:
        """Make a device unhealthy, or well again (None)."""
        self._gpus[uuid] = self._gpus[uuid].model_copy(update={"healthy": fault is None, "fault": fault})

    def fail_reservations(self, uuid: str, error: str | None) -> None:
        """Let every further reservation of a device fail with an errno name (None: no more)."""
        if error is None:
            self._failing.pop(uuid, None)
        else:
            self._failing[uuid] = error

    def reserve(self, key: EntryKey, uuid: str, milli: int) -> None:
        """Set what a placement holds of a device; the same again changes nothing."""
        if uuid in self._failing:
            raise ApplyFailed(
                f"reserve {uuid}", self._failing[uuid], "the device refuses; see its fault in the inventory"
            )
        others = sum(amount for holder, amount in self._held[uuid].items() if holder != key)
        if others + milli > WHOLE_MILLI:
            text = f"{milli} thousandths wanted, {WHOLE_MILLI - others} free"
            raise ApplyFailed(f"reserve {uuid}", "EBUSY", text)
        self._held[uuid][key] = milli

    def free(self, key: EntryKey, uuid: str) -> None:
        """Give back what a placement holds of a device, if anything."""
        self._held.get(uuid, {}).pop(key, None)


class GpuApplier:
    """Reserves the GPUs of a placement at prepare."""

    concern = "gpu"
    survives_boot = False

    def __init__(self, backend: SimulatedGpus) -> None:
        self.backend = backend

    async def observe(self, work: Work, phase: Phase) -> Any:
        """What the placement holds of each device it names."""
        return {
            str(gpu.uuid): self.backend.held(gpu.uuid).get(work.key, 0)
            for worker in work.placement.workers
            for gpu in worker.gpus
        }

    def plan(self, work: Work, phase: Phase, observed: Any) -> Sequence[Reserve]:
        """Reservations that are missing; a placement may name a device for several of its workers."""
        if phase is not Phase.PREPARE or not observed:
            return ()
        wanted: dict[str, int] = {}
        devices = {str(gpu.uuid): gpu for gpu in self.backend.gpus()}
        for worker in work.placement.workers:
            for gpu in worker.gpus:
                device = devices.get(gpu.uuid)
                if device is None:
                    raise CannotDo(f"reserve {gpu.uuid}", "ENODEV", f"no such GPU here; there are {len(devices)}")
                if not device.healthy and not observed[str(gpu.uuid)]:
                    raise CannotDo(f"reserve {gpu.uuid}", "EIO", f"the GPU is not healthy: {device.fault}")
                wanted[str(gpu.uuid)] = wanted.get(str(gpu.uuid), 0) + int(gpu.fraction_milli)
        for uuid, milli in wanted.items():
            if milli > WHOLE_MILLI:
                raise CannotDo(f"reserve {uuid}", "ERANGE", f"{milli} thousandths of one GPU")
        return [Reserve(uuid, milli) for uuid, milli in wanted.items() if observed[uuid] != milli]

    async def apply(self, work: Work, phase: Phase, steps: Sequence[Reserve]) -> None:
        """Reserve."""
        for step in steps:
            self.backend.reserve(work.key, step.uuid, step.milli)

    async def undo(self, work: Work, steps: Sequence[Reserve]) -> None:
        """Free, last one first."""
        for step in reversed(steps):
            self.backend.free(work.key, step.uuid)

    def body_from_json(self, value: Mapping[str, Any]) -> Reserve:
        """A step from the journal."""
        return Reserve(str(value["uuid"]), int(value["milli"]))
