"""What is left when every job is over: nothing may be, in the record, the journals, the kernel, on disk, in streams."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import Counter
from collections.abc import Sequence

from rig.namespaces import away_from_home
from rig.stack import ChaosStack

from railweave.cli.replay.leaks import AGENTS_HELD, look
from railweave.contracts import StoredMessage
from railweave.runtime.bus import Bus
from railweave.runtime.streams import CONSUMERS, DEAD, STREAMS

EPHEMERAL_LIFE_S = 10.0
"""The server keeps a dead process' followers so long."""


async def find_leaks(stack: ChaosStack, bus: Bus, *, settle_s: float = 30.0) -> list[str]:
    """Look until nothing is left, or `settle_s` seconds have passed: what is left then, a line each."""
    deadline = asyncio.get_running_loop().time() + settle_s
    while True:
        left = await _look(stack, bus)
        if not left or asyncio.get_running_loop().time() > deadline:
            return left
        await asyncio.sleep(0.5)


async def _look(stack: ChaosStack, bus: Bus) -> list[str]:
    found = await look(bus)
    left = [f"record or reports: {example}" for example in found.examples]
    agents = [service for service in stack.services.values() if service.service == "agent"]
    held = sum([await asyncio.to_thread(agent.gauge, AGENTS_HELD) for agent in agents])
    if held:
        left.append(f"agents hold {held:g} placements")
    if not stack.shape.simulated:
        left += await asyncio.to_thread(away_from_home, stack.design)
        left += await asyncio.to_thread(_on_disk, stack)
    return left


def _on_disk(stack: ChaosStack) -> list[str]:
    left = []
    for node in stack.shape.node_names:
        directory = stack.directory / "nodes" / node
        for part in ("tmp", "trash", "jobs"):
            left += [f"{node}: {part}/{path.name} is left" for path in (directory / "data" / part).glob("*")]
        journal = sqlite3.connect(f"file:{directory / 'journal.sqlite'}?mode=ro", uri=True)
        try:
            entries = journal.execute("SELECT COUNT(*) FROM entries").fetchone()[0]
        finally:
            journal.close()
        if entries:
            left.append(f"{node}: {entries} entries in its journal")
    return left


async def consumers(bus: Bus) -> Counter[str]:
    """Consumers by stream; the durable ones by name."""
    durable = {spec.durable for spec in CONSUMERS}
    found: Counter[str] = Counter()
    for spec in STREAMS:
        answer = await bus.api.call(f"CONSUMER.NAMES.{spec.name}")
        for name in answer.get("consumers") or ():
            found[f"{spec.name}/{name}" if name in durable else f"{spec.name}/followers"] += 1
    return found


async def dead_letters(bus: Bus) -> list[str]:
    """Everything in DEAD, a line each."""
    found: list[str] = []

    def take(messages: Sequence[StoredMessage]) -> None:
        for message in messages:
            said = json.loads(message.body)
            data = said.get("data", said)
            about = data.get("original_subject") or f"{data.get('stream')} {data.get('stream_seq')}"
            found.append(f"{message.subject}: {about}: {data.get('cause') or data.get('type')}")

    async with bus.follow(
        DEAD, [], take, on_reset=lambda _cause: found.clear(), start="all", whole_batches=False
    ) as follower:
        await follower.wait_ready(10.0)
    return found


async def surplus_consumers(bus: Bus, before: Counter[str]) -> list[str]:
    """Consumers beyond those that were there, once those of dead processes have had their time."""
    deadline = asyncio.get_running_loop().time() + EPHEMERAL_LIFE_S * 2
    while True:
        more = (await consumers(bus)) - before
        if not more or asyncio.get_running_loop().time() > deadline:
            return [f"{count} more consumers in {where}" for where, count in sorted(more.items())]
        await asyncio.sleep(1.0)
