"""Interface and namespace names: what may be one, and short names that follow from long ones.

The kernel takes 15 bytes for an interface. A name that does not fit is shortened by a rule that depends on the name
alone (so that topology and the agent, which do not know each other, arrive at the same one), and a shortened name can
never equal one that was not shortened, because only shortened names hold a tilde.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache

from railweave.runtime.netlink.errors import NameRefused

__all__ = [
    "DEVICE_NAME_LIMIT",
    "check_device_name",
    "check_netns_name",
    "device_name",
    "distinct_device_names",
    "veth_far_name",
    "vf_name",
    "vlan_bridge_name",
]

DEVICE_NAME_LIMIT = 15
"""Bytes of an interface name (IFNAMSIZ less its closing zero)."""

_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,14}")
_NETNS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_UNFIT = re.compile(r"[^A-Za-z0-9._-]")
_DIGEST_LENGTH = 6


def check_device_name(name: str) -> str:
    """The name itself when the kernel and every tool around it take it.

    Raises:
        NameRefused: it is empty, longer than 15 bytes, or holds anything but letters, digits, `.`, `_`, `-` and `~`.
    """
    if not _DEVICE.fullmatch(name) or name in {"all", "default"}:
        raise NameRefused(f"interface name {name!r}", detail="1 to 15 of A-Z a-z 0-9 . _ - ~, a letter or digit first")
    return name


def check_netns_name(name: str) -> str:
    """The name itself when it may be a file below /run/netns.

    Raises:
        NameRefused: it could be a path, an option, or is longer than 64.
    """
    if not _NETNS.fullmatch(name):
        raise NameRefused(f"namespace name {name!r}", detail="1 to 64 of A-Z a-z 0-9 . _ -, a letter or digit first")
    return name


def device_name(base: str, suffix: str = "") -> str:
    """An interface name out of `base` and `suffix`: as they are where they fit, else `<base cut>~<digest><suffix>`.

    The suffix is never cut. The same input gives the same name on every machine.

    Raises:
        NameRefused: `base` is empty, or the suffix leaves no room.
    """
    whole = f"{base}{suffix}"
    if not base:
        raise NameRefused(f"interface name {whole!r}", detail="has nothing before its suffix")
    if _DEVICE.fullmatch(whole) and "~" not in whole:
        return check_device_name(whole)
    digest = hashlib.sha256(base.encode()).digest()
    code = int.from_bytes(digest[:4], "big")
    letters = "".join("0123456789abcdefghijklmnopqrstuvwxyz"[code // 36**place % 36] for place in range(_DIGEST_LENGTH))
    room = DEVICE_NAME_LIMIT - len(suffix) - _DIGEST_LENGTH - 1
    stem = _UNFIT.sub("", base).lstrip("._-")[: max(room, 0)]
    if room < 1:
        raise NameRefused(f"interface name {whole!r}", detail="cannot be shortened to 15 bytes")
    return check_device_name(f"{stem or 'x'}~{letters}{suffix}")


def distinct_device_names(bases: Iterable[str], suffix: str = "") -> dict[str, str]:
    """`device_name` of each base.

    Raises:
        NameRefused: two bases come out as one name; both are named.
    """
    taken: dict[str, str] = {}
    names: dict[str, str] = {}
    for base in bases:
        name = device_name(base, suffix)
        if taken.setdefault(name, base) != base:
            raise NameRefused(f"interface name {name!r}", detail=f"both {taken[name]!r} and {base!r} shorten to it")
        names[base] = name
    return names


def vf_name(rail: int, vf: int) -> str:
    """The host name of VF `vf` of rail `rail` (veth driver), and the key that VFs go by inside an agent."""
    return f"r{rail}v{vf}"


@lru_cache(maxsize=65536)
def veth_far_name(port: str, vf: int) -> str:
    """The interface inside a software leaf that is the far end of VF `vf` on leaf port `port`."""
    return device_name(port, f"v{vf}")


def vlan_bridge_name(vlan: int) -> str:
    """The bridge inside a software leaf that is the VLAN `vlan`."""
    return f"br{vlan}"
