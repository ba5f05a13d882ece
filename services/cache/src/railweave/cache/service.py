"""The cache service: answers asks with nodes and what happens to their data, and questions with how nodes scored."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import Field, ValidationError, model_validator

from railweave.cache.model import CacheConfig, Weights
from railweave.cache.propose import propose
from railweave.cache.scores import ScoresAnswer, ScoresRequest, scores_of
from railweave.cache.view import Survey
from railweave.contracts.identity import JobKey
from railweave.contracts.proposal import Ask, Concern, Proposal
from railweave.runtime.answering import ProposalDesk
from railweave.runtime.cluster import Change, ClusterState
from railweave.runtime.host import ServiceContext
from railweave.runtime.outstanding import Outstanding
from railweave.runtime.service_api import Request, RequestError
from railweave.runtime.settings import Section, Settings, register_section
from railweave.runtime.view import ClusterView

VERSION: Final = "0.1.0"
SCORES_SUBJECT: Final = "rw.query.cache.scores"

_IDLE_S: Final = 0.005
"""After a change, until what changed is summed up even though nobody asks."""

_MOST_ASKS: Final = 2000
"""Latest asks kept for questions about them."""

_WEIGHTS = Weights()
_CONFIG = CacheConfig()


class WeightSettings(Section):
    """How much each term of a node's score counts; terms are 0 to 1."""

    has_data: float = Field(default=_WEIGHTS.has_data, ge=0, description="bytes that need not be fetched")
    nothing_lost: float = Field(default=_WEIGHTS.nothing_lost, ge=0, description="value of what would be evicted")
    gpu_fit: float = Field(default=_WEIGHTS.gpu_fit, ge=0, description="GPUs of the node left over")
    room_left: float = Field(default=_WEIGHTS.room_left, ge=0, description="cache space left after the fetch")
    locality: float = Field(default=_WEIGHTS.locality, ge=0, description="few leaves for a gang")
    leaf_fit: float = Field(default=_WEIGHTS.leaf_fit, ge=0, description="nodes of the leaf left over")

    @model_validator(mode="after")
    def _data_decides(self) -> WeightSettings:
        others = self.gpu_fit + self.room_left + self.locality + self.leaf_fit
        if self.has_data <= others:
            msg = f"has_data must be more than the {others:g} of the other terms: a node that has the data wins"
            raise ValueError(msg)
        return self


class CacheSettings(Section):
    """How nodes are chosen and room is made."""

    weights: WeightSettings = Field(default=WeightSettings(), description="weights of the terms of a node's score")
    keep_free_permille: int = Field(
        default=_CONFIG.keep_free_permille, ge=0, le=500, description="thousandths of a cache space kept free"
    )
    fetching_worth: float = Field(
        default=_CONFIG.fetching_worth, ge=0, le=1, description="worth of a copy on its way beside one that is there"
    )
    half_life_sequences: int = Field(
        default=_CONFIG.half_life_sequences, ge=1, description="messages of the record after which a use counts half"
    )
    last_copy_factor: float = Field(
        default=_CONFIG.last_copy_factor, ge=1, description="how much dearer the last copy in the cluster is"
    )
    fetch_overhead_bytes: int = Field(
        default=_CONFIG.fetch_overhead_bytes, ge=0, description="what a fetch costs beyond its bytes, in bytes"
    )

    def config(self) -> CacheConfig:
        """The same for the deciding functions."""
        values = {name: getattr(self, name) for name in type(self).model_fields if name != "weights"}
        return CacheConfig(weights=Weights(**self.weights.model_dump()), **values)


register_section("cache", CacheSettings)


class CacheService:
    """Follows asks; every round begins here, and is answered as soon as it is asked."""

    name = "cache"

    def __init__(self, settings: CacheSettings) -> None:
        self._config = settings.config()
        self._survey = Survey(self._config)
        self._outstanding = Outstanding()
        self._asks: OrderedDict[JobKey, Ask] = OrderedDict()
        self._view: ClusterView | None = None
        self._desk: ProposalDesk | None = None
        self._summing_up: asyncio.TimerHandle | None = None

    @property
    def ready(self) -> bool:
        """Whether cluster and asks have been read."""
        return self._view is not None and self._view.is_ready and self._desk is not None and self._desk.ready

    async def run(self, ctx: ServiceContext) -> None:
        """Answer until stopped."""
        view = self._view = ctx.cluster.start()
        view.on_change(lambda change: self._changed(change, view.state))
        view.on_reset(lambda _stream, _cause: self._survey.forget())

        def answer(ask: Ask, _proposals: Mapping[Concern, Proposal]) -> Sequence[Proposal]:
            return self.answer(ask, view.state, ctx.clock.monotonic())

        async def scores(request: Request) -> bytes:
            return self.scores(request.body, view.state).model_dump_json().encode()

        self._desk = ProposalDesk(
            ctx.bus,
            service=self.name,
            concerns={Concern.NODES, Concern.DATA},
            answer=answer,
            view=view,
        )
        api = ctx.bus.service("railweave-cache", VERSION, description="Nodes of jobs, and their data")
        api.endpoint("scores", SCORES_SUBJECT, scores, concurrency=1)
        try:
            async with api:
                await ctx.until_stopped(self._desk.run())
        finally:
            if self._summing_up is not None:
                self._summing_up.cancel()

    def _changed(self, change: Change, state: ClusterState) -> None:
        self.take(change, state)
        if self._summing_up is None or self._summing_up.when() <= asyncio.get_running_loop().time():
            # Ahead of the next ask, which would have to wait for it.
            self._summing_up = asyncio.get_running_loop().call_later(_IDLE_S, self._survey.refresh, state)

    def take(self, change: Change, state: ClusterState) -> None:
        """Note what changed."""
        self._survey.touch(change.nodes)
        if change.leaves:
            self._survey.forget()  # which PFs can be used follows from the VLANs of their leaves
        if change.datasets:
            self._survey.touch_datasets(change.datasets, state)

    def answer(self, ask: Ask, state: ClusterState, now: float) -> Sequence[Proposal]:
        """Propose, and keep in mind what was proposed until it is stored."""
        self._asks[ask.key] = ask
        self._asks.move_to_end(ask.key)
        if len(self._asks) > _MOST_ASKS:
            self._asks.popitem(last=False)
        self._outstanding.settle(state, now)
        made = propose(ask, state, self._outstanding, self._config, self._survey)
        if made.holds and not ask.dry_run:
            self._outstanding.put(ask.round_key, made.holds, now)
        else:
            self._outstanding.drop(ask.key)
        return (made.nodes,) if made.data is None else (made.nodes, made.data)

    def scores(self, body: bytes, state: ClusterState) -> ScoresAnswer:
        """How every node does for a job's latest ask, as of now.

        Raises:
            RequestError: the request is malformed, or the job was not asked for lately.
        """
        try:
            wanted = ScoresRequest.model_validate_json(body)
        except ValidationError:
            raise RequestError(400, 'expected {"cluster": NAME, "job": NAME}') from None
        ask = self._asks.get(JobKey(wanted.cluster, wanted.job))
        if ask is None:
            raise RequestError(404, f"no ask of {wanted.cluster}/{wanted.job} lately")
        return scores_of(ask, state, self._outstanding, self._survey, most=wanted.limit)


def create(settings: Settings) -> CacheService:
    """The service, for the host."""
    return CacheService(settings.section(CacheSettings))
