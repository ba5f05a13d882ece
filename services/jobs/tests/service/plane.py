"""Around the jobs service: a real nats-server, services that propose the first free thing, and agents that do as
told.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from world import GPUS, RAILS, VFS, cluster, node_names

from railweave.contracts.client import JobFollower, JobPublisher, JobUpdate
from railweave.contracts.envelope import decode_event, encode_event
from railweave.contracts.inventory import Report, ReportState
from railweave.contracts.job import JobSpec, WorkerGroup
from railweave.contracts.placement import Fence, Placement, PlacementState
from railweave.contracts.proposal import (
    Ask,
    Concern,
    FabricProposal,
    GpuProposal,
    GpuShare,
    NicProposal,
    NodesProposal,
    Proposal,
    VfRef,
    WorkerGpus,
    WorkerVfs,
)
from railweave.contracts.reasons import Lack, Reason, ReasonCode
from railweave.contracts.types import Attempt, BootId, ClusterName, JobName, Milli, NodeName, VfIndex
from railweave.contracts.wire import StoredMessage
from railweave.jobs.service import create
from railweave.runtime.answering import ProposalDesk
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus
from railweave.runtime.bus_settings import bus_settings
from railweave.runtime.cluster import ClusterState, Hold
from railweave.runtime.health import HealthServer
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.outstanding import Outstanding
from railweave.runtime.process import run_services
from railweave.runtime.service import ServiceContext, ServiceFactory
from railweave.runtime.settings import Settings, load_settings
from railweave.runtime.streams import PLACEMENTS

LAB = ClusterName("lab")


def job(name: str, *, workers: int = 1, gpus: int = 1, attempt: int = 1, **fields: object) -> JobSpec:
    """A job of `workers` nodes."""
    group = WorkerGroup(count=workers, gpus=gpus)
    return JobSpec(cluster=LAB, job=JobName(name), attempt=Attempt(attempt), workers=(group,), **fields)


class FirstFree:
    """All concerns in one service: the first nodes with something free."""

    name = "first-free"
    ready = True

    def __init__(self, settings: Settings) -> None:
        self._outstanding = Outstanding()
        self._state: ClusterState | None = None
        self._clock = asyncio.get_running_loop().time

    async def run(self, ctx: ServiceContext) -> None:
        """Answer asks."""
        view = ctx.cluster.start()
        self._state = view.state
        desk = ProposalDesk(
            ctx.bus, service="first-free", concerns=set(Concern), answer=self._answer, hold=view.wait_ready
        )
        await ctx.until_stopped(desk.run())

    def _answer(self, ask: Ask, found: Mapping[Concern, Proposal]) -> Sequence[Proposal]:
        assert self._state is not None
        self._outstanding.settle(self._state, self._clock())
        about = {"cluster": ask.cluster, "job": ask.job, "attempt": ask.attempt, "uid": ask.uid, "round": ask.round}
        slots = ask.spec.slot_count
        needed = ask.spec.workers[0].gpus
        chosen = [name for name in sorted(self._state.nodes) if self._fits(name, needed, ask)][:slots]
        if len(chosen) < slots:
            reason = Reason(code=ReasonCode.INSUFFICIENT_GPUS, text="full", lacks=(Lack.GPU,))
            never = slots > len(self._state.nodes) or needed > GPUS
            return [NodesProposal(**about, reasons=(reason,), never=never)]
        gpus, vfs, holds = [], [], {}
        for worker, name in enumerate(chosen):
            indices = self._free_gpus(name)[:needed]
            vf = self._free_vfs(name)[0]
            gpus.append(WorkerGpus(worker=worker, gpus=tuple(GpuShare(index, Milli(1000)) for index in indices)))
            refs = tuple(VfRef(rail, VfIndex(vf)) for rail in range(RAILS))
            vfs.append(WorkerVfs(worker=worker, group=f"g{vf}", vfs=refs))
            holds[name] = Hold(gpus=tuple((index, 1000) for index in indices), vfs=((_PF, vf),))
        self._outstanding.put(ask.round_key, holds, self._clock())
        return [
            NodesProposal(**about, nodes=tuple(chosen)),
            GpuProposal(**about, workers=tuple(gpus)),
            FabricProposal(**about),
            NicProposal(**about, workers=tuple(vfs)),
        ]

    def _fits(self, name: NodeName, needed: int, ask: Ask) -> bool:
        assert self._state is not None
        node = self._state.nodes[name]
        usable = node.is_schedulable and name not in ask.exclude and name not in ask.avoid
        return usable and len(self._free_gpus(name)) >= needed and bool(self._free_vfs(name))

    def _free_gpus(self, name: NodeName) -> list[int]:
        assert self._state is not None
        taken = {index for hold in self._outstanding.on(name) for index, _ in hold.gpus}
        node = self._state.nodes[name]
        return [index for index in range(GPUS) if index not in taken and not node.gpu_used.get(index)]

    def _free_vfs(self, name: NodeName) -> list[int]:
        assert self._state is not None
        taken = {vf for hold in self._outstanding.on(name) for _, vf in hold.vfs}
        taken |= {vf for _, vf in self._state.nodes[name].vfs_used}
        return [vf for vf in range(VFS) if vf not in taken]


_PF = "0000:00:00.0"


class Agents:
    """Every node's agent in one: reports what is asked for at once."""

    name = "agents"
    ready = True

    def __init__(self, settings: Settings) -> None:
        self._reports: asyncio.Queue[Report] = asyncio.Queue()
        self._revision = 0

    async def run(self, ctx: ServiceContext) -> None:
        """Report."""
        follower = ctx.bus.follow(
            PLACEMENTS, ("rw.placement.>",), self._take, on_reset=lambda _: None, whole_batches=False
        )
        async with follower:
            await ctx.until_stopped(self._tell(ctx.bus))

    async def _tell(self, bus: Bus) -> None:
        while True:
            reports = [await self._reports.get()]
            while not self._reports.empty():
                reports.append(self._reports.get_nowait())
            await bus.publish_many([encode_event(report) for report in reports])

    def _take(self, messages: Sequence[StoredMessage]) -> None:
        for message in messages:
            placement = decode_event(message).data
            if isinstance(placement, Placement) and placement.state is not PlacementState.RELEASED:
                self._reports.put_nowait(self._report(placement, message.sequence))

    def _report(self, placement: Placement, sequence: int) -> Report:
        self._revision += 1
        if placement.state is PlacementState.RELEASING:
            state = ReportState.UNDONE
        else:
            state = ReportState.ATTACHED if placement.started else ReportState.PREPARED
        return Report(
            cluster=placement.cluster,
            job=placement.job,
            attempt=placement.attempt,
            uid=placement.uid,
            node=placement.node,
            revision=self._revision,
            boot_id=BootId("b"),
            fence=Fence(placement.epoch, sequence),
            state=state,
        )


async def publish_cluster(bus: Bus, nodes: int) -> None:
    """Make the streams and publish inventory and fabric of `nodes` nodes."""
    await bootstrap(bus)
    await bus.publish_many([encode_event(event) for event in cluster(node_names(nodes))])


@contextlib.asynccontextmanager
async def plane(
    server: LocalNatsServer,
    *,
    nodes: int = 4,
    flags: Sequence[str] = (),
    around: Sequence[ServiceFactory] = (FirstFree, Agents),
    jobs: ServiceFactory = create,
    on_started: Callable[[HealthServer], None] | None = None,
) -> AsyncIterator[JobPublisher]:
    """Run the jobs service between naive services and agents; yields a publisher."""
    settings = load_settings(
        flags=[
            f"nats.servers={server.url}",
            "redis.enabled=false",
            "jobs.orphan_grace_s=0.1",
            "service.http_port=0",
            *flags,
        ],
        environ={},
    )
    async with await Bus.connect(bus_settings(settings)) as bus:
        await publish_cluster(bus, nodes)
    stop = asyncio.Event()
    running = asyncio.ensure_future(
        run_services([jobs, *around], settings, stop=stop, handle_signals=False, on_started=on_started)
    )
    try:
        async with JobPublisher(server.url) as publisher:
            yield publisher
    finally:
        stop.set()
        assert await running == 0


async def until(url: str, name: str, event: str, timeout_s: float = 20.0) -> JobUpdate:
    """Wait until the job's events have had one of that name, `attached`."""
    async with asyncio.timeout(timeout_s), JobFollower(url, cluster=LAB, job=name) as follower:
        async for update in follower:
            if f"railweave.job.{event}.v1" == update.event.TYPE:
                return update
    raise AssertionError("the follower ended")
