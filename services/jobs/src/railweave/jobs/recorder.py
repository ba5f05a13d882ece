"""Writing the record: the committer's stores, in order, fenced by the stream's last sequence.

A second committer that still believes in its lease finds the stream grown and stores nothing. After an unknown
outcome the record itself tells: a write is ours if the message at its sequence is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import overload

from railweave.contracts.envelope import Event, encode_event
from railweave.contracts.identity import JobKey
from railweave.contracts.wire import WireMessage
from railweave.jobs.model import Store
from railweave.runtime.bus import Bus
from railweave.runtime.errors import NotStored, OutcomeUnknown, PublishRefused, StaleFence, StreamBusy
from railweave.runtime.streams import PLACEMENTS

_MOST_PER_BATCH = 1000
_BUSY_PAUSE_S = 0.2


class Fenced(Exception):
    """Someone else wrote into the record, or it was put back: this committer's book is void."""


class Recorder:
    """The one writer of PLACEMENTS, as long as nobody else writes."""

    def __init__(self, bus: Bus, last_sequence: int, trace_of: Callable[[JobKey], str | None], instance: str) -> None:
        self._bus = bus
        self._last = last_sequence
        self._trace_of = trace_of
        self._instance = instance
        self._batches = 0

    @property
    def last_sequence(self) -> int:
        """Sequence of the last message of the record."""
        return self._last

    async def store(self, stores: Sequence[Store]) -> None:
        """Store everything, in order. Groups that must be atomic are never split over two batches.

        Raises:
            Fenced: nothing more is stored by this committer.
        """
        groups = [[(event, item.ttl_s) for event in item.events] for item in stores]
        if not any(item.atomic for item in stores):
            await self._write_all(_Messages([event for group in groups for event in group], self._encode), atomic=False)
            return
        for batch in _batches(groups):
            await self._write_all(_Messages(batch, self._encode), atomic=True)

    def _encode(self, event: Event, ttl_s: int | None) -> WireMessage:
        key = getattr(event, "key", None)
        return encode_event(event, traceparent=self._trace_of(key) if key is not None else None, ttl_s=ttl_s)

    async def _write_all(self, messages: Sequence[WireMessage], *, atomic: bool) -> None:
        while messages:
            try:
                self._last = await self._write(messages, atomic=atomic)
            except StaleFence as stale:
                raise Fenced(str(stale)) from stale
            except StreamBusy:
                await asyncio.sleep(_BUSY_PAUSE_S)
            except NotStored:
                await self._bus.wait_up()
                await asyncio.sleep(_BUSY_PAUSE_S)
            except OutcomeUnknown:
                await self._bus.wait_up()
                messages = await self._not_stored_yet(messages)
            except PublishRefused as refused:
                raise Fenced(f"the record refuses writes: {refused}") from refused
            else:
                return

    async def _write(self, messages: Sequence[WireMessage], *, atomic: bool) -> int:
        if atomic and len(messages) > 1:
            self._batches += 1
            batch_id = f"{self._instance}-{self._last + 1}-{self._batches}"
            return await self._bus.commit(PLACEMENTS, messages, expected_last=self._last, batch_id=batch_id)
        return await self._bus.append(PLACEMENTS, messages, expected_last=self._last)

    async def _not_stored_yet(self, messages: Sequence[WireMessage]) -> Sequence[WireMessage]:
        """Look in the record which of the messages, always a leading part, are there."""
        left = list(messages)
        while left:
            found = await self._bus.read(PLACEMENTS, self._last + 1)
            if found is None:
                state = await self._bus.stream_state(PLACEMENTS)
                if state.last_sequence > self._last:
                    # Gone already: replaced by a later write, which can only be another's or a later one of this list.
                    raise Fenced(f"the record is at {state.last_sequence}, expected {self._last}")
                return left
            if found.subject != left[0].subject or found.body != left[0].body:
                raise Fenced(f"sequence {found.sequence} of the record is another committer's")
            self._last += 1
            left.pop(0)
        return left


_Unsent = tuple[Event, int | None]
"""An event with its time to live in seconds."""


class _Messages(Sequence[WireMessage]):
    """Events as messages, each made when it is looked at: the first is on its way before the last is made."""

    def __init__(self, events: Sequence[_Unsent], encode: Callable[[Event, int | None], WireMessage]) -> None:
        self._events = events
        self._encode = encode
        self._made: dict[int, WireMessage] = {}

    def __len__(self) -> int:
        return len(self._events)

    @overload
    def __getitem__(self, at: int) -> WireMessage: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[WireMessage]: ...

    def __getitem__(self, at: int | slice) -> WireMessage | Sequence[WireMessage]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        number = range(len(self))[at]
        made = self._made.get(number)
        if made is None:
            made = self._made[number] = self._encode(*self._events[number])
        return made


def _batches(groups: Sequence[list[_Unsent]]) -> Iterator[list[_Unsent]]:
    batch: list[_Unsent] = []
    for group in groups:
        if batch and len(batch) + len(group) > _MOST_PER_BATCH:
            yield batch
            batch = []
        batch = batch + group
    if batch:
        yield batch
