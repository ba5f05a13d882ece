"""The network namespaces of a local stack: each node's own, and taking away whatever carries the stack's name.

The leaves' and spines' namespaces are made by topology's driver, the VFs by the agents. Everything here blocks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from railweave.cli.stack.rights import may_make_namespaces
from railweave.cli.where import read_context
from railweave.runtime.netlink import KernelError, LinuxKernel, SetSysctl, settle_all


def make_nodes(names: Iterable[str]) -> None:
    """A namespace for each node, or the one that has the name; its loopback is up.

    Raises:
        KernelError: the kernel refused.
    """
    kernel = LinuxKernel()
    for name in names:
        ref = kernel.create_netns(name)
        with kernel.open(ref) as inside:
            # A host answers for its own addresses only, however many NICs share a segment.
            settle_all(
                inside, [SetSysctl("ipv4/conf/all/arp_ignore", "1"), SetSysctl("ipv4/conf/all/arp_announce", "2")]
            )


def remove_all(run: str) -> list[str]:
    """Take away every namespace whose name begins with `<run>-`; gives their names.

    A worker's namespace that its scheduler made under another name is not ours and stays.
    """
    kernel = LinuxKernel()
    gone = []
    for name in kernel.netns_names():
        if name.startswith(f"{run}-"):
            with contextlib.suppress(KernelError):
                if kernel.delete_netns(name):
                    gone.append(name)
    return gone


def sweep(directory: Path) -> list[str]:
    """Take away the namespaces of a stack that was killed; gives their names. Nothing where one runs."""
    context = read_context(directory)
    if context is None or context.is_running or not may_make_namespaces():
        return []
    return remove_all(context.run)
