"""Telling hosts from switches by the names of their ports, where a format does not say which is which. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_NIC: Final = re.compile(
    r"(eth|em|p\d+p|mlx\d_|bnxt|irdma|ib|bond|rail|nic|hca[-_]?)\d[\w.-]*|en[opsx]\w+", re.IGNORECASE
)


def is_nic(port: str) -> bool:
    """Whether a port has the name of a host's NIC (`eth0`, `ens4f0np0`, `p4p1`, `mlx5_0`), not of a switch's port."""
    return _NIC.fullmatch(port) is not None


def are_nics(ports: Iterable[str]) -> bool:
    """Whether all of them have; no port at all tells of no host."""
    known = list(ports)
    return bool(known) and all(is_nic(port) for port in known)
