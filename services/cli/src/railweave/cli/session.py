"""A command's connection: asks services, reads the record, and says every failure as one a user can act on."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel

from railweave.cli.exits import CommandFailed, Exit
from railweave.cli.target import Target
from railweave.contracts import ContractError, StoredMessage
from railweave.contracts.client import (
    JobNotStarting,
    JobPublisher,
    Link,
    NotAnswered,
    NotStored,
    QueryFailed,
    Refused,
    StillWaiting,
    Unreachable,
    ask,
)
from railweave.runtime.bus import Bus
from railweave.runtime.bus_settings import bus_settings
from railweave.runtime.errors import (
    BusError,
    BusUnavailable,
    OutcomeUnknown,
    PermissionRefused,
    PublishRefused,
    StaleFence,
    StreamMissing,
)

if TYPE_CHECKING:
    from railweave.runtime.cluster import ClusterState
    from railweave.runtime.settings import Settings

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

_CONNECT_PATIENCE_S = 3.0
_READ_PATIENCE_S = 15.0


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM cancels the task inside, as Ctrl-C does, so that it takes down what it started."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    if task is not None:
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


class Session:
    """An open connection."""

    def __init__(self, settings: Settings, bus: Bus) -> None:
        self.settings = settings
        self.bus = bus
        self.link = Link(bus.connection.client)
        self.jobs = JobPublisher(bus.connection.client)

    async def ask(self, subject: str, question: BaseModel, answer: type[M], *, timeout_s: float = 5.0) -> M:
        """Ask a service; raises what `railweave.contracts.client.ask` raises."""
        return await ask(self.link, subject, question, answer, timeout=timeout_s)

    async def cluster(self, streams: Sequence[str]) -> ClusterState:
        """What the named streams say now, folded.

        Raises:
            StreamMissing: nothing was ever set up there.
            CommandFailed: they could not be read in time.
        """
        from railweave.runtime.cluster import ClusterState
        from railweave.runtime.view import FILTERS

        state = ClusterState()

        def take(messages: Sequence[StoredMessage]) -> None:
            for message in messages:
                state.apply(message)

        async with contextlib.AsyncExitStack() as stack:
            followers = []
            for stream in streams:
                await self.bus.stream_state(stream)
                follower = self.bus.follow(stream, FILTERS[stream], take, on_reset=lambda _cause: None)
                followers.append(await stack.enter_async_context(follower))
            try:
                for follower in followers:
                    await follower.wait_ready(_READ_PATIENCE_S)
            except TimeoutError:
                raise CommandFailed(
                    f"could not read {', '.join(streams)} within {_READ_PATIENCE_S:g} s",
                    Exit.UNREACHABLE,
                    remedy="`railweave doctor` looks at NATS and its streams",
                ) from None
        return state


@contextlib.asynccontextmanager
async def connected(target: Target) -> AsyncIterator[Session]:
    """A session; raises CommandFailed where NATS is not there."""
    settings = target.settings()
    options = replace(bus_settings(settings), connect_patience_s=_CONNECT_PATIENCE_S)
    async with await Bus.connect(options) as bus:
        yield Session(settings, bus)


def run(work: Coroutine[object, object, T]) -> T:
    """Run a command's coroutine; every failure that has a name becomes CommandFailed."""
    with failures_named():
        return asyncio.run(work)


@contextlib.contextmanager
def failures_named() -> Iterator[None]:
    """Turn the failures of clients and bus into CommandFailed."""
    try:
        yield
    except asyncio.CancelledError:
        # What runs long takes down what it started when it is told to end (SIGTERM), and ends here.
        raise CommandFailed("interrupted", Exit.INTERRUPTED) from None
    except ExceptionGroup as group:
        raise named(group.exceptions[0]) from group
    except (ContractError, BusError, StillWaiting, *_CLIENT_ERRORS) as error:
        raise named(error) from error


_CLIENT_ERRORS = (Unreachable, NotAnswered, NotStored, Refused, QueryFailed, JobNotStarting)


def named(error: Exception) -> Exception:  # noqa: PLR0911 - one return a kind of failure
    """The failure as a user should see it; what has no name stays as it is."""
    match error:
        case ContractError():
            return CommandFailed(error.reason, Exit.USAGE, field=error.field)
        case Unreachable() | BusUnavailable():
            return CommandFailed(
                str(error),
                Exit.UNREACHABLE,
                remedy="is NATS running? `railweave up` starts a local stack; --nats URL or "
                "RAILWEAVE_NATS__SERVERS names another",
            )
        case NotAnswered():
            return CommandFailed(
                str(error), Exit.UNREACHABLE, remedy="`railweave doctor` says which service is missing"
            )
        case StillWaiting():
            return CommandFailed(str(error), Exit.TIMED_OUT, remedy=f"`railweave why {error.job.partition('#')[0]}`")
        case JobNotStarting():
            return CommandFailed(str(error), Exit.ANSWER_IS_NO, remedy=_first_remedy(error))
        case QueryFailed():
            codes = {400: Exit.USAGE, 404: Exit.NOT_FOUND, 409: Exit.CHANGED_MEANWHILE, 503: Exit.UNREACHABLE}
            return CommandFailed(error.description, codes.get(error.code, Exit.FAILED))
        case StaleFence():
            return CommandFailed(
                "somebody else changed it at the same moment", Exit.CHANGED_MEANWHILE, remedy="look, and try again"
            )
        case StreamMissing():
            return CommandFailed(
                str(error), Exit.FAILED, remedy="start the jobs service, which makes the streams, or `railweave up`"
            )
        case PermissionRefused() | PublishRefused() | Refused():
            return CommandFailed(
                str(error), Exit.FAILED, remedy="use a NATS user with this right (RAILWEAVE_NATS__USER)"
            )
        case OutcomeUnknown() | NotStored():
            return CommandFailed(str(error), Exit.UNREACHABLE, remedy="repeat the command: what was stored counts once")
        case _:
            return error


def _first_remedy(error: JobNotStarting) -> str | None:
    return next((reason.remedy for reason in error.reasons if reason.remedy), None)
