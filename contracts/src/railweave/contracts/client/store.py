"""Storing an event so that it counts once: repeated with the same id until the stream has confirmed it."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass

from railweave.contracts.client.errors import NotAnswered, NotStored, Refused
from railweave.contracts.client.link import ApiRefused, Link
from railweave.contracts.wire import WireMessage

_TRY_S = 2.0
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 1.0
_STREAM_OFFLINE = 503


@dataclass(frozen=True, slots=True)
class Stored:
    """Where an event was stored. `duplicate`: it was stored before, there."""

    stream: str
    sequence: int
    duplicate: bool


async def store(link: Link, stream: str, message: WireMessage, *, deadline_s: float) -> Stored:
    """Publish a message and return when the stream has it.

    A try that gets no answer may have been stored, so it is repeated with the same id: the stream forgets a repeat.

    Raises:
        NotStored: not confirmed within `deadline_s` seconds.
        Refused: the broker does not want it, whatever the time.
    """
    event_id = message.msg_id or message.subject
    headers = {**message.headers, "Nats-Msg-Id": event_id, "Nats-Expected-Stream": stream}
    loop = asyncio.get_running_loop()
    deadline = loop.time() + deadline_s
    wait_s, may_be_stored, why = _FIRST_WAIT_S, False, ""
    while (left_s := deadline - loop.time()) > 0:
        try:
            answer = await link.request(message.subject, message.body, min(_TRY_S, left_s), headers)
            return _stored(message.subject, answer.data)
        except NotAnswered as error:
            why = str(error)
            may_be_stored = may_be_stored or error.was_sent
        except ApiRefused as error:
            if error.status != _STREAM_OFFLINE:
                raise
            why = str(error)
        await asyncio.sleep(min(wait_s * random.uniform(0.5, 1.0), max(0.0, deadline - loop.time())))
        wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
    raise NotStored(event_id, why or "no time was given", may_be_stored=may_be_stored)


def _stored(subject: str, body: bytes) -> Stored:
    try:
        answer = json.loads(body)
        if "error" in answer:
            raise ApiRefused(subject, answer["error"])
        return Stored(str(answer["stream"]), int(answer["seq"]), bool(answer.get("duplicate", False)))
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(subject, f"what answers there is no stream: {body[:100]!r}") from error
