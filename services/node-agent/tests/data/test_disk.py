"""Datasets on a real disk: what a crash leaves, names that want to be paths, and what a job may see."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from railweave.contracts.placement import PlacedDataset
from railweave.node_agent.applier import Interrupted, Watch
from railweave.node_agent.data import DataFailed, DiskSpace, JobSpace
from railweave.node_agent.data import disk as disk_module
from railweave.node_agent.data.fetching import Cancel, FetchOptions
from railweave.node_agent.data.layout import content_digest, dataset_key, link_names, remove_tree

ODD_NAMES = [
    "..",
    "a/../../b",
    "/etc/passwd",
    "a b",
    'schüler "70B" 100%',
    "-rf",
    "x" * 256,
    "ü" * 200,
    "NUL",
    ".hidden",
]


def want(source: Path | str, name: str = "a", size: int = 10_000, **fields: Any) -> PlacedDataset:
    return PlacedDataset(name=name, version="1", action="fetch", bytes=size, source=f"file:{source}", **fields)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    made = tmp_path / "sources"
    made.mkdir()
    return made


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


async def opened(root: Path, sources: Path, **arguments: Any) -> DiskSpace:
    space = DiskSpace(root, options=FetchOptions(file_roots=(sources,)), **arguments)
    await space.open()
    return space


def tree(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*"))


async def test_a_tree_is_copied_whole_and_read_only(root: Path, sources: Path) -> None:
    (sources / "set" / "train").mkdir(parents=True)
    (sources / "set" / "train" / "0.bin").write_bytes(b"a" * 10)
    (sources / "set" / "empty").write_bytes(b"")
    (sources / "set" / "latest").symlink_to("train/0.bin")
    space = await opened(root, sources)
    cached = await space.fetch(want(sources / "set"), Watch())
    assert (cached.bytes, cached.files) == (10, 2)
    content = root / "cache" / dataset_key("a@1") / "content"
    assert (content / "latest").read_bytes() == b"a" * 10
    assert stat.S_IMODE((content / "train" / "0.bin").stat().st_mode) == 0o444
    assert stat.S_IMODE((content / "train").stat().st_mode) == 0o555
    manifest = json.loads((content.parent / "manifest.json").read_text())
    assert (manifest["name"], manifest["version"], manifest["files"]) == ("a", "1", 2)
    assert not list((root / "tmp").iterdir())
    await space.close()


async def test_a_restart_finds_what_is_complete_and_sweeps_what_is_not(root: Path, sources: Path) -> None:
    (sources / "f").write_bytes(b"1234")
    space = await opened(root, sources)
    await space.fetch(want(sources / "f"), Watch())
    await space.close()
    (root / "tmp" / "half.done" / "content").mkdir(parents=True)
    (root / "trash" / "evicted").mkdir()
    (root / "cache" / dataset_key("b@1") / "content").mkdir(parents=True)  # no manifest: not a dataset
    renamed = root / "cache" / dataset_key("c@1")
    renamed.mkdir()
    (renamed / "manifest.json").write_text((root / "cache" / dataset_key("a@1") / "manifest.json").read_text())
    again = await opened(root, sources)
    assert [item.dataset for item in again.datasets()] == ["a@1"]
    assert [path.name for path in (root / "cache").iterdir()] == [dataset_key("a@1")]
    assert not list((root / "tmp").iterdir())
    assert not list((root / "trash").iterdir())
    await again.close()


async def test_a_fetch_killed_at_any_moment_is_as_if_it_never_was(
    root: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the rename: the next start sees nothing of it and fetches anew."""
    (sources / "f").write_bytes(b"1234")
    space = await opened(root, sources)

    class Killed(BaseException):
        pass

    def die(self: DiskSpace, temporary: Path, place: Path) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(DiskSpace, "_publish", die)
        patched.setattr(disk_module.layout, "remove_tree", lambda path: 0)
        with pytest.raises(Killed):
            space._fetch(want(sources / "f"), Cancel())
    assert list((root / "tmp").iterdir())
    await space.close()
    again = await opened(root, sources)
    assert again.datasets() == ()
    assert not list((root / "tmp").iterdir())
    assert (await again.fetch(want(sources / "f"), Watch())).bytes == 4
    await again.close()


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_names_never_become_paths(root: Path, sources: Path, make: Any, name: str) -> None:
    (sources / "f").write_bytes(b"1234")
    space = await opened(root, sources)
    odd = want(sources / "f", name)
    await space.fetch(odd, Watch())
    await space.arrange(make.key(f"job {name}"[:256]), JobSpace((odd,), 10))
    outside = set(root.parent.iterdir())
    assert outside == {root, sources}
    shown = space.job_path(make.key(f"job {name}"[:256])) / "datasets"
    (link,) = shown.iterdir()
    assert (link / "f").read_bytes() == b"1234"
    await space.clear(make.key(f"job {name}"[:256]))
    assert not shown.exists()
    await space.close()


def test_links_of_a_job_are_readable_and_never_meet() -> None:
    names = ["plain", "a-b", "a_b", "a/b", "x" * 256, "y" * 256, *ODD_NAMES]
    datasets = [
        *(PlacedDataset(name=name, version="1", action="use", bytes=1) for name in dict.fromkeys(names)),
        PlacedDataset(name="twice", version="1", action="use", bytes=1),
        PlacedDataset(name="twice", version="2", action="use", bytes=1),
    ]
    links = link_names(datasets)
    assert links["plain@1"] == "plain"
    assert links["twice@2"] == "twice@2"
    assert len(set(links.values())) == len(datasets)
    assert all("/" not in link and link not in {".", ".."} and len(link.encode()) < 256 for link in links.values())


async def test_a_job_sees_its_datasets_by_name_and_in_one_document(root: Path, sources: Path, make: Any) -> None:
    (sources / "f").write_bytes(b"1234")
    space = await opened(root, sources)
    one = want(sources / "f", "imagenet-22k")
    await space.fetch(one, Watch())
    await space.arrange(make.key(), JobSpace((one,), 10, uid=os.getuid(), gid=os.getgid()))
    directory = space.job_path(make.key())
    assert (directory / "datasets" / "imagenet-22k" / "f").read_bytes() == b"1234"
    described = json.loads((directory / "job.json").read_text())
    assert described["datasets"] == [{"name": "imagenet-22k", "version": "1", "path": "datasets/imagenet-22k"}]
    assert (directory / "scratch").stat().st_uid == os.getuid()
    await space.close()


async def test_scratch_goes_with_all_a_job_left_in_it_and_nothing_else(root: Path, sources: Path, make: Any) -> None:
    precious = sources / "precious"
    precious.mkdir()
    (precious / "kept").write_text("kept")
    space = await opened(root, sources)
    await space.arrange(make.key(), JobSpace((), 10))
    scratch = space.job_path(make.key()) / "scratch"
    (scratch / "locked").mkdir()
    (scratch / "locked" / "file").write_text("x")
    (scratch / "locked").chmod(0o555)
    (scratch / "out").symlink_to(precious)
    (scratch / "hard").hardlink_to(precious / "kept")
    await space.clear(make.key())
    assert (precious / "kept").read_text() == "kept"
    assert tree(root / "jobs") == []
    assert tree(root / "trash") == []
    await space.close()


async def test_a_planted_link_in_place_of_a_tree_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "f").write_text("kept")
    (tmp_path / "planted").symlink_to(tmp_path / "precious")
    remove_tree(tmp_path / "planted")
    assert (tmp_path / "precious" / "f").read_text() == "kept"


@pytest.mark.parametrize(
    ("make_source", "text"),
    [
        (lambda s: s / ".." / "outside", "not below a directory"),
        (lambda s: "/etc/passwd", "not below a directory"),
        (lambda s: s / "missing", "No such file"),
        (lambda s: s / "way out", "not below a directory"),
        (lambda s: s / "leads out", "leads out of the dataset"),
        (lambda s: s / "with a pipe", "neither file, directory nor link"),
    ],
)
async def test_sources_that_are_refused(root: Path, sources: Path, make_source: Any, text: str) -> None:
    (sources / "way out").symlink_to("/etc/passwd")
    (sources / "leads out").mkdir()
    (sources / "leads out" / "x").symlink_to("../../root")
    (sources / "with a pipe").mkdir()
    os.mkfifo(sources / "with a pipe" / "pipe")
    space = await opened(root, sources)
    with pytest.raises(DataFailed, match=text):
        await space.fetch(want(make_source(sources)), Watch())
    assert tree(root / "tmp") == []
    assert space.datasets() == ()
    await space.close()


async def test_without_roots_every_file_source_is_refused(root: Path, sources: Path) -> None:
    (sources / "f").write_bytes(b"1")
    space = DiskSpace(root)
    await space.open()
    with pytest.raises(DataFailed, match=r"agent\.file_roots allows \(none\)"):
        await space.fetch(want(sources / "f"), Watch())
    await space.close()


async def test_a_source_of_an_unknown_kind_is_refused(root: Path, sources: Path) -> None:
    space = await opened(root, sources)
    odd = PlacedDataset(name="a", version="1", action="fetch", bytes=10, source="s3://bucket/x")
    with pytest.raises(DataFailed, match="sources of kind s3: are not fetched"):
        await space.fetch(odd, Watch())
    await space.close()


async def test_a_source_larger_than_its_claim_ends_at_the_first_byte_beyond(root: Path, sources: Path) -> None:
    (sources / "f").write_bytes(b"x" * 5_000)
    space = await opened(root, sources)
    with pytest.raises(DataFailed, match="larger than the 4000 bytes claimed"):
        await space.fetch(want(sources / "f", size=4_000), Watch())
    assert tree(root / "tmp") == []
    assert space.spaces()[0].used_bytes == 0
    await space.close()


async def test_the_digest_is_checked_before_anyone_sees_it(root: Path, sources: Path) -> None:
    (sources / "f").write_bytes(b"1234")
    space = await opened(root, sources)
    right = f"sha256:{hashlib.sha256(b'1234').hexdigest()}"
    with pytest.raises(DataFailed, match="expected sha256:00"):
        await space.fetch(want(sources / "f", digest="sha256:" + "00" * 32), Watch())
    assert space.datasets() == ()
    assert (await space.fetch(want(sources / "f", digest=right), Watch())).digest == right
    await space.close()


async def test_the_digest_of_a_tree_is_that_of_its_sorted_file_list(root: Path, sources: Path) -> None:
    (sources / "d").mkdir()
    for name in ("b", "a"):
        (sources / "d" / name).write_text(name)
    space = await opened(root, sources)
    cached = await space.fetch(want(sources / "d"), Watch())
    listed = "".join(f"{n}\0{hashlib.sha256(n.encode()).hexdigest()}\n" for n in ("a", "b"))
    assert cached.digest == f"sha256:{hashlib.sha256(listed.encode()).hexdigest()}"
    assert content_digest([]) == f"sha256:{hashlib.sha256(b'').hexdigest()}"
    await space.close()


async def test_one_who_leaves_does_not_stop_the_fetch_and_the_last_one_does(
    root: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sources / "f").write_bytes(b"1234")
    space = await opened(root, sources)
    begun, go = threading.Event(), threading.Event()
    real = disk_module.fetch

    def slow(source: str, content: Path, budget: Any, options: Any) -> Any:
        begun.set()
        while not go.is_set() and not budget.cancel.wait(0.01):
            pass
        return real(source, content, budget, options)

    monkeypatch.setattr(disk_module, "fetch", slow)
    watches = [Watch(), Watch()]
    waiting = [asyncio.ensure_future(space.fetch(want(sources / "f"), watch)) for watch in watches]
    await asyncio.to_thread(begun.wait)
    watches[0].interrupt()
    with pytest.raises(Interrupted):
        await waiting[0]
    assert [item.state for item in space.datasets()] == ["fetching"]
    watches[1].interrupt()
    with pytest.raises(Interrupted):
        await waiting[1]
    async with asyncio.timeout(5):
        while space.datasets():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)
    assert tree(root / "tmp") == []
    go.set()
    assert (await space.fetch(want(sources / "f"), Watch())).bytes == 4
    await space.close()


async def test_no_more_fetches_at_a_time_than_allowed(
    root: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        (sources / f"f{number}").write_bytes(b"1")
    space = await opened(root, sources, concurrency=2)
    lock, now, most = threading.Lock(), 0, 0
    real = disk_module.fetch

    def counted(*arguments: Any) -> Any:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        threading.Event().wait(0.02)
        try:
            return real(*arguments)
        finally:
            with lock:
                now -= 1

    monkeypatch.setattr(disk_module, "fetch", counted)
    await asyncio.gather(*(space.fetch(want(sources / f"f{n}", f"d{n}"), Watch()) for n in range(6)))
    assert most == 2
    await space.close()


async def test_closing_cancels_what_is_under_way(root: Path, sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (sources / "f").write_bytes(b"1234")
    space = await opened(root, sources)

    def endless(source: str, content: Path, budget: Any, options: Any) -> Any:
        budget.pause(3600)

    monkeypatch.setattr(disk_module, "fetch", endless)
    waiting = asyncio.ensure_future(space.fetch(want(sources / "f"), Watch()))
    await asyncio.sleep(0.05)
    async with asyncio.timeout(2):
        await space.close()
    with pytest.raises(BaseException):  # noqa: B017 - cancelled, however it is told
        await waiting
    assert tree(root / "tmp") == []


@pytest.mark.kernel
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small tmpfs")
async def test_a_full_disk_fails_the_fetch_and_leaves_nothing(tmp_path: Path, sources: Path) -> None:
    import subprocess

    root = tmp_path / "small"
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(root)], check=True)
    try:
        (sources / "f").write_bytes(b"x" * (2 << 20))
        space = await opened(root, sources, cache_bytes=10 << 20)
        with pytest.raises(DataFailed) as failed:
            await space.fetch(want(sources / "f", size=4 << 20), Watch())
        assert failed.value.error == "ENOSPC"
        assert tree(root / "tmp") == []
        await space.close()
    finally:
        subprocess.run(["umount", str(root)], check=True)


@pytest.mark.parametrize("inodes", [0, 1000])
async def test_a_filesystem_without_an_inode_limit_says_none(
    root: Path, sources: Path, monkeypatch: pytest.MonkeyPatch, inodes: int
) -> None:
    real = os.statvfs(sources)
    values = list(real)
    values[5] = values[6] = values[7] = inodes
    monkeypatch.setattr(disk_module.os, "statvfs", lambda path: os.statvfs_result(values))
    space = await opened(root, sources)
    assert space.spaces()[0].total_inodes == (inodes or None)
    await space.close()
