"""Runs services in a process: one bus, one working memory, one health server, one orderly end.

It waits for NATS for as long as it takes, answers /readyz meanwhile, and ends when asked (SIGTERM, SIGINT) in the only
order that loses nothing: services stop consuming and finish, acks reach the broker, then connections close. A service
that fails ends the process with an error after the others have stopped; a supervisor starts it again.

Not here: how a process is started from a command line (launch.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import structlog

from railweave.runtime.bus import Bus
from railweave.runtime.bus_settings import bus_settings
from railweave.runtime.clock import Clock, SystemClock
from railweave.runtime.garbage import settle_when
from railweave.runtime.health import CheckResult, Health, HealthServer, serve_health
from railweave.runtime.logs import service_context
from railweave.runtime.metrics import Metrics, probe_loop_lag
from railweave.runtime.redis_store import WorkingMemory
from railweave.runtime.service import ClusterSlot, Service, ServiceContext, ServiceFactory, find_service
from railweave.runtime.settings import ServiceSettings, Settings, SettingsError
from railweave.runtime.view import ClusterView

_log = structlog.stdlib.get_logger(__name__)

_CLOSING_SHARE = 0.2
"""Of the stop deadline, what is kept for closing connections."""


async def run_services(
    services: Sequence[str | ServiceFactory],
    settings: Settings,
    *,
    stop: asyncio.Event | None = None,
    handle_signals: bool = True,
    clock: Clock | None = None,
    on_started: Callable[[HealthServer], None] | None = None,
) -> int:
    """Run services in this process until asked to stop; the exit status.

    Args:
        services: names, or factories `create(settings) -> Service`.
        settings: of the process.
        stop: set it to end from inside (tests, `railweave up`).
        handle_signals: SIGTERM and SIGINT ask to stop, a second one exits at once.
        clock: for tests.
        on_started: called when the health server listens, before NATS is waited for.

    Returns:
        0 after an orderly stop, 1 when a service failed, did not stop in time, or NATS closed the connection.

    Raises:
        ServiceNotFound: a name nobody offers.
        SettingsError: the health server cannot listen where it should.
    """
    made = [(find_service(item) if isinstance(item, str) else item)(settings) for item in services]
    host = _Host(made, settings, stop or asyncio.Event(), clock or SystemClock())
    with _signals(host, settings.service.stop_deadline_s) if handle_signals else contextlib.nullcontext():
        return await host.run(on_started)


class _Host:
    def __init__(self, services: Sequence[Service], settings: Settings, stop: asyncio.Event, clock: Clock) -> None:
        self.stop = stop
        self._services = services
        self._settings = settings
        self._clock = clock
        self._failed = False
        self._end = asyncio.Event()
        """Set when services have ended: what they stood on may go."""
        self._metrics = Metrics()
        self._metrics.build.labels(_version()).set(1)
        self._health = Health()
        self._bus: Bus | None = None

    async def run(self, on_started: Callable[[HealthServer], None] | None) -> int:
        own = self._settings.service
        self._add_checks()
        async with _listening(self._health, self._metrics, own) as server:
            _log.info("started", services=[service.name for service in self._services], health=server.url)
            if on_started is not None:
                on_started(server)
            bus = await self._connect()
            if bus is None:
                _log.info("stopped before NATS was there")
                return 0
            self._bus = bus
            try:
                await self._run_on(bus)
            finally:
                await self._close(bus)
        _log.info("stopped", failed=self._failed)
        return 1 if self._failed else 0

    async def _connect(self) -> Bus | None:
        """The bus, however long it takes; None when asked to stop meanwhile."""
        settings = bus_settings(self._settings)
        _log.info("waiting for NATS", servers=list(settings.servers))
        connecting = asyncio.ensure_future(Bus.connect(settings, on_closed=self._bus_closed, observer=self._metrics))
        stopping = asyncio.ensure_future(self.stop.wait())
        try:
            await asyncio.wait((connecting, stopping), return_when=asyncio.FIRST_COMPLETED)
            if connecting.done():
                return await connecting
            return None
        finally:
            stopping.cancel()
            await _end_task(connecting)

    async def _run_on(self, bus: Bus) -> None:
        memory = WorkingMemory(self._settings.redis, self._metrics) if self._settings.redis.enabled else None
        if memory is not None:
            self._health.add_readiness("redis", memory.check)
        try:
            async with asyncio.TaskGroup() as group:
                view = ClusterView(bus, self._metrics)
                slot = ClusterSlot(
                    view, lambda: group.create_task(self._background("cluster view", view.run(self._end)))
                )
                group.create_task(probe_loop_lag(self._metrics, stop=self._end))
                settling = group.create_task(settle_when(self._all_ready))
                if memory is not None:
                    group.create_task(self._background("redis", memory.run(self._end)))
                tasks = {
                    group.create_task(self._run_service(service, self._context(service, bus, memory, slot))): service
                    for service in self._services
                }
                try:
                    await self._until_ended(tasks)
                finally:
                    self._end.set()
                    settling.cancel()
        finally:
            if memory is not None:
                await memory.close()

    def _all_ready(self) -> bool:
        return all(service.ready for service in self._services)

    def _context(self, service: Service, bus: Bus, memory: WorkingMemory | None, slot: ClusterSlot) -> ServiceContext:
        return ServiceContext(
            settings=self._settings,
            bus=bus,
            memory=memory,
            metrics=self._metrics,
            health=self._health,
            cluster=slot,
            stop=self.stop,
            log=structlog.stdlib.get_logger(f"railweave.{service.name}"),
            clock=self._clock,
        )

    async def _run_service(self, service: Service, ctx: ServiceContext) -> None:
        """One service to its end. Its failure stops the others in order, which cancelling the group would not."""
        with service_context(service.name, self._settings.service.instance):
            try:
                await service.run(ctx)
            except Exception:  # noqa: BLE001 - logged, and the process ends for it
                _log.exception("service failed, the process ends", failed_service=service.name)
                self._fail()
                return
            if not self.stop.is_set():
                _log.error("service ended without being asked, the process ends", failed_service=service.name)
                self._fail()

    async def _background(self, what: str, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except Exception:  # noqa: BLE001 - logged, and the process ends for it
            _log.exception("part of the process failed, the process ends", part=what)
            self._fail()

    async def _until_ended(self, tasks: dict[asyncio.Task[None], Service]) -> None:
        await self.stop.wait()
        patience_s = self._settings.service.stop_deadline_s * (1 - _CLOSING_SHARE)
        _log.info("stopping", patience_s=patience_s)
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=patience_s)
        for task in late:
            # What it had in flight is not acked and will be delivered again.
            _log.error("service did not stop in time and is cancelled", failed_service=tasks[task].name)
            self._failed = True
            task.cancel()

    async def _close(self, bus: Bus) -> None:
        try:
            async with asyncio.timeout(self._settings.service.stop_deadline_s * _CLOSING_SHARE):
                await bus.close()
        except TimeoutError:
            _log.warning("NATS connection did not close in time")

    def _fail(self) -> None:
        self._failed = True
        self.stop.set()

    def _bus_closed(self) -> None:
        if not self._end.is_set():
            _log.error("the NATS connection is closed for good, the process ends")
            self._fail()

    def _add_checks(self) -> None:
        def nats() -> CheckResult:
            up = self._bus is not None and self._bus.is_up
            return CheckResult(up, "" if up else "not connected")

        self._health.add_readiness("nats", nats)
        self._metrics.nats_connected.set_function(lambda: float(nats().ok))
        for service in self._services:
            self._health.add_readiness(f"service.{service.name}", _readiness(service))
            self._metrics.ready.labels(service.name).set_function(partial(_ready_value, service))


@contextlib.asynccontextmanager
async def _listening(health: Health, metrics: Metrics, own: ServiceSettings) -> AsyncIterator[HealthServer]:
    async with contextlib.AsyncExitStack() as stack:
        try:
            server = await stack.enter_async_context(
                serve_health(health, metrics, host=own.http_host, port=own.http_port)
            )
        except OSError as error:
            where = f"{own.http_host}:{own.http_port}"
            raise SettingsError([f"service.http_port: cannot listen on {where}: {error.strerror}"]) from error
        yield server


async def _end_task(task: asyncio.Future[Bus]) -> None:
    """Cancel until it has ended: `wait_for` of Python 3.11 loses a cancellation that comes together with a result."""
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=0.1)


def _version() -> str:
    try:
        return version("railweave-runtime")
    except PackageNotFoundError:  # run from the tree
        return "unknown"


def _ready_value(service: Service) -> float:
    return float(service.ready)


def _readiness(service: Service) -> Callable[[], CheckResult]:
    return lambda: CheckResult(service.ready, "" if service.ready else "not ready")


@contextlib.contextmanager
def _signals(host: _Host, deadline_s: float) -> Iterator[None]:
    """SIGTERM and SIGINT: the first asks, the second does not ask; nor does the deadline."""
    loop = asyncio.get_running_loop()
    timers: list[threading.Timer] = []

    def received(number: signal.Signals) -> None:
        if timers:
            _log.warning("second signal, exiting at once", signal=number.name)
            os._exit(128 + number)
        _log.info("asked to stop", signal=number.name)
        # A thread, because what hangs may be the loop itself.
        timer = threading.Timer(deadline_s, os._exit, (1,))
        timer.daemon = True
        timer.start()
        timers.append(timer)
        host.stop.set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, received, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
        for timer in timers:
            timer.cancel()
