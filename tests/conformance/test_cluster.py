"""Three brokers, three copies: the same rules hold, also while the leader is killed (long)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from railweave.contracts.wire import StoredMessage
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus, BusSettings
from railweave.runtime.errors import NotStored, OutcomeUnknown, StaleFence, StreamBusy
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.streams import StreamSpec
from railweave_testing.buses import Heard, OwnStream
from railweave_testing.servers import scratch_directory

_RECORD = StreamSpec("RECORD", ("t.record.>",), "", per_subject=1, allow_atomic=True)
_OWN = OwnStream("RECORD", "record")


@contextlib.asynccontextmanager
async def _cluster() -> AsyncIterator[list[LocalNatsServer]]:
    with scratch_directory() as directory:
        routes = [_free_port() for _ in range(3)]
        all_routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
        servers = []
        for number, port in enumerate(routes):
            config = f'cluster {{ name: c, listen: "127.0.0.1:{port}", routes: [{all_routes}] }}'
            server = LocalNatsServer(directory / f"n{number}", extra_config=config)
            server.directory.mkdir()
            servers.append(server)
        try:
            await asyncio.gather(*(asyncio.to_thread(server.start) for server in servers))
            yield servers
        finally:
            for server in servers:
                await asyncio.to_thread(server.kill)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _leader(bus: Bus, servers: list[LocalNatsServer]) -> LocalNatsServer:
    info = await bus.api.stream_info(_RECORD.name, deadline_s=20)
    name = info["cluster"]["leader"]
    return next(server for server in servers if Path(server.directory).name == name.removeprefix("railweave-"))


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_committer_and_followers_go_on_when_the_leader_is_killed() -> None:
    """Every batch whole, none of two fences, nothing told twice; two leaders killed in turn."""
    async with _cluster() as servers:
        urls = tuple(server.url for server in servers)
        async with await Bus.connect(BusSettings(servers=urls)) as bus:
            made = await bootstrap(bus, replicas=3, streams=[_RECORD], consumers=[])
            assert [drift.action for drift in made] == ["created"]
            heard = Heard()
            async with bus.follow(_RECORD.name, [], heard.on_messages, on_reset=heard.on_reset) as follower:
                await follower.wait_ready(20)
                last = 0
                for round_number in range(2):
                    last = await _commit_for(bus, last, 1.5, f"{round_number}a")
                    leader = await _leader(bus, servers)
                    await asyncio.to_thread(leader.kill)
                    last = await _commit_for(bus, last, 4.0, f"{round_number}b")
                    await asyncio.to_thread(leader.start)
                    await asyncio.sleep(2.0)
                await follower.wait_applied(last, 20)
            assert last % 9 == 0
            if not heard.resets:
                _check_whole(heard.slices)
            for place in range(9):
                latest = await bus.read_last(_RECORD.name, _OWN.subject(f"k.{place}"), deadline_s=20)
                assert latest is not None
                assert heard.latest[latest.subject] == latest.body.decode()


@pytest.mark.long
@pytest.mark.timeout(120)
async def test_two_writers_on_three_copies_are_fenced() -> None:
    async with _cluster() as servers:
        urls = tuple(server.url for server in servers)
        async with (
            await Bus.connect(BusSettings(servers=urls)) as one,
            await Bus.connect(BusSettings(servers=urls)) as two,
        ):
            await bootstrap(one, replicas=3, streams=[_RECORD], consumers=[])
            last = 0
            for number in range(30):
                outcomes = await asyncio.gather(
                    one.commit(_RECORD.name, _OWN.messages(9, "a"), expected_last=last, batch_id=f"a{number}"),
                    two.append(_RECORD.name, _OWN.messages(20, "b"), expected_last=last),
                    return_exceptions=True,
                )
                stored = [outcome for outcome in outcomes if isinstance(outcome, int)]
                assert len(stored) == 1, outcomes
                assert sum(isinstance(outcome, StaleFence) for outcome in outcomes) == 1
                last = stored[0]
                assert (await one.stream_state(_RECORD.name)).last_sequence == last


def _check_whole(slices: Sequence[Sequence[StoredMessage]]) -> None:
    """A batch is told at once. What the stream no longer held of it when it was read has come newer, in later ones."""
    everything = [(number, message) for number, part in enumerate(slices) for message in part]
    told: dict[str, dict[str, int]] = {}
    for number, message in everything:
        told.setdefault(message.headers["Nats-Batch-Id"], {})[message.subject] = number
    subjects = {_OWN.subject(f"k.{place}") for place in range(9)}
    for batch, parts in told.items():
        assert len(set(parts.values())) == 1, f"{batch} was told in pieces"
        if missing := subjects - parts.keys():
            first = max(parts.values())
            newer = {message.subject for number, message in everything if number >= first}
            assert missing <= newer, f"{batch} lacks {missing}, and nothing newer came"


async def _commit_for(bus: Bus, last: int, seconds: float, tag: str) -> int:
    """Commit batches of nine; after an unknown outcome the stream's end decides."""
    until = time.monotonic() + seconds
    number = 0
    while time.monotonic() < until:
        number += 1
        batch = [_OWN.message(f"k.{place}", f"{tag}.{number}") for place in range(9)]
        try:
            last = await bus.commit(_RECORD.name, batch, expected_last=last, batch_id=f"{tag}.{number}", deadline_s=2)
        except (NotStored, StreamBusy):
            await asyncio.sleep(0.1)
        except (OutcomeUnknown, StaleFence):
            await asyncio.sleep(0.5)
            end = (await bus.stream_state(_RECORD.name, deadline_s=20)).last_sequence
            assert end in {last, last + 9}, "a batch is there in part, or another's"
            last = end
    return last
