"""What a process said or read is not read again; anything else is."""

from __future__ import annotations

import pytest

from railweave.contracts import ContractError, WireMessage, decode_event, encode_event, envelope
from railweave.contracts.desired import NodeDesired, NodeMode
from railweave.contracts.memo import Known, Memo
from railweave.contracts.types import NodeName


@pytest.fixture(autouse=True)
def _remembering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "memo", Memo())


def event(name: str = "n1") -> NodeDesired:
    return NodeDesired(node=NodeName(name), generation=1, mode=NodeMode.CORDONED)


def test_what_was_said_is_not_read_again() -> None:
    said = event()
    assert decode_event(encode_event(said)).data is said


def test_what_was_read_is_shared_by_all_who_read_it() -> None:
    bare = encode_event(event())
    envelope.memo = Memo()
    first = decode_event(bare).data
    assert first == event()
    assert decode_event(bare).data is first


def test_the_same_body_on_another_subject_is_refused_all_the_same() -> None:
    message = encode_event(event())
    with pytest.raises(ContractError) as refused:
        decode_event(WireMessage("rw.node.n2", message.body, message.headers))
    assert refused.value.field == "subject"


def test_another_type_in_the_header_is_refused_though_the_body_is_known() -> None:
    message = encode_event(event())
    assert decode_event(message).data == event()
    with pytest.raises(ContractError) as refused:
        decode_event(WireMessage(message.subject, message.body, {"ce-type": "railweave.job.ended.v1"}))
    assert refused.value.field == "type"


def test_the_trace_is_that_of_the_message_and_not_of_the_memory() -> None:
    message = encode_event(event(), traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01")
    other = dict(message.headers) | {"traceparent": "00-" + "3" * 32 + "-" + "4" * 16 + "-01"}
    assert decode_event(WireMessage(message.subject, message.body, other)).traceparent == other["traceparent"]


def test_memory_is_bounded_by_bytes_and_by_entries() -> None:
    memo: Memo[int] = Memo(most_bytes=100, most_entries=3)
    for number in range(50):
        body = f"{number:040d}".encode()
        memo.put(body, Known("s", "i", "o", decode_event(encode_event(event())).time, None, number))
    assert memo.get(f"{49:040d}".encode(), "s") is not None
    assert memo.get(f"{47:040d}".encode(), "s") is None
