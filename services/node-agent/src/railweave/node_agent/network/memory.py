"""A kernel in memory: namespaces, veth pairs, bridges, addresses, routes and rules behave as the real one's do, as far
as the network half can tell. For simulated agents, thousands in one process, and for failures that a real kernel won't
give.

Held to the real kernel by the contract tests, which run on both. What it models on purpose, because it is what goes
wrong: a taken name refuses a move with EEXIST; a link that goes down loses its routes and its IPv6 addresses and does
not get our routes back; a move loses addresses, routes and settings; a namespace that ends takes virtual devices with
it, or (`vfs_return`, as physical VFs do) gives them back to the node under the name they had in there, or `dev<index>`
where that is taken."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from railweave.node_agent.network.memory_namespace import MemoryNamespace
from railweave.node_agent.network.memory_state import Netns
from railweave.runtime.netlink import (
    Action,
    KernelError,
    NetnsGone,
    NetnsRef,
    check_netns_name,
    kernel_error,
)

__all__ = ["Killed", "MemoryKernel"]

_DIRECTORY = "/run/netns/"
_DEVICE_NUMBER = 4
_FIRST_INODE = 4026532000


class Killed(BaseException):
    """The process that called the kernel is dead as of this action (`MemoryKernel.kill_at`); the kernel lives on."""


class MemoryKernel:
    """Namespaces by path, all in memory. Not for two threads at once.

    Args:
        vfs_return: devices of a namespace that ends go back to `home` as physical VFs do, instead of ending with it.
        home: the path of the namespace they go back to.
    """

    blocking = False

    def __init__(self, *, vfs_return: bool = False, home: str = "") -> None:
        self._cookies = itertools.count(1)
        self._macs = itertools.count(1)
        self._by_path: dict[str, Netns] = {}
        self._by_inode: dict[int, Netns] = {}
        self._vfs_return = vfs_return
        self._home = home
        self._faults: list[tuple[Callable[[Action], bool], int, int]] = []
        self._fail_at: dict[int, int] = {}
        self._kill_at: int | None = None
        self.actions_done = 0
        """How many actions were asked for so far; faults at a number count from 0 on this scale."""

    # Faults

    def refuse(self, match: Callable[[Action], bool], number: int, times: int = 1) -> None:
        """The next `times` actions that match are refused with this errno."""
        self._faults.append((match, number, times))

    def fail_at(self, action: int, number: int = errno.EBUSY) -> None:
        """The action of that number is refused with this errno."""
        self._fail_at[action] = number

    def kill_at(self, action: int | None) -> None:
        """The caller dies (`Killed`) instead of carrying out the action of that number; None: no more."""
        self._kill_at = action

    def before_action(self, action: Action) -> KernelError | None:
        """Asked by a namespace before each action. Raises Killed."""
        count = self.actions_done
        if self._kill_at is not None and count >= self._kill_at:
            raise Killed(f"before action {count}: {action}")
        self.actions_done += 1
        if count in self._fail_at:
            return kernel_error(self._fail_at.pop(count), str(action))
        for place, (match, number, times) in enumerate(self._faults):
            if match(action):
                if times > 1:
                    self._faults[place] = (match, number, times - 1)
                else:
                    del self._faults[place]
                return kernel_error(number, str(action))
        return None

    # Namespaces

    def next_mac(self) -> str:
        """A MAC for a device that was made without one."""
        return "06:00:" + next(self._macs).to_bytes(4, "big").hex(":")

    def netns_at(self, ref: NetnsRef) -> Netns | None:
        """The living namespace of that identity."""
        netns = self._by_inode.get(ref.inode)
        return netns if netns is not None and netns.ref.is_same(ref) else None

    def create_netns(self, name: str) -> NetnsRef:
        """A namespace with loopback up: new, or the one of that name."""
        path = _DIRECTORY + check_netns_name(name)
        found = self._by_path.get(path)
        if found is None:
            # Linux too gives the lowest that is free, so that the next namespace has that of the last one that ended.
            inode = next(inode for inode in itertools.count(_FIRST_INODE) if inode not in self._by_inode)
            ref = NetnsRef(path, _DEVICE_NUMBER, inode, next(self._cookies))
            found = self._by_path[path] = self._by_inode[ref.inode] = Netns(ref)
            found.add_loopback()
        return found.ref

    def delete_netns(self, name: str) -> bool:
        """Ends a namespace; its devices end, or go home."""
        netns = self._by_path.pop(_DIRECTORY + check_netns_name(name), None)
        if netns is None:
            return False
        del self._by_inode[netns.ref.inode]
        home = self._by_path.get(self._home) if self._vfs_return else None
        for device in list(netns.devices.values()):
            if device.peer is None:
                continue
            if home is None or home is netns:
                netns.remove(device)
            else:
                if home.has_name(device.name):
                    netns.rename(device, f"dev{device.index}")
                netns.move(device, home)
        return True

    def rename_path(self, old: str, new: str) -> None:
        """The namespace of name `old` is reached as `new` from now on (its identity stays)."""
        netns = self._by_path.pop(_DIRECTORY + old)
        netns.ref = replace(netns.ref, path=_DIRECTORY + new)
        self._by_path[netns.ref.path] = netns

    def netns_names(self) -> list[str]:
        """Names of namespaces, sorted."""
        return sorted(path.removeprefix(_DIRECTORY) for path in self._by_path)

    def find(self, where: str | NetnsRef) -> NetnsRef:
        """Identity behind a path, or where a known namespace is now. Raises NetnsGone."""
        netns = self._by_path.get(where) if isinstance(where, str) else self.netns_at(where)
        if netns is None:
            path = where if isinstance(where, str) else where.path
            raise NetnsGone(f"network namespace at {path}", errno.ENOENT)
        return netns.ref

    def open(self, where: str | NetnsRef) -> MemoryNamespace:
        """Opens by path or reference. Raises NetnsGone: nothing is there, or another namespace than the reference's."""
        netns = self._by_path.get(where if isinstance(where, str) else where.path)
        if netns is None or (isinstance(where, NetnsRef) and not netns.ref.is_same(where)):
            path = where if isinstance(where, str) else where.path
            raise NetnsGone(f"network namespace at {path}", errno.ENOENT if netns is None else 0)
        return MemoryNamespace(self, netns)

    def run(self, where: str | NetnsRef, actions: Sequence[Action]) -> None:
        """Carries out actions as somebody else would, past all faults; for tests.

        Raises:
            KernelError: the first refusal.
        """
        faults, self._faults, kill, self._kill_at = self._faults, [], self._kill_at, None
        try:
            with self.open(where) as inside:
                failures: Iterable[Exception] = [f for f in inside.execute(actions) if f is not None]
        finally:
            self._faults, self._kill_at = faults, kill
        for failure in failures:
            raise failure
