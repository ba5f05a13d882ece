"""The nic service: answers asks with VF groups, and questions with what is free where."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from railweave.contracts.errors import ContractError
from railweave.contracts.proposal import Ask, Concern, GpuProposal, NodesProposal, Proposal
from railweave.contracts.types import NodeName
from railweave.nic.propose import holds_of, propose
from railweave.nic.view import describe
from railweave.runtime.answering import ProposalDesk
from railweave.runtime.host import ServiceContext
from railweave.runtime.outstanding import Outstanding
from railweave.runtime.service_api import Request, RequestError
from railweave.runtime.settings import Section, Settings, register_section
from railweave.runtime.view import ClusterView

VERSION: Final = "0.1.0"
NODE_SUBJECT: Final = "rw.query.nic.node"


class NicSettings(Section):
    """Nothing to set yet: rules come with the job, everything else from the records."""


register_section("nic", NicSettings)


class NicService:
    """Follows asks; a round is answered when its nodes, its fabric and, where it wants them, its GPUs are there."""

    name = "nic"

    def __init__(self) -> None:
        self._view: ClusterView | None = None
        self._desk: ProposalDesk | None = None
        self._outstanding = Outstanding()

    @property
    def ready(self) -> bool:
        """Whether cluster and asks have been read."""
        return self._view is not None and self._view.is_ready and self._desk is not None and self._desk.ready

    async def run(self, ctx: ServiceContext) -> None:
        """Answer until stopped."""
        view = self._view = ctx.cluster.start()

        def answer(ask: Ask, proposals: Mapping[Concern, Proposal]) -> Proposal:
            return self.answer(ask, proposals, view, ctx.clock.monotonic())

        async def node(request: Request) -> bytes:
            return json.dumps(describe_node(request.body, view)).encode()

        self._desk = ProposalDesk(
            ctx.bus,
            service=self.name,
            concerns={Concern.NIC},
            needs={Concern.NODES, Concern.FABRIC, Concern.GPU},
            answer=answer,
            view=view,
        )
        api = ctx.bus.service("railweave-nic", VERSION, description="VF groups of workers")
        api.endpoint("node", NODE_SUBJECT, node)
        async with api:
            await ctx.until_stopped(self._desk.run())

    def answer(self, ask: Ask, proposals: Mapping[Concern, Proposal], view: ClusterView, now: float) -> Proposal:
        """Propose, and keep in mind what was proposed until it is stored."""
        nodes, gpu = proposals[Concern.NODES], proposals.get(Concern.GPU)
        if not isinstance(nodes, NodesProposal) or not (gpu is None or isinstance(gpu, GpuProposal)):
            raise ContractError("proposals", "expected a nodes and maybe a gpu proposal")
        self._outstanding.settle(view.state, now)
        made = propose(ask, nodes, gpu, view.state, self._outstanding)
        if made.reasons or ask.dry_run:
            self._outstanding.drop(ask.key)
        else:
            self._outstanding.put(ask.round_key, holds_of(made, ask, nodes, view.state), now)
        return made


def describe_node(body: bytes, view: ClusterView) -> dict[str, object]:
    """The answer to `{"node": NAME}`; raises RequestError."""
    try:
        name = NodeName(json.loads(body)["node"])
    except (ValueError, KeyError, TypeError):
        raise RequestError(400, 'expected {"node": NAME}') from None
    node = view.state.nodes.get(name)
    if node is None:
        raise RequestError(404, f"no node {name}")
    return describe(node, view.state)


def create(_settings: Settings) -> NicService:
    """The service, for the host."""
    return NicService()
