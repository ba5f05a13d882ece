"""A connection to NATS as the client uses it: our own on a URL, or one that its owner has open already.

Not here: streams (reader.py, store.py) and what is said over them.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from nats import errors as nats_errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from railweave.contracts.client.errors import NotAnswered, Refused, Unreachable

Where = str | Sequence[str] | Client
"""A NATS URL, several of one cluster, or an open connection."""

_VIOLATION = re.compile(r"permissions violation for (?:publish|subscription) to \"?([^\"' ]+)", re.IGNORECASE)

# What nats-py does by default is wrong for a process that should live: it gives up after two minutes without a server,
# and needs four to notice a dead connection.
_PATIENT: Mapping[str, Any] = {
    "max_reconnect_attempts": -1,
    "reconnect_time_wait": 0.2,
    "ping_interval": 5,
    "max_outstanding_pings": 2,
    "connect_timeout": 2,
}


class ApiRefused(Refused):
    """JetStream's API said no. `status` is HTTP-like."""

    def __init__(self, operation: str, error: Mapping[str, Any]) -> None:
        super().__init__(operation, str(error.get("description", "refused")), int(error.get("err_code", 0)))
        self.status = int(error.get("code", 0))


class Link:
    """Opens what it was given a URL for, and leaves alone what it was given open.

    Args:
        where: URL or URLs, or an open nats-py connection (which keeps its own reconnect settings).
        patience_s: how long `open` waits for a server.
        options: further arguments of nats-py's `connect`: user, password, token, user_credentials, tls, ...
    """

    def __init__(self, where: Where, *, patience_s: float = 10.0, options: Mapping[str, Any] | None = None) -> None:
        self._is_ours = not isinstance(where, Client)
        self._servers: list[str] = []
        if isinstance(where, Client):
            self.client = where
        else:
            self.client = Client()
            self._servers = [where] if isinstance(where, str) else list(where)
        self._patience_s = patience_s
        self._options = {"name": "railweave-client", **_PATIENT, **(options or {})}
        self._last_error: Exception | None = None
        self._violations: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect.

        Raises:
            Unreachable: no server answered in time.
        """
        if not self._is_ours:
            return
        try:
            async with asyncio.timeout(self._patience_s):
                await self.client.connect(servers=self._servers, error_cb=self._note, **self._options)
        except (TimeoutError, OSError, nats_errors.Error) as error:
            await self.client.close()
            cause = self._last_error or error
            raise Unreachable(
                f"no server at {', '.join(self._servers)} within {self._patience_s:g} s: {cause!r}"
            ) from error

    async def close(self) -> None:
        """Close the connection if it is ours."""
        if self._is_ours and not self.client.is_closed:
            await self.client.close()

    @property
    def is_up(self) -> bool:
        """Whether it is connected now."""
        return bool(self.client.is_connected)

    @property
    def reconnects(self) -> int:
        """Counts the reconnects: what was under way when it changes may be lost."""
        return int(self.client.stats["reconnects"])

    async def request(
        self, subject: str, payload: bytes, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Msg:
        """Ask once.

        Raises:
            NotAnswered: nobody answered in time.
            Refused: this user may not ask there.
        """
        self._violations.pop(subject.lower(), None)
        try:
            return await self.client.request(
                subject, payload, timeout=timeout_s, headers=dict(headers) if headers else None
            )
        except nats_errors.NoRespondersError:
            raise NotAnswered(f"nobody listens on {subject}", was_sent=False) from None
        except nats_errors.TimeoutError:
            # The broker tells of a missing right out of band only, and in lower case.
            violation = self._violations.pop(subject.lower(), None)
            if violation is not None:
                raise Refused(subject, violation) from None
            raise NotAnswered(f"no answer on {subject} within {timeout_s:g} s") from None
        except (nats_errors.MaxPayloadError, nats_errors.BadSubjectError) as error:
            raise Refused(subject, str(error)) from error
        except nats_errors.Error as error:
            raise NotAnswered(f"{subject}: {error}") from error

    async def api(self, operation: str, body: Mapping[str, Any] | None, timeout_s: float = 2.0) -> dict[str, Any]:
        """Ask JetStream's API once: `$JS.API.<operation>`.

        Raises:
            ApiRefused: it said no.
            NotAnswered, Refused: as `request`.
        """
        payload = b"" if body is None else json.dumps(body).encode()
        answer: dict[str, Any] = json.loads((await self.request(f"$JS.API.{operation}", payload, timeout_s)).data)
        if "error" in answer:
            raise ApiRefused(operation, answer["error"])
        return answer

    async def _note(self, error: Exception) -> None:
        # A server that refuses us resets the connection, and some tries see only that: the reason is kept.
        if "authorization" not in str(self._last_error).lower():
            self._last_error = error
        found = _VIOLATION.search(str(error))
        if found:
            self._violations[found.group(1).lower()] = str(error)
