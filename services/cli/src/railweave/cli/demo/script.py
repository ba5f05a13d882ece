"""The demo's story: a cluster from nothing, three jobs, what they got and why not, and that nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from railweave.cli import render, words
from railweave.cli.demo import network
from railweave.cli.demo.narrator import Narrator
from railweave.cli.demo.network import DemoWorker, Traffic
from railweave.cli.output import Column, table
from railweave.cli.replay.leaks import AGENTS_HELD, find_leaks
from railweave.cli.session import Session, connected, ended_by_sigterm
from railweave.cli.stack.design import Shape
from railweave.cli.stack.local import LocalStack
from railweave.contracts.client import wait_prepared
from railweave.contracts.job import JobEnded, JobStarted, Outcome, StartedWorker
from railweave.contracts.placement import JobState
from railweave.contracts.query import (
    JOB_SUBJECT,
    JOBS_SUBJECT,
    NODES_SUBJECT,
    WHY_SUBJECT,
    JobDetail,
    JobQuery,
    JobsAnswer,
    JobsQuery,
    NodesAnswer,
    NodesQuery,
    Why,
)
from railweave.contracts.types import Attempt, ClusterName, JobName

CLUSTER = ClusterName("lab")
_MIB = 2**20
_CORPUS_BYTES = 4 * _MIB
_RESYNC_S = 8.0
_WAIT_S = 30.0
_TRIES = 4
_STRAY = 0.05
"""Share of stray packets that is neighbour discovery and not traffic."""


def shape(*, simulated: bool) -> Shape:
    """The demo's cluster: 2 leaves, 4 hosts, 4 rails."""
    return Shape(
        nodes=4, leaves=2, rails=4, vfs=4, gpus=4, simulated=simulated, cache_bytes=64 * _MIB, scratch_bytes=64 * _MIB
    )


async def run_demo(directory: Path, *, simulated: bool) -> Narrator:
    """Tell the story in a state directory of its own; what it started is gone afterwards, however it ends."""
    tale = Narrator()
    settings = {"agent": {"resync_s": _RESYNC_S}}
    stack = LocalStack(directory, shape(simulated=simulated), settings=settings, say=lambda text: tale.show(Text(text)))
    story = _Story(tale, stack)
    with ended_by_sigterm():
        try:
            await story.tell()
        finally:
            await stack.stop()
            await asyncio.to_thread(network.remove_namespaces, story.namespaces)
    story.check_gone()
    return tale


class _Story:
    def __init__(self, tale: Narrator, stack: LocalStack) -> None:
        self._tale = tale
        self._stack = stack
        self._is_real = not stack.shape.simulated
        self.namespaces: list[str] = []
        """Of workers, made by us in the scheduler's place."""

    async def tell(self) -> None:
        tale = self._tale
        kind = "network namespaces on a software spine-leaf fabric" if self._is_real else "simulated nodes"
        tale.title(f"A cluster from nothing: 2 leaves, 4 hosts ({kind}), 4 rails, 4 GPUs a host")
        await self._stack.start(timeout_s=60.0)
        async with connected(self._stack.target) as session:
            await self._cluster(session)
            await self._first_job(session)
            await self._second_job(session)
            await self._third_job(session)
            if self._is_real:
                await self._network(session)
            await self._ends(session)

    # -- the parts ------------------------------------------------------------------------------------------------

    async def _cluster(self, session: Session) -> None:
        answer = await session.ask(NODES_SUBJECT, NodesQuery(), NodesAnswer)
        self._tale.command("railweave nodes")
        self._tale.show(render.nodes_table(answer.nodes, datetime.now(UTC)))
        self._tale.check(len(answer.nodes) == 4, "4 nodes are there, each with 4 VF groups and 4 GPUs")

    async def _first_job(self, session: Session) -> None:
        tale = self._tale
        tale.title("A job that fits: 4 workers on 4 hosts, 2 GPUs and a NIC on every rail each, and a dataset")
        source = self._stack.directory / "datasets" / "tiny-corpus"
        source.write_bytes(os.urandom(_CORPUS_BYTES))
        job = {
            "cluster": CLUSTER,
            "job": "train-1",
            "attempt": 1,
            "workers": [{"count": 4, "gpus": 2}],
            "network": {},
            "datasets": [
                {"name": "tiny-corpus", "version": "1", "size_bytes": _CORPUS_BYTES, "source": f"file:{source}"}
            ],
        }
        tale.command("railweave submit train-1.yaml --wait prepared")
        await session.jobs.submit(job)
        prepared = await wait_prepared(session.bus.connection.client, CLUSTER, "train-1", 1, _WAIT_S)
        detail = await self._detail(session, "train-1")
        tale.show(render.job_text(detail, datetime.now(UTC)))
        tale.check(len(prepared.nodes) == 4, "prepared on 4 hosts: VFs set on their leaves, data there, GPUs reserved")
        rails = {len(worker.addresses) for worker in detail.placed}
        tale.check(rails == {4}, "every worker has an address on each of 4 rails", str(rails))
        addresses = [address for worker in detail.placed for address in worker.addresses]
        tale.check(len(set(addresses)) == 16, "16 addresses, none twice", words.names(addresses))
        if self._is_real:
            copies = sum(1 for node in prepared.nodes if self._has_corpus(str(node)))
            tale.check(copies == 4, "the dataset's bytes are on 4 hosts' disks", f"on {copies}")
        await self._start(session, "train-1", 4)
        tale.say("its scheduler starts the workers and says where their network namespaces are; VFs move into them")
        await self._reach(session, "train-1", JobState.ATTACHED)

    async def _second_job(self, session: Session) -> None:
        tale = self._tale
        tale.title("A job that shares hosts with it: 2 workers, half a GPU each, and another VF group")
        job = {
            "cluster": CLUSTER,
            "job": "notebook-7",
            "attempt": 1,
            "workers": [{"count": 2, "gpus": 1, "gpu_fraction_milli": 500}],
            "network": {},
        }
        tale.command("railweave submit notebook-7.yaml --wait prepared")
        await session.jobs.submit(job)
        await wait_prepared(session.bus.connection.client, CLUSTER, "notebook-7", 1, _WAIT_S)
        detail, first = await self._detail(session, "notebook-7"), await self._detail(session, "train-1")
        tale.show(render.job_text(detail, datetime.now(UTC)))
        shared = {worker.node for worker in detail.placed} & {worker.node for worker in first.placed}
        tale.check(len(shared) == len({w.node for w in detail.placed}), "it runs on hosts that train-1 runs on too")
        one = {address for worker in detail.placed for address in worker.addresses}
        other = {address for worker in first.placed for address in worker.addresses}
        tale.check(
            not one & other and len(one) == 8, "with VFs and addresses of its own", words.names(sorted(one & other))
        )
        await self._start(session, "notebook-7", 2)
        await self._reach(session, "notebook-7", JobState.ATTACHED)

    async def _third_job(self, session: Session) -> None:
        tale = self._tale
        tale.title("A job that does not fit, and says why: 2 workers with 4 whole GPUs each")
        job = {
            "cluster": CLUSTER,
            "job": "too-big-2",
            "attempt": 1,
            "workers": [{"count": 2, "gpus": 4}],
            "network": {},
        }
        tale.command("railweave submit too-big-2.yaml; railweave why lab/too-big-2")
        await session.jobs.submit(job)
        why = await self._until_reasons(session, "too-big-2")
        tale.show(render.why_text(why))
        tale.check(
            why.row.state is JobState.PENDING, "it waits; it is not rejected, since an empty cluster has room for it"
        )
        tale.check(bool(why.reasons and why.reasons[0].numbers), "its reason has numbers", str(why.reasons))
        answer = await session.ask(JOBS_SUBJECT, JobsQuery(), JobsAnswer)
        tale.command("railweave jobs")
        tale.show(render.jobs_table(answer.jobs, datetime.now(UTC)))

    async def _network(self, session: Session) -> None:
        tale = self._tale
        detail = await self._detail(session, "train-1")
        workers = [
            DemoWorker(item.worker, str(item.node), self._netns("train-1", item.worker), tuple(item.addresses))
            for item in detail.placed
        ]
        first = workers[0]
        tale.title("Inside worker 0 of train-1: one interface, one table and one rule for each rail")
        tale.command(f"ip -n {first.netns} rule; ip -n {first.netns} route show table 1001")
        tale.show(Text(await asyncio.to_thread(network.ip_output, first.netns, "rule")))
        tale.show(Text(await asyncio.to_thread(network.ip_output, first.netns, "route", "show", "table", "1001")))
        rules = await asyncio.to_thread(network.rule_count, first)
        tale.check(rules == 4, "4 policy rules, each from a VF's address to that VF's table", f"{rules} rules")
        tale.title("Everyone pings everyone, by source address: what leaves by which NIC")
        await asyncio.to_thread(network.ping_all, workers)  # neighbours are found, so that the counters tell traffic
        with_rules = await asyncio.to_thread(network.ping_all, workers)
        tale.show(traffic_table(with_rules))
        answered = f"{with_rules.answered} of {with_rules.sent} answered"
        tale.check(
            with_rules.answered == with_rules.sent, f"every ping is answered, over both leaves ({answered})", answered
        )
        tale.check(
            with_rules.own >= with_rules.sent and with_rules.strayed <= with_rules.sent * _STRAY,
            "each rail's traffic left by its own NIC",
            f"{with_rules.strayed} strayed",
        )
        await self._without_rules(workers)

    async def _without_rules(self, workers: list[DemoWorker]) -> None:
        tale = self._tale
        tale.title("The same from worker 0 with its rules taken away")
        first = workers[0]
        bare: Traffic | None = None
        for _ in range(_TRIES):
            await asyncio.to_thread(network.take_rules_away, first)
            bare = await asyncio.to_thread(network.ping_all, workers, [first])
            # Its agent looks once in a while and mends: what was mended meanwhile is no measurement.
            if not await asyncio.to_thread(network.rule_count, first):
                break
        if bare is not None:
            tale.show(traffic_table(bare))
            share = bare.strayed / max(1, bare.strayed + bare.own)
            tale.check(share > 0.5, f"{share:.0%} of it left by another NIC than its source's: what the rules are for")
        tale.say(f"the agents compare what is with what must be, here every {_RESYNC_S:g} s, and mend it:")

        def mended() -> bool:
            return network.rule_count(first) == 4

        is_mended = await self._eventually(lambda: asyncio.to_thread(mended), _RESYNC_S * 2 + _WAIT_S)
        tale.check(is_mended, "the rules are back, and nobody was asked")
        again = await asyncio.to_thread(network.ping_all, workers, [first])
        tale.check(
            again.answered == again.sent and again.strayed <= again.sent * _STRAY,
            "and each rail's traffic leaves by its own NIC again",
            f"{again.strayed} strayed",
        )

    async def _ends(self, session: Session) -> None:
        tale = self._tale
        tale.title("The jobs end")
        for name in ("train-1", "notebook-7"):
            tale.command(f"railweave cancel {CLUSTER}/{name}")
            await self._end(session, name)
        for name in ("train-1", "notebook-7"):
            await self._reach(session, name, JobState.RELEASED)
        placed = await self._reach(session, "too-big-2", JobState.PREPARED)
        if placed:
            tale.say("too-big-2 had been waiting for what they gave back: it is prepared by itself. It ends too.")
        await self._end(session, "too-big-2")
        await self._reach(session, "too-big-2", JobState.RELEASED)
        await self._nothing_left(session)

    async def _nothing_left(self, session: Session) -> None:
        tale = self._tale
        tale.title("Nothing is left")
        leaks = await find_leaks(session.bus, lambda: self._stack.gauge(AGENTS_HELD), settle_s=5.0)
        tale.check(
            leaks.total == 0,
            "no claim in the record, no report of anything held, every agent's journal empty",
            "; ".join(leaks.examples),
        )
        answer = await session.ask(NODES_SUBJECT, NodesQuery(), NodesAnswer)
        free = all(
            row.free_gpus == row.gpus and row.free_vf_groups == row.vf_groups and not row.jobs for row in answer.nodes
        )
        tale.check(free, "all GPUs and all VF groups of all nodes are free")
        if not self._is_real:
            return
        design, per_node = self._stack.design, self._stack.shape.rails * self._stack.shape.vfs
        empty = [await asyncio.to_thread(network.devices, name) for name in self.namespaces]
        tale.check(not any(empty), "the workers' namespaces are empty", str(empty))
        home = [
            len(await asyncio.to_thread(network.devices, design.node_netns(name))) for name in self._stack.node_names
        ]
        tale.check(home == [per_node] * 4, f"all {per_node} VFs of each host are home", str(home))
        members = [await asyncio.to_thread(network.bridge_members, design.leaf_netns(f"leaf-{n}")) for n in (1, 2)]
        tale.check(members == [0, 0], "no bridge of a leaf has a member", str(members))

    def check_gone(self) -> None:
        """After the stack is down."""
        if self._is_real:
            left = [name for name in network.namespace_names() if name.startswith(f"{self._stack.run}-")]
            self._tale.check(not left, "and with the cluster its namespaces are gone", words.names(left))

    # -- steps that come again --------------------------------------------------------------------------------------

    def _netns(self, job: str, rank: int) -> str:
        return f"{self._stack.run}-{job}-{rank}"

    def _has_corpus(self, node: str) -> bool:
        data = self._stack.directory / "nodes" / node
        return any(path.stat().st_size == _CORPUS_BYTES for path in data.rglob("*") if path.is_file())

    async def _start(self, session: Session, job: str, workers: int) -> None:
        names = [self._netns(job, rank) for rank in range(workers)]
        if self._is_real:
            self.namespaces += names
            await asyncio.to_thread(network.make_namespaces, names)
        started = tuple(StartedWorker(worker=rank, netns=f"/run/netns/{name}") for rank, name in enumerate(names))
        await session.jobs.started(JobStarted(cluster=CLUSTER, job=JobName(job), attempt=Attempt(1), workers=started))

    async def _end(self, session: Session, job: str) -> None:
        await session.jobs.ended(
            JobEnded(cluster=CLUSTER, job=JobName(job), attempt=Attempt(1), outcome=Outcome.CANCELLED)
        )

    async def _detail(self, session: Session, job: str) -> JobDetail:
        return await session.ask(JOB_SUBJECT, JobQuery(cluster=CLUSTER, job=JobName(job)), JobDetail)

    async def _reach(self, session: Session, job: str, state: JobState) -> bool:
        last: list[str] = []

        async def reached() -> bool:
            detail = await self._detail(session, job)
            last[:] = [str(detail.row.state), *(render.reason_line(reason) for reason in detail.reasons)]
            return detail.row.state is state

        return self._tale.check(await self._eventually(reached, _WAIT_S), f"{job} is {state}", " ".join(last))

    async def _until_reasons(self, session: Session, job: str) -> Why:
        answer: list[Why] = []

        async def told() -> bool:
            with contextlib.suppress(Exception):
                answer[:] = [await session.ask(WHY_SUBJECT, JobQuery(cluster=CLUSTER, job=JobName(job)), Why)]
            return bool(answer and answer[0].reasons)

        await self._eventually(told, _WAIT_S)
        return answer[0]

    @staticmethod
    async def _eventually(holds: Callable[[], Any], timeout_s: float) -> bool:
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            if await holds():
                return True
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(0.05)


def traffic_table(traffic: Traffic) -> Table:
    """Packets by the rail of their source and the NIC they left by; those where they belong in green."""
    rails = sorted(traffic.left_by)
    return table(
        [Column("packets from", keep=True), *(Column(f"by rail{rail}", right=True) for rail in rails)],
        [
            (
                f"rail{rail}'s address",
                *(
                    Text(
                        str(traffic.left_by[rail][by]),
                        style="green" if by == rail else "red" if traffic.left_by[rail][by] > 4 else "dim",
                    )
                    for by in rails
                ),
            )
            for rail in rails
        ],
    )
