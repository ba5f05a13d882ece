"""The trace context of the W3C, as it is read, made and carried."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railweave.runtime.tracing import (
    HEADER,
    TraceParent,
    TraceParentError,
    current_trace,
    extract_trace,
    trace_headers,
    trace_hop,
)

GOOD = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_traceparent_is_read_and_written_alike() -> None:
    assert str(TraceParent.parse(GOOD)) == GOOD


def test_of_the_flags_only_sampled_is_known() -> None:
    assert TraceParent.parse(GOOD[:-2] + "ff").sampled
    assert not TraceParent.parse(GOOD[:-2] + "fe").sampled


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        GOOD.upper(),
        GOOD + "-",
        GOOD + "-more",
        " " + GOOD,
        GOOD + "\n",
        "ff" + GOOD[2:],
        "0" + GOOD,
        GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        GOOD.replace("00f067aa0ba902b7", "0" * 16),
        GOOD.replace("4bf9", "4bg9"),
        GOOD.replace("4bf9", "٤bf9"),
        GOOD.replace("-", "_"),
        GOOD[:-1],
    ],
)
def test_a_malformed_traceparent_is_refused(text: str) -> None:
    with pytest.raises(TraceParentError):
        TraceParent.parse(text)


def test_a_later_version_may_say_more() -> None:
    assert TraceParent.parse("01" + GOOD[2:] + "-more").trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"


@given(st.text(max_size=80))
def test_no_text_does_anything_but_be_read_or_refused(text: str) -> None:
    try:
        read = TraceParent.parse(text)
    except TraceParentError:
        return
    assert TraceParent.parse(str(read)) == read


def test_a_child_is_of_the_same_trace_with_a_span_of_its_own() -> None:
    parent = TraceParent.new(sampled=False)
    child = parent.child()
    assert (child.trace_id, child.sampled) == (parent.trace_id, False)
    assert child.span_id != parent.span_id


def test_the_header_wins_over_the_field() -> None:
    other = str(TraceParent.new())
    found = extract_trace({"Traceparent": GOOD}, other)
    assert str(found) == GOOD


def test_the_field_counts_where_the_header_is_missing_or_malformed() -> None:
    assert str(extract_trace({}, GOOD)) == GOOD
    assert str(extract_trace({HEADER: "garbage"}, GOOD)) == GOOD


def test_nothing_to_read_is_no_trace() -> None:
    assert extract_trace({}) is None


def test_a_hop_continues_the_sender_and_is_carried_on() -> None:
    with trace_hop(TraceParent.parse(GOOD)) as hop:
        assert hop.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"
        with trace_hop() as inner:
            assert inner.trace_id == hop.trace_id
            assert trace_headers({"a": "b"}) == {"a": "b", HEADER: str(inner)}
        assert current_trace() == hop
    assert current_trace() is None
    assert trace_headers() == {}


async def test_tasks_have_traces_of_their_own() -> None:
    async def work() -> str:
        with trace_hop() as hop:
            await asyncio.sleep(0)
            assert current_trace() == hop
            return hop.trace_id

    assert len(set(await asyncio.gather(*(work() for _ in range(10))))) == 10
