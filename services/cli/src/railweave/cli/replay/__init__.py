"""Replaying traces of real clusters: reads them, plays them as a scheduler would, and measures what became of them."""

from railweave.cli.replay.traces import Trace, TraceJob, read_trace

__all__ = ["Trace", "TraceJob", "read_trace"]
