"""Cumulus Linux: `nv set` lines for what is wanted, `nv unset` for what goes, in an order that can be applied."""

from __future__ import annotations

from collections.abc import Iterator

from railweave.topology.switch_config.model import IntentRefused, IntentVlan, SwitchIntent

_DOMAIN = "br_default"


def commands(intent: SwitchIntent, before: SwitchIntent | None = None) -> list[str]:
    """The lines for a switch; `nv config apply` makes them so at once.

    Args:
        intent: what is wanted.
        before: what was rendered last; what is in it alone is unset.

    Raises:
        IntentRefused: a port whose name NVUE does not take.
    """
    for port in intent.ports:
        if "/" in port or len(port) > 15:
            raise IntentRefused(f"{intent.switch}: {port!r} is no interface of Cumulus Linux, such as swp1")
    lines: list[str] = []
    if before is not None:
        lines += _gone(before, intent)
    lines += [f"nv set vrf {vrf}" for vrf in intent.vrfs]
    for vlan in intent.vlans:
        lines += _vlan(vlan)
    return lines


def _vlan(vlan: IntentVlan) -> Iterator[str]:
    yield f"nv set bridge domain {_DOMAIN} vlan {vlan.vlan}"
    for port in vlan.members:
        yield f"nv set interface {port} bridge domain {_DOMAIN} vlan {vlan.vlan}"
    interface = f"nv set interface vlan{vlan.vlan}"
    yield f"{interface} type svi"
    yield f"{interface} vlan {vlan.vlan}"
    yield f"{interface} link mtu {vlan.mtu}"
    if vlan.vrf is not None:
        yield f"{interface} ip vrf {vlan.vrf}"
    for gateway in vlan.gateways:
        yield f"{interface} ip address {gateway}"


def _gone(before: SwitchIntent, intent: SwitchIntent) -> Iterator[str]:
    wanted = {vlan.vlan: vlan for vlan in intent.vlans}
    for vlan in before.vlans:
        kept = wanted.get(vlan.vlan)
        if kept is None:
            yield f"nv unset interface vlan{vlan.vlan}"
        else:
            for gateway in vlan.gateways:
                if gateway not in kept.gateways:
                    yield f"nv unset interface vlan{vlan.vlan} ip address {gateway}"
            if vlan.vrf is not None and kept.vrf is None:
                yield f"nv unset interface vlan{vlan.vlan} ip vrf"
        for port in vlan.members:
            if kept is None or port not in kept.members:
                yield f"nv unset interface {port} bridge domain {_DOMAIN} vlan {vlan.vlan}"
        if kept is None:
            yield f"nv unset bridge domain {_DOMAIN} vlan {vlan.vlan}"
    for vrf in before.vrfs:
        if vrf not in intent.vrfs:
            yield f"nv unset vrf {vrf}"
