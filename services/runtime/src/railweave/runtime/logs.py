"""Logging: one JSON line an event on stderr, with the job it is about in every line.

`configure_logging` is called once a process. Loggers come from `structlog.stdlib.get_logger(__name__)` anywhere;
what libraries log through the standard library takes the same way out. The job's identity, the service and the
trace are context variables: set once where work begins, present in every line that follows from it.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Literal, Protocol, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from railweave.runtime.redaction import redact
from railweave.runtime.tracing import current_trace

LogFormat = Literal["json", "console", "auto"]

_SUBJECT_FIELDS = (
    "service", "cluster", "job", "node", "leaf", "dataset", "stream", "key", "work", "part", "failed_service",
)  # fmt: skip
"""What a line may be about: the same words about another of these are no repeat."""

_LIMITED_LEVELS = frozenset({"warning", "error"})


class JobIdentityLike(Protocol):
    """What names one run of a job."""

    @property
    def cluster(self) -> str:
        """The scheduler's domain."""

    @property
    def job(self) -> str:
        """The job's name in it."""

    @property
    def attempt(self) -> int:
        """Which start of it."""

    @property
    def uid(self) -> str | None:
        """The scheduler's own run identity."""


@contextlib.contextmanager
def job_context(identity: JobIdentityLike) -> Iterator[None]:
    """Everything logged inside carries `cluster`, `job`, `attempt` and `uid`."""
    fields = {"cluster": identity.cluster, "job": identity.job, "attempt": identity.attempt}
    if identity.uid is not None:
        fields["uid"] = identity.uid
    with structlog.contextvars.bound_contextvars(**{name: _plain(value) for name, value in fields.items()}):
        yield


@contextlib.contextmanager
def service_context(service: str, instance: str) -> Iterator[None]:
    """Everything logged inside carries the service's name and the instance."""
    with structlog.contextvars.bound_contextvars(service=service, instance=instance):
        yield


def _plain(value: object) -> object:
    return value if isinstance(value, int) else str(value)


class RepeatLimiter:
    """Lets a repeated warning or error through once an interval, and then says how often it was held back.

    Repeats are told by logger, level, event text and what the line is about, so that one failing node does not
    silence another. Debug and info pass. The table is bounded: the longest unseen entry is forgotten.
    """

    def __init__(
        self, interval_s: float = 10.0, *, capacity: int = 1024, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval_s = interval_s
        self._capacity = capacity
        self._monotonic = monotonic
        self._seen: OrderedDict[tuple[object, ...], tuple[float, int]] = OrderedDict()

    def __call__(self, _logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        """The structlog processor; raises DropEvent to hold a line back."""
        level = str(event.get("level", method))
        if level not in _LIMITED_LEVELS or self._interval_s <= 0:
            return event
        key = (event.get("logger"), level, event.get("event"), *(str(event.get(field)) for field in _SUBJECT_FIELDS))
        now = self._monotonic()
        last, held = self._seen.get(key, (float("-inf"), 0))
        if now - last < self._interval_s:
            self._seen[key] = (last, held + 1)
            raise structlog.DropEvent
        self._seen[key] = (now, 0)
        self._seen.move_to_end(key)
        if len(self._seen) > self._capacity:
            self._seen.popitem(last=False)
        if held:
            event["repeated"] = held
        return event


def add_trace(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Adds the current trace's id, as a structlog processor."""
    if (hop := current_trace()) is not None:
        event.setdefault("trace_id", hop.trace_id)
    return event


def redact_event(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Takes secrets out of every field, as a structlog processor."""
    return {name: value if name == "exc_info" else redact(value, name) for name, value in event.items()}


def _redact_traceback(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    if isinstance(text := event.get("exception"), str):
        event["exception"] = redact(text)
    return event


def configure_logging(
    *,
    level: str = "info",
    log_format: LogFormat = "json",
    repeat_interval_s: float = 10.0,
    stream: TextIO | None = None,
) -> None:
    """Set up structlog and the standard library's logging for this process; may be called again.

    Args:
        level: least level written, `debug` to `critical`.
        log_format: `json`; `console` for people; `auto` is console where the stream is a terminal, else json.
        repeat_interval_s: the same warning or error is written at most once in this time; 0 writes all.
        stream: where to; stderr unless given (stdout belongs to a command's own output).

    Raises:
        ValueError: unknown level.
    """
    out = stream or sys.stderr
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        msg = f"unknown log level {level!r}; use debug, info, warning, error or critical"
        raise ValueError(msg)
    console = log_format == "console" or (log_format == "auto" and out.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        add_trace,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        redact_event,
        RepeatLimiter(repeat_interval_s),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        # Not cached: tests and `railweave up` configure again after modules have taken their loggers.
        cache_logger_on_first_use=False,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_ending(console=console, out=out)],
    )
    handler = _Handler(out)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(number)
    logging.captureWarnings(capture=True)


class _Handler(logging.StreamHandler[TextIO]):
    """Told apart from handlers of others, and drops what the repeat limiter holds back in foreign records."""

    def emit(self, record: logging.LogRecord) -> None:
        # DropEvent is no error here, but logging would report it as one on stderr.
        try:
            text = self.format(record)
        except structlog.DropEvent:
            return
        except Exception:  # noqa: BLE001 - whatever fails in formatting must not reach the caller of a logger
            self.handleError(record)
            return
        try:
            self.stream.write(text + self.terminator)
            self.flush()
        except (OSError, ValueError):
            self.handleError(record)


def _ending(*, console: bool, out: TextIO) -> list[Processor]:
    if console:
        return [structlog.dev.ConsoleRenderer(colors=out.isatty(), timestamp_key="time")]
    return [
        structlog.processors.format_exc_info,
        _redact_traceback,
        structlog.processors.JSONRenderer(sort_keys=False, default=_jsonable, ensure_ascii=False),
    ]


def _jsonable(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)
