"""Where things are on disk, and how they are published: names from events never become paths.

    <root>/cache/<key>/manifest.json     written last: without it a directory is not a dataset
    <root>/cache/<key>/files.jsonl       one line a file: path, size, sha256
    <root>/cache/<key>/content/...       what the job sees, read-only
    <root>/tmp/<key>.<random>/           a fetch in progress; swept at start
    <root>/trash/<random>/               evicted, being unlinked; swept at start
    <root>/jobs/<job key>/               job.json, scratch/, datasets/<readable name> -> ../../../cache/<key>/content

`<key>` is a sha256 of `name@version`; the readable name is in the manifest, and, made harmless, in a job's link.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from railweave.contracts.codec import encode_token
from railweave.contracts.placement import PlacedDataset
from railweave.node_agent.data.model import Cached
from railweave.node_agent.model import EntryKey

FORMAT = 1
CONTENT = "content"
MANIFEST = "manifest.json"
FILES = "files.jsonl"

_HARMLESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+=-]{0,199}")
_LINK_LIMIT = 200


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a dataset: its path below `content`, its size and sha256."""

    path: str
    size: int
    sha256: str


def dataset_key(dataset: str) -> str:
    """The directory name of `name@version`."""
    return hashlib.sha256(dataset.encode()).hexdigest()


def job_directory(key: EntryKey) -> str:
    """The directory name of a job's run."""
    return hashlib.sha256(f"{key.cluster}\0{key.job}\0{int(key.attempt)}".encode()).hexdigest()[:32]


def content_digest(files: Iterable[StoredFile]) -> str:
    """The digest of a dataset: of its one file, or of its files' lines `path NUL sha256 NL`, sorted by path."""
    listed = sorted(files, key=lambda file: file.path)
    if len(listed) == 1:
        return f"sha256:{listed[0].sha256}"
    total = hashlib.sha256()
    for file in listed:
        total.update(f"{file.path}\0{file.sha256}\n".encode())
    return f"sha256:{total.hexdigest()}"


def harmless_name(name: str, otherwise: str) -> str:
    """A file name out of one from outside: itself where it can do no harm."""
    return name if _HARMLESS.fullmatch(name) else otherwise


def link_names(datasets: Iterable[PlacedDataset]) -> dict[str, str]:
    """The link name of each dataset (`name@version`) of a job: its readable name, with the version where two share it.

    A name that cannot be a file name is escaped as subject tokens are, and cut with a digest where too long.
    """
    listed = list(datasets)
    names = [str(item.name) for item in listed]
    links: dict[str, str] = {}
    for item in listed:
        readable = str(item.name) if names.count(str(item.name)) == 1 else item.dataset
        link = harmless_name(readable, encode_token(readable))
        if len(link) > _LINK_LIMIT:
            link = f"{link[: _LINK_LIMIT - 17]}~{dataset_key(item.dataset)[:16]}"
        links[item.dataset] = link
    return links


def write_durably(path: Path, text: str, mode: int = 0o444) -> None:
    """Make a file that survives the machine once its directory is synced."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Make what was created, renamed or removed in a directory survive the machine."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_manifest(directory: Path, cached: Cached, files: Iterable[StoredFile]) -> None:
    """Say in a directory what it holds: the file list, then, last, the manifest; read-only and durable."""
    lines = (json.dumps({"path": f.path, "size": f.size, "sha256": f.sha256}, ensure_ascii=False) for f in files)
    write_durably(directory / FILES, "".join(line + "\n" for line in lines))
    document = {
        "format": FORMAT,
        "name": cached.name,
        "version": cached.version,
        "bytes": cached.bytes,
        "files": cached.files,
        "source": cached.source,
        "digest": cached.digest,
    }
    write_durably(directory / MANIFEST, json.dumps(document, ensure_ascii=False, indent=1) + "\n")


def read_manifest(directory: Path) -> Cached | None:
    """The dataset in a directory; None where it is not one, whatever else is there."""
    try:
        document: Mapping[str, Any] = json.loads((directory / MANIFEST).read_text("utf-8"))
        cached = Cached(
            name=str(document["name"]),
            version=str(document["version"]),
            bytes=int(document["bytes"]),
            files=int(document["files"]),
            source=document["source"],
            digest=document["digest"],
        )
        is_whole = document["format"] == FORMAT and (directory / CONTENT).is_dir()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return cached if is_whole and directory.name == dataset_key(cached.dataset) else None


def make_read_only(content: Path) -> None:
    """Take write permission from every file and directory; readable for all jobs."""
    for current, _, files in os.walk(content):
        for name in files:
            path = os.path.join(current, name)
            if not os.path.islink(path):
                os.chmod(path, 0o444)
        os.chmod(current, 0o555)  # noqa: S103 - every job on the node may read it


def remove_tree(path: Path) -> int:
    """Unlink a tree, read-only directories and planted links included; the bytes freed. Links are not followed."""
    freed = 0
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return 0
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(path)
        return status.st_blocks * 512
    os.chmod(path, 0o700)
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                freed += remove_tree(Path(entry.path))
                continue
            with contextlib.suppress(FileNotFoundError):
                freed += entry.stat(follow_symlinks=False).st_blocks * 512
                os.unlink(entry.path)
    os.rmdir(path)
    return freed
