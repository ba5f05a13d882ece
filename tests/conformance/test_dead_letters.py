"""Dead letters: kept whole, listed, and replayed without being doubled."""

from __future__ import annotations

import pytest

from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus
from railweave.runtime.deadletters import DeadLetterMissing, DeadLetters
from railweave.runtime.streams import DEAD, STREAMS
from railweave_testing.buses import OwnStream, own_stream


@pytest.fixture
async def stream(bus: Bus) -> OwnStream:
    await bootstrap(bus, streams=[spec for spec in STREAMS if spec.name == DEAD], consumers=[])
    return await own_stream(bus)


async def test_original_is_kept_whole_and_stored_once(bus: Bus, stream: OwnStream) -> None:
    await bus.publish(stream.message("k", b"\x00\xff not json", "id-1", traceparent="00-a-b-01"))
    original = await bus.read(stream.name, 1)
    assert original is not None
    letters = DeadLetters(bus, stream.token)
    first = await letters.store(original, "not JSON", "body")
    again = await letters.store(original, "not JSON", "body")
    assert (first.sequence, again.duplicate) == (again.sequence, True)
    (entry,) = await letters.entries()
    assert (entry.cause, entry.field, entry.original_subject) == ("not JSON", "body", stream.subject("k"))
    assert (entry.stream, entry.original_sequence, entry.service) == (stream.name, 1, stream.token)


async def test_replay_publishes_the_original_byte_for_byte_once(bus: Bus, stream: OwnStream) -> None:
    await bus.publish(stream.message("k", b"\x00\xff", "id-1", traceparent="00-a-b-01"))
    original = await bus.read(stream.name, 1)
    assert original is not None
    letters = DeadLetters(bus, stream.token)
    dead = await letters.store(original, "broken")
    first = await letters.replay(dead.sequence)
    again = await letters.replay(dead.sequence)
    assert not first.duplicate, "the original's own id would make it a duplicate"
    assert again.duplicate
    replayed = await bus.read(stream.name, first.sequence)
    assert replayed is not None
    assert (replayed.subject, replayed.body) == (original.subject, original.body)
    assert replayed.headers["traceparent"] == "00-a-b-01"
    assert replayed.headers["Nats-Msg-Id"] == f"id-1/replay/{dead.sequence}"


async def test_replay_of_nothing_says_so(bus: Bus, stream: OwnStream) -> None:
    with pytest.raises(DeadLetterMissing):
        await DeadLetters(bus, stream.token).replay(10**9)


async def test_services_list_their_own(bus: Bus, stream: OwnStream) -> None:
    await bus.publish(stream.message("k"))
    original = await bus.read(stream.name, 1)
    assert original is not None
    await DeadLetters(bus, f"{stream.token}a").store(original, "a")
    await DeadLetters(bus, f"{stream.token}b").store(original, "b")
    assert [entry.cause for entry in await DeadLetters(bus, f"{stream.token}a").entries()] == ["a"]
    everyone = [entry for entry in await DeadLetters(bus, "").entries() if entry.stream == stream.name]
    assert [entry.cause for entry in everyone] == ["a", "b"]
