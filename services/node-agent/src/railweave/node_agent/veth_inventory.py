"""The PFs of a node on the software fabric: there as soon as their leaves are, with their VFs made."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from railweave.contracts.inventory import Pf
from railweave.node_agent.network import NetworkDriver, NetworkRefused, NodePort
from railweave.runtime.netlink import KernelError

_log = logging.getLogger("railweave.agent")


class VethPfs:
    """Makes the VFs when the fabric is there, and says which rails are up.

    Args:
        driver: of the node.
        pfs: as they are when all is well.
        ports: of the node, by rail.
    """

    def __init__(self, driver: NetworkDriver, pfs: Sequence[Pf], ports: Sequence[NodePort]) -> None:
        self._driver = driver
        self._pfs = tuple(pfs)
        self._leaf = {port.rail: port.leaf_netns for port in ports}
        self._is_whole = False
        """All leaves are there and all VFs made."""
        self._was_made = False
        self._told = ""

    async def pfs(self) -> tuple[Pf, ...]:
        """As they are now. A leaf that is away takes its rail down; its VFs are made anew when it is back."""
        up = {rail for rail, leaf in self._leaf.items() if os.path.exists(leaf)}  # noqa: ASYNC240 - a tmpfs
        if up != self._leaf.keys():
            self._is_whole = False
            self._tell(f"rails {sorted(self._leaf.keys() - up)} have no leaf")
        elif not self._is_whole:
            await self._provision()
        return tuple(
            pf if self._was_made and int(pf.rail) in up else pf.model_copy(update={"link_up": False})
            for pf in self._pfs
        )

    async def _provision(self) -> None:
        try:
            made = await self._driver.provision(max((pf.vfs for pf in self._pfs), default=0))
        except (KernelError, NetworkRefused) as error:
            self._tell(f"VFs cannot be made: {error}")
            return
        self._is_whole = self._was_made = True
        self._told = ""
        if made:
            _log.info("made %d VFs", len(made))

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._told = text
            _log.warning("%s", text)
