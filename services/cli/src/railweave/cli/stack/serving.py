"""A local stack as a program: comes up, says so, and goes down when it is asked to or when a part of it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Literal

from railweave.cli import words
from railweave.cli.exits import CommandFailed, Exit
from railweave.cli.output import show
from railweave.cli.stack.design import READY_S, Layout, Shape
from railweave.cli.stack.local import LocalStack
from railweave.cli.stack.rights import may_make_namespaces
from railweave.runtime.launch import loop_factory
from railweave.runtime.logs import configure_logging
from railweave.runtime.settings import Settings


def serve(directory: Path, shape: Shape, layout: Layout) -> None:
    """Run a stack in this process until it is asked to stop; raises CommandFailed where a part of it failed."""
    (directory / "log").mkdir(parents=True, exist_ok=True)
    with (directory / "log" / "services.log").open("a") as log:
        configure_logging(level=os.environ.get("RAILWEAVE_LOG__LEVEL", "info"), stream=log)
        stack = LocalStack(
            directory, shape, layout=layout, in_this_process=layout is Layout.ONE, say=lambda text: show(f"  {text}")
        )
        with asyncio.Runner(loop_factory=loop_factory(Settings())) as runner:
            runner.run(_serve(stack))


async def _serve(stack: LocalStack) -> None:
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _asked, asked)
    starting = asyncio.ensure_future(stack.start(timeout_s=READY_S))
    stopping = asyncio.ensure_future(asked.wait())
    ended = ""
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            _say_ready(stack)
            ended = await _until(stack, stopping)
        else:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
    finally:
        stopping.cancel()
        begun = time.monotonic()
        await stack.stop()
        show(f"  stopped in {time.monotonic() - begun:.1f} s; the record is kept in {stack.directory}")
    if ended:
        raise CommandFailed(f"{ended} ended by itself", remedy=f"the logs are in {stack.directory / 'log'}")


async def _until(stack: LocalStack, stopping: asyncio.Future[Literal[True]]) -> str:
    """Wait until asked to stop, or until a part ends by itself: its name."""
    watching = asyncio.ensure_future(stack.wait_ended())
    try:
        await asyncio.wait((stopping, watching), return_when=asyncio.FIRST_COMPLETED)
        return watching.result() if watching.done() else ""
    finally:
        watching.cancel()


def _asked(asked: asyncio.Event) -> None:
    if asked.is_set():
        os._exit(int(Exit.INTERRUPTED))
    asked.set()


def _say_ready(stack: LocalStack) -> None:
    kind = "simulated" if stack.shape.simulated else "network namespaces on a software fabric"
    show(
        f"ready: {words.plural(len(stack.node_names), 'node')} ({kind})",
        f"  NATS {stack.nats.url}, Redis {stack.valkey.url}",
        "  in another terminal: `railweave nodes`, `railweave submit FILE`; Ctrl-C ends it",
    )
    if stack.shape.simulated and not may_make_namespaces():
        show("  not root: the network part is simulated; as root the nodes are namespaces with real interfaces")
