"""The agent's local socket: one JSON document a line, asked and answered. The way in for a CNI plugin and the
command.

    {"do": "status"}
    {"do": "journal", "job": "slurm-a/88121"}
    {"do": "plan", "job": "slurm-a/88121"}
    {"do": "attach", "job": "slurm-a/88121", "workers": [{"worker": 0, "netns": "/run/netns/x"}]}
    {"do": "detach", "job": "slurm-a/88121"}

`node` names the node where the process is the agent of several, `attempt` the attempt where several are known.
Answers: `{"ok": true, ...}` or `{"ok": false, "error": "ENOENT", "text": "..."}`. Who may ask: root, the agent's own
user, and members of the socket's group; the kernel says who asks (SO_PEERCRED).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pwd
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from railweave.contracts.identity import JobKey
from railweave.contracts.job import StartedWorker
from railweave.contracts.types import Attempt, NodeName
from railweave.node_agent.applier import CannotDo, UndoIncomplete
from railweave.node_agent.building import Built
from railweave.node_agent.fleet import Fleet
from railweave.node_agent.journal import JournalBroken
from railweave.node_agent.journal_sqlite import entry_to_json
from railweave.node_agent.model import EntryKey

_log = logging.getLogger("railweave.agent")

_LINE_LIMIT = 1 << 20
_CONNECTIONS = 64
_IDLE_S = 60.0
_CALL_S = 120.0
_WORKERS = TypeAdapter(list[StartedWorker])


class Refused(Exception):
    """The answer is no; `error` is an errno name."""

    def __init__(self, error: str, text: str) -> None:
        super().__init__(text)
        self.error = error
        self.text = text


@contextlib.asynccontextmanager
async def serve_socket(path: Path, fleet: Fleet) -> AsyncIterator[Path]:
    """Serve while inside.

    Raises:
        OSError: the socket cannot be made there, or another agent listens on it.
    """
    await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
    await _remove_stale(path)
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            connections.add(task)
        try:
            if len(connections) > _CONNECTIONS:
                return
            await _serve(reader, writer, path, fleet)
        except (OSError, TimeoutError, asyncio.LimitOverrunError, ValueError) as error:
            _log.debug("a connection to the local socket ended: %s", error)
        except asyncio.CancelledError:
            pass  # the agent ends
        finally:
            if task is not None:
                connections.discard(task)
            writer.close()

    # Made closed to all, opened to owner and group when it is bound.
    before = os.umask(0o177)
    try:
        server = await asyncio.start_unix_server(serve, path, limit=_LINE_LIMIT)
    finally:
        os.umask(before)
    os.chmod(path, 0o660)
    try:
        yield path
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        if connections:
            await asyncio.wait(connections, timeout=1.0)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()  # noqa: ASYNC240


async def _remove_stale(path: Path) -> None:
    """Remove what a killed agent left; refuse while a living one listens."""
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)  # noqa: ASYNC240 - one call on a local file
        return
    writer.close()
    raise OSError(f"another agent listens on {path}")


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: Path, fleet: Fleet) -> None:
    raw: socket.socket = writer.get_extra_info("socket")
    credentials = raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, gid = struct.unpack("3i", credentials)
    if not may_ask(uid, gid, path):
        await _answer(writer, {"ok": False, "error": "EACCES", "text": f"user {uid} may not ask this agent"})
        return
    while True:
        async with asyncio.timeout(_IDLE_S):
            line = await reader.readline()
        if not line:
            return
        try:
            async with asyncio.timeout(_CALL_S):
                answer = {"ok": True} | await handle(fleet, line)
        except Refused as refused:
            answer = {"ok": False, "error": refused.error, "text": refused.text}
        except CannotDo as cannot:
            answer = {
                "ok": False,
                "error": cannot.failure.error,
                "text": f"{cannot.failure.step}: {cannot.failure.text}",
            }
        except (UndoIncomplete, JournalBroken) as failed:
            answer = {"ok": False, "error": "EAGAIN", "text": str(failed)}
        except TimeoutError:
            answer = {"ok": False, "error": "ETIMEDOUT", "text": f"not done within {_CALL_S:g} s; it goes on"}
        await _answer(writer, answer)


def may_ask(uid: int, gid: int, path: Path) -> bool:
    """Whether a peer may: root, the agent's user, or the group that the socket was given to."""
    owner = path.stat()
    if uid in (0, os.geteuid(), owner.st_uid) or gid == owner.st_gid:
        return True
    try:
        return owner.st_gid in os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except KeyError:
        return False  # a user of a container: the kernel's number is all there is


async def _answer(writer: asyncio.StreamWriter, answer: Mapping[str, Any]) -> None:
    writer.write(json.dumps(answer, ensure_ascii=False, default=str).encode() + b"\n")
    await writer.drain()


async def handle(fleet: Fleet, line: bytes) -> dict[str, Any]:
    """Answer one request.

    Raises:
        Refused, CannotDo, UndoIncomplete, JournalBroken: the answer is no.
    """
    try:
        request = json.loads(line)
    except ValueError as error:
        raise Refused("EINVAL", f"not JSON: {error}") from error
    if not isinstance(request, dict):
        raise Refused("EINVAL", "expected a JSON object")
    match request.get("do"):
        case "status":
            return {"nodes": [status_of(built) for built in fleet.agents]}
        case "journal":
            built = _agent(fleet, request)
            job = _job(request) if "job" in request else None
            entries = [e for e in built.journal.entries.values() if job is None or e.key.job_key == job]
            return {"node": str(built.agent.node), "entries": [entry_to_json(entry) for entry in entries]}
        case "plan":
            built = _agent(fleet, request)
            steps = await built.agent.plan(_entry_key(built, request))
            return {
                "node": str(built.agent.node),
                "steps": [
                    {
                        "concern": step.concern,
                        "phase": str(step.phase),
                        "text": step.body.describe(),
                        "step": step.body.to_json(),
                    }
                    for step in steps
                ],
            }
        case "attach":
            return await _attach(fleet, request)
        case "detach":
            built = _agent(fleet, request)
            key = _entry_key(built, request)
            await fleet.call(built, key.job_key, lambda: built.agent.detach(key))
            return {"node": str(built.agent.node), "job": str(key)}
        case other:
            raise Refused("EINVAL", f"unknown request {other!r}; ask for status, journal, plan, attach or detach")


async def _attach(fleet: Fleet, request: Mapping[str, Any]) -> dict[str, Any]:
    built = _agent(fleet, request)
    key = _entry_key(built, request)
    try:
        workers = _WORKERS.validate_json(json.dumps(request.get("workers")))
    except ValidationError as error:
        raise Refused("EINVAL", f"workers: {error.errors(include_url=False)[0]['msg']}") from error

    async def attach() -> None:
        await built.agent.attach(key, workers)
        await built.agent.reconcile(key.job_key)

    await fleet.call(built, key.job_key, attach)
    entry = built.journal.entries.get(key)
    if entry is None or entry.failure is not None:
        failure = entry.failure if entry is not None else None
        text = f"{failure.step}: {failure.text}" if failure is not None else "it was released meanwhile"
        raise Refused(failure.error if failure is not None else "ENOENT", text)
    return {"node": str(built.agent.node), "job": str(key), "state": str(entry.state)}


def _agent(fleet: Fleet, request: Mapping[str, Any]) -> Built:
    try:
        node = NodeName(request["node"]) if request.get("node") is not None else None
    except (TypeError, ValueError) as error:
        raise Refused("EINVAL", f"node: {error}") from error
    built = fleet.find(node)
    if built is None:
        names = ", ".join(sorted(str(built.agent.node) for built in fleet.agents)[:8])
        raise Refused("ENOENT", f"say which node: this is the agent of {names}" if node is None else f"no node {node}")
    return built


def _job(request: Mapping[str, Any]) -> JobKey:
    try:
        return JobKey.parse(str(request.get("job")))
    except ValueError as error:
        raise Refused("EINVAL", f"job: {error}") from error


def _entry_key(built: Built, request: Mapping[str, Any]) -> EntryKey:
    job = _job(request)
    if request.get("attempt") is not None:
        try:
            return EntryKey(job.cluster, job.job, Attempt(request["attempt"]))
        except ValueError as error:
            raise Refused("EINVAL", f"attempt: {error}") from error
    known = built.agent.known(job)
    if not known:
        raise Refused("ENOENT", f"nothing of {job} is stored or held on {built.agent.node}")
    return known[-1]


def status_of(built: Built) -> dict[str, Any]:
    """A node at a glance."""
    agent = built.agent
    cache, scratch = built.space.spaces()
    return {
        "node": str(agent.node),
        "sees_record": agent.sees_record,
        "fence_seen": list(agent.fence_seen),
        "placements": [
            {
                "job": str(entry.key.job_key),
                "attempt": int(entry.key.attempt),
                "state": str(entry.state),
                "fence": list(entry.fence),
                "failure": None if entry.failure is None else entry.failure.model_dump(mode="json"),
            }
            for entry in agent.journal.entries.values()
        ],
        "cache": cache.model_dump(mode="json", exclude_none=True),
        "scratch": scratch.model_dump(mode="json", exclude_none=True),
        "datasets": [f"{item.dataset} ({item.state}, {item.bytes} bytes)" for item in built.space.datasets()],
        "mended": agent.mended,
        "refused_stale": agent.refused_stale,
    }
