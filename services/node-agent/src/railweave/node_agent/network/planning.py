"""From what is wanted and what is to the steps between. Pure; what is already so gives no step, so a plan after an
apply is empty, and a plan for an attached placement is exactly its drift.

Steps are ordered so that neighbours go to the kernel in one send: side by side over all VFs, one kind after another on
the node's side; inside the worker VF by VF."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from railweave.node_agent.network.errors import NetworkRefused
from railweave.node_agent.network.model import (
    Observed,
    Phase,
    Step,
    StepKind,
    VfState,
    VfWant,
    WorkerState,
    route_to_json,
    rule_to_json,
)
from railweave.node_agent.network.routes import MAIN_TABLE, check_wants, routes_of, settings_of
from railweave.runtime.netlink import NetnsRef, Route

__all__ = ["plan_attach", "plan_prepare"]

_StepOf = Callable[[StepKind, dict[str, Any], dict[str, Any]], Step]
_SIDE_ORDER = (StepKind.CREATE, StepKind.RENAME, StepKind.MAC, StepKind.MTU, StepKind.PORT_MTU, StepKind.VLAN)


def plan_prepare(wants: Sequence[VfWant], observed: Observed) -> list[Step]:
    """The steps that set the PF side of every VF: VLAN, MAC, MTU; and that bring back a VF which lost its host name.

    Raises:
        NetworkRefused: a VF is out in some namespace, its VLAN is not on its leaf, its MTU is above the leaf's, ...
    """
    check_wants(wants)
    steps: list[Step] = []
    for want in wants:
        state = _state(want, observed)
        _check_side(want, state, observed)
        steps += _side_steps(want, state, observed)
    return sorted(steps, key=lambda step: _SIDE_ORDER.index(step.kind))


def _state(want: VfWant, observed: Observed) -> VfState:
    state = observed.vfs.get(want.key)
    if state is None:
        raise NetworkRefused(want.key, "this node has no such VF")
    return state


def _check_side(want: VfWant, state: VfState, observed: Observed) -> None:
    if state.where == "out":
        raise NetworkRefused(want.key, "is out in a namespace that is not known here; its owner must give it back")
    if want.max_tx_mbps is not None:
        raise NetworkRefused(want.key, f"rate limit of {want.max_tx_mbps} Mbit/s: this driver has no rate limits")
    vlan_mtu = observed.vlan_mtus.get((want.rail, want.vlan))
    if vlan_mtu is None:
        raise NetworkRefused(want.key, f"VLAN {want.vlan} is not on the leaf of rail {want.rail}")
    if want.mtu > vlan_mtu:
        # Some hardware takes it without an error and drops the packets: nobody else checks (sriov-cni#123).
        raise NetworkRefused(want.key, f"MTU {want.mtu} is above the {vlan_mtu} of VLAN {want.vlan}")
    if state.where == "node" and state.name != want.key and want.key in observed.node_names:
        raise NetworkRefused(want.key, f"is named {state.name} and its host name is taken by another device")


def _side_steps(want: VfWant, state: VfState, observed: Observed) -> list[Step]:
    netns = observed.worker.ref if state.where == "worker" and observed.worker is not None else None

    def step(kind: StepKind, before: dict[str, Any], after: dict[str, Any], where: NetnsRef | None = None) -> Step:
        return Step(Phase.PREPARE, kind, want.key, before, after, where)

    steps: list[Step] = []
    if state.where == "missing":
        steps.append(step(StepKind.CREATE, {}, {"name": want.key}))
    elif state.where == "node" and state.name != want.key:
        # A physical VF comes back from a dying namespace under its name in there (notes/network.md fact 1).
        steps.append(step(StepKind.RENAME, {"name": state.name}, {"name": want.key}))
    if state.mac != want.mac:
        steps.append(step(StepKind.MAC, {"mac": state.mac} if state.mac else {}, {"mac": want.mac}, netns))
    if state.mtu != want.mtu:
        steps.append(step(StepKind.MTU, {"mtu": state.mtu} if state.mtu else {}, {"mtu": want.mtu}, netns))
    if state.port_mtu != want.mtu:
        before = {"mtu": state.port_mtu} if state.port_mtu else {}
        steps.append(step(StepKind.PORT_MTU, before, {"mtu": want.mtu}))
    if state.vlan != want.vlan or not state.port_up:
        was: dict[str, Any] = {"vlan": state.vlan, "up": state.port_up}
        steps.append(step(StepKind.VLAN, was, {"vlan": want.vlan, "up": True}))
    return steps


def plan_attach(wants: Sequence[VfWant], observed: Observed) -> list[Step]:
    """The steps that put prepared VFs into the worker's namespace and configure them there; of an attached placement,
    the steps that mend what drifted.

    Raises:
        NetworkRefused: the namespace is gone, a name is taken in it, a VF is not there to be moved.
    """
    check_wants(wants)
    worker = observed.worker
    if worker is None:
        raise NetworkRefused("worker", "its namespace is gone" if observed.worker_gone else "no namespace given")
    moves: list[Step] = []
    inside: list[Step] = []
    for want in wants:
        state = _state(want, observed)
        _check_inside(want, state, worker)
        if state.where == "node":
            before = {
                "name": state.name,
                "mac": state.mac,
                "mtu": state.mtu,
                "vlan": state.vlan,
                "port_mtu": state.port_mtu,
                "port_up": state.port_up,
            }
            moves.append(Step(Phase.ATTACH, StepKind.MOVE, want.key, before, {"name": state.name}, worker.ref))
        inside += _inside_steps(want, state, worker)
    return moves + inside


def _check_inside(want: VfWant, state: VfState, worker: WorkerState) -> None:
    if state.where in {"out", "missing"}:
        raise NetworkRefused(want.key, f"cannot be attached: it is {state.where}")
    holder = worker.names.get(want.name)
    if holder is not None and holder != want.key:
        raise NetworkRefused(want.key, f"the worker's namespace has another device named {want.name}")
    if state.where == "node" and state.name in worker.names:
        raise NetworkRefused(want.key, f"the worker's namespace has a device named {state.name}")


def _inside_steps(want: VfWant, state: VfState, worker: WorkerState) -> list[Step]:
    is_inside = state.where == "worker"

    def step(kind: StepKind, before: dict[str, Any], after: dict[str, Any]) -> Step:
        return Step(Phase.ATTACH, kind, want.key, before, after, worker.ref)

    steps: list[Step] = []
    if state.name != want.name:
        steps.append(step(StepKind.RENAME, {"name": state.name}, {"name": want.name}))
    settings = settings_of(want)
    # A move resets them to the namespace's defaults, whatever they were on the node: 0 unless observed inside.
    current = {key: state.settings.get(key, 0) for key in settings} if is_inside else {}
    if current != settings:
        steps.append(step(StepKind.SETTINGS, current, settings))
    have = worker.addresses.get(want.key, frozenset()) if is_inside else frozenset()
    steps += [step(StepKind.ADDRESS, {}, {"address": cidr}) for cidr in want.addresses if cidr not in have]
    if not (is_inside and state.up):
        steps.append(step(StepKind.UP, {"up": False}, {"up": True}))
    steps += _route_steps(want, state, worker, step)
    rules = {rule.key() for rule in worker.rules}
    steps += [step(StepKind.RULE, {}, rule_to_json(rule)) for rule in want.rules if rule.key() not in rules]
    return steps


def _route_steps(want: VfWant, state: VfState, worker: WorkerState, step_of: _StepOf) -> list[Step]:
    steps: list[Step] = []
    there = {route.key() for route in worker.routes}
    places = {_place(route): route for route in worker.routes}
    for route in routes_of(want, state.index if state.where == "worker" else -1):
        if route.key() in there:
            continue
        squatter = places.get(_place(route))
        if squatter is not None and route.table == MAIN_TABLE:
            continue  # `main` is everybody's: who came first keeps the place
        # The VF's own table is ours alone: what holds the place of one of our routes there goes.
        before = {} if squatter is None else {**route_to_json(squatter), "device": squatter.device}
        steps.append(step_of(StepKind.ROUTE, before, route_to_json(route)))
    return steps


def _place(route: Route) -> tuple[str, int, int]:
    """What the kernel lets only one route have: destination, table and metric."""
    key = route.key()
    return (key[0], key[1], key[4])
