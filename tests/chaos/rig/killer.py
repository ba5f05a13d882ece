"""Kills one process after the other, at moments and in an order from a seed, and starts each again."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import redis
from rig.parts import Part, ServerPart
from rig.stack import ChaosStack

from railweave.runtime.bus import Bus
from railweave.runtime.errors import BusError


class Killer:
    """`run` until `stop`. Every process has its turn before any has another.

    Args:
        stack: whose processes.
        rng: the seed's.
        every_s: seconds between two kills, on average.
        down_s: the longest time a process stays away.
        puts_back: NATS also loses two seconds, or everything.
    """

    def __init__(
        self,
        stack: ChaosStack,
        rng: random.Random,
        bus: Bus,
        *,
        every_s: float,
        down_s: float = 1.5,
        puts_back: bool = False,
    ) -> None:
        self._stack = stack
        self._rng = rng
        self._bus = bus
        self._every_s = every_s
        self._down_s = down_s
        self._puts_back = puts_back
        self._stopping = asyncio.Event()
        self.kills: Counter[str] = Counter()
        self.log: list[str] = []

    def stop(self) -> None:
        """End `run` when whoever was killed last has been started again: a kill half done must not be left behind."""
        self._stopping.set()

    async def run(self) -> None:
        """Kill."""
        begun = time.monotonic()
        while not self._stopping.is_set():
            turns = ["jobs-active", "jobs-standby", "flush"]
            turns += [part.name for part in self._stack.parts if not part.name.startswith("jobs-")]
            if self._puts_back:
                turns += ["nats-older", "nats-empty"]
            self._rng.shuffle(turns)
            for turn in turns:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), self._rng.expovariate(1.0 / self._every_s))
                if self._stopping.is_set():
                    return
                self.log.append(f"{time.monotonic() - begun:7.2f} {turn}")
                await self.kill(turn)

    async def kill(self, turn: str) -> None:
        """One turn: down, away for a while, and up again; whether it is ready is not waited for."""
        if turn in {"nats-older", "nats-empty"}:
            await self._put_back(is_empty=turn == "nats-empty")
            self.kills[turn] += 1
            return
        if turn == "flush":
            await asyncio.to_thread(self._flush)
            self.kills[turn] += 1
            return
        part = await self._part(turn)
        was_running = part.pid is not None
        await asyncio.to_thread(part.kill)
        self.kills[turn] += was_running
        await asyncio.sleep(self._rng.uniform(0.0, self._down_s))
        await asyncio.to_thread(part.start)

    async def _put_back(self, *, is_empty: bool) -> None:
        nats = self._stack.nats
        with tempfile.TemporaryDirectory() as directory:
            copy = Path(directory) / "copy"
            if not is_empty:
                await asyncio.to_thread(nats.copy_store, copy)
                await asyncio.sleep(2.0)
            await asyncio.to_thread(nats.kill)
            await asyncio.to_thread(nats.empty_store if is_empty else lambda: nats.restore_store(copy))
            await asyncio.to_thread(nats.start)

    async def _part(self, turn: str) -> Part:
        if turn not in {"jobs-active", "jobs-standby"}:
            return self._stack.part(turn)
        try:
            async with asyncio.timeout(1.0):
                active = await self._stack.active(self._bus)
        except (BusError, TimeoutError):
            active = None
        active = active if active in {"jobs-1", "jobs-2"} else self._rng.choice(["jobs-1", "jobs-2"])
        other = "jobs-2" if active == "jobs-1" else "jobs-1"
        return self._stack.part(active if turn == "jobs-active" else other)

    def _flush(self) -> None:
        part = self._stack.part("valkey-server")
        assert isinstance(part, ServerPart)
        try:
            with redis.Redis.from_url(part.server.url, socket_timeout=1.0) as client:
                client.flushall()
        except redis.RedisError:
            return  # it is away, and comes back empty
