"""What we do in place of nats-py does what nats-py does."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nats.aio.client import Client

from railweave.runtime.connection import _Client

pieces = st.sampled_from(
    [
        b"\r\n",
        b"\r",
        b"\n",
        b":",
        b" ",
        b"\t",
        b"\x1c",
        b"a",
        b"Nats-Msg-Id",
        b"\xc3\xa9",
        b"\xc3",
        b"\xe2\x80\xa8",
        b"\x85",
    ]
)


@given(st.lists(pieces | st.binary(max_size=3), max_size=24).map(b"".join))
@example(b"ce-id: job.submitted/lab/1/1\r\nce-type: x\r\n\r\n")
@example(b": no name\r\n")
@example(b"a b: space in the name\r\n")
@example(b"a\x1c: a separator that only str knows as space\r\n")
def test_headers_are_read_as_nats_py_reads_them(raw: bytes) -> None:
    assert _Client._parse_header_lines(raw) == Client._parse_header_lines(raw)


@pytest.mark.parametrize("raw", [b"", b"\r\n\r\n", b"no colon\r\n"])
def test_nothing_readable_is_no_header(raw: bytes) -> None:
    assert _Client._parse_header_lines(raw) == {}
