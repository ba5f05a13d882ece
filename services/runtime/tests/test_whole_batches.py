"""Rule R13 as a pure fold, by tables and by a law."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from railweave.contracts.wire import StoredMessage
from railweave.runtime.whole_batches import WholeBatches, is_inside_batch


def _message(sequence: int, batch: str | None = None, *, commit: bool = False) -> StoredMessage:
    headers = {} if batch is None else {"Nats-Batch-Id": batch} | ({"Nats-Batch-Commit": "1"} if commit else {})
    return StoredMessage("S", f"t.{sequence}", sequence, datetime(2026, 12, 1, tzinfo=UTC), headers, b"")


def _sequences(messages: list[StoredMessage]) -> list[int]:
    return [message.sequence for message in messages]


def test_single_messages_pass() -> None:
    assert _sequences(WholeBatches().feed([_message(1), _message(2)])) == [1, 2]


def test_batch_is_held_until_its_commit() -> None:
    batches = WholeBatches()
    assert batches.feed([_message(1, "a"), _message(2, "a")]) == []
    assert batches.is_holding
    assert _sequences(batches.feed([_message(3, "a", commit=True)])) == [1, 2, 3]
    assert not batches.is_holding


def test_batch_without_commit_is_whole_when_anything_else_follows() -> None:
    batches = WholeBatches()
    assert batches.feed([_message(1, "a")]) == []
    assert _sequences(batches.feed([_message(4)])) == [1, 4]
    assert batches.feed([_message(5, "b")]) == []
    assert _sequences(batches.feed([_message(7, "c")])) == [5]
    assert _sequences(list(batches.held)) == [7]


def test_snapshot_is_shown_as_it_is_up_to_its_fixed_sequence() -> None:
    batches = WholeBatches()
    assert _sequences(batches.feed([_message(1, "a"), _message(2, "b")], as_they_are_up_to=2)) == [1, 2]
    assert batches.feed([_message(3, "c")], as_they_are_up_to=2) == []


def test_what_is_held_can_be_released_or_dropped() -> None:
    batches = WholeBatches()
    batches.feed([_message(1, "a")])
    assert _sequences(batches.release()) == [1]
    batches.feed([_message(2, "b")])
    batches.drop()
    assert not batches.is_holding
    assert batches.release() == []


def test_inside_means_that_more_of_the_batch_follows() -> None:
    assert is_inside_batch(_message(1, "a"))
    assert not is_inside_batch(_message(1, "a", commit=True))
    assert not is_inside_batch(_message(1))


@given(
    st.lists(st.integers(min_value=0, max_value=5), max_size=12),  # sizes: 0 a single message, else a batch
    st.data(),
)
def test_whatever_the_slices_nothing_is_lost_doubled_or_shown_in_part(sizes: list[int], data: st.DataObject) -> None:
    stream: list[StoredMessage] = []
    for number, size in enumerate(sizes):
        for place in range(size or 1):
            batch = str(number) if size else None
            stream.append(_message(len(stream) + 1, batch, commit=bool(size) and place == size - 1))
    batches = WholeBatches()
    shown: list[StoredMessage] = []
    rest = list(stream)
    while rest:
        cut = data.draw(st.integers(min_value=1, max_value=len(rest)))
        shown += batches.feed(rest[:cut])
        rest = rest[cut:]
        if shown:
            assert not is_inside_batch(shown[-1]), "a batch is shown in part"
    assert shown == stream
