"""What a service is, what it is given, and how one is found by its name."""

from __future__ import annotations

import asyncio
import importlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Protocol, cast

import structlog

from railweave.runtime.bus import Bus
from railweave.runtime.clock import Clock, SystemClock
from railweave.runtime.health import Health
from railweave.runtime.metrics import Metrics
from railweave.runtime.redis_store import WorkingMemory
from railweave.runtime.settings import Settings
from railweave.runtime.view import ClusterView

ENTRY_POINT_GROUP = "railweave.services"

_PACKAGES = {"agent": "node_agent"}
"""Where the import package is not named as the service."""


class ServiceNotFound(Exception):
    """No installed part offers a service of that name."""


class Service(Protocol):
    """One concern of the plane, run by the host."""

    @property
    def name(self) -> str:
        """Its name, as in settings, metrics and logs."""

    @property
    def ready(self) -> bool:
        """Whether it has read what it must know and handles what comes."""

    async def run(self, ctx: ServiceContext) -> None:
        """Work until `ctx.stop` is set, then stop consuming, finish what is in flight, ack, and return.

        Returning before that, or raising, ends the process with an error: a supervisor starts it again.
        """


ServiceFactory = Callable[[Settings], Service]


class ClusterSlot:
    """The folded view of the cluster that all services of a process share, begun when the first asks for it."""

    def __init__(self, view: ClusterView, start: Callable[[], object]) -> None:
        self._view = view
        self._start: Callable[[], object] | None = start

    @property
    def is_used(self) -> bool:
        """Whether a service has asked for it."""
        return self._start is None

    def start(self) -> ClusterView:
        """The view, being filled: register callbacks before awaiting `wait_ready`."""
        if self._start is not None:
            start, self._start = self._start, None
            start()
        return self._view

    async def get(self) -> ClusterView:
        """The view, once it has read every stream up to where it ended when first asked."""
        view = self.start()
        await view.wait_ready()
        return view


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """What the host gives a service. `log` and `stop` are the service's own; the rest is the process's."""

    settings: Settings
    bus: Bus
    memory: WorkingMemory | None
    """None where Redis is switched off."""
    metrics: Metrics
    health: Health
    cluster: ClusterSlot
    stop: asyncio.Event
    log: structlog.stdlib.BoundLogger
    clock: Clock = field(default_factory=SystemClock)
    rng: random.Random = field(default_factory=random.Random)

    async def until_stopped(self, work: Awaitable[None]) -> None:
        """Run `work` until it ends or `stop` is set; it is cancelled then, and its errors pass through."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self.stop.wait())
        try:
            await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            if not task.done():
                task.cancel()
                # Its clean-up belongs to this call, also when this call itself is cancelled.
                await asyncio.wait((task,))
        if task.cancelled():
            if not self.stop.is_set():
                raise asyncio.CancelledError
            return
        task.result()


def find_service(name: str) -> ServiceFactory:
    """The factory of a service, `create(settings)`, from the installed parts or else from the tree.

    Raises:
        ServiceNotFound: there is none of that name; lists those there are.
    """
    for entry in entry_points(group=ENTRY_POINT_GROUP, name=name):
        return cast("ServiceFactory", entry.load())
    module_name = f"railweave.{_PACKAGES.get(name, name)}.service"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        known = ", ".join(sorted(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))) or "none installed"
        msg = f"no service {name!r}; services: {known}"
        raise ServiceNotFound(msg) from None
    return cast("ServiceFactory", module.create)
