"""Fetching by HTTP from a server that behaves badly: cut bodies, changes, odd ranges, errors."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from railweave.node_agent.data.fetching import Budget, Cancel, FetchCancelled, FetchOptions, fetch
from railweave.node_agent.data.model import DataFailed
from railweave.runtime.backoff import BackoffPolicy

BODY = bytes(range(256)) * 400


@dataclass
class Source:
    """What the server serves, and how it misbehaves at each request."""

    body: bytes = BODY
    etag: str = '"v1"'
    misdeeds: list[Callable[[Any, Source], bool]] = field(default_factory=list)
    """One for each request in order; True: it answered."""
    requests: list[dict[str, str]] = field(default_factory=list)
    url: str = ""
    has_ranges: bool = True


@pytest.fixture
def source() -> Iterator[Source]:
    state = Source()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            state.requests.append(dict(self.headers.items()))
            if state.misdeeds and state.misdeeds.pop(0)(self, state):
                return
            send(self, state)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}/sets/data.bin?x=1"
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


def send(
    handler: Any, state: Source, *, cut: int | None = None, length: bool = True, status: int | None = None
) -> None:
    wanted = handler.headers.get("Range")
    body, code, headers = state.body, 200, {}
    if handler.headers.get("If-Match") not in (None, state.etag):
        body, code = b"", 412
    elif wanted and state.has_ranges:
        start = int(wanted.removeprefix("bytes=").split("-")[0])
        if start >= len(state.body):
            body, code, headers = b"", 416, {"Content-Range": f"bytes */{len(state.body)}"}
        else:
            headers = {"Content-Range": f"bytes {start}-{len(state.body) - 1}/{len(state.body)}"}
            body, code = state.body[start:], 206
    handler.send_response(status or code)
    headers["ETag"] = state.etag
    if length:
        headers["Content-Length"] = str(len(body))
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.close_connection = True
    handler.send_header("Connection", "close")
    handler.end_headers()
    handler.wfile.write(body if cut is None else body[:cut])


def cut_after(count: int) -> Callable[[Any, Source], bool]:
    def misdeed(handler: Any, state: Source) -> bool:
        send(handler, state, cut=count)
        return True

    return misdeed


def answer(status: int, headers: dict[str, str] | None = None) -> Callable[[Any, Source], bool]:
    def misdeed(handler: Any, state: Source) -> bool:
        handler.send_response(status)
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", "0")
        handler.send_header("Connection", "close")
        handler.close_connection = True
        handler.end_headers()
        return True

    return misdeed


def changed_to(body: bytes, etag: str) -> Callable[[Any, Source], bool]:
    def misdeed(handler: Any, state: Source) -> bool:
        state.body, state.etag = body, etag
        return False

    return misdeed


def get(source: Source, tmp_path: Path, *, limit: int = 1 << 20, tries: int = 4, cancel: Any = None) -> Any:
    content = tmp_path / "content"
    content.mkdir(exist_ok=True)
    options = FetchOptions(tries=tries, timeout_s=1.0, backoff=BackoffPolicy(first_s=0.001, cap_s=0.002))
    budget = Budget("a@1", limit, cancel or Cancel())
    (stored,) = fetch(source.url, content, budget, options)
    written = (content / stored.path).read_bytes()
    assert stored.sha256 == hashlib.sha256(written).hexdigest()
    assert stored.size == len(written) == budget.taken
    return written


def test_a_file_is_fetched_under_its_own_name(source: Source, tmp_path: Path) -> None:
    assert get(source, tmp_path) == BODY
    assert [path.name for path in (tmp_path / "content").iterdir()] == ["data.bin"]
    assert source.requests[0]["Accept-Encoding"] == "identity"


def test_a_name_that_could_do_harm_is_replaced(source: Source, tmp_path: Path) -> None:
    source.url = source.url.replace("data.bin", "%2e%2e%2fx")
    get(source, tmp_path)
    assert [path.name for path in (tmp_path / "content").iterdir()] == ["content"]


def test_a_body_cut_short_is_gone_on_with_where_it_ended(source: Source, tmp_path: Path) -> None:
    source.misdeeds = [cut_after(60_000), cut_after(30_000)]
    assert get(source, tmp_path) == BODY
    assert [request.get("Range") for request in source.requests] == [None, "bytes=60000-", "bytes=90000-"]
    assert source.requests[1]["If-Match"] == '"v1"'


def test_a_server_without_ranges_is_read_from_the_start_again(source: Source, tmp_path: Path) -> None:
    source.has_ranges = False
    source.misdeeds = [cut_after(60_000)]
    assert get(source, tmp_path) == BODY


def test_parts_of_two_versions_are_never_joined(source: Source, tmp_path: Path) -> None:
    newer = b"new" * 30_000
    source.misdeeds = [cut_after(60_000), changed_to(newer, '"v2"')]
    assert get(source, tmp_path) == newer


def test_a_source_that_keeps_changing_is_given_up(source: Source, tmp_path: Path) -> None:
    def cut_and_change(number: int) -> Callable[[Any, Source], bool]:
        def misdeed(handler: Any, state: Source) -> bool:
            send(handler, state, cut=1000)
            state.etag = f'"v{number}"'
            return True

        return misdeed

    source.misdeeds = [cut_and_change(n) if n % 2 == 0 else lambda h, s: False for n in range(2, 12)]
    with pytest.raises(DataFailed, match="keeps changing"):
        get(source, tmp_path, tries=10)


def test_a_range_behind_the_end_means_that_all_has_come(source: Source, tmp_path: Path) -> None:
    def without_length(handler: Any, state: Source) -> bool:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(BODY) + 10))  # more than there is
        handler.send_header("Connection", "close")
        handler.close_connection = True
        handler.end_headers()
        handler.wfile.write(BODY)
        return True

    source.misdeeds = [without_length]
    assert get(source, tmp_path) == BODY


def test_a_range_refused_for_another_length_starts_over(source: Source, tmp_path: Path) -> None:
    source.misdeeds = [cut_after(60_000), answer(416, {"Content-Range": "bytes */50"})]
    assert get(source, tmp_path) == BODY


def test_another_range_than_asked_starts_over(source: Source, tmp_path: Path) -> None:
    source.misdeeds = [cut_after(60_000), answer(206, {"Content-Range": "bytes 5-9/10"})]
    assert get(source, tmp_path) == BODY


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_passing_errors_are_tried_again(source: Source, tmp_path: Path, status: int) -> None:
    source.misdeeds = [answer(status), answer(status)]
    assert get(source, tmp_path) == BODY


def test_tries_are_bounded_where_nothing_comes(source: Source, tmp_path: Path) -> None:
    source.misdeeds = [answer(503)] * 20
    with pytest.raises(DataFailed, match=r"HTTP 503 .*, 4 times in a row"):
        get(source, tmp_path)
    assert len(source.requests) == 4


@pytest.mark.parametrize(("status", "error"), [(404, "ENOENT"), (403, "HTTP403"), (401, "HTTP401")])
def test_lasting_errors_are_not_tried_again(source: Source, tmp_path: Path, status: int, error: str) -> None:
    source.misdeeds = [answer(status)]
    with pytest.raises(DataFailed) as failed:
        get(source, tmp_path)
    assert failed.value.error == error
    assert len(source.requests) == 1


def test_a_compressed_body_is_refused(source: Source, tmp_path: Path) -> None:
    source.misdeeds = [answer(200, {"Content-Encoding": "gzip"})]
    with pytest.raises(DataFailed, match="comes as gzip"):
        get(source, tmp_path)


def test_a_body_without_a_length_is_read_to_its_end(source: Source, tmp_path: Path) -> None:
    def misdeed(handler: Any, state: Source) -> bool:
        send(handler, state, length=False)
        return True

    source.misdeeds = [misdeed]
    assert get(source, tmp_path) == BODY


def test_more_than_was_claimed_is_refused(source: Source, tmp_path: Path) -> None:
    with pytest.raises(DataFailed, match="larger than the 1000 bytes"):
        get(source, tmp_path, limit=1000)


def test_a_redirect_to_a_file_is_not_followed(source: Source, tmp_path: Path) -> None:
    source.misdeeds = [answer(302, {"Location": "file:///etc/passwd"})]
    with pytest.raises(DataFailed):
        get(source, tmp_path, tries=1)
    assert not any((tmp_path / "content").glob("passwd"))


def test_nobody_wants_it_any_more(source: Source, tmp_path: Path) -> None:
    cancel = Cancel()
    cancel.set()
    with pytest.raises(FetchCancelled):
        get(source, tmp_path, cancel=cancel)


def test_nobody_listens(source: Source, tmp_path: Path) -> None:
    source.url = "http://127.0.0.1:9/x"
    with pytest.raises(DataFailed, match="times in a row"):
        get(source, tmp_path)


def test_a_silent_server_does_not_hold_up_who_leaves(source: Source, tmp_path: Path) -> None:
    hold = threading.Event()

    def silent(handler: Any, state: Source) -> bool:
        send(handler, state, cut=1000)
        handler.wfile.flush()
        hold.wait(20)
        return True

    source.misdeeds = [silent]
    cancel = Cancel()
    threading.Timer(0.2, cancel.set).start()
    begun = time.monotonic()
    content = tmp_path / "content"
    content.mkdir()
    with pytest.raises(FetchCancelled):
        fetch(source.url, content, Budget("a@1", 1 << 20, cancel), FetchOptions(timeout_s=15.0))
    assert time.monotonic() - begun < 5
    hold.set()
