"""The namespaces that one piece of work touches, opened when needed and closed together; and where our VFs are in them.

A VF is known by its mark (the interface's alias), which stays with it through moves and renames; never by its name.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from railweave.runtime.netlink import (
    Kernel,
    Link,
    NameRefused,
    Namespace,
    NetnsGone,
    NetnsRef,
    veth_far_name,
)

__all__ = ["NodePort", "NodePorts", "Session"]

_KEY = re.compile(r"r[0-9]{1,5}v[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class NodePort:
    """A node's PF of one rail: the leaf's namespace (its path) and the name of the leaf port it hangs on."""

    rail: int
    leaf_netns: str
    port: str


@dataclass(frozen=True, slots=True)
class NodePorts:
    """A node of the software fabric: its name, its own namespace (a path; /proc/self/ns/net for the host) and its
    PFs."""

    node: str
    netns: str
    ports: tuple[NodePort, ...]

    def __post_init__(self) -> None:
        rails = [port.rail for port in self.ports]
        if len(set(rails)) != len(rails):
            raise ValueError(f"{self.node}: a rail has two ports")

    def port(self, rail: int) -> NodePort | None:
        """The port of a rail."""
        return next((port for port in self.ports if port.rail == rail), None)

    def mark(self, key: str) -> str:
        """The alias of a VF of this node; its far end has `/far` behind it."""
        return f"railweave/{self.node}/{key}"


@lru_cache(maxsize=4096)
def rail_and_vf(key: str) -> tuple[int, int]:
    """The rail and VF index in a key such as "r1v0"."""
    rail, _, vf = key[1:].partition("v")
    return int(rail), int(vf)


class Session:
    """Opened namespaces and looked-up devices of one call. Close it: an open namespace does not die."""

    def __init__(self, kernel: Kernel, ports: NodePorts) -> None:
        self.kernel = kernel
        self.ports = ports
        self._stack = contextlib.ExitStack()
        self._opened: dict[object, Namespace] = {}
        self._all: dict[int, list[Link]] = {}
        self._links: dict[int, dict[str, Link]] = {}
        self._located: dict[tuple[str, NetnsRef | None], tuple[Namespace, Link]] = {}
        self._renamed: dict[tuple[int, str], str] = {}
        self._leaves: dict[int, Namespace] = {}
        self._leaf_links: dict[tuple[int, str], Link | None] = {}
        self._mark = ports.mark("")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _open(self, where: str | NetnsRef) -> Namespace:
        key = where if isinstance(where, str) else (where.dev, where.inode, where.cookie)
        if key not in self._opened:
            self._opened[key] = self._stack.enter_context(self.kernel.open(where))
        return self._opened[key]

    def node(self) -> Namespace:
        """The node's own namespace."""
        return self._open(self.ports.netns)

    def leaf(self, rail: int) -> Namespace:
        """The namespace of the leaf on that rail. Raises NetnsGone."""
        found = self._leaves.get(rail)
        if found is None:
            port = self.ports.port(rail)
            if port is None:
                raise NetnsGone(f"leaf of rail {rail}", detail=f"{self.ports.node} has no port on that rail")
            found = self._leaves[rail] = self._open(port.leaf_netns)
        return found

    def leaf_link(self, rail: int, name: str) -> Link | None:
        """A device of a leaf, as it was when first asked for; for what does not change under us, such as its index."""
        place = (rail, name)
        if place not in self._leaf_links:
            self._leaf_links[place] = self.leaf(rail).links_named([name]).get(name)
        return self._leaf_links[place]

    def far_name(self, key: str) -> str:
        """The name of a VF's far end in its leaf. Raises NameRefused."""
        rail, vf = rail_and_vf(key)
        port = self.ports.port(rail)
        return veth_far_name(port.port if port is not None else "", vf)

    def worker(self, ref: NetnsRef) -> Namespace:
        """A worker's namespace, wherever it lives by now. Raises NetnsGone."""
        try:
            return self._open(ref)
        except NetnsGone:
            return self._open(self.kernel.find(ref))

    def forget(self) -> None:
        """What was looked up no longer holds: devices were moved or made."""
        self._leaf_links.clear()
        self._all.clear()
        self._links.clear()
        self._located.clear()
        self._renamed.clear()

    def links(self, inside: Namespace) -> list[Link]:
        """All devices of a namespace, as they were when first asked for."""
        found = self._all.get(id(inside))
        if found is None:
            found = self._all[id(inside)] = inside.links()
        return found

    def marked(self, inside: Namespace) -> dict[str, Link]:
        """Our VFs in a namespace, by key. Outside the node's own, where a job may be root, a mark alone is not
        believed: the device must be the one that the far end says is its other end."""
        found = self._links.get(id(inside))
        if found is None:
            start = len(self._mark)
            marked = {link.alias[start:]: link for link in self.links(inside) if link.alias.startswith(self._mark)}
            found = {key: link for key, link in marked.items() if _KEY.fullmatch(key)}
            if inside is not self.node():
                found = {key: link for key, link in found.items() if self._is_other_end(key, link)}
            self._links[id(inside)] = found
        return found

    def _is_other_end(self, key: str, link: Link) -> bool:
        """Whether a device is the near end of that VF: the kernel gives its index to no other device of its
        namespace."""
        try:
            far_end = self.leaf_link(rail_and_vf(key)[0], self.far_name(key))
        except (NetnsGone, NameRefused):
            return False
        return far_end is not None and (far_end.peer_index, link.peer_index) == (link.index, far_end.index)

    def rename(self, inside: Namespace, key: str, name: str) -> None:
        """A rename is about to be sent: what comes behind it in the same send must use the new name."""
        self._renamed[id(inside), key] = name

    def name_of(self, inside: Namespace, key: str, link: Link) -> str:
        """The name a device has by then."""
        return self._renamed.get((id(inside), key), link.name)

    def locate(self, key: str, worker: NetnsRef | None) -> tuple[Namespace, Link] | None:
        """Where a VF is: in the worker's namespace, or the node's."""
        place = (key, worker)
        found = self._located.get(place)
        if found is None:
            found = self._look_for(key, worker)
            if found is not None:
                self._located[place] = found
        return found

    def _look_for(self, key: str, worker: NetnsRef | None) -> tuple[Namespace, Link] | None:
        places = [self.node()]
        if worker is not None:
            with contextlib.suppress(NetnsGone):
                places.insert(0, self.worker(worker))
        for inside in places:
            link = self.marked(inside).get(key)
            if link is not None:
                return inside, link
        return None
