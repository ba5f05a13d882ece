"""W3C trace context through all hops: parse, create, child, carry.

Only the `traceparent` of https://www.w3.org/TR/trace-context/ (level 1, version 00, and what it says of later
versions). It travels as a message header and as the CloudEvents field; where both are there the header wins,
since a broker or proxy may have renewed it. No spans are recorded or exported here.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass

HEADER = "traceparent"

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)


class TraceParentError(ValueError):
    """A traceparent that the standard says to ignore; the message says which part is wrong."""


@dataclass(frozen=True, slots=True)
class TraceParent:
    """One hop of a trace: the whole trace's id, this hop's span id, and whether it is sampled."""

    trace_id: str
    span_id: str
    sampled: bool = True

    @classmethod
    def parse(cls, text: str) -> TraceParent:
        """Read a traceparent.

        Raises:
            TraceParentError: wrong form, the forbidden version ff, all-zero ids, or trailing parts in version 00.
        """
        match = _FORM.fullmatch(text)
        if match is None:
            msg = "traceparent is not version-traceid-spanid-flags in lower-case hex"
            raise TraceParentError(msg)
        version, trace_id, span_id, flags, rest = match.groups()
        if version == "ff":
            msg = "traceparent version ff is forbidden"
            raise TraceParentError(msg)
        if version == "00" and rest is not None:
            msg = "traceparent of version 00 has more than four parts"
            raise TraceParentError(msg)
        if not int(trace_id, 16) or not int(span_id, 16):
            msg = "traceparent with an all-zero id"
            raise TraceParentError(msg)
        return cls(trace_id, span_id, bool(int(flags, 16) & 1))

    @classmethod
    def new(cls, *, sampled: bool = True) -> TraceParent:
        """The root of a new trace."""
        return cls(_id(16), _id(8), sampled)

    def child(self) -> TraceParent:
        """The next hop of the same trace."""
        return TraceParent(self.trace_id, _id(8), self.sampled)

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


def _id(size: int) -> str:
    while not int(drawn := secrets.token_hex(size), 16):
        pass
    return drawn


_current: ContextVar[TraceParent | None] = ContextVar("railweave_trace", default=None)


def current_trace() -> TraceParent | None:
    """The hop this task works under, if any."""
    return _current.get()


def extract_trace(headers: Mapping[str, str], field: str | None = None) -> TraceParent | None:
    """The sender's hop, from a message's headers or else its CloudEvents field; a malformed one counts as absent."""
    by_name = {name.lower(): value for name, value in headers.items()}
    for text in (by_name.get(HEADER), field):
        if text is not None:
            with contextlib.suppress(TraceParentError):
                return TraceParent.parse(text.strip())
    return None


@contextlib.contextmanager
def trace_hop(sender: TraceParent | None = None) -> Iterator[TraceParent]:
    """Work as a hop: a child of `sender`, else of the current hop, else the root of a new trace."""
    above = sender or _current.get()
    hop = above.child() if above else TraceParent.new()
    token = _current.set(hop)
    try:
        yield hop
    finally:
        _current.reset(token)


def trace_headers(headers: Mapping[str, str] | None = None) -> dict[str, str]:
    """`headers` with the current hop's traceparent added; without a current hop, just a copy."""
    carried = dict(headers or {})
    if (hop := _current.get()) is not None:
        carried[HEADER] = str(hop)
    return carried
