"""Bootstrap: what is missing is made, what differs is told field by field, and repaired where JetStream lets us."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.bus import Bus
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.streams import CONSUMERS, JOBS, PLACEMENTS, STREAMS, ConsumerSpec, StreamSpec, stream_of
from railweave_testing.buses import connected, own_stream


@pytest.fixture
async def fresh(fresh_nats_server: LocalNatsServer) -> AsyncIterator[Bus]:
    async with connected(fresh_nats_server) as bus:
        yield bus


async def test_empty_server_gets_everything_and_the_second_run_finds_nothing_to_do(fresh: Bus) -> None:
    made = await bootstrap(fresh)
    assert {drift.name for drift in made} >= {spec.name for spec in STREAMS}
    assert {drift.action for drift in made} == {"created"}
    assert await bootstrap(fresh) == []
    record = (await fresh.api.stream_info(PLACEMENTS))["config"]
    assert (record["allow_atomic"], record["allow_msg_ttl"], record["max_msgs_per_subject"]) == (True, True, 1)
    assert record.get("subject_delete_marker_ttl", 0) == 0, "the server would write into the record"
    jobs = (await fresh.api.stream_info(JOBS))["config"]
    assert jobs["max_age"] == 7 * 24 * 3600 * 10**9
    assert jobs["duplicate_window"] >= 120 * 10**9


async def test_two_at_once_do_not_get_in_each_others_way(fresh: Bus, fresh_nats_server: LocalNatsServer) -> None:
    async with connected(fresh_nats_server) as other:
        drifts = await asyncio.gather(bootstrap(fresh), bootstrap(other))
    assert {drift.action for found in drifts for drift in found} == {"created"}
    assert await bootstrap(fresh) == []


async def test_drift_of_a_stream_is_told_by_field_and_repaired(fresh: Bus) -> None:
    await bootstrap(fresh)
    config = (await fresh.api.stream_info(JOBS))["config"]
    await fresh.api.call(f"STREAM.UPDATE.{JOBS}", config | {"max_age": 3600 * 10**9, "max_msgs": 5})
    drifts = await bootstrap(fresh)
    assert [(drift.name, drift.field, drift.action) for drift in drifts] == [
        (JOBS, "max_age", "repaired"),
        (JOBS, "max_msgs", "repaired"),
    ]
    assert drifts[0].found == 3600 * 10**9
    assert await bootstrap(fresh) == []


async def test_what_the_table_does_not_speak_of_stays_as_the_operator_set_it(fresh: Bus) -> None:
    await bootstrap(fresh)
    config = (await fresh.api.stream_info(JOBS))["config"]
    await fresh.api.call(f"STREAM.UPDATE.{JOBS}", config | {"metadata": {"owner": "ops"}, "max_age": 10**12})
    await bootstrap(fresh)
    assert (await fresh.api.stream_info(JOBS))["config"]["metadata"]["owner"] == "ops"


async def test_drift_that_cannot_be_repaired_is_named_and_does_not_stop_the_rest(bus: Bus) -> None:
    stream = await own_stream(bus, storage="memory")
    spec = StreamSpec(stream.name, (stream.subject(">"),), "of a test", max_age_s=3600)
    drifts = await bootstrap(bus, storage="file", streams=[spec], consumers=[])
    by_field = {drift.field: drift for drift in drifts}
    assert by_field["storage"].action == "cannot_repair"
    assert by_field["storage"].detail
    assert by_field["max_age"].action == "repaired"


async def test_drift_of_a_durable_is_told_and_repaired(bus: Bus) -> None:
    """Row 8: re-subscribing ignores a new ack_wait or max_deliver in plain nats-py."""
    wanted = ConsumerSpec("", "work", (), "", ack_wait_s=5)
    stream = await own_stream(bus, wanted)
    drifts = await bootstrap(bus, streams=[], consumers=[replace(wanted, stream=stream.name, ack_wait_s=60)])
    assert [(drift.kind, drift.field, drift.action) for drift in drifts] == [("consumer", "ack_wait", "repaired")]
    config = (await bus.api.call(f"CONSUMER.INFO.{stream.name}.work"))["config"]
    assert (config["ack_wait"], config["durable_name"]) == (60 * 10**9, "work"), "row 7: a durable stays one"


@pytest.mark.parametrize(
    ("before", "after"), [((), ("a.>",)), (("a.>",), ("b.>", "c.>")), (("a.>", "b.>"), ("c.>",))], ids=str
)
async def test_filters_of_a_durable_can_change_in_number(
    bus: Bus, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    stream = await own_stream(bus)
    spec = ConsumerSpec(stream.name, "work", tuple(stream.subject(tail) for tail in before), "")
    await bootstrap(bus, streams=[], consumers=[spec])
    changed = replace(spec, filters=tuple(stream.subject(tail) for tail in after))
    drifts = await bootstrap(bus, streams=[], consumers=[changed])
    assert {drift.action for drift in drifts} == {"repaired"}
    assert await bootstrap(bus, streams=[], consumers=[changed]) == []


async def test_reporting_alone_changes_nothing(fresh: Bus) -> None:
    reported = await bootstrap(fresh, repair=False)
    assert {drift.action for drift in reported} == {"cannot_repair"}
    assert (await fresh.api.call("STREAM.NAMES"))["streams"] is None


async def test_consumer_of_a_missing_stream_is_named(fresh: Bus) -> None:
    (drift,) = await bootstrap(fresh, streams=[], consumers=[CONSUMERS[0]])
    assert (drift.action, drift.kind) == ("cannot_repair", "consumer")


def test_every_subject_of_the_table_finds_its_stream_and_no_two_streams_share_one() -> None:
    assert stream_of("rw.job.submitted.a.1") == JOBS
    assert stream_of("rw.placement.n1.a.1.1") == PLACEMENTS
    assert stream_of("rw.epoch") == PLACEMENTS
    assert stream_of("rw.query.jobs.why") is None
    assert stream_of("other") is None
    subjects = [subject for spec in STREAMS for subject in spec.subjects]
    assert len(set(subjects)) == len(subjects)
