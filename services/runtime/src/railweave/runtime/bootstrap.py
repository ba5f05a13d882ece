"""Makes streams and durable consumers what the table says: creates, repairs, and names what it cannot repair.

Run by an operator's command (or `railweave up`), never by a service: services only bind, so that their rights stay small
and a service of an older version cannot change what a newer one made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from railweave.runtime.bus import Bus
from railweave.runtime.errors import ApiError, StreamMissing
from railweave.runtime.jsapi import CONSUMER_NOT_FOUND
from railweave.runtime.streams import CONSUMERS, STREAMS, ConsumerSpec, StreamSpec

Action = Literal["created", "repaired", "cannot_repair"]


@dataclass(frozen=True, slots=True)
class Drift:
    """One field that was not as wanted (`created`: the whole thing was missing), and what was done about it."""

    kind: Literal["stream", "consumer"]
    name: str
    field: str
    wanted: object
    found: object
    action: Action
    detail: str = ""


async def bootstrap(
    bus: Bus,
    replicas: int = 1,
    storage: Literal["file", "memory"] = "file",
    *,
    streams: Iterable[StreamSpec] = STREAMS,
    consumers: Iterable[ConsumerSpec] = CONSUMERS,
    repair: bool = True,
) -> list[Drift]:
    """Create what is missing, report every difference, repair what can be. Can be run again, and by several at once.

    Args:
        bus: connected, with the rights of an operator.
        replicas: copies of each stream; 3 where there is a cluster.
        storage: `memory` for tests only.
        streams: the table of streams.
        consumers: the table of durable consumers.
        repair: False reports only, and creates nothing.

    Returns:
        What was not as wanted; empty when all was. What has action `cannot_repair` needs an operator.

    Raises:
        BusUnavailable: JetStream does not answer.
    """
    drifts: list[Drift] = []
    for stream in streams:
        drifts += await _stream(bus, stream.name, stream.config(replicas=replicas, storage=storage), repair)
    for consumer in consumers:
        drifts += await _consumer(bus, consumer, consumer.config(replicas=replicas), repair)
    return drifts


async def _stream(bus: Bus, name: str, wanted: dict[str, Any], repair: bool) -> list[Drift]:
    try:
        info = await bus.api.stream_info(name, deadline_s=30.0)
    except StreamMissing:
        if not repair:
            return [Drift("stream", name, "*", "present", "missing", "cannot_repair", "not asked to create it")]
        try:
            await bus.api.call(f"STREAM.CREATE.{name}", wanted, deadline_s=30.0)
        except ApiError as error:
            return [Drift("stream", name, "*", "present", "missing", "cannot_repair", error.description)]
        return [Drift("stream", name, "*", "present", "missing", "created")]
    found: dict[str, Any] = info["config"]
    differing = _differing(wanted, found)
    if not differing:
        return []
    # What the table does not speak of stays as the operator has set it.
    return await _repair(bus, "stream", name, f"STREAM.UPDATE.{name}", found, wanted, differing, repair)


async def _consumer(bus: Bus, spec: ConsumerSpec, wanted: dict[str, Any], repair: bool) -> list[Drift]:
    name = f"{spec.stream}/{spec.durable}"
    operation = f"CONSUMER.CREATE.{spec.stream}.{spec.durable}"
    if "filter_subject" in wanted:
        operation += f".{wanted['filter_subject']}"
    try:
        info = await bus.api.call(f"CONSUMER.INFO.{spec.stream}.{spec.durable}")
    except ApiError as error:
        if error.code != CONSUMER_NOT_FOUND:
            return [Drift("consumer", name, "*", "present", "missing", "cannot_repair", error.description)]
        if not repair:
            return [Drift("consumer", name, "*", "present", "missing", "cannot_repair", "not asked to create it")]
        try:
            await bus.api.call(operation, {"stream_name": spec.stream, "config": wanted, "action": "create"})
        except ApiError as refused:
            return [Drift("consumer", name, "*", "present", "missing", "cannot_repair", refused.description)]
        return [Drift("consumer", name, "*", "present", "missing", "created")]
    found: dict[str, Any] = info["config"]
    differing = _differing(wanted, found)
    if not differing:
        return []
    return await _repair(bus, "consumer", name, operation, found, wanted, differing, repair)


async def _repair(
    bus: Bus,
    kind: Literal["stream", "consumer"],
    name: str,
    operation: str,
    found: Mapping[str, Any],
    wanted: Mapping[str, Any],
    differing: list[str],
    repair: bool,
) -> list[Drift]:
    """Set the differing fields one by one: one that cannot be changed must not keep the others from it."""
    drifts: list[Drift] = []
    current = dict(found)
    for field in differing:
        action: Action = "cannot_repair"
        detail = "not asked to repair it"
        if repair:
            changed = current | {field: wanted.get(field)}
            if field == "filter_subject":
                changed.pop("filter_subjects", None)
            elif field == "filter_subjects":
                changed.pop("filter_subject", None)
            body = (
                changed
                if kind == "stream"
                else {"stream_name": name.split("/")[0], "config": changed, "action": "update"}
            )
            try:
                await bus.api.call(operation, body)
            except ApiError as error:
                detail = error.description
            else:
                current, action, detail = changed, "repaired", ""
        drifts.append(Drift(kind, name, field, wanted.get(field), found.get(field), action, detail))
    return drifts


def _differing(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    return [field for field in wanted if _comparable(field, wanted[field]) != _comparable(field, found.get(field))]


def _comparable(field: str, value: Any) -> Any:
    # JetStream leaves out what is false, zero or empty, and writes 0 for some limits that were given as -1.
    if value in (None, False, 0, "", []) or (value == -1 and field.startswith("max_")):
        return None
    return sorted(value) if field in {"subjects", "filter_subjects"} else value
