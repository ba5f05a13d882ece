"""Makes streams and durable consumers what the table says: creates, repairs, and names what it cannot repair.

Run by an operator's command (or `railweave up`), never by a service: services only bind, so that their rights stay
small and a service of an older version cannot change what a newer one made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from railweave.runtime.bus import Bus
from railweave.runtime.errors import ApiError, StreamMissing
from railweave.runtime.jsapi import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND
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
    targets: list[_Target] = [
        _StreamTarget(bus, spec.name, spec.config(replicas=replicas, storage=storage)) for spec in streams
    ]
    targets += [_ConsumerTarget(bus, spec, spec.config(replicas=replicas)) for spec in consumers]
    drifts: list[Drift] = []
    for target in targets:
        drifts += await target.bring_about(repair=repair)
    return drifts


class _Target(ABC):
    """One stream or consumer: what it should be, and how JetStream is asked about it."""

    kind: Literal["stream", "consumer"]

    def __init__(self, bus: Bus, name: str, wanted: Mapping[str, Any]) -> None:
        self._bus = bus
        self._name = name
        self._wanted = wanted

    async def bring_about(self, *, repair: bool) -> list[Drift]:
        """Make it what it should be; give what was not."""
        found = await self._find()
        if found is None:
            return [await self._make() if repair else self._missing("cannot_repair", "not asked to create it")]
        drifts: list[Drift] = []
        # What the table does not speak of stays as the operator has set it. One field at a time: one that cannot be
        # changed must not keep the others from it.
        for field in _differing(self._wanted, found):
            wanted = self._wanted.get(field)
            detail = "not asked to repair it"
            if repair:
                try:
                    await self._update(changed := self._changed(found, field, wanted))
                except ApiError as error:
                    detail = error.description
                else:
                    drifts.append(Drift(self.kind, self._name, field, wanted, found.get(field), "repaired"))
                    found = changed
                    continue
            drifts.append(Drift(self.kind, self._name, field, wanted, found.get(field), "cannot_repair", detail))
        return drifts

    async def _make(self) -> Drift:
        try:
            await self._create()
        except ApiError as error:
            return self._missing("cannot_repair", error.description)
        return self._missing("created", "")

    def _missing(self, action: Action, detail: str) -> Drift:
        return Drift(self.kind, self._name, "*", "present", "missing", action, detail)

    def _changed(self, found: Mapping[str, Any], field: str, value: object) -> dict[str, Any]:
        return dict(found) | {field: value}

    @abstractmethod
    async def _find(self) -> dict[str, Any] | None:
        """The configuration it has, or None."""

    @abstractmethod
    async def _create(self) -> None: ...

    @abstractmethod
    async def _update(self, config: Mapping[str, Any]) -> None: ...


class _StreamTarget(_Target):
    kind = "stream"

    async def _find(self) -> dict[str, Any] | None:
        try:
            config: dict[str, Any] = (await self._bus.api.stream_info(self._name, deadline_s=30.0))["config"]
        except StreamMissing:
            return None
        return config

    async def _create(self) -> None:
        await self._bus.api.call(f"STREAM.CREATE.{self._name}", self._wanted, deadline_s=30.0)

    async def _update(self, config: Mapping[str, Any]) -> None:
        await self._bus.api.call(f"STREAM.UPDATE.{self._name}", config, deadline_s=30.0)


class _ConsumerTarget(_Target):
    kind = "consumer"

    def __init__(self, bus: Bus, spec: ConsumerSpec, wanted: Mapping[str, Any]) -> None:
        super().__init__(bus, f"{spec.stream}/{spec.durable}", wanted)
        self._spec = spec

    async def _find(self) -> dict[str, Any] | None:
        try:
            info = await self._bus.api.call(f"CONSUMER.INFO.{self._spec.stream}.{self._spec.durable}")
        except ApiError as error:
            if error.code in {CONSUMER_NOT_FOUND, STREAM_NOT_FOUND}:
                return None
            raise
        config: dict[str, Any] = info["config"]
        return config

    async def _create(self) -> None:
        await self._send(self._wanted, "create")

    async def _update(self, config: Mapping[str, Any]) -> None:
        await self._send(config, "update")

    def _changed(self, found: Mapping[str, Any], field: str, value: object) -> dict[str, Any]:
        changed = super()._changed(found, field, value)
        if field == "filter_subject":
            changed.pop("filter_subjects", None)
        elif field == "filter_subjects":
            changed.pop("filter_subject", None)
        return changed

    async def _send(self, config: Mapping[str, Any], action: str) -> None:
        operation = f"CONSUMER.CREATE.{self._spec.stream}.{self._spec.durable}"
        if config.get("filter_subject"):
            operation += f".{config['filter_subject']}"
        await self._bus.api.call(
            operation, {"stream_name": self._spec.stream, "config": dict(config), "action": action}
        )


def _differing(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    return [field for field in wanted if _comparable(field, wanted[field]) != _comparable(field, found.get(field))]


def _comparable(field: str, value: Any) -> Any:
    # JetStream leaves out what is false, zero or empty, and writes 0 for some limits that were given as -1.
    if value in (None, False, 0, "", []) or (value == -1 and field.startswith("max_")):
        return None
    return sorted(value) if field in {"subjects", "filter_subjects"} else value
