"""Neighbours as devices see them, one device's view beside another's, made into cabling. For formats of that kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from railweave.topology.cabling import Cable, Cabling, CablingBuilder, Device, End, Kind, Where
from railweave.topology.providers.nics import are_nics, is_nic

_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class Neighbour:
    """What a device sees behind one of its ports."""

    port: str
    name: str
    remote_port: str | None
    where: Where
    kind: Kind | None = None
    """Where the device is told what it is."""
    tier: int | None = None


@dataclass(frozen=True, slots=True)
class View:
    """One device's view."""

    device: str
    where: Where
    neighbours: tuple[Neighbour, ...]
    kind: Kind | None = Kind.SWITCH
    """None: it follows from the names of its ports."""
    tier: int | None = None


def cabling_of(views: Sequence[View], notes: Iterable[str] = ()) -> Cabling:
    """Join the views of devices: a cable between two of them has to be in both."""
    found = CablingBuilder()
    own = {view.device: view for view in views}
    kinds: dict[str, Kind] = {}
    for view in views:
        ports = [neighbour.port for neighbour in view.neighbours]
        kinds[view.device] = view.kind or (Kind.HOST if are_nics(ports) else Kind.SWITCH)
        found.report(view.device)
    has_hosts = (
        any(_kind_of(neighbour, own, kinds) is Kind.HOST for view in views for neighbour in view.neighbours)
        or Kind.HOST in kinds.values()
    )
    for view in views:
        # With hosts in sight tiers follow from the cables; told ones are what a device was configured to be.
        found.declare(Device(view.device, kinds[view.device], view.where, None if has_hosts else view.tier))
    crowded: list[str] = []
    for view in views:
        by_port: dict[str, list[Neighbour]] = {}
        for neighbour in view.neighbours:
            by_port.setdefault(neighbour.port, []).append(neighbour)
        for port, behind in by_port.items():
            if len(behind) > 1:
                crowded.append(f"{view.device}:{port}")
                continue
            _take(found, view, behind[0], own, kinds, has_hosts=has_hosts)
    if crowded:
        named = ", ".join(crowded[:_MOST_NAMED])
        found.note(f"{len(crowded)} ports see several neighbours (a hub, or stale entries), none taken: {named}")
    found.notes(notes)
    return found.built()


def _take(
    found: CablingBuilder,
    view: View,
    neighbour: Neighbour,
    own: Mapping[str, View],
    kinds: Mapping[str, Kind],
    *,
    has_hosts: bool,
) -> None:
    name = _canonical(neighbour.name, own)
    if name not in own:
        tier = None if has_hosts else neighbour.tier
        found.mention(Device(name, _kind_of(neighbour, own, kinds), neighbour.where, tier))
    told_by = frozenset({view.device})
    found.cable(Cable(End(view.device, neighbour.port), End(name, neighbour.remote_port), neighbour.where, told_by))


def _kind_of(neighbour: Neighbour, own: Mapping[str, View], kinds: Mapping[str, Kind]) -> Kind:
    name = _canonical(neighbour.name, own)
    if name in kinds:
        return kinds[name]
    if neighbour.kind is not None:
        return neighbour.kind
    return Kind.HOST if neighbour.remote_port is None or is_nic(neighbour.remote_port) else Kind.SWITCH


def _canonical(name: str, own: Mapping[str, View]) -> str:
    """The name that its own view goes by: some devices tell their domain to their neighbours."""
    if name in own:
        return name
    short = name.partition(".")[0]
    return short if short in own else name
