"""Python's cycle collector, told what kind of process this is: it holds much for long, and makes few cycles.

Left alone it looks through the young objects several times for each job, and through the whole folded cluster, tens of
milliseconds, whenever it has grown by a quarter.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Final

_YOUNG: Final = 20_000
"""New objects between two looks; a job leaves some hundreds."""
_POLL_S: Final = 0.5


async def settle_when(is_ready: Callable[[], bool]) -> None:
    """Collect rarely from now on, and set aside what is there once `is_ready`: it is not looked through any more.

    What is set aside is freed as ever when its last reference goes; only cycles in it would stay.
    """
    gc.set_threshold(_YOUNG, 10, 10)
    while not is_ready():  # noqa: ASYNC110 - readiness is a computed property, nobody tells
        await asyncio.sleep(_POLL_S)
    gc.collect()
    gc.freeze()
