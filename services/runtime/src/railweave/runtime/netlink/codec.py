"""Bytes of rtnetlink: headers, attributes, and nothing that knows what they mean.

Written out rather than taken from pyroute2, which needs 18 times as long to encode a route, 8 times to decode a link,
and a child process for a socket in another namespace (docs/decisions/004, tests/bench/netlink_codec.py); attaching
eight VFs is some 80 requests. The tests decode what is made here with pyroute2, so that the two cannot drift apart.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = [
    "NLMSG_DONE",
    "NLMSG_ERROR",
    "NLM_F_ACK",
    "NLM_F_CREATE",
    "NLM_F_DUMP",
    "NLM_F_DUMP_INTR",
    "NLM_F_EXCL",
    "NLM_F_REQUEST",
    "Message",
    "attribute",
    "attributes",
    "message",
    "messages",
    "nested",
    "string",
    "u32",
]

NLMSG_ERROR = 2
NLMSG_DONE = 3
NLM_F_REQUEST = 0x1
NLM_F_ACK = 0x4
NLM_F_DUMP_INTR = 0x10
NLM_F_CAPPED = 0x100
NLM_F_ACK_TLVS = 0x200
NLM_F_DUMP = 0x300
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400
_NLA_F_NESTED = 0x8000
_NLA_TYPE_MASK = 0x3FFF

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_PADDING = (b"", b"\0\0\0", b"\0\0", b"\0")


@dataclass(frozen=True, slots=True)
class Message:
    """One netlink message as it came: its header's fields and the bytes behind them."""

    type: int
    flags: int
    sequence: int
    payload: bytes


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded to four bytes."""
    return _ATTRIBUTE.pack(4 + len(value), kind) + value + _PADDING[len(value) & 3]


def nested(kind: int, *values: bytes) -> bytes:
    """An attribute that holds attributes."""
    return attribute(kind | _NLA_F_NESTED, b"".join(values))


def string(kind: int, value: str) -> bytes:
    """A text attribute, closed by a zero byte."""
    return attribute(kind, value.encode() + b"\0")


def u32(kind: int, value: int) -> bytes:
    """A 32-bit attribute in the machine's byte order."""
    return attribute(kind, value.to_bytes(4, "little" if _LITTLE else "big"))


_LITTLE = struct.pack("=H", 1) == b"\1\0"


def message(kind: int, flags: int, sequence: int, payload: bytes) -> bytes:
    """A whole message, padded to four bytes so that several can follow each other in one send."""
    padding = _PADDING[len(payload) & 3]
    return _HEADER.pack(16 + len(payload), kind, flags, sequence, 0) + payload + padding


def messages(data: bytes) -> Iterator[Message]:
    """The messages of one datagram; a cut one ends the iteration."""
    offset = 0
    while offset + 16 <= len(data):
        length, kind, flags, sequence, _ = _HEADER.unpack_from(data, offset)
        if length < 16 or offset + length > len(data):
            return
        yield Message(kind, flags, sequence, data[offset + 16 : offset + length])
        offset += (length + 3) & ~3


def attributes(data: bytes, offset: int = 0) -> dict[int, bytes]:
    """Attributes by kind from `offset` on; of a repeated kind the last wins."""
    found: dict[int, bytes] = {}
    size = len(data)
    while offset + 4 <= size:
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < 4 or offset + length > size:
            break
        found[kind & _NLA_TYPE_MASK] = data[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    return found


def error_of(reply: Message) -> tuple[int, str]:
    """(errno, the kernel's words) of an NLMSG_ERROR; errno 0 is an acknowledgement."""
    (code,) = struct.unpack_from("=i", reply.payload)
    words = ""
    if reply.flags & NLM_F_ACK_TLVS:
        inner_length = 16 if reply.flags & NLM_F_CAPPED else struct.unpack_from("=I", reply.payload, 4)[0]
        text = attributes(reply.payload, 4 + ((inner_length + 3) & ~3)).get(1, b"")
        words = text.rstrip(b"\0").decode(errors="replace")
    return -code, words
