"""Network namespaces: making, finding, opening and entering them.

Identity is (device, inode) of the namespace file and the namespace's cookie, since inodes are used again at once. A
path or pid leads to a namespace; which one is asked of the kernel after opening, and compared. A path that is no
namespace (a left-over regular file on /run/netns, sriov-cni PR#447) counts as gone. Namespaces are entered only in
threads made for it, which end there: a pooled thread that failed to come back would carry out somebody else's work in
the wrong namespace.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from railweave.runtime.netlink.errors import NetnsGone, kernel_error
from railweave.runtime.netlink.model import NetnsRef
from railweave.runtime.netlink.names import check_netns_name

__all__ = [
    "NETNS_DIRECTORY",
    "check_same",
    "cookie_of",
    "create",
    "delete",
    "find",
    "names",
    "open_descriptor",
    "own_netns",
    "path_of",
    "run_inside",
    "verify",
]

NETNS_DIRECTORY = Path("/run/netns")
"""Where named namespaces are mounted; what `ip netns` uses."""

_OWN_NETNS = "/proc/thread-self/ns/net"
_CLONE_NEWNET = 0x40000000
_NS_GET_NSTYPE = 0xB703
_MS_BIND, _MS_REC, _MS_SHARED = 4096, 16384, 1 << 20
_MNT_DETACH = 2
_SO_NETNS_COOKIE = 71

T = TypeVar("T")
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, action: str) -> None:
    if result != 0:
        raise kernel_error(ctypes.get_errno(), action)


def _identity(descriptor: int, path: str, expected: str | NetnsRef) -> NetnsRef:
    try:
        kind = fcntl.ioctl(descriptor, _NS_GET_NSTYPE)
    except OSError as error:
        raise NetnsGone(f"network namespace at {path}", error.errno or 0, "what is there is no namespace") from error
    if kind != _CLONE_NEWNET:
        raise NetnsGone(f"network namespace at {path}", detail="it is a namespace of another kind")
    status = os.fstat(descriptor)
    found = NetnsRef(path, status.st_dev, status.st_ino)
    check_same(found, expected)
    return found


def check_same(found: NetnsRef, expected: str | NetnsRef) -> None:
    """Raises NetnsGone where a reference leads to another namespace than its own."""
    if isinstance(expected, str) or found.is_same(expected):
        return
    differs = f"inode {found.inode}, not {expected.inode}"
    if found.inode == expected.inode:
        differs = f"the same inode again, but cookie {found.cookie}, not {expected.cookie}"
    raise NetnsGone(f"network namespace at {found.path}", detail=f"another one is there now ({differs})")


def cookie_of(open_socket: socket.socket) -> int:
    """The cookie of the namespace that a socket is in; 0 where the kernel has none to tell (before 5.14)."""
    try:
        return int.from_bytes(open_socket.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), sys.byteorder)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise kernel_error(error.errno or 0, "ask for the cookie of a network namespace") from error
        return 0


def _own_cookie() -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inside:
        return cookie_of(inside)


def path_of(name: str) -> str:
    """The path of a named namespace. Raises NameRefused."""
    return str(NETNS_DIRECTORY / check_netns_name(name))


def open_descriptor(where: str | NetnsRef) -> tuple[int, NetnsRef]:
    """An open descriptor of the namespace, and its identity but for the cookie, which takes a thread of its own to ask
    for: `verify` does, or a socket that is made in there anyway. The caller closes it.

    Raises:
        NetnsGone: nothing is there, it is no network namespace, or (for a reference) another one.
    """
    path = where if isinstance(where, str) else where.path
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NetnsGone(f"network namespace at {path}", error.errno or 0) from error
    try:
        found = _identity(descriptor, path, where)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, found


def verify(descriptor: int, found: NetnsRef, expected: str | NetnsRef) -> NetnsRef:
    """The identity with its cookie. Raises NetnsGone where it is not the expected one."""
    whole = replace(found, cookie=run_inside(descriptor, _own_cookie))
    check_same(whole, expected)
    return whole


def own_netns() -> NetnsRef:
    """The namespace of the calling thread."""
    descriptor, found = open_descriptor(_OWN_NETNS)
    os.close(descriptor)
    return NetnsRef("/proc/self/ns/net", found.dev, found.inode, _own_cookie())


def find(where: str | NetnsRef) -> NetnsRef:
    """What a path leads to. A reference that no longer leads there is looked for among the named namespaces and those
    of all processes, by identity.

    Raises:
        NetnsGone: it is nowhere to be found (which is not proof that it is dead: a descriptor can hold it).
    """
    try:
        return _whole(where)
    except NetnsGone:
        if isinstance(where, str):
            raise
        elsewhere = _search(where)
        if elsewhere is None:
            raise
        return _whole(replace(where, path=elsewhere.path))


def _whole(where: str | NetnsRef) -> NetnsRef:
    descriptor, found = open_descriptor(where)
    try:
        return verify(descriptor, found, where)
    finally:
        os.close(descriptor)


def _search(wanted: NetnsRef) -> NetnsRef | None:
    candidates = [str(NETNS_DIRECTORY / name) for name in names()]
    candidates += [f"/proc/{entry}/ns/net" for entry in os.listdir("/proc") if entry.isdigit()]
    for path in candidates:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            if (status.st_dev, status.st_ino) == (wanted.dev, wanted.inode):
                return NetnsRef(path, wanted.dev, wanted.inode)
    return None


def names() -> list[str]:
    """Names below /run/netns, whether or not a namespace is still mounted there."""
    try:
        return sorted(os.listdir(NETNS_DIRECTORY))
    except FileNotFoundError:
        return []


def _share_directory() -> None:
    """Makes /run/netns a shared mount, as `ip netns` does, so that a removed name is removed in every mount namespace
    and the namespace dies; else a container's copy of the mount would keep it alive unseen."""
    directory = str(NETNS_DIRECTORY).encode()
    NETNS_DIRECTORY.mkdir(mode=0o755, parents=True, exist_ok=True)
    if _libc.mount(b"", directory, b"none", _MS_SHARED | _MS_REC, None) == 0:
        return
    if ctypes.get_errno() != errno.EINVAL:
        _check(-1, f"share {NETNS_DIRECTORY}")
    _check(_libc.mount(directory, directory, b"none", _MS_BIND | _MS_REC, None), f"bind {NETNS_DIRECTORY}")
    _check(_libc.mount(b"", directory, b"none", _MS_SHARED | _MS_REC, None), f"share {NETNS_DIRECTORY}")


def create(name: str) -> NetnsRef:
    """A named namespace: a new one, or the one that has the name. A name left over without a namespace is reused.

    Raises:
        NameRefused, NotPermitted.
    """
    path = path_of(name)
    with contextlib.suppress(NetnsGone):
        return find(path)
    _share_directory()
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o444))

    def make() -> None:
        _check(_libc.unshare(_CLONE_NEWNET), f"create network namespace {name}")
        mounted = _libc.mount(_OWN_NETNS.encode(), path.encode(), b"none", _MS_BIND, None)
        _check(mounted, f"mount network namespace {name}")

    try:
        _in_new_thread(make)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    return find(path)


def delete(name: str) -> bool:
    """Removes a name, and with it the namespace unless a process or descriptor holds it. True if there was one."""
    path = path_of(name)
    if not os.path.lexists(path):
        return False
    if _libc.umount2(path.encode(), _MNT_DETACH) != 0 and ctypes.get_errno() not in {errno.EINVAL, errno.ENOENT}:
        _check(-1, f"unmount network namespace {name}")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return True


def _in_new_thread(work: Callable[[], T]) -> T:
    results: list[T] = []
    failures: list[BaseException] = []

    def body() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - carried to the caller's thread, whatever it is
            failures.append(error)

    thread = threading.Thread(target=body, name="railweave-netns")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def run_inside(descriptor: int, work: Callable[[], T]) -> T:
    """Runs `work` in a thread of its own inside the namespace, and gives what it gives. Blocks."""

    def entered() -> T:
        _check(_libc.setns(descriptor, _CLONE_NEWNET), "enter network namespace")
        return work()

    return _in_new_thread(entered)
