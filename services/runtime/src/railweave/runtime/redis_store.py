"""Redis as working memory: heartbeats, windows of use, the read model. Nothing that is held depends on it.

Every call either answers or raises `RedisUnavailable`, quickly: while Redis is away calls fail without trying, and one
loop (`WorkingMemory.run`) finds out when it is back and whether it still remembers. Redis forgets by FLUSHALL, by a
restart without its data, by a fail-over; a sentinel key and the server's own run id show it, and whoever projects
into it is called to do so anew. The client never repeats a command by itself: a lost reply would count twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar, cast

import structlog
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, NoScriptError, RedisError, ResponseError
from redis.maint_notifications import MaintNotificationsConfig

from railweave.runtime.backoff import Backoff, BackoffPolicy
from railweave.runtime.health import CheckResult
from railweave.runtime.metrics import Metrics
from railweave.runtime.periodic import wait_for_event
from railweave.runtime.settings_models import RedisSettings

T = TypeVar("T")

_log = structlog.stdlib.get_logger(__name__)

# One document and the indices it stands in, changed together, if (epoch, sequence) is newer than what is there.
# ARGV: epoch, sequence, ttl in ms (0 none), number of fields, field, value, ..., then a score for each of KEYS[2..].
# A removed document stays as a mark without fields, so that an older write that comes late finds a newer one.
_APPLY_IF_NEWER = """
local epoch, sequence, ttl, fields = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local held = redis.call('HMGET', KEYS[1], '_epoch', '_sequence', '_indices', '_member')
local held_epoch, held_sequence = tonumber(held[1] or '-1'), tonumber(held[2] or '-1')
if epoch < held_epoch or (epoch == held_epoch and sequence <= held_sequence) then return 0 end
local member = ARGV[5]
for index in string.gmatch(held[3] or '', '[^\\n]+') do redis.call('ZREM', index, held[4]) end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], '_epoch', ARGV[1], '_sequence', ARGV[2], '_member', member)
local at = 6
for _ = 1, fields do
  redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
  at = at + 2
end
local indices = {}
for key = 2, #KEYS do
  redis.call('ZADD', KEYS[key], ARGV[at], member)
  indices[#indices + 1] = KEYS[key]
  at = at + 1
end
if #indices > 0 then redis.call('HSET', KEYS[1], '_indices', table.concat(indices, '\\n')) end
if ttl > 0 then redis.call('PEXPIRE', KEYS[1], ttl) end
return 1
"""


class RedisUnavailable(Exception):
    """A call to Redis that got no answer or a refusal; whether a write was done is unknown."""

    def __init__(self, operation: str, cause: str) -> None:
        self.operation = operation
        self.cause = cause
        super().__init__(f"redis: {operation}: {cause}")


class MemoryLoss(StrEnum):
    """How Redis was found to have forgotten, wholly or perhaps."""

    EMPTIED = "emptied"
    RESTARTED = "restarted"


@dataclass(frozen=True, slots=True)
class Projected:
    """One document of the read model, as of one stored message.

    Args:
        kind, name: what it is about, `job`, `slurm-a/88121`.
        epoch, sequence: of the message it follows from; an older or equal one changes nothing.
        fields: the document; empty removes it (the sequence is remembered).
        indices: the sorted sets it stands in, by name, with its score in each (`{"job:state:pending": 1764583200}`).
            Leaving one out takes it from there.
        ttl_s: seconds after which it may be forgotten.
    """

    kind: str
    name: str
    epoch: int
    sequence: int
    fields: Mapping[str, str | int]
    indices: Mapping[str, float] = field(default_factory=dict)
    ttl_s: float | None = None


class WorkingMemory:
    """The client of a process. Calls work while `run` does; close it with `close`."""

    def __init__(self, settings: RedisSettings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._client = _make_client(settings)
        self._script = ""
        self._available = asyncio.Event()
        self._look = asyncio.Event()
        self._why_not = "not tried yet"
        self._identity: str | None = None
        self._server_run: str | None = None
        self._on_loss: list[Callable[[MemoryLoss], None]] = []
        metrics.redis_available.set(0)

    # -- being there ------------------------------------------------------------------------------------------

    @property
    def available(self) -> bool:
        """Whether the last contact worked."""
        return self._available.is_set()

    def check(self) -> CheckResult:
        """A readiness check: shown, never required."""
        return CheckResult(self.available, "" if self.available else self._why_not, required=False)

    def on_loss(self, callback: Callable[[MemoryLoss], None]) -> None:
        """Call back when Redis was found empty (also at first contact) or restarted; project everything anew then."""
        self._on_loss.append(callback)

    async def wait_available(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` seconds; says whether it is there."""
        return await wait_for_event(self._available, timeout_s)

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the contact until `stop` is set: reconnect with backoff, look regularly whether it still remembers."""
        backoff = Backoff(BackoffPolicy(first_s=0.1, cap_s=max(0.1, self._settings.check_interval_s)))
        while not stop.is_set():
            self._look.clear()
            try:
                await self._contact()
                pause = self._settings.check_interval_s
                backoff.reset()
            except RedisUnavailable as error:
                self._lost(error.cause)
                pause = backoff.next_s()
            await self._pause(stop, pause)

    async def close(self) -> None:
        """Close all connections."""
        self._available.clear()
        with contextlib.suppress(RedisError, OSError):
            await self._client.aclose(close_connection_pool=True)

    async def _pause(self, stop: asyncio.Event, seconds: float) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (stop, self._look)]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _contact(self) -> None:
        """One look: is it there, and is it the one we knew?"""
        sentinel = self._key("memory")
        with self._translated("contact", mark=False):
            found = cast("str | None", await self._client.get(sentinel))
            emptied = found is None
            if found is None:
                await self._client.set(sentinel, uuid.uuid4().hex, nx=True)
                found = cast("str | None", await self._client.get(sentinel))
            run = await self._server_run_id()
            self._script = await self._client.script_load(_APPLY_IF_NEWER)
        first, loss = self._identity is None, None
        if emptied or (self._identity is not None and found != self._identity):
            loss = MemoryLoss.EMPTIED
        elif self._server_run is not None and run is not None and run != self._server_run:
            # Its data may be there, but up to a second of writes may not (appendfsync everysec, a fail-over).
            loss = MemoryLoss.RESTARTED
        self._identity, self._server_run = found, run or self._server_run
        if not self.available:
            _log.info("redis is there")
            self._available.set()
            self._metrics.redis_available.set(1)
        if loss is not None:
            self._metrics.redis_flushes.inc()
            say = _log.info if first else _log.warning
            say("redis does not have the read model, it is projected anew", cause=str(loss))
            for callback in self._on_loss:
                callback(loss)

    async def _server_run_id(self) -> str | None:
        try:
            return cast("str | None", (await self._client.info("server")).get("run_id"))
        except NoPermissionError:
            return None  # An ACL user without INFO still sees the sentinel.

    def _lost(self, why: str) -> None:
        self._why_not = why
        if self.available:
            _log.warning("redis is away", cause=why)
            self._available.clear()
            self._metrics.redis_available.set(0)

    @contextlib.contextmanager
    def _translated(self, operation: str, *, mark: bool = True) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError, TimeoutError) as error:
            self._metrics.redis_failures.labels(operation).inc()
            why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            refused = isinstance(error, ResponseError) and not isinstance(error, AuthenticationError | NoScriptError)
            if mark and not refused:
                self._lost(why)
                self._look.set()
            raise RedisUnavailable(operation, why) from error

    async def _call(self, operation: str, call: Callable[[], Awaitable[T]]) -> T:
        if not self.available:
            self._metrics.redis_failures.labels(operation).inc()
            raise RedisUnavailable(operation, self._why_not)
        with self._translated(operation):
            return await call()

    def _key(self, *parts: str) -> str:
        return self._settings.prefix + ":".join(parts)

    # -- heartbeats -------------------------------------------------------------------------------------------

    async def beat(self, kind: str, name: str, *, ttl_s: float, text: str = "") -> None:
        """Say that `name` is alive, for `ttl_s` seconds. Absence is a hint, never death."""
        await self._call("beat", lambda: self._client.set(self._key("beat", kind, name), text, px=_ms(ttl_s)))

    async def beats(self, kind: str, names: Sequence[str]) -> dict[str, str]:
        """The text of the last heartbeat of each of `names` that has not expired."""
        if not names:
            return {}
        keys = [self._key("beat", kind, name) for name in names]
        found = cast("list[str | None]", await self._call("beats", lambda: self._client.mget(keys)))
        return {name: text for name, text in zip(names, found, strict=True) if text is not None}

    # -- the read model ---------------------------------------------------------------------------------------

    async def apply(self, documents: Sequence[Projected]) -> list[bool]:
        """Write documents in one round trip, each only if newer than what is there; says which were.

        May be repeated without harm. A document and its indices change together; different documents do not.
        """
        if not documents:
            return []

        async def run() -> list[bool]:
            async with self._client.pipeline(transaction=False) as pipe:
                for document in documents:
                    keys, args = self._applied(document)
                    pipe.evalsha(self._script, len(keys), *keys, *args)
                return [answer == 1 for answer in await pipe.execute()]

        return await self._call("apply", run)

    def _applied(self, document: Projected) -> tuple[list[str], list[str | int | float]]:
        keys = [self._key(document.kind, document.name), *(self._key("index", index) for index in document.indices)]
        args: list[str | int | float] = [
            document.epoch,
            document.sequence,
            _ms(document.ttl_s) if document.ttl_s else 0,
            len(document.fields),
            document.name,
        ]
        for name, value in document.fields.items():
            args += [name, value]
        return keys, [*args, *document.indices.values()]

    async def read(self, kind: str, names: Sequence[str]) -> list[dict[str, str] | None]:
        """The documents of `names`; None where there is none."""
        if not names:
            return []

        def build(pipe: Pipeline) -> None:
            for name in names:
                pipe.hgetall(self._key(kind, name))

        found = await self.pipeline("read", build)
        return [_visible(cast("dict[str, str]", document)) for document in found]

    async def read_index(
        self, index: str, *, limit: int = 1000, newest_first: bool = False, offset: int = 0
    ) -> list[tuple[str, float]]:
        """Members of an index with their scores, in order of score."""

        def call() -> Awaitable[Any]:
            return self._client.zrange(
                self._key("index", index), offset, offset + limit - 1, desc=newest_first, withscores=True
            )

        found = await self._call("read_index", call)
        return [(str(member), float(score)) for member, score in found]

    async def count_index(self, index: str) -> int:
        """How many members an index has."""
        return int(await self._call("count_index", lambda: self._client.zcard(self._key("index", index))))

    async def needs_rebuild(self, projection: str) -> bool:
        """Whether `projection` was never completed in this memory: its mark goes with everything else."""
        return not await self._call("needs_rebuild", lambda: self._client.exists(self._key("projected", projection)))

    async def mark_rebuilt(self, projection: str) -> None:
        """Say that everything of `projection` is in this memory."""
        await self._call("mark_rebuilt", lambda: self._client.set(self._key("projected", projection), "1"))

    async def clear_rebuilt(self, projection: str) -> None:
        """Say that `projection` must be done anew."""
        await self._call("clear_rebuilt", lambda: self._client.delete(self._key("projected", projection)))

    # -- anything else ----------------------------------------------------------------------------------------

    async def pipeline(self, operation: str, build: Callable[[Pipeline], None]) -> list[Any]:
        """Send what `build` queues in one round trip, not as a transaction; the answers in order.

        Args:
            operation: what to call it in errors and metrics.
            build: queues commands; keys come from `key`.
        """

        async def run() -> list[Any]:
            async with self._client.pipeline(transaction=False) as pipe:
                build(pipe)
                return list(await pipe.execute())

        return await self._call(operation, run)

    def key(self, *parts: str) -> str:
        """The full key of `parts`, with this deployment's prefix."""
        return self._key(*parts)


def _visible(document: Mapping[str, str]) -> dict[str, str] | None:
    fields = {name: value for name, value in document.items() if not name.startswith("_")}
    return fields or None


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _make_client(settings: RedisSettings) -> Redis:
    password = settings.password.get_secret_value() if settings.password else None
    # Each kind of connection refuses the options of the others.
    scheme = settings.url.partition(":")[0]
    of_scheme: dict[str, Any] = {} if scheme == "unix" else {"socket_keepalive": True}
    if scheme == "rediss" and settings.tls_ca_file is not None:
        of_scheme["ssl_ca_certs"] = str(settings.tls_ca_file)
    pool = BlockingConnectionPool.from_url(
        settings.url,
        max_connections=settings.max_connections,
        timeout=settings.timeout_s,
        username=settings.user,
        password=password,
        socket_timeout=settings.timeout_s,
        socket_connect_timeout=settings.connect_timeout_s,
        decode_responses=True,
        # The default repeats a command up to ten times when its reply is lost, INCR and scripts alike (notes 3.1).
        retry=Retry(NoBackoff(), 0),
        retry_on_error=[],
        health_check_interval=0,
        maint_notifications_config=MaintNotificationsConfig(enabled=False),
        **of_scheme,
    )
    return Redis.from_pool(pool)
