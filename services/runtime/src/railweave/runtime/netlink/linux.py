"""The real kernel: `Kernel` and `Namespace` over rtnetlink, /run/netns and /proc/sys/net. The one privileged module.

Every call blocks for as long as the kernel takes (moving a device: some 18 ms each): never call it in an event loop.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Self

from railweave.runtime.netlink import decode, encode, netns
from railweave.runtime.netlink.channel import Channel
from railweave.runtime.netlink.errors import BadRequest, KernelError, kernel_error
from railweave.runtime.netlink.model import Action, Address, Link, NetnsRef, Route, Rule, SetLink, SetSysctl
from railweave.runtime.netlink.names import check_device_name

__all__ = ["LinuxKernel", "LinuxNamespace"]


def _sysctl_path(key: str) -> str:
    parts = key.split("/")
    if len(parts) < 2 or any(part in {"", ".", ".."} for part in parts):
        raise BadRequest(f"setting {key!r}")
    if len(parts) == 4 and parts[2] not in {"all", "default"}:
        check_device_name(parts[2])
    return f"/proc/sys/net/{key}"


class LinuxNamespace:
    """An open namespace. Use it in a `with` block; not by two threads at once."""

    def __init__(self, where: str | NetnsRef) -> None:
        self._descriptor, found = netns.open_descriptor(where)
        try:
            self._channel = netns.run_inside(self._descriptor, Channel)
        except BaseException:
            os.close(self._descriptor)
            raise
        try:
            self._ref = replace(found, cookie=self._channel.netns_cookie)
            netns.check_same(self._ref, where)
        except BaseException:
            self.close()
            raise

    @property
    def ref(self) -> NetnsRef:
        """Which namespace it is."""
        return self._ref

    def links(self, *, counters: bool = False) -> list[Link]:
        """All devices, with their counters if asked."""
        replies = self._channel.dump(encode.dump_links(counters=counters))
        return [decode.link_of(reply) for reply in replies]

    def links_named(self, names: Iterable[str]) -> dict[str, Link]:
        """Those of the names that exist, asked for in one send."""
        answers = self._channel.ask([encode.get_link(name) for name in names])
        found = [decode.link_of(answer) for answer in answers if not isinstance(answer, KernelError)]
        return {link.name: link for link in found}

    def addresses(self) -> list[Address]:
        """All addresses but link-local IPv6 ones."""
        replies = self._channel.dump(encode.dump_addresses())
        return [found for reply in replies if (found := decode.address_of(reply)) is not None]

    def routes(self) -> list[Route]:
        """Unicast and unreachable routes of all tables but `local`."""
        replies = self._channel.dump(encode.dump_routes())
        return [found for reply in replies if (found := decode.route_of(reply)) is not None]

    def rules(self) -> list[Rule]:
        """The rules that match on a source alone."""
        replies = self._channel.dump(encode.dump_rules())
        return [found for reply in replies if (found := decode.rule_of(reply)) is not None]

    def sysctl(self, key: str) -> str:
        """A setting below /proc/sys/net, of this namespace."""
        path = _sysctl_path(key)

        def read() -> str:
            with open(path, encoding="ascii") as file:
                return file.read().strip()

        try:
            return netns.run_inside(self._descriptor, read)
        except OSError as error:
            raise kernel_error(error.errno or 0, f"read setting {key}") from error

    def execute(self, actions: Sequence[Action]) -> list[Exception | None]:
        """Carries out actions in order; neighbouring netlink requests share a send."""
        results: list[Exception | None] = []
        with contextlib.ExitStack() as stack:
            opened: dict[NetnsRef, int] = {}

            def netns_fd(ref: NetnsRef) -> int:
                if ref not in opened:
                    opened[ref], found = netns.open_descriptor(ref)
                    stack.callback(os.close, opened[ref])
                    netns.verify(opened[ref], found, ref)
                return opened[ref]

            requests: list[encode.Request] = []
            places: list[int] = []
            for action in actions:
                results.append(None)
                if isinstance(action, SetSysctl):
                    self._flush(requests, places, results)
                    results[-1] = self._write(action)
                    continue
                try:
                    requests.append(encode.request_of(action, netns_fd))
                    places.append(len(results) - 1)
                except (KernelError, ValueError) as error:
                    results[-1] = error if isinstance(error, KernelError) else BadRequest(str(error))
            self._flush(requests, places, results)
        return results

    def _flush(self, requests: list[encode.Request], places: list[int], results: list[Exception | None]) -> None:
        for place, outcome in zip(places, self._channel.execute(requests), strict=True):
            results[place] = outcome
        requests.clear()
        places.clear()

    def _write(self, action: SetSysctl) -> KernelError | None:
        def write() -> None:
            with open(_sysctl_path(action.key), "w", encoding="ascii") as file:
                file.write(action.value)

        try:
            netns.run_inside(self._descriptor, write)
        except KernelError as error:
            return error
        except OSError as error:
            return kernel_error(error.errno or 0, encode.describe(action))
        return None

    def close(self) -> None:
        """Lets go of the namespace."""
        self._channel.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class LinuxKernel:
    """Namespaces of this machine."""

    blocking = True

    def create_netns(self, name: str) -> NetnsRef:
        """A named namespace with loopback up: a new one, or the one that has the name."""
        ref = netns.create(name)
        with self.open(ref) as inside:
            failure = inside.execute([SetLink("lo", up=True)])[0]
            if failure is not None:
                raise failure
        return ref

    def delete_netns(self, name: str) -> bool:
        """Removes the name; True if there was one."""
        return netns.delete(name)

    def netns_names(self) -> list[str]:
        """Named namespaces, sorted."""
        return netns.names()

    def find(self, where: str | NetnsRef) -> NetnsRef:
        """The identity behind a path, or where a known namespace is now. Raises NetnsGone."""
        return netns.find(where)

    def open(self, where: str | NetnsRef) -> LinuxNamespace:
        """Opens a namespace by path or verified reference. Raises NetnsGone."""
        return LinuxNamespace(where)
