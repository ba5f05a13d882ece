"""Work done again and again with a jittered pause: resyncs, sweeps, heartbeats.

Jitter keeps a thousand agents that started together from asking together for ever (rule R6's minute).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import structlog

_log = structlog.stdlib.get_logger(__name__)


async def wait_for_event(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait until `event` is set, at most `timeout_s` seconds; says whether it is set."""
    if event.is_set():
        return True
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def run_periodically(
    work: Callable[[], Awaitable[None]],
    *,
    every_s: float,
    stop: asyncio.Event,
    jitter: float = 0.2,
    rng: random.Random | None = None,
    nudge: asyncio.Event | None = None,
    at_once: bool = False,
) -> None:
    """Call `work` about every `every_s` seconds until `stop` is set; returns then.

    Args:
        work: one round. An exception is logged and the next round still comes: a sweep that fails once must not
            end all later ones. Cancellation passes through.
        every_s: mean pause between the end of a round and the start of the next, in seconds.
        stop: ends the loop; a round in progress is finished first.
        jitter: each pause is spread by this share to both sides.
        rng: source of the jitter, for repeatable tests.
        nudge: when set, the next round starts now; cleared when it starts.
        at_once: do the first round without a pause.
    """
    rng = rng or random.Random()
    pause_first = not at_once
    while not stop.is_set():
        if pause_first:
            await _pause(every_s * (1 + jitter * (2 * rng.random() - 1)), stop, nudge)
            if stop.is_set():
                return
        pause_first = True
        if nudge is not None:
            nudge.clear()
        try:
            await work()
        except Exception:  # noqa: BLE001 - logged; the next round is the retry
            _log.exception("periodic work failed, will be tried again", work=getattr(work, "__qualname__", str(work)))


async def _pause(seconds: float, stop: asyncio.Event, nudge: asyncio.Event | None) -> None:
    if nudge is None:
        await wait_for_event(stop, seconds)
        return
    waits = [asyncio.ensure_future(event.wait()) for event in (stop, nudge)]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
