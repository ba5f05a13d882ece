"""The gpu service: answers asks with GPUs of the nodes proposed, and questions with what is free of each card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import Field, ValidationError, field_validator

from railweave.contracts.errors import ContractError
from railweave.contracts.proposal import Ask, Concern, NodesProposal, Proposal
from railweave.contracts.types import Document, NodeName
from railweave.gpu.choose import POLICIES
from railweave.gpu.propose import GpuConfig, holds_of, propose
from railweave.gpu.view import NodeGpus, describe
from railweave.runtime.answering import ProposalDesk
from railweave.runtime.cluster import ClusterState
from railweave.runtime.host import ServiceContext
from railweave.runtime.outstanding import Outstanding
from railweave.runtime.service_api import Request, RequestError
from railweave.runtime.settings import Section, Settings, register_section
from railweave.runtime.view import ClusterView

VERSION: Final = "0.1.0"
NODE_SUBJECT: Final = "rw.query.gpu.node"


class GpuSettings(Section):
    """How GPUs are chosen."""

    policy: str = Field(default="best-fit", description=f"how cards are chosen: {', '.join(POLICIES)}")

    @field_validator("policy")
    @classmethod
    def _known(cls, policy: str) -> str:
        if policy not in POLICIES:
            msg = f"expected one of {', '.join(POLICIES)}"
            raise ValueError(msg)
        return policy


register_section("gpu", GpuSettings)


class NodeRequest(Document):
    node: Annotated[NodeName, Field(description="which node")]


class GpuService:
    """Follows asks; a round is answered when its nodes are there."""

    name = "gpu"

    def __init__(self, settings: GpuSettings) -> None:
        self._config = GpuConfig(policy=settings.policy)
        self._outstanding = Outstanding()
        self._view: ClusterView | None = None
        self._desk: ProposalDesk | None = None

    @property
    def ready(self) -> bool:
        """Whether cluster and asks have been read."""
        return self._view is not None and self._view.is_ready and self._desk is not None and self._desk.ready

    async def run(self, ctx: ServiceContext) -> None:
        """Answer until stopped."""
        view = self._view = ctx.cluster.start()

        def answer(ask: Ask, proposals: Mapping[Concern, Proposal]) -> Proposal:
            return self.answer(ask, proposals, view.state, ctx.clock.monotonic())

        async def node(request: Request) -> bytes:
            return describe_node(request.body, view.state).model_dump_json().encode()

        self._desk = ProposalDesk(
            ctx.bus,
            service=self.name,
            concerns={Concern.GPU},
            needs={Concern.NODES},
            answer=answer,
            view=view,
        )
        api = ctx.bus.service("railweave-gpu", VERSION, description="GPUs of workers")
        api.endpoint("node", NODE_SUBJECT, node)
        async with api:
            await ctx.until_stopped(self._desk.run())

    def answer(self, ask: Ask, proposals: Mapping[Concern, Proposal], state: ClusterState, now: float) -> Proposal:
        """Propose, and keep in mind what was proposed until it is stored."""
        nodes = proposals[Concern.NODES]
        if not isinstance(nodes, NodesProposal) or len(nodes.nodes) != ask.spec.slot_count:
            raise ContractError("nodes", f"expected a nodes proposal for {ask.spec.slot_count} node slots")
        self._outstanding.settle(state, now)
        made = propose(ask, nodes, state, self._outstanding, self._config)
        if made.reasons or ask.dry_run:
            self._outstanding.drop(ask.key)
        else:
            self._outstanding.put(ask.round_key, holds_of(made, ask.spec, nodes.nodes), now)
        return made


def describe_node(body: bytes, state: ClusterState) -> NodeGpus:
    """The answer to `{"node": NAME}`; raises RequestError."""
    try:
        name = NodeRequest.model_validate_json(body).node
    except ValidationError:
        raise RequestError(400, 'expected {"node": NAME}') from None
    node = state.nodes.get(name)
    if node is None:
        raise RequestError(404, f"no node {name}")
    return describe(node)


def create(settings: Settings) -> GpuService:
    """The service, for the host."""
    return GpuService(settings.section(GpuSettings))
