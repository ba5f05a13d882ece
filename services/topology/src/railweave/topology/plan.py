"""Every leaf's preset VLANs and subnets: one VLAN a rail, with subnets out of pools, sized with headroom.

What was given is kept: across restarts, re-imports and changes of the pools, which only shape what is new. A subnet
that gets too small grows where it is, which keeps every address; where it cannot grow it is replaced, unless something
on it is in use: that is refused, with the numbers, and nothing is changed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from railweave.contracts.fabric import LeafVlan
from railweave.contracts.types import LeafName, Slot, VlanId
from railweave.topology.model import SHARED, LeafRail, VlanPlace
from railweave.topology.pool import AddressSpace, Network, Overlaps

_network = lru_cache(maxsize=65_536)(ipaddress.ip_network)
"""Parses a network; a large fabric has thousands, and asks for each several times."""

FIRST_OFFSET = 4
"""The network address, the gateway and two to spare; slot 0 begins here."""
PREFIX6 = 64


@dataclass(frozen=True, slots=True)
class PlanConfig:
    """What new VLANs are made of.

    `vlan_ids` are used in their order. `headroom_percent` more slots than there are ports are kept for growth.
    Every rail of a leaf gets one VLAN that all share, and one of each of the `segments`.
    """

    vlan_ids: tuple[VlanId, ...]
    pools: tuple[ipaddress.IPv4Network, ...]
    pools6: tuple[ipaddress.IPv6Network, ...] = ()
    reserved: tuple[Network, ...] = ()
    reserved_vlans: frozenset[VlanId] = frozenset()
    vf_stride: int = 16
    headroom_percent: int = 50
    mtu: int = 9000
    vlan_qos: int = 0
    segments: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing is changed: one line for people, and its numbers."""

    text: str
    numbers: Mapping[str, int] = field(default_factory=dict)


Vlans = Mapping[VlanPlace, LeafVlan]


def slots_of(vlan: LeafVlan) -> int:
    """How many slots a VLAN's subnets have."""
    sizes = [_network(subnet).num_addresses for subnet in (vlan.subnet, vlan.subnet6) if subnet is not None]
    return _slots(min(sizes), vlan.first_offset, vlan.vf_stride)


def capacities(previous: Vlans, ports: Mapping[LeafRail, int], config: PlanConfig) -> dict[LeafRail, int]:
    """The slots of each (leaf, rail): of the subnet it has, or of the one it will get."""
    found: dict[LeafRail, int] = {}
    for kept, vlan in previous.items():
        found[kept.ports] = min(slots_of(vlan), found.get(kept.ports, Slot.MAXIMUM + 1))
    for place, count in ports.items():
        if place not in found:
            size = 1 << (32 - _prefix(count, config))
            found[place] = _slots(size, FIRST_OFFSET, config.vf_stride)
    return found


def plan(
    previous: Vlans,
    ports: Mapping[LeafRail, int],
    highest: Mapping[LeafRail, int],
    claimed: Collection[VlanPlace],
    config: PlanConfig,
) -> dict[VlanPlace, LeafVlan] | Refusal:
    """Give every (leaf, rail) its VLANs.

    Args:
        previous: what was given.
        ports: how many compute ports each (leaf, rail) has now.
        highest: the highest slot of each (leaf, rail).
        claimed: the VLANs on which addresses are in use: they stay, also when no port is left.
        config: what new ones are made of.

    Returns:
        The VLANs, or why there is no way to give them all.
    """
    return _Planner(previous, ports, highest, claimed, config).plan()


class _Planner:
    def __init__(
        self,
        previous: Vlans,
        ports: Mapping[LeafRail, int],
        highest: Mapping[LeafRail, int],
        claimed: Collection[VlanPlace],
        config: PlanConfig,
    ) -> None:
        self._previous = previous
        # Every VLAN that is to be, and the ports it is trunked to.
        self._ports: dict[VlanPlace, int] = {
            VlanPlace(*place, segment): count
            for place, count in ports.items()
            for segment in range(SHARED, config.segments)
        }
        self._highest = highest
        self._claimed = claimed
        self._config = config
        self._space = AddressSpace(config.pools)
        self._space6 = AddressSpace(config.pools6)

    def plan(self) -> dict[VlanPlace, LeafVlan] | Refusal:
        for network in self._config.reserved:
            (self._space if network.version == 4 else self._space6).carve(network)
        kept = self._keep()
        if isinstance(kept, Refusal):
            return kept
        ours: set[str] = set()
        for vlan in kept.values():
            for space, subnet in ((self._space, vlan.subnet), (self._space6, vlan.subnet6)):
                if subnet is not None and space.carve(_network(subnet)):
                    ours.add(subnet)
        for place in sorted(kept):
            vlan = kept[place]
            grown = self._grow(place, vlan)
            if isinstance(grown, Refusal):
                return grown
            if grown is not None:
                kept[place] = grown
                continue
            del kept[place]
            for space, subnet in ((self._space, vlan.subnet), (self._space6, vlan.subnet6)):
                if subnet in ours:
                    space.give_back(_network(subnet))
        return self._complete(kept)

    def _keep(self) -> dict[VlanPlace, LeafVlan] | Refusal:
        """What was given and is still wanted or in use, unless it is reserved now or lies on another one's."""
        kept: dict[VlanPlace, LeafVlan] = {}
        wanted = {p: vlan for p, vlan in self._previous.items() if p in self._ports or p in self._claimed}
        if self._is_clean(wanted):
            return wanted
        reserved = Overlaps(self._config.reserved)
        taken = Overlaps(())
        # Those in use first: where two overlap, the other one has to move.
        for place in sorted(wanted, key=lambda place: (place not in self._claimed, place)):
            vlan = wanted[place]
            networks = [_network(net) for net in (vlan.subnet, vlan.subnet6) if net is not None]
            other = next((str(hit) for net in networks if (hit := reserved.find(net) or taken.find(net))), None)
            if vlan.vlan in self._config.reserved_vlans:
                other = f"the reserved VLAN {int(vlan.vlan)}"
            if other is None:
                kept[place] = vlan
                for network in networks:
                    taken.add(network)
            elif place in self._claimed:
                return Refusal(
                    f"{place} is in use on VLAN {int(vlan.vlan)} with {vlan.subnet}, which meets {other}; "
                    "drain its nodes first",
                    {"vlan": int(vlan.vlan), "nodes": self._ports.get(place, 0)},
                )
        return kept

    def _is_clean(self, vlans: Vlans) -> bool:
        """Whether nothing overlaps and nothing is reserved: as always, but after a hand has been in it."""
        if any(vlan.vlan in self._config.reserved_vlans for vlan in vlans.values()):
            return False
        subnets = [_network(net) for vlan in vlans.values() for net in (vlan.subnet, vlan.subnet6) if net is not None]
        spans = [
            (net.version, int(net.network_address), int(net.broadcast_address))
            for net in (*subnets, *self._config.reserved)
        ]
        spans.sort()
        return all(one[0] != other[0] or one[2] < other[1] for one, other in pairwise(spans))

    def _grow(self, place: VlanPlace, vlan: LeafVlan) -> LeafVlan | Refusal | None:
        """The VLAN with room for its highest slot; None where it has to be made anew."""
        needed = self._highest.get(place.ports, -1) + 1
        if needed <= slots_of(vlan):
            return vlan
        subnet = _network(vlan.subnet)
        size = vlan.first_offset + needed * vlan.vf_stride + 1
        prefix = 32 - (size - 1).bit_length()
        if prefix >= subnet.prefixlen:
            return None  # the IPv6 subnet is what is too small, and no pool of ours makes such
        wanted = subnet.supernet(new_prefix=max(prefix, 0))
        # Only with the same first address does every host keep its own.
        others = [wanted.network_address + (1 << (32 - length)) for length in range(subnet.prefixlen, prefix, -1)]
        halves = [
            _network((address, length))
            for address, length in zip(others, range(subnet.prefixlen, prefix, -1), strict=True)
        ]
        if wanted.network_address == subnet.network_address and all(self._space.has(half) for half in halves):
            for half in halves:
                self._space.carve(half)
            return vlan.model_copy(update={"subnet": str(wanted)})
        if place in self._claimed:
            return Refusal(
                f"{place} needs {needed} slots; its subnet {vlan.subnet} has {slots_of(vlan)}, cannot grow "
                "where it is, and addresses on it are in use",
                {"needed_slots": needed, "subnet_slots": slots_of(vlan)},
            )
        return None

    def _complete(self, kept: dict[VlanPlace, LeafVlan]) -> dict[VlanPlace, LeafVlan] | Refusal:
        missing = {place: self._new_prefix(place) for place in self._ports if place not in kept}
        subnets = self._subnets(missing)
        if isinstance(subnets, Refusal):
            return subnets
        subnets6 = self._subnets6([*missing, *(place for place, vlan in kept.items() if vlan.subnet6 is None)])
        if isinstance(subnets6, Refusal):
            return subnets6
        ids = self._ids(kept, missing)
        if isinstance(ids, Refusal):
            return ids
        config = self._config
        for place, vlan in kept.items():
            update: dict[str, object] = {"mtu": config.mtu, "vlan_qos": config.vlan_qos}
            if (network6 := subnets6.get(place)) is not None:
                update |= {"subnet6": str(network6), "gateway6": str(network6.network_address + 1)}
            kept[place] = vlan.model_copy(update=update)
        for place in missing:
            network = subnets[place]
            network6 = subnets6.get(place)
            kept[place] = LeafVlan(
                rail=place.rail,
                segment=place.segment if place.segment != SHARED else None,
                vlan=ids[place],
                vlan_qos=config.vlan_qos,
                mtu=config.mtu,
                subnet=str(network),
                gateway=str(network.network_address + 1),
                subnet6=str(network6) if network6 is not None else None,
                gateway6=str(network6.network_address + 1) if network6 is not None else None,
                first_offset=FIRST_OFFSET,
                vf_stride=config.vf_stride,
            )
        return kept

    def _new_prefix(self, place: VlanPlace) -> int:
        return min(
            _prefix(self._ports[place], self._config), _prefix_for(self._highest.get(place.ports, -1) + 1, self._config)
        )

    def _subnets(self, missing: Mapping[VlanPlace, int]) -> dict[VlanPlace, Network] | Refusal:
        free = self._space.free_addresses
        found: dict[VlanPlace, Network] = {}
        # The largest first: they fit while the space is still whole.
        for place in sorted(missing, key=lambda place: (missing[place], place)):
            network = self._space.take(missing[place])
            if network is None:
                needed = sum(1 << (32 - prefix) for prefix in missing.values())
                total = sum(pool.num_addresses for pool in self._config.pools)
                pools = ", ".join(map(str, self._config.pools)) or "none"
                return Refusal(
                    f"{_counted(missing)} need {needed} addresses in blocks of up to /{min(missing.values())}; "
                    f"{free} of {total} are free in the pools ({pools})",
                    {
                        "needed_subnets": len(missing),
                        "needed_addresses": needed,
                        "free_addresses": free,
                        "pool_addresses": total,
                    },
                )
            found[place] = network
        return found

    def _subnets6(self, places: list[VlanPlace]) -> dict[VlanPlace, Network] | Refusal:
        if not self._config.pools6:
            return {}
        free = self._space6.free_blocks(PREFIX6)
        if len(places) > free:
            return Refusal(
                f"{len(places)} new IPv6 subnets of /{PREFIX6} are needed, {free} are free in the pools "
                f"({', '.join(map(str, self._config.pools6))})",
                {"needed_subnets": len(places), "free_subnets": free},
            )
        taken = ((place, self._space6.take(PREFIX6)) for place in sorted(places))
        return {place: network for place, network in taken if network is not None}

    def _ids(self, kept: Vlans, missing: Iterable[VlanPlace]) -> dict[VlanPlace, VlanId] | Refusal:
        """Rail k has the same id on every leaf, and in every segment, where nothing that was given is against it."""
        used: dict[LeafName, set[VlanId]] = {}
        common: dict[tuple[int, int], VlanId] = {}
        for place in sorted(kept):
            used.setdefault(place.leaf, set()).add(kept[place].vlan)
            common.setdefault((place.segment, int(place.rail)), kept[place].vlan)
        allowed = set(self._config.vlan_ids)
        found: dict[VlanPlace, VlanId] = {}
        # The shared ones first, whatever segments are added later: operators know them by number.
        for place in sorted(missing, key=lambda place: (place.segment, place)):
            on_leaf = used.setdefault(place.leaf, set())
            usual = common.get((place.segment, int(place.rail)))
            if usual is None or usual in on_leaf or usual not in allowed:
                others = set(common.values())
                free = [vlan for vlan in self._config.vlan_ids if vlan not in on_leaf]
                usual = next((vlan for vlan in free if vlan not in others), free[0] if free else None)
            if usual is None:
                return Refusal(
                    f"leaf {place.leaf} needs more VLANs than the {len(allowed)} of the configured ranges",
                    {"vlans_used": len(on_leaf), "vlans_total": len(allowed)},
                )
            common.setdefault((place.segment, int(place.rail)), usual)
            on_leaf.add(usual)
            found[place] = usual
        return found


def _counted(places: Collection[VlanPlace]) -> str:
    """How many subnets, and how many of them are segments'."""
    segments = sum(1 for place in places if place.segment != SHARED)
    leaves = len({place.leaf for place in places})
    of_segments = f" ({segments} of segments, on {leaves} leaves)" if segments else ""
    return f"{len(places)} new subnets{of_segments}"


def _prefix(ports: int, config: PlanConfig) -> int:
    return _prefix_for(-(-ports * (100 + config.headroom_percent) // 100), config)


def _prefix_for(slots: int, config: PlanConfig) -> int:
    # The last address is the broadcast address.
    size = FIRST_OFFSET + max(slots, 1) * config.vf_stride + 1
    return max(32 - (size - 1).bit_length(), 0)


def _slots(addresses: int, first_offset: int, vf_stride: int) -> int:
    return min((addresses - 1 - first_offset) // vf_stride, Slot.MAXIMUM + 1)
