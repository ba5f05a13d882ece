"""Looks at everything a cluster stands on, and says what to do about what is wrong.

A check is a small coroutine that returns findings; one that cannot look says so and stops nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from rich.table import Table
from rich.text import Text

from railweave.cli import words
from railweave.cli.exits import CommandFailed
from railweave.cli.output import Column, table
from railweave.cli.session import Session, connected
from railweave.cli.target import Target
from railweave.contracts.client import ClientError
from railweave.contracts.desired import NodeMode
from railweave.contracts.query import NODES_SUBJECT, NodesAnswer, NodesQuery
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.deadletters import DeadLetters
from railweave.runtime.errors import ApiError, BusError, StreamMissing
from railweave.runtime.jsapi import parse_time
from railweave.runtime.metrics import Metrics
from railweave.runtime.netlink import (
    Action,
    AddRule,
    CreateBridge,
    CreateVeth,
    KernelError,
    LinuxKernel,
)
from railweave.runtime.netlink import Rule as KernelRule
from railweave.runtime.redis_store import WorkingMemory
from railweave.runtime.streams import CONSUMERS, JOBS

SERVICES = ("jobs", "topology", "nic", "gpu", "cache")
_LISTEN_S = 0.6
_CLOCK_SAMPLES = 3
_SKEW_OK_S = 0.5
_SKEW_BAD_S = 5.0
_HEARD_OK_S = 180.0
_FEW_FILES = 4096
_LAG_OK = 1000


class Verdict(StrEnum):
    """What a check found."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    detail: str
    remedy: str | None = None


_STYLES = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.WRONG: "bold red", Verdict.SKIPPED: "dim"}


def findings_table(findings: Sequence[Finding]) -> Table:
    """Findings, a line each."""
    return table(
        [Column("CHECK", keep=True), Column("", keep=True), Column("FOUND", ratio=1)],
        [
            (finding.what, Text(str(finding.verdict), style=_STYLES[finding.verdict]), finding.detail)
            for finding in findings
        ],
    )


async def examine(where: Target) -> list[Finding]:
    """All findings, in the order in which one thing rests on another."""
    findings = [files(), *kernel()]
    try:
        async with connected(where) as session:
            findings.insert(0, _nats(session))
            checks: list[Callable[[Session], Awaitable[list[Finding]]]] = [
                _clock,
                _streams,
                _lag,
                _dead_letters,
                _redis,
                _services,
                _agents,
            ]
            for check in checks:
                findings += await _looked(check, session)
    except (CommandFailed, BusError, OSError) as error:
        servers = ", ".join(where.settings().nats.servers)
        remedy = "start it (`railweave up` for a local one), or name another: --nats URL, RAILWEAVE_NATS__SERVERS"
        findings.insert(0, Finding("nats", Verdict.WRONG, f"{servers}: {error}", remedy))
    return findings


async def _looked(check: Callable[[Session], Awaitable[list[Finding]]], session: Session) -> list[Finding]:
    name = check.__name__.lstrip("_").replace("_", " ")
    try:
        async with asyncio.timeout(10.0):
            return await check(session)
    except (BusError, ClientError, TimeoutError) as error:
        return [Finding(name, Verdict.WRONG, str(error) or "no answer within 10 s", "see the finding above it")]


def _nats(session: Session) -> Finding:
    client = session.bus.connection.client
    version = client.connected_server_version
    where = client.connected_url.netloc if client.connected_url else "connected"
    text = f"{where}, version {version.major}.{version.minor}.{version.patch}"
    if (version.major, version.minor) < (2, 12):
        return Finding("nats", Verdict.WRONG, text, "atomic batches need nats-server 2.12 or later: upgrade it")
    return Finding("nats", Verdict.OK, text)


async def _clock(session: Session) -> list[Finding]:
    """The broker stamps every message: its clock is the cluster's."""
    samples: list[tuple[float, float]] = []
    for _ in range(_CLOCK_SAMPLES):
        before = datetime.now(UTC)
        try:
            answer = await session.bus.api.stream_info(JOBS)
        except StreamMissing:
            return [Finding("clock", Verdict.SKIPPED, "no stream to compare with yet")]
        after = datetime.now(UTC)
        stamped = answer.get("ts")
        if not isinstance(stamped, str):
            return [Finding("clock", Verdict.SKIPPED, "the broker does not say its time")]
        took_s = (after - before).total_seconds()
        samples.append((took_s, (parse_time(stamped) - before).total_seconds() - took_s / 2))
    # The quickest answer knows best, and no better than half of what it took.
    took_s, skew_s = min(samples)
    text = f"{abs(skew_s) * 1000:.0f} ms {'behind' if skew_s > 0 else 'ahead of'} the broker"
    skew_s = max(0.0, abs(skew_s) - took_s / 2)
    remedy = "synchronise this machine and the broker's (chrony, NTP): ages and deadlines come from the broker's clock"
    verdict = (
        Verdict.OK if abs(skew_s) < _SKEW_OK_S else Verdict.WARNING if abs(skew_s) < _SKEW_BAD_S else Verdict.WRONG
    )
    return [Finding("clock", verdict, text, None if verdict is Verdict.OK else remedy)]


async def _streams(session: Session) -> list[Finding]:
    drifts = await bootstrap(session.bus, repair=False)
    # How many copies there are is the operator's choice, made when the streams were.
    drifts = [drift for drift in drifts if drift.field != "num_replicas"]
    missing = [drift.name for drift in drifts if drift.field == "*"]
    if missing:
        remedy = "the jobs service makes them when it starts (jobs.bootstrap); is it running?"
        return [Finding("streams", Verdict.WRONG, f"missing: {', '.join(missing)}", remedy)]
    if drifts:
        text = "; ".join(f"{drift.name}.{drift.field} is {drift.found}, not {drift.wanted}" for drift in drifts)
        return [Finding("streams", Verdict.WARNING, text, "restart the jobs service: it repairs what can be repaired")]
    return [Finding("streams", Verdict.OK, "all there, as they should be")]


async def _lag(session: Session) -> list[Finding]:
    findings = []
    for spec in CONSUMERS:
        try:
            told = await session.bus.api.call(f"CONSUMER.INFO.{spec.stream}.{spec.durable}")
        except ApiError as error:
            findings.append(Finding(f"consumer {spec.durable}", Verdict.WRONG, error.description))
            continue
        waiting, unacked = int(told.get("num_pending", 0)), int(told.get("num_ack_pending", 0))
        text = f"{waiting:,} waiting, {unacked:,} being handled, {int(told.get('num_redelivered', 0)):,} again"
        late = waiting > _LAG_OK
        remedy = "the jobs service does not keep up or does not run: see its log and /metrics"
        findings.append(
            Finding(
                f"consumer {spec.durable}",
                Verdict.WARNING if late else Verdict.OK,
                text,
                remedy if late else None,
            )
        )
    return findings


async def _dead_letters(session: Session) -> list[Finding]:
    entries = await DeadLetters(session.bus, "").entries(limit=100)
    if not entries:
        return [Finding("dead letters", Verdict.OK, "none")]
    last = max(entry.stored_at for entry in entries)
    count = f"{len(entries)} or more" if len(entries) == 100 else str(len(entries))
    text = f"{count}, the last {words.age(last)} ago"
    return [Finding("dead letters", Verdict.WARNING, text, "`railweave deadletters` says why; replay or leave them")]


async def _redis(session: Session) -> list[Finding]:
    settings = session.settings.redis
    if not settings.enabled:
        return [Finding("redis", Verdict.SKIPPED, "switched off: no lists of jobs, no heartbeats")]
    memory = WorkingMemory(settings, Metrics())
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(memory.run(stop))
        there = await memory.wait_available(2.0)
        detail = memory.check().detail
        stop.set()
    await memory.close()
    if there:
        return [Finding("redis", Verdict.OK, settings.url)]
    remedy = "start it or set RAILWEAVE_REDIS__URL; jobs go on without it, `railweave jobs` and heartbeats do not"
    return [Finding("redis", Verdict.WARNING, f"{settings.url}: {detail}", remedy)]


async def _services(session: Session) -> list[Finding]:
    """Who answers a ping of the NATS service API."""
    found: dict[str, list[str]] = {}
    async for name, instance in _pinged(session):
        found.setdefault(name, []).append(instance)
    findings = []
    for name in SERVICES:
        instances = found.get(name, [])
        if instances:
            findings.append(Finding(f"service {name}", Verdict.OK, words.plural(len(instances), "instance")))
        else:
            remedy = f"start it: `python -m railweave.{name}`; `railweave up` runs all of them"
            findings.append(Finding(f"service {name}", Verdict.WRONG, "does not answer", remedy))
    return findings


async def _pinged(session: Session) -> AsyncIterator[tuple[str, str]]:
    client = session.bus.connection.client
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    try:
        await session.bus.barrier()
        await client.publish("$SRV.PING", b"", reply=inbox)
        deadline = asyncio.get_running_loop().time() + _LISTEN_S
        while (left_s := deadline - asyncio.get_running_loop().time()) > 0:
            with suppress(TimeoutError):
                message = await subscription.next_msg(timeout=left_s)
                with suppress(ValueError, KeyError, TypeError):
                    told = json.loads(message.data)
                    yield str(told["name"]).removeprefix("railweave-"), str(told["id"])
    finally:
        await subscription.unsubscribe()


async def _agents(session: Session) -> list[Finding]:
    answer = await session.ask(NODES_SUBJECT, NodesQuery(), NodesAnswer, timeout_s=5.0)
    live = [row for row in answer.nodes if row.mode is not NodeMode.RETIRED]
    if not live:
        remedy = "start `railweave-agent run` on the nodes; a local stack has its own"
        return [Finding("agents", Verdict.WARNING, "no node has reported its inventory", remedy)]
    now = datetime.now(UTC)
    mute = [row for row in live if row.agent_version is None]
    late = [
        row
        for row in live
        if row.heard_at is not None and (now - row.heard_at).total_seconds() > _HEARD_OK_S and row not in mute
    ]
    silent = [row for row in live if row.heard_at is None and row not in mute]
    versions = sorted({str(row.agent_version) for row in live if row.agent_version is not None})
    findings = [Finding("agents", Verdict.OK, f"{words.plural(len(live) - len(mute), 'node')}, {', '.join(versions)}")]
    if mute:
        text = f"in the fabric and never heard of: {words.names([str(row.node) for row in mute])}"
        findings.append(Finding("agents", Verdict.WARNING, text, "start their agents, or `railweave node forget NODE`"))
    if late or silent:
        text = f"not heard of lately: {words.names([str(row.node) for row in (*late, *silent)])}"
        findings.append(
            Finding("agents", Verdict.WARNING, text, "look at their agents' logs; is Redis there for heartbeats?")
        )
    troubled = [row for row in live if row.problems and row not in mute]
    if troubled:
        text = f"{words.plural(len(troubled), 'node')} with problems: {troubled[0].node}: {troubled[0].problems[0]}"
        findings.append(Finding("nodes", Verdict.WARNING, text, "`railweave nodes --problems` lists them"))
    return findings


def files() -> Finding:
    """How many files a process may open here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft:,} open files allowed (at most {hard:,})"
    if soft >= _FEW_FILES:
        return Finding("limits", Verdict.OK, text)
    return Finding("limits", Verdict.WARNING, text, f"`ulimit -n {_FEW_FILES}` or LimitNOFILE= of the unit")


def kernel() -> list[Finding]:
    """What the `veth` and `sriov` drivers need of this machine's kernel, tried out in a namespace of our own."""
    programs = [name for name in ("ip", "ping") if shutil.which(name) is None]
    findings = []
    if programs:
        remedy = "apt-get install iproute2 iputils-ping (only the demo and people need them)"
        findings.append(Finding("programs", Verdict.WARNING, f"not installed: {', '.join(programs)}", remedy))
    if os.geteuid() != 0:
        text = "not root: network namespaces are not tried"
        return [*findings, Finding("kernel", Verdict.SKIPPED, text, "as root, `railweave doctor` tries them")]
    name = f"rwdoctor-{secrets.token_hex(3)}"
    kernel = LinuxKernel()
    try:
        ref = kernel.create_netns(name)
        with kernel.open(ref) as inside:
            actions: dict[str, Action] = {
                "veth": CreateVeth("rwd0", "rwd1", ref),
                "bridge": CreateBridge("rwdbr"),
                "policy rules": AddRule(KernelRule(priority=1000, source="192.0.2.1/32", table=1000)),
            }
            outcomes = dict(zip(actions, inside.execute(list(actions.values())), strict=True))
    except KernelError as error:
        remedy = "network namespaces are needed on nodes (CONFIG_NET_NS, CAP_SYS_ADMIN)"
        return [*findings, Finding("kernel", Verdict.WRONG, str(error), remedy)]
    finally:
        with suppress(KernelError):
            kernel.delete_netns(name)
    failed = [f"{what}: {error}" for what, error in outcomes.items() if error is not None]
    if failed:
        remedy = (
            "load or build in the module (veth, bridge, CONFIG_IP_MULTIPLE_TABLES); a node without SR-IOV needs them"
        )
        return [*findings, Finding("kernel", Verdict.WRONG, "; ".join(failed), remedy)]
    release = os.uname().release
    return [*findings, Finding("kernel", Verdict.OK, f"{release}: namespaces, veth, bridges, policy rules")]
