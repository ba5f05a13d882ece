"""What the kernel's refusals are called. errno becomes a named error here and nowhere else.

An action that is refused raises (or, in a batch, yields) one of these; every one names the action, the errno and, where
the kernel said more in its extended acknowledgement, its own words.
"""

from __future__ import annotations

import errno as _errno
import os

__all__ = [
    "AlreadyThere",
    "BadRequest",
    "Busy",
    "DumpInterrupted",
    "GatewayUnreachable",
    "KernelError",
    "KernelSilent",
    "NameRefused",
    "NetnsGone",
    "NotPermitted",
    "NotThere",
    "Unsupported",
    "kernel_error",
]


class KernelError(Exception):
    """The kernel refused an action.

    Attributes:
        action: what was asked, in words.
        errno: the number the kernel answered with, 0 where it did not answer with one.
        detail: the kernel's own words, or empty.
    """

    def __init__(self, action: str, errno: int = 0, detail: str = "") -> None:
        self.action = action
        self.errno = errno
        self.detail = detail
        name = _errno.errorcode.get(errno, str(errno)) if errno else ""
        words = detail or (os.strerror(errno) if errno else "")
        super().__init__(": ".join(part for part in (action, " ".join(p for p in (name, words) if p)) if part))

    @property
    def errno_name(self) -> str:
        """The symbolic errno ("EBUSY"), or the class' own name where the kernel gave none."""
        return _errno.errorcode.get(self.errno, type(self).__name__)


class AlreadyThere(KernelError):
    """EEXIST: something of that name or key is there; not that it is the same thing (dranet#344): read it back."""


class NotThere(KernelError):
    """ENODEV, ENOENT, ESRCH, EADDRNOTAVAIL: what the action is about does not exist."""


class Busy(KernelError):
    """EBUSY: it is in use; trying again may help."""


class NotPermitted(KernelError):
    """EPERM, EACCES: CAP_NET_ADMIN (or CAP_SYS_ADMIN for namespaces) is missing in the namespace asked."""


class Unsupported(KernelError):
    """EOPNOTSUPP, EAFNOSUPPORT, EPROTONOSUPPORT: this kernel or driver cannot do it."""


class GatewayUnreachable(KernelError):
    """ENETUNREACH, EHOSTUNREACH, ENETDOWN: a route's gateway is on no connected subnet, or its link is down."""


class BadRequest(KernelError):
    """EINVAL, ERANGE, EMSGSIZE and the like: the kernel finds the values themselves wrong."""


class DumpInterrupted(KernelError):
    """The tables changed under every one of several dumps (NLM_F_DUMP_INTR)."""


class KernelSilent(KernelError):
    """The kernel did not answer in time, or its answer was lost (ENOBUFS): whether it acted is unknown."""


class NetnsGone(KernelError):
    """No network namespace is where one was, or another one is (its inode differs)."""


class NameRefused(KernelError):
    """A name that may not become an interface or namespace name; nothing was asked of the kernel."""


_BY_ERRNO: dict[int, type[KernelError]] = {
    _errno.EEXIST: AlreadyThere,
    _errno.ENODEV: NotThere,
    _errno.ENOENT: NotThere,
    _errno.ESRCH: NotThere,
    _errno.ENXIO: NotThere,
    _errno.EADDRNOTAVAIL: NotThere,
    _errno.EBUSY: Busy,
    _errno.EPERM: NotPermitted,
    _errno.EACCES: NotPermitted,
    _errno.EOPNOTSUPP: Unsupported,
    _errno.EAFNOSUPPORT: Unsupported,
    _errno.EPROTONOSUPPORT: Unsupported,
    _errno.ENETUNREACH: GatewayUnreachable,
    _errno.EHOSTUNREACH: GatewayUnreachable,
    _errno.ENETDOWN: GatewayUnreachable,
    _errno.EINVAL: BadRequest,
    _errno.ERANGE: BadRequest,
    _errno.EMSGSIZE: BadRequest,
    _errno.ENOBUFS: KernelSilent,
    _errno.EAGAIN: KernelSilent,
    _errno.ETIMEDOUT: KernelSilent,
}


def kernel_error(errno: int, action: str, detail: str = "") -> KernelError:
    """The named error of an errno (positive)."""
    return _BY_ERRNO.get(errno, KernelError)(action, errno, detail)
