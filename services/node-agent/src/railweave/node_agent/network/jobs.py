"""From a step to kernel actions and the namespace they belong in; the same for its undo. Looks, does not act."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from railweave.node_agent.network.model import Phase, Step, StepKind, route_from_json, rule_from_json
from railweave.node_agent.network.session import Session, rail_and_vf
from railweave.runtime.netlink import (
    Action,
    AddAddress,
    Address,
    AddRoute,
    AddRule,
    DeleteAddress,
    DeleteRoute,
    DeleteRule,
    Link,
    Namespace,
    NetnsGone,
    NotThere,
    SetLink,
    SetSysctl,
    vlan_bridge_name,
)

__all__ = ["Job", "apply_job", "undo_job"]

Job = tuple[Namespace, list[Action]]

_LEAF_KINDS = frozenset({StepKind.VLAN, StepKind.PORT_MTU})


def apply_job(session: Session, step: Step) -> Job:
    """What applies a step (any but CREATE).

    Raises:
        KernelError: the device, bridge or namespace it is about is not there.
    """
    if step.kind in _LEAF_KINDS:
        return _leaf_job(session, step, step.after)
    found = session.locate(step.vf, step.netns)
    if found is None:
        raise NotThere(f"VF {step.vf}", detail="it is neither on the node nor in the worker's namespace")
    inside, link = found
    if step.kind is StepKind.MOVE:
        if step.netns is None:
            raise NetnsGone(f"worker of {step.vf}", detail="the step names no namespace")
        target = session.worker(step.netns).ref
        return inside, [] if target.is_same(inside.ref) else [SetLink(link.index, netns=target)]
    if step.netns is not None and not inside.ref.is_same(step.netns):
        raise NotThere(f"VF {step.vf} in {step.netns.path}", detail="it is still on the node")
    return inside, _device_actions(session, inside, link, step)


def _device_actions(session: Session, inside: Namespace, link: Link, step: Step) -> list[Action]:  # noqa: PLR0911
    after = step.after
    match step.kind:
        case StepKind.MAC:
            return [SetLink(link.index, mac=after["mac"])]
        case StepKind.MTU:
            return [SetLink(link.index, mtu=after["mtu"])]
        case StepKind.RENAME:
            session.rename(inside, step.vf, after["name"])
            return [] if link.name == after["name"] else [SetLink(link.index, name=after["name"])]
        case StepKind.SETTINGS:
            return _settings(link, session.name_of(inside, step.vf, link), after)
        case StepKind.ADDRESS:
            return [AddAddress(Address(link.index, after["address"]))]
        case StepKind.UP:
            return [SetLink(link.index, up=True)]
        case StepKind.ROUTE:
            added = AddRoute(route_from_json(after, link.index))
            if step.before:
                return [DeleteRoute(route_from_json(step.before, step.before["device"])), added]
            return [added]
        case StepKind.RULE:
            return [AddRule(rule_from_json(after))]
        case _:
            raise ValueError(f"{step.kind} is no step of a device")


def _settings(link: Link, name: str, values: Mapping[str, Any]) -> list[Action]:
    ipv4 = {key: value for key, value in values.items() if "/" not in key}
    actions: list[Action] = [SetLink(link.index, ipv4=ipv4)] if ipv4 else []
    for key, value in values.items():
        if key.startswith("ipv6/"):
            actions.append(SetSysctl(f"ipv6/conf/{name}/{key.removeprefix('ipv6/')}", str(value)))
    return actions


def _leaf_job(session: Session, step: Step, values: Mapping[str, Any]) -> Job:
    """Sets the far end of a VF to `values`: its MTU, or the bridge that is its VLAN (None: no bridge) and whether it is
    up."""
    rail = rail_and_vf(step.vf)[0]
    leaf, far_name = session.leaf(rail), session.far_name(step.vf)
    if step.kind is StepKind.PORT_MTU:
        return leaf, [SetLink(far_name, mtu=values["mtu"])]
    master = 0
    if values["vlan"] is not None:
        bridge_name = vlan_bridge_name(values["vlan"])
        bridge = session.leaf_link(rail, bridge_name)
        if bridge is None:
            raise NotThere(f"VLAN {values['vlan']}", detail=f"the leaf has no bridge {bridge_name}")
        master = bridge.index
    return leaf, [SetLink(far_name, master=master), SetLink(far_name, up=values["up"])]


def undo_job(session: Session, step: Step) -> Job | None:
    """What undoes a step (any but MOVE); None where there is nothing to undo: it was never applied, or what it was
    about went with its namespace.

    CREATE has no undo (a VF belongs to the node), nor has giving a VF its host name back.
    """
    if step.kind is StepKind.CREATE or (step.kind is StepKind.RENAME and step.phase is Phase.PREPARE):
        return None
    if step.kind in _LEAF_KINDS:
        return _undo_on_leaf(session, step)
    if step.netns is None or step.phase is Phase.PREPARE:
        found = session.locate(step.vf, step.netns)
        key = str(step.kind)
        if found is None or key not in step.before:
            return None
        inside, link = found
        if step.kind is StepKind.MAC:
            return inside, [SetLink(link.index, mac=step.before["mac"])]
        return inside, [SetLink(link.index, mtu=step.before["mtu"])]
    try:
        inside = session.worker(step.netns)
    except NetnsGone:
        return None
    inner = session.marked(inside).get(step.vf)
    return inside, _undo_inside(session, inside, inner, step)


def _undo_on_leaf(session: Session, step: Step) -> Job | None:
    if not step.before:
        return None
    try:
        far_end = session.leaf_link(rail_and_vf(step.vf)[0], session.far_name(step.vf))
    except NetnsGone:
        return None
    if far_end is None:
        return None
    try:
        return _leaf_job(session, step, step.before)
    except NotThere:
        # The VLAN it was on is gone from the leaf: off every VLAN is the safe side of that.
        return _leaf_job(session, step, {**step.before, "vlan": None})


def _undo_inside(session: Session, inside: Namespace, link: Link | None, step: Step) -> list[Action]:
    if step.kind is StepKind.RULE:
        return [DeleteRule(rule_from_json(step.after))]
    if step.kind is StepKind.ROUTE and (link is not None or step.after["kind"] == "unreachable"):
        return [DeleteRoute(route_from_json(step.after, link.index if link is not None else 0))]
    if link is None:
        return []
    match step.kind:
        case StepKind.UP:
            return [SetLink(link.index, up=False)]
        case StepKind.ADDRESS:
            return [DeleteAddress(Address(link.index, step.after["address"]))]
        case StepKind.SETTINGS:
            return _settings(link, session.name_of(inside, step.vf, link), step.before)
        case StepKind.RENAME if session.name_of(inside, step.vf, link) != step.before["name"]:
            session.rename(inside, step.vf, step.before["name"])
            # Kernels before 6.2 refuse to rename a device that is up (plugins#147).
            return [SetLink(link.index, up=False), SetLink(link.index, name=step.before["name"])]
        case _:
            return []
