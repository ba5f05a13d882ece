"""The topology service: publishes the fabric, answers asks, makes the software fabric where it is told to.

No leader is needed: several instances write the same records under the stream's guard, and give the same answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, Final

import structlog
from pydantic import ValidationError

from railweave.contracts.envelope import contract_error
from railweave.contracts.errors import ContractError
from railweave.contracts.proposal import Ask, Concern, NodesProposal, Proposal
from railweave.contracts.query import FABRIC_APPLY_SUBJECT, FABRIC_PLAN_SUBJECT, FabricPlanAnswer, FabricPlanQuery
from railweave.runtime.answering import ProposalDesk
from railweave.runtime.backoff import Backoff
from railweave.runtime.bus import ResetCause
from railweave.runtime.cluster import FABRIC, Change
from railweave.runtime.errors import BusError
from railweave.runtime.host import ServiceContext
from railweave.runtime.service_api import Request, RequestError
from railweave.runtime.settings import Settings
from railweave.runtime.view import ClusterView
from railweave.topology.changes import name_of, part_of, refused
from railweave.topology.driving import FabricDriver
from railweave.topology.keeper import Applied, ApplyChanged, ApplyContended, ApplyRefused, FabricKeeper
from railweave.topology.propose import propose
from railweave.topology.settings import TopologySettings
from railweave.topology.view import describe
from railweave.topology.yaml_tree import FileError

_log = structlog.stdlib.get_logger(__name__)

VERSION: Final = "0.1.0"
SHOW_SUBJECT: Final = "rw.query.topology.show"
PLAN_SUBJECT: Final = FABRIC_PLAN_SUBJECT
APPLY_SUBJECT: Final = FABRIC_APPLY_SUBJECT


class TopologyService:
    """The fabric file is read at start, on SIGHUP and when asked; what differs from what is stored is published."""

    name = "topology"

    def __init__(self, settings: TopologySettings) -> None:
        self._settings = settings
        self._view: ClusterView | None = None
        self._desk: ProposalDesk | None = None
        self._has_applied = False
        self._error: str | None = None
        self._planned: tuple[str, Applied] | None = None
        """The change that was planned last, by its name."""
        self._again = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether cluster and asks have been read, and the fabric file was looked at."""
        view, desk = self._view, self._desk
        return view is not None and view.is_ready and desk is not None and desk.ready and self._has_applied

    async def run(self, ctx: ServiceContext) -> None:
        """Publish, drive and answer until stopped."""
        view = self._view = ctx.cluster.start()
        keeper = FabricKeeper(ctx.bus, view, self._settings.load, self._settings.plan_config())
        driver = FabricDriver(self._settings.run, ctx.bus, view, keeper) if self._settings.driver == "linux" else None
        if driver is not None:
            ctx.metrics.generation_behind.labels(self.name, "leaf").set_function(driver.behind)
        view.on_change(lambda change: self._changed(change, keeper, driver))
        view.on_reset(self._reset)

        def answer(ask: Ask, proposals: Mapping[Concern, Proposal]) -> Proposal:
            nodes = proposals[Concern.NODES]
            if not isinstance(nodes, NodesProposal):
                raise ContractError("proposals", "expected a nodes proposal")
            return propose(ask, nodes, view.state, segment_owner=self._settings.segment_owner)

        self._desk = ProposalDesk(
            ctx.bus,
            service=self.name,
            concerns={Concern.FABRIC},
            needs={Concern.NODES},
            answer=answer,
            view=view,
            yields=True,
        )

        async def show(_request: Request) -> bytes:
            return json.dumps(describe(view.state, self._error)).encode()

        async def plan(request: Request) -> bytes:
            return await _answered(self._plan(keeper, _question(request)))

        async def apply(request: Request) -> bytes:
            return await _answered(self._apply(keeper, _question(request)))

        api = ctx.bus.service("railweave-topology", VERSION, description="the fabric's records")
        for name, subject, handler in (
            ("show", SHOW_SUBJECT, show),
            ("plan", PLAN_SUBJECT, plan),
            ("apply", APPLY_SUBJECT, apply),
        ):
            api.endpoint(name, subject, handler)
        with self._on_hangup():
            async with api:
                await ctx.until_stopped(self._work(ctx, self._desk, keeper, driver))

    async def _work(
        self, ctx: ServiceContext, desk: ProposalDesk, keeper: FabricKeeper, driver: FabricDriver | None
    ) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(desk.run())
                group.create_task(self._keep(ctx, keeper, driver))
                if driver is not None:
                    group.create_task(driver.run())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _keep(self, ctx: ServiceContext, keeper: FabricKeeper, driver: FabricDriver | None) -> None:
        """Apply now, and again whenever there is a reason to."""
        backoff = Backoff(rng=ctx.rng)
        while True:
            self._again.clear()
            try:
                await keeper.apply()
            except (FileError, ApplyRefused) as error:
                # Trying again changes nothing: somebody has to mend the file and say so.
                self._error = str(error)
                _log.error("the fabric stays as it is", error=str(error))
            except (ApplyContended, BusError, TimeoutError) as error:
                self._error = str(error)
                _log.warning("fabric not applied yet", error=str(error))
                await asyncio.sleep(backoff.next_s())
                continue
            else:
                self._error = None
                if driver is not None:
                    driver.look_again()
            backoff.reset()
            self._has_applied = True
            await self._again.wait()

    async def _plan(self, keeper: FabricKeeper, question: FabricPlanQuery) -> FabricPlanAnswer:
        """What an apply would write: all of it is worked out once and answered in parts."""
        if question.plan is None or self._planned is None or self._planned[0] != question.plan:
            applied = await keeper.apply(dry=True)
            self._planned = (await asyncio.to_thread(name_of, applied), applied)
        name, applied = self._planned
        if question.plan not in {None, name}:
            raise RequestError(409, "the fabric has changed since that plan was made; plan again")
        return await asyncio.to_thread(part_of, applied, name, question.start)

    async def _apply(self, keeper: FabricKeeper, question: FabricPlanQuery) -> FabricPlanAnswer:
        """Make it so; where a plan is named, that one or none."""
        wanted = question.plan
        applied = await keeper.apply(agreed=None if wanted is None else lambda found: name_of(found) == wanted)
        self._error = None
        return await asyncio.to_thread(part_of, applied, wanted or name_of(applied), 0)

    def _changed(self, change: Change, keeper: FabricKeeper, driver: FabricDriver | None) -> None:
        keeper.remember(change)
        if driver is not None and change.leaves:
            driver.look_again()

    def _reset(self, stream: str, _cause: ResetCause) -> None:
        if stream == FABRIC:
            self._again.set()

    @contextlib.contextmanager
    def _on_hangup(self) -> Iterator[None]:
        """SIGHUP: read the file again. Where signals cannot be had (not the main thread) the request does the same."""
        loop = asyncio.get_running_loop()
        try:
            loop.add_signal_handler(signal.SIGHUP, self._again.set)
        except (ValueError, RuntimeError, NotImplementedError):
            yield
            return
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)


def _question(request: Request) -> FabricPlanQuery:
    try:
        return FabricPlanQuery.model_validate_json(request.body or b"{}")
    except ValidationError as error:
        raise RequestError(400, str(contract_error(error))) from None


async def _answered(answer: Coroutine[Any, Any, FabricPlanAnswer]) -> bytes:
    try:
        found = await answer
    except ApplyRefused as error:
        found = refused(error.refusal)
    except FileError as error:
        raise RequestError(400, str(error)) from None
    except ApplyChanged as error:
        raise RequestError(409, str(error)) from None
    except (ApplyContended, BusError, TimeoutError) as error:
        raise RequestError(503, str(error)) from None
    return found.model_dump_json(exclude_none=True).encode()


def create(settings: Settings) -> TopologyService:
    """The service, for the host."""
    return TopologyService(settings.section(TopologySettings))
