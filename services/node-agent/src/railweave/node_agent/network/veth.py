"""The veth driver: a PF is a rail of the node, its VFs are veth pairs `r<rail>v<vf>` whose far ends are on a software
leaf.

The VLAN of a VF is the bridge of the leaf that its far end is on. Everything here blocks; `driver.NetworkDriver` is the
way in for asyncio code. Applying and undoing are idempotent, and undoing works from the journal alone: after a crash at
any instruction, with the worker's namespace alive or gone.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from railweave.node_agent.network.errors import StepFailed, UndoFailed
from railweave.node_agent.network.jobs import Job, apply_job, undo_job
from railweave.node_agent.network.model import Observed, Phase, Step, StepKind, VfWant
from railweave.node_agent.network.observe import observe
from railweave.node_agent.network.provision import create_vfs
from railweave.node_agent.network.session import NodePorts, Session, rail_and_vf
from railweave.runtime.netlink import (
    Action,
    Busy,
    DeleteLink,
    Kernel,
    KernelError,
    Link,
    Namespace,
    NetnsRef,
    SetLink,
    settle,
    settle_all,
    vlan_bridge_name,
)

__all__ = ["VethDriver"]

_BUSY_WAITS_S = (0.02, 0.06, 0.18)
"""EBUSY is often over in a moment (hustcat/sriov-cni#16); what stays busy is reported."""

_TURNS = {StepKind.CREATE: "create", StepKind.MOVE: "move", StepKind.VLAN: "leaf", StepKind.PORT_MTU: "leaf"}
Outcomes = list[tuple[Step, Exception | None]]


class VethDriver:
    """Observes, applies and undoes on one node. Not for two threads at once."""

    def __init__(self, kernel: Kernel, ports: NodePorts) -> None:
        self.kernel = kernel
        self.ports = ports

    def find_netns(self, where: str | NetnsRef) -> NetnsRef:
        """The identity of a worker's namespace by its path; of a known one, where it is now. Raises NetnsGone."""
        return self.kernel.find(where)

    def observe(self, wants: Sequence[VfWant], worker: NetnsRef | None = None) -> Observed:
        """What is. Raises KernelError (NetnsGone where the node's or a leaf's namespace is gone)."""
        with Session(self.kernel, self.ports) as session:
            return observe(session, wants, worker)

    def apply(self, steps: Sequence[Step]) -> None:
        """Applies steps in order, neighbours together.

        Raises:
            StepFailed: the first step that the kernel refused, and those that are applied.
        """
        done: list[Step] = []
        with Session(self.kernel, self.ports) as session:
            for turn in _turns(steps):
                if turn[0].kind is StepKind.CREATE:
                    outcomes = [(step, _caught(partial(create_vfs, session, [step.vf]))) for step in turn]
                else:
                    outcomes = _carry_out(session, turn, apply_job)
                if turn[0].kind in {StepKind.CREATE, StepKind.MOVE}:
                    session.forget()
                done += [step for step, failure in outcomes if failure is None]
                for step, failure in outcomes:
                    if failure is not None:
                        raise StepFailed(step, failure, done) from failure

    def undo(self, steps: Sequence[Step]) -> None:
        """Undoes journaled steps (given in the order of applying), whether or not each was applied. All that can be
        undone is, also after a failure.

        Raises:
            UndoFailed: what could not be undone, with its causes.
        """
        failures: list[tuple[Step, Exception]] = []
        moved = {step.vf for step in steps if step.kind is StepKind.MOVE}
        to_undo = [step for step in reversed(steps) if not (step.vf in moved and _goes_with_the_move(step))]
        with Session(self.kernel, self.ports) as session:
            for turn in _turns(to_undo):
                if turn[0].kind is StepKind.MOVE:
                    outcomes = _bring_back(session, turn)
                else:
                    outcomes = _carry_out(session, turn, undo_job)
                failures += [(step, failure) for step, failure in outcomes if failure is not None]
        if failures:
            raise UndoFailed(failures)


def _turns(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Neighbours that may go to the kernel together: moves change where everything else is to be found."""
    for _, turn in itertools.groupby(steps, key=lambda step: _TURNS.get(step.kind, "device")):
        yield list(turn)


def _goes_with_the_move(step: Step) -> bool:
    """Whether the kernel itself takes it off a device that leaves its namespace: half the work of an undo."""
    if step.phase is not Phase.ATTACH:
        return False
    if step.kind is StepKind.ROUTE:
        return bool(step.after["kind"] == "unicast")
    return step.kind in {StepKind.ADDRESS, StepKind.UP, StepKind.SETTINGS}


def _caught(work: Callable[[], None]) -> Exception | None:
    try:
        work()
    except KernelError as failure:
        return failure
    return None


def _carry_out(session: Session, steps: Sequence[Step], job_of: Callable[[Session, Step], Job | None]) -> Outcomes:
    """Runs the jobs of steps, all of one namespace in one go; gives each step's first failure."""
    outcomes: Outcomes = []
    # A kernel in memory is used within an event loop, and time does not make it less busy.
    waits_s = _BUSY_WAITS_S if session.kernel.blocking else (0.0,) * len(_BUSY_WAITS_S)
    by_place: dict[int, tuple[Namespace, list[Action], list[int]]] = {}
    for number, step in enumerate(steps):
        outcomes.append((step, None))
        try:
            job = job_of(session, step)
        except KernelError as failure:
            outcomes[number] = (step, failure)
            continue
        if job is not None:
            inside, actions = job
            place = by_place.setdefault(id(inside), (inside, [], []))
            place[1].extend(actions)
            place[2].extend([number] * len(actions))
    for inside, actions, numbers in by_place.values():
        for number, refusal in zip(numbers, _settle_patiently(inside, actions, waits_s), strict=True):
            if refusal is not None and outcomes[number][1] is None:
                outcomes[number] = (outcomes[number][0], refusal)
    return outcomes


def _settle_patiently(inside: Namespace, actions: Sequence[Action], waits_s: Sequence[float]) -> list[Exception | None]:
    results = settle(inside, actions)
    for wait_s in waits_s:
        busy = [place for place, result in enumerate(results) if isinstance(result, Busy)]
        if not busy:
            break
        time.sleep(wait_s)
        for place, result in zip(busy, settle(inside, [actions[place] for place in busy]), strict=True):
            results[place] = result
    return results


def _bring_back(session: Session, steps: Sequence[Step]) -> Outcomes:
    """Undoes moves: every VF is on the node again, under its host name, as it was when it left."""
    _carry_out(session, steps, _move_back_job)  # what fails here is seen below, by looking
    session.forget()
    outcomes: Outcomes = [(step, _caught(partial(_restore, session, step))) for step in steps]
    session.forget()
    return outcomes


def _move_back_job(session: Session, step: Step) -> Job | None:
    found = session.locate(step.vf, step.netns)
    if found is None or found[0].ref.is_same(session.node().ref):
        return None
    inside, link = found
    actions: list[Action] = []
    if link.name != step.before["name"]:
        # By its name in there it could meet a namesake on the node.
        actions = [SetLink(link.index, up=False), SetLink(link.index, name=step.before["name"])]
    return inside, [*actions, SetLink(link.index, netns=session.node().ref)]


def _restore(session: Session, step: Step) -> None:
    """Makes the VF on the node what it was. One that went with its namespace (virtual devices do) is made anew; one
    that is still in a namespace which cannot be found is taken from there with its pair: the record has released
    it."""
    node = session.node()
    before = step.before
    link = session.marked(node).get(step.vf)
    if link is None:
        found = session.locate(step.vf, step.netns)
        if found is not None:
            inside, lost = found
            settle_all(inside, [SetLink(lost.index, netns=node.ref)])  # says why it did not come the first time
        else:
            _make_anew(session, step)
        session.forget()
        link = session.marked(node)[step.vf]
    settle_all(node, _differences(link, before))


def _make_anew(session: Session, step: Step) -> None:
    rail, _ = rail_and_vf(step.vf)
    leaf = session.leaf(rail)
    far_name = session.far_name(step.vf)
    # A dying namespace takes its devices with it in its own time; taking the far end away takes both at once.
    settle_all(leaf, [DeleteLink(far_name)])
    create_vfs(session, [step.vf])
    vlan = step.before["vlan"]
    bridge = leaf.links_named([vlan_bridge_name(vlan)]).get(vlan_bridge_name(vlan)) if vlan is not None else None
    master = bridge.index if bridge is not None else 0
    restored = [SetLink(far_name, mtu=step.before["port_mtu"]), SetLink(far_name, master=master)]
    settle_all(leaf, [*restored, SetLink(far_name, up=step.before["port_up"])])


def _differences(link: Link, before: Mapping[str, Any]) -> list[Action]:
    """What a job with CAP_NET_ADMIN, or the way back, has changed on the device itself."""
    actions: list[Action] = [SetLink(link.index, up=False)] if link.up else []
    if link.name != before["name"]:
        actions.append(SetLink(link.index, name=before["name"]))
    if link.mac != before["mac"]:
        actions.append(SetLink(link.index, mac=before["mac"]))
    if link.mtu != before["mtu"]:
        actions.append(SetLink(link.index, mtu=before["mtu"]))
    return actions
