"""The floor of a path: bare JetStream hops and one bare atomic batch, with plain nats-py and nothing decoded.

A hop is what a service cannot do without (shared/notes on events, section 6.3): a durable pull gets a message, the next
one is published with an id and awaited, the first one is acked. Two shapes of it:

- *spread*: each hop is a process of its own, as services are;
- *together*: all hops are tasks of one process, which nothing else keeps busy: the least that can be.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import uuid
from collections.abc import AsyncIterator
from datetime import datetime

import nats
from nats.js import JetStreamContext

from railweave.runtime.launch import loop_factory
from railweave.runtime.settings import Settings

STREAM, RECORD = "FLOOR", "FLOORREC"
BODY = b"x" * 900
_IDLE_S = 0.02


class Relays:
    """The hops `first` to `last` of a path of `hops`; the last of all writes the batch before it says that it is done.

    Args:
        connection: plain nats-py.
        tag: of this run.
        hops: of the whole path.
        batch: messages of the batch.
    """

    def __init__(self, connection: nats.NATS, tag: str, hops: int, batch: int) -> None:
        self._connection = connection
        self._js: JetStreamContext = connection.jetstream()
        self._tag, self._hops, self._batch = tag, hops, batch

    async def relay(self, hop: int) -> None:
        """Take up message `hop` and cause the next, for ever."""
        subscription = await self._js.pull_subscribe(
            f"floor.{self._tag}.{hop}", durable=f"{self._tag}-{hop}", stream=STREAM
        )
        while True:
            try:
                [message] = await subscription.fetch(1, timeout=30)
            except nats.errors.TimeoutError:
                continue
            if hop == self._hops - 1:
                await self._write()
            headers = {"Nats-Msg-Id": uuid.uuid4().hex, "traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}
            await self._js.publish(f"floor.{self._tag}.{hop + 1}", message.data, headers=headers)
            await message.ack()

    async def _write(self) -> None:
        batch_id = uuid.uuid4().hex
        for number in range(1, self._batch + 1):
            headers = {"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(number)}
            subject = f"floorrec.{number}"
            if number == self._batch:
                await self._connection.request(subject, BODY, timeout=10, headers=headers | {"Nats-Batch-Commit": "1"})
            elif number == 1:
                await self._connection.request(subject, BODY, timeout=10, headers=headers)
            else:
                await self._connection.publish(subject, BODY, headers=headers)


class Floor:
    """Measures one chain at a time."""

    def __init__(self, connection: nats.NATS, tag: str, hops: int) -> None:
        self._js: JetStreamContext = connection.jetstream()
        self._connection = connection
        self._tag, self._hops = tag, hops

    async def once(self) -> float:
        """One chain; milliseconds between the stream's times of its first and last message."""
        done = await self._connection.subscribe(f"floor.{self._tag}.{self._hops}")
        await asyncio.sleep(_IDLE_S)
        first = await self._js.publish(f"floor.{self._tag}.0", BODY)
        await done.next_msg(timeout=10)
        await done.unsubscribe()
        last = await self._js.get_last_msg(STREAM, f"floor.{self._tag}.{self._hops}")
        begun = await self._js.get_msg(STREAM, first.seq)
        return milliseconds(begun.time, last.time)


@contextlib.asynccontextmanager
async def floors(url: str, hops: int, batch: int) -> AsyncIterator[tuple[Floor, Floor]]:
    """The floor spread over processes, and together in this one."""
    connection = await nats.connect(url)
    for name, extra in ((STREAM, {}), (RECORD, {"allow_atomic": True, "max_msgs_per_subject": 1})):
        config = {"name": name, "subjects": [f"{name.lower()}.>"], "storage": "file", "num_replicas": 1, **extra}
        await connection.request(f"$JS.API.STREAM.CREATE.{name}", json.dumps(config).encode(), timeout=5)
    spread, together = uuid.uuid4().hex[:8], uuid.uuid4().hex[:8]
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, __file__, url, spread, str(hop), str(hops), str(batch), stdout=asyncio.subprocess.PIPE
        )
        for hop in range(hops)
    ]
    relays = Relays(connection, together, hops, batch)
    tasks = [asyncio.ensure_future(relays.relay(hop)) for hop in range(hops)]
    try:
        for process in processes:
            if process.stdout is None or not await process.stdout.readline():
                raise RuntimeError("a relay of the floor did not start")
        yield Floor(connection, spread, hops), Floor(connection, together, hops)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for process in processes:
            process.kill()
            await process.wait()
        await connection.close()


def milliseconds(begun: datetime | None, ended: datetime | None) -> float:
    """Between two times of a stream."""
    if begun is None or ended is None:
        raise RuntimeError("the stream gave a message without its time")
    return (ended - begun).total_seconds() * 1e3


async def _relay(url: str, tag: str, hop: int, hops: int, batch: int) -> None:
    connection = await nats.connect(url)
    relaying = asyncio.ensure_future(Relays(connection, tag, hops, batch).relay(hop))
    await asyncio.sleep(0.2)
    print("ready", flush=True)
    await relaying


def main() -> None:
    arguments = argparse.ArgumentParser(description="One hop of the floor, as a process of its own.")
    arguments.add_argument("url")
    arguments.add_argument("tag")
    for name in ("hop", "hops", "batch"):
        arguments.add_argument(name, type=int)
    given = arguments.parse_args()
    with asyncio.Runner(loop_factory=loop_factory(Settings())) as runner:
        runner.run(_relay(given.url, given.tag, given.hop, given.hops, given.batch))


if __name__ == "__main__":
    main()
