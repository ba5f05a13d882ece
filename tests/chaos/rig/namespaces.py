"""Workers' network namespaces as a container runtime makes them, and what of them and of the VFs is where."""

from __future__ import annotations

from rig.scheduler import Namespaces

from railweave.cli.demo.network import bridge_members, devices
from railweave.cli.stack.design import Design
from railweave.contracts.identity import JobRun
from railweave.runtime.netlink import LinuxKernel


class RealNamespaces(Namespaces):
    """One for each worker, named by its run."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._kernel = LinuxKernel()
        self._made: dict[JobRun, list[str]] = {}
        self.not_empty: list[str] = []
        """Devices found in a namespace whose job was said to be released."""

    def _names(self, run: JobRun, workers: int) -> list[str]:
        return [f"{self._run}-{run.job}-{run.uid}-{int(run.attempt)}-w{rank}" for rank in range(workers)]

    def paths(self, run: JobRun, workers: int) -> list[str]:
        return [f"/run/netns/{name}" for name in self._names(run, workers)]

    def make(self, run: JobRun, workers: int) -> None:
        self._made[run] = self._names(run, workers)
        for name in self._made[run]:
            self._kernel.create_netns(name)

    def remove(self, run: JobRun, *, is_over: bool = False) -> None:
        for name in self._made.pop(run, ()):
            left = devices(name) if is_over else []
            if left:
                self.not_empty.append(f"{name} still has {', '.join(left)}")
            self._kernel.delete_netns(name)

    def picture(self, run: JobRun) -> dict[str, list[tuple[object, ...]]]:
        """What is in each namespace of a run: each device with its identity, and each address. The same again later
        means that nobody touched it.
        """
        seen: dict[str, list[tuple[object, ...]]] = {}
        for name in self._made.get(run, ()):
            with self._kernel.open(f"/run/netns/{name}") as inside:
                links = {link.index: link for link in inside.links() if link.name != "lo"}
                seen[name] = sorted((link.index, link.name, link.mac, link.alias, link.up) for link in links.values())
                seen[name] += sorted((at.index, at.cidr) for at in inside.addresses() if at.index in links)
                seen[name] += sorted((rule.priority, rule.source, rule.table) for rule in inside.rules())
        return seen


def away_from_home(design: Design) -> list[str]:
    """VFs that are not in their node's namespace, nodes with other devices, and leaves' bridges with members."""
    found = []
    per_node = design.shape.rails * design.shape.vfs
    for node in design.shape.node_names:
        there = devices(design.node_netns(node))
        if len(there) != per_node:
            found.append(f"{node} has {len(there)} devices of its {per_node} VFs")
    for number in range(1, design.shape.leaves + 1):
        members = bridge_members(design.leaf_netns(f"leaf-{number}"))
        if members:
            found.append(f"leaf-{number} has {members} ports on bridges")
    return found
