"""Where would this job run, or why not? Asks the services as a round does, and stores nothing."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from railweave.contracts.codec import encode_token
from railweave.contracts.envelope import decode_event, encode_event
from railweave.contracts.errors import ContractError
from railweave.contracts.job import JobSpec
from railweave.contracts.proposal import Ask, Concern, DataProposal, Proposal, concerns_of
from railweave.contracts.query import DryRunAnswer
from railweave.contracts.reasons import Reason, ReasonCode
from railweave.contracts.types import Bytes, JobName, Round
from railweave.contracts.wire import StoredMessage
from railweave.jobs.render import render
from railweave.jobs.render_network import RenderError
from railweave.runtime.bus import Bus
from railweave.runtime.cluster import ClusterState
from railweave.runtime.streams import PROPOSALS

_PATIENCE_S = 5.0


class DryRuns:
    """Answers dry runs. Each is a round of a job nobody submitted, under a name no scheduler uses."""

    def __init__(self, bus: Bus, state: ClusterState, instance: str) -> None:
        self._bus = bus
        self._state = state
        self._instance = instance
        self._numbers = itertools.count(1)

    async def answer(self, spec: JobSpec) -> DryRunAnswer:
        """Ask for proposals and tell what they say."""
        name = JobName(f"~dry-run/{self._instance}/{next(self._numbers)}")
        asked = spec.model_copy(update={"job": name})
        found: dict[Concern, Proposal] = {}
        changed = asyncio.Event()

        def take(messages: Sequence[StoredMessage]) -> None:
            for message in messages:
                try:
                    event = decode_event(message).data
                except ContractError:
                    continue
                if isinstance(event, Proposal):
                    found[event.CONCERN] = event
                    changed.set()

        subject = f"rw.proposal.*.{encode_token(asked.cluster)}.{encode_token(name)}"
        follower = self._bus.follow(PROPOSALS, (subject,), take, on_reset=lambda _: found.clear(), whole_batches=False)
        wanted = concerns_of(asked)
        async with follower:
            await follower.wait_ready()
            ask = Ask(
                cluster=asked.cluster,
                job=name,
                attempt=asked.attempt,
                uid=asked.uid,
                round=Round(1),
                spec=asked,
                concerns=wanted,
                dry_run=True,
            )
            await self._bus.publish(encode_event(ask))
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    while not _is_complete(found, wanted):
                        changed.clear()
                        await changed.wait()
            except TimeoutError:
                missing = [str(concern) for concern in wanted if concern not in found]
                text = f"no proposal of {', '.join(missing)} within {_PATIENCE_S:g} s"
                return DryRunAnswer(reasons=(Reason(code=ReasonCode.PROPOSAL_TIMEOUT, text=text),))
        return self._told(asked, found)

    def _told(self, spec: JobSpec, found: dict[Concern, Proposal]) -> DryRunAnswer:
        for proposal in found.values():
            if proposal.reasons:
                return DryRunAnswer(reasons=proposal.reasons, never=proposal.never)
        try:
            placements = render(spec, 1, "dry-run", max(self._state.epoch, 1), found, self._state)
        except RenderError as error:
            return DryRunAnswer(reasons=(error.reason,))
        data = found.get(Concern.DATA)
        plans = data.nodes if isinstance(data, DataProposal) else ()
        return DryRunAnswer(
            would_place=tuple(placement.node for placement in placements),
            fetch_bytes=Bytes(sum(int(size) for plan in plans for size in plan.fetch.values())),
            evict_bytes=Bytes(sum(int(item.bytes) for plan in plans for item in plan.evict)),
        )


def _is_complete(found: dict[Concern, Proposal], wanted: Sequence[Concern]) -> bool:
    return any(proposal.reasons for proposal in found.values()) or all(concern in found for concern in wanted)
