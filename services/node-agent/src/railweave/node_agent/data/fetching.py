"""Bytes from a source into a directory: `file:` (files and trees below allowed roots) and `http(s):` (resumed
by ranges).

Blocks: runs in threads. Everything is hashed as it is written and synced before it returns. A source may state a
size; the claim that was made for the dataset is a bound either way, and a byte beyond it ends the fetch.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import os
import random
import re
import socket
import ssl
import stat
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from railweave.node_agent.data.layout import StoredFile, harmless_name
from railweave.node_agent.data.model import DataFailed
from railweave.runtime.backoff import BackoffPolicy

_CHUNK = 1 << 20
_RETRIED_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


class FetchCancelled(Exception):
    """Nobody wants the dataset any more."""


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """How sources are read. Times in seconds."""

    file_roots: tuple[Path, ...] = ()
    """Directories that `file:` sources may be in; none: they are refused. The agent may read what a job may not."""
    timeout_s: float = 20.0
    tries: int = 6
    """Tries in a row without a new byte."""
    backoff: BackoffPolicy = field(default_factory=lambda: BackoffPolicy(first_s=0.2, cap_s=10.0))
    tls: ssl.SSLContext | None = None


class Cancel:
    """Says to a thread that its fetch is not wanted any more, also while it waits for a silent server."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._descriptor: int | None = None

    def set(self) -> None:
        """Ask to stop; a connection that is being read ends now."""
        self._event.set()
        with self._lock:
            if self._descriptor is not None:
                # The descriptor stays the reader's: what is shut down is the connection behind it.
                with socket.socket(fileno=os.dup(self._descriptor)) as connection, contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def is_set(self) -> bool:
        """Whether asked to stop."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait; whether asked to stop meanwhile."""
        return self._event.wait(seconds)

    @contextlib.contextmanager
    def reading(self, descriptor: int) -> Iterator[None]:
        """While inside, asking to stop shuts this connection down."""
        with self._lock:
            self._descriptor = descriptor
        try:
            yield
        finally:
            with self._lock:
                self._descriptor = None


class Budget:
    """Counts bytes against what was claimed, and looks whether anybody still wants them."""

    def __init__(self, dataset: str, limit: int, cancel: Cancel) -> None:
        self._dataset = dataset
        self._limit = limit
        self.cancel = cancel
        self.taken = 0

    def take(self, count: int) -> None:
        """Count bytes before they are written; raises DataFailed beyond the claim, FetchCancelled."""
        if self.cancel.is_set():
            raise FetchCancelled
        self.taken += count
        if self.taken > self._limit:
            raise DataFailed("EFBIG", f"{self._dataset} is larger than the {self._limit} bytes claimed for it")

    def give_back(self, count: int) -> None:
        """What was counted is written anew."""
        self.taken -= count

    def pause(self, seconds: float) -> None:
        """Wait before another try; raises FetchCancelled."""
        if self.cancel.wait(seconds):
            raise FetchCancelled


def fetch(source: str, content: Path, budget: Budget, options: FetchOptions) -> list[StoredFile]:
    """Copy a source into the empty directory `content`.

    Raises:
        DataFailed: the source is refused, not there, too large, or failed too often.
        FetchCancelled: asked to stop.
    """
    scheme = urlsplit(source).scheme
    try:
        if scheme == "file":
            return _fetch_file(_allowed_path(source, options), content, budget)
        if scheme in ("http", "https"):
            return [_HttpFetch(source, content, budget, options).run()]
    except OSError as error:
        raise _failed(error, source) from error
    raise DataFailed("EPROTONOSUPPORT", f"sources of kind {scheme}: are not fetched by this agent (file, http, https)")


def _failed(error: OSError, what: str) -> DataFailed:
    name = errno.errorcode.get(error.errno or 0, type(error).__name__)
    return DataFailed(
        name, f"{what}: {error.strerror or error}", is_transient=error.errno in (errno.EAGAIN, errno.EBUSY)
    )


def _allowed_path(source: str, options: FetchOptions) -> Path:
    parts = urlsplit(source)
    if parts.netloc not in ("", "localhost"):
        raise DataFailed("EINVAL", f"{source}: a file: source is on this node; write file:/path")
    # Resolved before it is compared: neither `..` nor a link leads out of a root.
    path = Path(os.path.realpath(unquote(parts.path)))
    if not any(path.is_relative_to(os.path.realpath(root)) for root in options.file_roots):
        roots = ", ".join(str(root) for root in options.file_roots) or "none"
        raise DataFailed("EACCES", f"{source} is not below a directory that agent.file_roots allows ({roots})")
    return path


def _fetch_file(path: Path, content: Path, budget: Budget) -> list[StoredFile]:
    if stat.S_ISREG(os.stat(path).st_mode):
        return [_copy(path, content, harmless_name(path.name, "content"), budget)]
    return list(_copy_tree(path, content, budget))


def _copy_tree(root: Path, content: Path, budget: Budget) -> Iterator[StoredFile]:
    def fail(error: OSError) -> None:
        raise error

    for current, directories, files in os.walk(root, onerror=fail):
        below = os.path.relpath(current, root)
        directories.sort()
        for name in [*directories, *sorted(files)]:
            relative = name if below == "." else f"{below}/{name}"
            path = Path(current) / name
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                _copy_link(path, root, content / relative)
            elif stat.S_ISDIR(mode):
                (content / relative).mkdir()
            elif stat.S_ISREG(mode):
                yield _copy(path, content, relative, budget)
            else:
                raise DataFailed("EINVAL", f"{path} is neither file, directory nor link")


def _copy_link(path: Path, root: Path, target: Path) -> None:
    leads_to = os.readlink(path)
    if os.path.isabs(leads_to) or not Path(os.path.realpath(path)).is_relative_to(root):
        raise DataFailed("EINVAL", f"{path} is a link that leads out of the dataset ({leads_to})")
    os.symlink(leads_to, target)


def _copy(path: Path, content: Path, relative: str, budget: Budget) -> StoredFile:
    digest = hashlib.sha256()
    size = 0
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with open(descriptor, "rb") as source, (content / relative).open("xb") as target:
        while chunk := source.read(_CHUNK):
            budget.take(len(chunk))
            digest.update(chunk)
            target.write(chunk)
            size += len(chunk)
        target.flush()
        os.fsync(target.fileno())
    return StoredFile(relative, size, digest.hexdigest())


def _opener(options: FetchOptions) -> urllib.request.OpenerDirector:
    """Speaks HTTP and nothing else: a redirect must not become a file: or ftp: read."""
    opener = urllib.request.OpenerDirector()
    tls = options.tls or ssl.create_default_context()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=tls),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


class _Again(Exception):
    """This try is over, the next may go better."""


class _HttpFetch:
    """One file by HTTP. What has come is kept over failures; parts of two versions are never joined (If-Match)."""

    def __init__(self, url: str, content: Path, budget: Budget, options: FetchOptions) -> None:
        self._url = url
        name = unquote(urlsplit(url).path.rpartition("/")[2])
        self._relative = harmless_name(name, "content")
        self._path = content / self._relative
        self._budget = budget
        self._options = options
        self._opener = _opener(options)
        self._digest = hashlib.sha256()
        self._received = 0
        self._etag: str | None = None
        self._was_changed = False

    def run(self) -> StoredFile:
        rng = random.Random()
        failures = 0
        with self._path.open("xb") as file:
            while True:
                before = self._received
                try:
                    self._attempt(file)
                    break
                except (
                    _Again,
                    http.client.HTTPException,
                    TimeoutError,
                    ConnectionError,
                    urllib.error.URLError,
                ) as lost:
                    failures = 1 if self._received > before else failures + 1
                    if failures >= self._options.tries:
                        raise DataFailed("ETIMEDOUT", f"{self._url}: {lost}, {failures} times in a row") from lost
                    self._budget.pause(self._options.backoff.wait_s(failures - 1, rng))
            file.flush()
            os.fsync(file.fileno())
        return StoredFile(self._relative, self._received, self._digest.hexdigest())

    def _attempt(self, file: IO[bytes]) -> None:
        headers = {"Accept-Encoding": "identity", "User-Agent": "railweave-agent"}
        if self._received:
            headers["Range"] = f"bytes={self._received}-"
            if self._etag is not None:
                headers["If-Match"] = self._etag
        request = urllib.request.Request(self._url, headers=headers)  # noqa: S310 - the opener speaks HTTP only
        try:
            response = self._opener.open(request, timeout=self._options.timeout_s)
        except urllib.error.HTTPError as refusal:
            with refusal:
                self._on_status(refusal, file)
            return
        with contextlib.closing(response), self._budget.cancel.reading(response.fileno()):
            self._budget.take(0)
            total = self._total(response, file)
            self._read(response, file)
        if total is not None and self._received != total:
            raise _Again(f"the body ended after {self._received} of {total} bytes")

    def _on_status(self, refusal: urllib.error.HTTPError, file: IO[bytes]) -> None:
        """A status that is no success; returns where the file turns out to be complete."""
        status = refusal.code
        if status == 416 and self._received:
            found = _CONTENT_RANGE.fullmatch(refusal.headers.get("Content-Range", ""))
            if found is not None and found[3] == str(self._received):
                return
            self._restart(file)
            raise _Again("the range was refused")
        if status == 412:
            if self._was_changed:
                raise DataFailed("ESTALE", f"{self._url} keeps changing while it is fetched")
            self._was_changed = True
            self._restart(file)
            raise _Again("the source has changed")
        if status in _RETRIED_STATUS:
            raise _Again(f"HTTP {status} {refusal.reason}")
        raise DataFailed(
            "ENOENT" if status in (404, 410) else f"HTTP{status}", f"{self._url}: HTTP {status} {refusal.reason}"
        )

    def _total(self, response: Any, file: IO[bytes]) -> int | None:
        """The whole file's size as this answer states it; starts over where the server does not go on."""
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding.lower() != "identity":
            raise DataFailed("EPROTO", f"{self._url} comes as {encoding}: its size says nothing of the file's")
        length = response.headers.get("Content-Length")
        if response.status == 206:
            found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if found is None or found[1] != str(self._received):
                self._restart(file)
                raise _Again("the server sent another range")
            return None if found[3] == "*" else int(found[3])
        if self._received:
            self._restart(file)  # the server does not do ranges: this is the file from its start
        etag = response.headers.get("ETag")
        self._etag = etag if etag is not None and not etag.startswith("W/") else None
        return int(length) if length is not None and length.isdigit() else None

    def _read(self, response: Any, file: IO[bytes]) -> None:
        while chunk := response.read(_CHUNK):
            self._budget.take(len(chunk))
            file.write(chunk)
            self._digest.update(chunk)
            self._received += len(chunk)

    def _restart(self, file: IO[bytes]) -> None:
        file.seek(0)
        file.truncate()
        self._budget.give_back(self._received)
        self._received = 0
        self._digest = hashlib.sha256()
