"""Follows the record while everything is killed, and says whenever something was held twice, or only in part."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from railweave.contracts import StoredMessage, decode_event
from railweave.contracts.identity import JobKey
from railweave.contracts.placement import (
    HOLDING_STATES,
    NODE_SHARE_WHOLE,
    Claim,
    ClaimKind,
    Epoch,
    Head,
    JobState,
    Placement,
    PlacementState,
    claims_of,
)
from railweave.runtime.bus import Bus, ResetCause
from railweave.runtime.errors import BusError
from railweave.runtime.held import segments_of
from railweave.runtime.streams import PLACEMENTS

_MOST: dict[str, int] = {ClaimKind.GPU_MILLI: 1000, ClaimKind.NODE_SHARE: NODE_SHARE_WHOLE}


class RecordWatch:
    """The record's claims, message by message in the order they were stored.

    A message that was written over before it reached us is a gap: until what was stored by then is here, the picture
    is not one that ever was, and nothing is concluded from it.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._placements: dict[str, Placement] = {}
        self.heads: dict[JobKey, Head] = {}
        self._holders: dict[tuple[str, str], dict[str, Claim]] = {}
        self._segments: dict[int, dict[str, str]] = {}
        """By segment the owner that each placement in it names."""
        self._last = 0
        self._whole_from: int | None = 0
        """Concluded from this sequence on; None while that is being found out."""
        self._looking: asyncio.Task[None] | None = None
        self.violations: list[str] = []
        self.epoch = 0
        self.epochs: list[Epoch] = []
        self.resets: list[str] = []
        self.checked = 0
        """Messages after which the claims were checked."""
        self.seen = 0
        self._follower = bus.follow(
            PLACEMENTS, ["rw.head.>", "rw.placement.>", "rw.epoch"], self._take, on_reset=self._reset
        )

    async def __aenter__(self) -> RecordWatch:
        await self._follower.__aenter__()
        await self._follower.wait_ready(30.0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._follower.__aexit__(None, None, None)
        if self._looking is not None:
            self._looking.cancel()

    def _reset(self, cause: ResetCause) -> None:
        self.resets.append(str(cause))
        self._placements.clear()
        self.heads.clear()
        self._holders.clear()
        self._segments.clear()
        self._last = 0
        self._whole_from = None

    def _take(self, messages: Sequence[StoredMessage]) -> None:
        for message in messages:
            if message.sequence != self._last + 1:
                self._whole_from = None
            self._last = message.sequence
            self.seen += 1
            event = decode_event(message).data
            given: set[tuple[str, str]] = set()
            match event:
                case Placement():
                    given = self._hold(message.subject, event)
                case Head():
                    self.heads[event.key] = event
                case Epoch():
                    self.epoch = event.epoch
                    self.epochs.append(event)
                case _:
                    pass
            if self._whole_from is not None and message.sequence > self._whole_from:
                self.checked += 1
                self._check_claims(message, given)
                self._check_segments(message)
        if self._whole_from is None and self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._find_whole())
        elif self._whole_from is not None and self._last > self._whole_from and messages:
            # Whole batches are told at once, so between two calls every job has everything or nothing.
            self._check_whole(messages)

    async def _find_whole(self) -> None:
        try:
            state = await self._bus.stream_state(PLACEMENTS)
            # Whatever was written over before we read it was written over by something at or before this.
            self._whole_from = max(state.last_sequence, self._last)
        except BusError:
            pass  # looked for again with the next message
        finally:
            self._looking = None

    def _hold(self, subject: str, placement: Placement) -> set[tuple[str, str]]:
        """Take a placement in; what it is given by it and had not before.

        A release gives nothing. Of a leftover that only a node knew of, after the record was put back, it names what
        the record of the past still gives to another: nobody gets it twice by that.
        """
        before = self._placements.get(subject)
        had: dict[tuple[str, str], int | None] = {}
        if before is not None:
            for claim in claims_of(before):
                held = self._holders.get((claim.kind, claim.key), {}).pop(subject, None)
                if held is not None:
                    had[claim.kind, claim.key] = held.amount
        self._placements[subject] = placement
        for claim in claims_of(placement):
            holders = self._holders.setdefault((claim.kind, claim.key), {})
            known = holders.get(subject)
            # Two workers of a job on one node may share a GPU.
            both = known is not None and known.amount is not None and claim.amount is not None
            amount = (known.amount or 0) + (claim.amount or 0) if both and known is not None else claim.amount
            holders[subject] = Claim(kind=claim.kind, key=claim.key, amount=amount)
        self._enter_segments(subject, before, placement)
        if placement.state is not PlacementState.DESIRED:
            return set()
        has = {key: self._holders[key][subject].amount for key in {(c.kind, c.key) for c in claims_of(placement)}}
        return {key for key, amount in has.items() if key not in had or (amount or 0) > (had[key] or 0)}

    def _enter_segments(self, subject: str, before: Placement | None, placement: Placement) -> None:
        for segment, _ in segments_of(before) if before is not None else ():
            self._segments.get(segment, {}).pop(subject, None)
        if placement.state is not PlacementState.RELEASED:
            for segment, owner in segments_of(placement):
                self._segments.setdefault(segment, {})[subject] = owner

    def _check_segments(self, message: StoredMessage) -> None:
        placement = self._placements.get(message.subject)
        if placement is None or placement.state is not PlacementState.DESIRED:
            return
        for segment, _ in segments_of(placement):
            owners = self._segments[segment]
            if len(set(owners.values())) > 1:
                self._violated(message, f"segment {segment} is that of {self._names(owners)}")

    def _check_claims(self, message: StoredMessage, given: Iterable[tuple[str, str]]) -> None:
        for kind, key in given:
            holders = self._holders[kind, key]
            if len(holders) > 1 and any(claim.amount is None for claim in holders.values()):
                self._violated(message, f"{kind} {key} is held by {self._names(holders)}")
            most = _MOST.get(kind)
            total = sum(claim.amount or 0 for claim in holders.values())
            if most is not None and total > most:
                self._violated(message, f"{kind} {key}: {total} of {most} held by {self._names(holders)}")

    def _names(self, holders: Iterable[str]) -> str:
        def name(subject: str) -> str:
            held = self._placements[subject]
            return f"{subject} ({held.state}, epoch {held.epoch}, round {int(held.round)}, {held.commit})"

        return ", ".join(name(subject) for subject in sorted(holders))

    def _check_whole(self, messages: Sequence[StoredMessage]) -> None:
        for head in self.heads.values():
            if head.state not in HOLDING_STATES or head.state is JobState.RELEASING:
                continue
            desired = {
                placement.node
                for placement in self._placements.values()
                if placement.run == head.run and placement.state is PlacementState.DESIRED
            }
            if desired != set(head.nodes):
                self._violated(
                    messages[-1], f"{head.run} is {head.state} on {sorted(head.nodes)}, placed on {sorted(desired)}"
                )

    def _violated(self, message: StoredMessage, text: str) -> None:
        if len(self.violations) < 50:
            self.violations.append(f"at {message.sequence} ({message.subject}): {text}")

    def held(self) -> dict[str, Placement]:
        """Placements that are not released, by subject."""
        return {
            subject: placement
            for subject, placement in self._placements.items()
            if placement.state is not PlacementState.RELEASED
        }
