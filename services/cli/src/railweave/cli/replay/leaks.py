"""What is left when every job has ended: nothing may be. Read from the record and the nodes, not from the player."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace

from railweave.contracts import ContractError, StoredMessage, decode_event
from railweave.contracts.inventory import DatasetState, NodeStorage, Report, ReportState
from railweave.contracts.placement import Head, JobState, Placement, PlacementState
from railweave.runtime.bus import Bus
from railweave.runtime.streams import NODES, PLACEMENTS

_SETTLE_S = 20.0
_OVER = frozenset({JobState.RELEASED, JobState.REJECTED})


@dataclass(frozen=True, slots=True)
class Leaks:
    """What was not given back, counted."""

    heads: int = 0
    """Jobs that are neither released nor rejected."""
    placements: int = 0
    """Placements that are not released."""
    reports: int = 0
    """Nodes that still hold something of a job."""
    agents: int = 0
    """Placements in agents' journals, as the agents themselves say."""
    half_datasets: int = 0
    """Datasets that are neither whole nor gone."""
    examples: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """All of them."""
        return self.heads + self.placements + self.reports + self.agents + self.half_datasets

    def document(self) -> dict[str, object]:
        """For `--json`."""
        return asdict(self)


@dataclass(slots=True)
class Moved:
    """What was used, fetched and evicted, counted once for each placement and round."""

    hits: int = 0
    fetches: int = 0
    bytes_fetched: int = 0
    evictions: int = 0
    bytes_evicted: int = 0


class RecordWatch:
    """Follows the record while a replay runs, and counts what its placements move."""

    def __init__(self, bus: Bus) -> None:
        self.moved = Moved()
        self._seen: set[tuple[str, int]] = set()
        self._follower = bus.follow(
            PLACEMENTS, ["rw.placement.>"], self._take, on_reset=lambda _cause: None, start="new", whole_batches=False
        )

    async def __aenter__(self) -> RecordWatch:
        await self._follower.__aenter__()
        await self._follower.wait_ready(10.0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._follower.__aexit__(None, None, None)

    def _take(self, messages: Sequence[StoredMessage]) -> None:
        for message in messages:
            # Plain JSON and not the model: a load generator that is busy measures itself.
            placement = json.loads(message.body)["data"]
            key = (message.subject, int(placement["round"]))
            if key in self._seen:
                continue
            self._seen.add(key)
            for dataset in placement.get("datasets", ()):
                if dataset["action"] == "use":
                    self.moved.hits += 1
                else:
                    self.moved.fetches += 1
                    self.moved.bytes_fetched += int(dataset["bytes"])
            evicted = placement.get("evict", ())
            self.moved.evictions += len(evicted)
            self.moved.bytes_evicted += sum(int(item["bytes"]) for item in evicted)


def _decoded(message: StoredMessage) -> object:
    try:
        return decode_event(message).data
    except ContractError:
        return None


AGENTS_HELD = "railweave_agent_held_placements"
"""The agents' own gauge."""


async def find_leaks(bus: Bus, held_by_agents: Callable[[], Awaitable[int]], *, settle_s: float = _SETTLE_S) -> Leaks:
    """Look until nothing is left, at most `settle_s` seconds: reports come a moment after releases."""
    deadline = asyncio.get_running_loop().time() + settle_s
    while True:
        leaks = replace(await look(bus), agents=await held_by_agents())
        if leaks.total == 0 or asyncio.get_running_loop().time() > deadline:
            return leaks
        await asyncio.sleep(0.5)


async def look(bus: Bus) -> Leaks:
    """What is left now."""
    latest: dict[str, StoredMessage] = {}

    def take(messages: Sequence[StoredMessage]) -> None:
        latest.update((message.subject, message) for message in messages)

    for stream, filters in ((PLACEMENTS, ["rw.head.>", "rw.placement.>"]), (NODES, ["rw.report.>", "rw.inventory.>"])):
        async with bus.follow(stream, filters, take, on_reset=lambda _cause: None) as follower:
            await follower.wait_ready(30.0)
    heads = placements = reports = half = 0
    examples: list[str] = []
    for subject, message in latest.items():
        match _decoded(message):
            case Head() as head if head.state not in _OVER:
                heads += 1
                examples.append(f"{subject}: {head.state}")
            case Placement() as placement if placement.state is not PlacementState.RELEASED:
                placements += 1
                examples.append(f"{subject}: {placement.state}")
            case Report() as report if report.state is not ReportState.UNDONE:
                reports += 1
                examples.append(f"{subject}: {report.state}")
            case NodeStorage() as storage:
                unfinished = [item.dataset for item in storage.datasets if item.state is not DatasetState.READY]
                half += len(unfinished)
                examples += [f"{subject}: {name}" for name in unfinished]
            case _:
                pass
    return Leaks(heads, placements, reports, half_datasets=half, examples=tuple(examples[:10]))
