"""Answers to questions about jobs and nodes. Lists come from the read model, one job from the record itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from railweave.contracts import query
from railweave.contracts.codec import encode_token
from railweave.contracts.envelope import Event, decode_event
from railweave.contracts.errors import ContractError
from railweave.contracts.identity import JobKey
from railweave.contracts.inventory import Report
from railweave.contracts.job import PlacedWorker
from railweave.contracts.placement import Head, JobState, Placement
from railweave.contracts.types import Bytes, NodeName
from railweave.contracts.wire import StoredMessage
from railweave.jobs.book import Book
from railweave.jobs.dryrun import DryRuns
from railweave.jobs.events import placed
from railweave.jobs.rows import ALL_JOBS, JOB_KIND, row_of
from railweave.jobs.why import explain
from railweave.runtime.bus import Bus
from railweave.runtime.cluster import WHOLE_GPU_MILLI, ClusterState, NodeState
from railweave.runtime.redis_store import RedisUnavailable, WorkingMemory
from railweave.runtime.service_api import Request, RequestError, ServiceApi
from railweave.runtime.streams import NODES, PLACEMENTS

Q = TypeVar("Q", bound=BaseModel)

_MOST_SCANNED = 20_000
_READING_S = 5.0


class Queries:
    """The endpoints of the jobs service."""

    def __init__(
        self,
        bus: Bus,
        state: ClusterState,
        memory: WorkingMemory | None,
        instance: str,
        now: Callable[[], datetime],
        book: Callable[[], Book | None],
    ) -> None:
        self._bus = bus
        self._state = state
        self._memory = memory
        self._now = now
        self._book = book
        self._instance = instance
        self._dry_runs = DryRuns(bus, state, instance)

    def register(self, service: ServiceApi) -> None:
        """Add all endpoints to the service."""
        service.endpoint("list", query.JOBS_SUBJECT, _endpoint(query.JobsQuery, self.jobs))
        service.endpoint("job", query.JOB_SUBJECT, _endpoint(query.JobQuery, self.job))
        service.endpoint("why", query.WHY_SUBJECT, _endpoint(query.JobQuery, self.why))
        service.endpoint("nodes", query.NODES_SUBJECT, _endpoint(query.NodesQuery, self.nodes))
        service.endpoint("dryrun", query.DRY_RUN_SUBJECT, _endpoint(query.DryRunRequest, self.dry_run))

    def register_active(self, service: ServiceApi) -> None:
        """Add what only the active instance can answer."""
        service.endpoint("counts", query.COUNTS_SUBJECT, _endpoint(query.CountsQuery, self.counts))

    async def counts(self, _: query.CountsQuery) -> query.CountsAnswer:
        """What the committer counted."""
        book = self._book()
        if book is None:
            raise RequestError(503, "this instance is a standby")
        live = dict.fromkeys(JobState, 0)
        for job in book.jobs.values():
            live[job.state] += 1
        counts = book.counts
        return query.CountsAnswer(
            instance=self._instance,
            epoch=book.epoch,
            asks=counts.asks,
            complete_rounds=counts.complete_rounds,
            commits=counts.commits,
            conflicts=counts.conflicts,
            released=counts.released,
            rejected=counts.rejected,
            adopted=counts.adopted,
            orphans=len(book.orphans),
            live={state: count for state, count in live.items() if count},
        )

    async def dry_run(self, asked: query.DryRunRequest) -> query.DryRunAnswer:
        """Where would it run?"""
        return await self._dry_runs.answer(asked.spec)

    async def jobs(self, asked: query.JobsQuery) -> query.JobsAnswer:
        """The jobs that match, oldest first, from the read model."""
        rows = [row for row in await self._rows(_index_for(asked)) if _matches(row, asked)]
        offset = _offset(asked.after)
        page = rows[offset : offset + asked.limit]
        more = offset + len(page) < len(rows)
        return query.JobsAnswer(
            jobs=tuple(page), total=len(rows), next=str(offset + len(page)) if more else None, as_of=self._now()
        )

    async def _rows(self, index: str) -> list[query.JobRow]:
        if self._memory is None:
            raise RequestError(503, "lists of jobs need Redis, which is switched off (redis.enabled)")
        try:
            names = [name for name, _ in await self._memory.read_index(index, limit=_MOST_SCANNED)]
            found = await self._memory.read(JOB_KIND, names)
        except RedisUnavailable as error:
            raise RequestError(
                503, f"the read model is not available: {error}; `job` and `why` do not need it"
            ) from error
        return [query.JobRow.model_validate_json(fields["row"]) for fields in found if fields is not None]

    async def job(self, asked: query.JobQuery) -> query.JobDetail:
        """Everything about one job, from the record."""
        head = await self._head(JobKey(asked.cluster, asked.job))
        found = await self._placements(head)
        placements = [found[node] for node in head.nodes if node in found]
        workers: tuple[PlacedWorker, ...] = ()
        segment: int | None = None
        if placements and any(item.workers for item in placements):
            answer = placed(head.run, int(head.round), placements)
            workers, segment = answer.workers, answer.segment
        return query.JobDetail(
            row=row_of(head),
            spec=head.spec,
            times=head.times,
            placed=workers,
            segment=segment,
            progress=await self._progress(head),
            reasons=head.reasons,
            lacks=head.lacks,
            exclude=head.exclude,
            commit=head.commit,
        )

    async def why(self, asked: query.JobQuery) -> query.Why:
        """Why one job is where it is, from the record; its place in the queue from the read model, where that
        answers.
        """
        head = await self._head(JobKey(asked.cluster, asked.job))
        pending: list[query.JobRow] = []
        if head.state is JobState.PENDING:
            try:
                pending = await self._rows(f"{ALL_JOBS}:state:{JobState.PENDING}")
            except RequestError:
                pending = [row_of(head)]
        return explain(head, pending, await self._progress(head), self._now(), await self._silent(head))

    async def _silent(self, head: Head) -> frozenset[NodeName]:
        """Nodes of a job without a heartbeat. Where nobody has one, Redis was emptied a moment ago."""
        if not head.nodes or not (heard := await self._heard(self._state.nodes)):
            return frozenset()
        return frozenset(head.nodes) - heard.keys()

    async def _head(self, key: JobKey) -> Head:
        subject = f"rw.head.{encode_token(key.cluster)}.{encode_token(key.job)}"
        found = await self._bus.read_last(PLACEMENTS, subject)
        if found is None:
            raise RequestError(
                404, f"no job {key}: never submitted, or over for more than a week; see `railweave jobs`"
            )
        event = decode_event(found).data
        if not isinstance(event, Head):
            raise RequestError(500, f"{subject} holds a {event.TYPE}")
        return event

    async def _placements(self, head: Head) -> dict[NodeName, Placement]:
        found = await self._of_all_nodes(PLACEMENTS, "placement", head)
        return {event.node: event for event, _ in found if isinstance(event, Placement)}

    async def _progress(self, head: Head) -> tuple[query.NodeProgress, ...]:
        found = {
            event.node: (event, at)
            for event, at in await self._of_all_nodes(NODES, "report", head)
            if isinstance(event, Report)
        }
        return tuple(_progress_of(node, *found.get(node, (None, None))) for node in head.nodes)

    async def _of_all_nodes(self, stream: str, what: str, head: Head) -> list[tuple[Event, datetime]]:
        """The latest of a stream about a job on every node, in one reading however many nodes there are."""
        if not head.nodes:
            return []
        subject = f"rw.{what}.*.{encode_token(head.cluster)}.{encode_token(head.job)}.{int(head.attempt)}"
        found: list[StoredMessage] = []
        follower = self._bus.follow(
            stream, (subject,), found.extend, on_reset=lambda _: found.clear(), whole_batches=False
        )
        try:
            async with asyncio.timeout(_READING_S), follower:
                await follower.wait_ready()
        except TimeoutError:
            raise RequestError(503, f"{stream} could not be read within {_READING_S:g} s") from None
        events: dict[str, tuple[Event, datetime]] = {}
        for message in found:
            with contextlib.suppress(ContractError):  # a node that cannot be read has said nothing
                events[message.subject] = (decode_event(message).data, message.stored_at)
        return list(events.values())

    async def nodes(self, asked: query.NodesQuery) -> query.NodesAnswer:
        """The nodes that match, by name, from the folded state."""
        names = sorted(self._state.nodes)
        heard = await self._heard(names)
        rows = [
            _node_row(self._state.nodes[name], heard.get(name))
            for name in names
            if _node_matches(self._state.nodes[name], asked)
        ]
        return query.NodesAnswer(nodes=tuple(rows[: asked.limit]), total=len(rows))

    async def _heard(self, names: Iterable[NodeName]) -> dict[NodeName, str]:
        if self._memory is None:
            return {}
        try:
            found = await self._memory.beats("agent", list(names))
        except RedisUnavailable:
            return {}
        return {NodeName(name): text for name, text in found.items()}


def _progress_of(node: NodeName, report: Report | None, reported_at: datetime | None) -> query.NodeProgress:
    if report is None:
        return query.NodeProgress(node=node)
    return query.NodeProgress(
        node=node, state=report.state, steps=report.steps, failure=report.failure, reported_at=reported_at
    )


def _endpoint(kind: type[Q], answer: Callable[[Q], Awaitable[BaseModel]]) -> Callable[[Request], Awaitable[bytes]]:
    async def take(request: Request) -> bytes:
        try:
            asked = kind.model_validate_json(request.body or b"{}")
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = ".".join(str(part) for part in first["loc"])
            raise RequestError(400, f"{path or 'body'}: {first['msg']}") from error
        return (await answer(asked)).model_dump_json(exclude_none=True).encode()

    return take


def _index_for(asked: query.JobsQuery) -> str:
    """The narrowest index that has all matches."""
    if asked.node is not None:
        return f"{ALL_JOBS}:node:{asked.node}"
    if asked.reason is not None:
        return f"{ALL_JOBS}:reason:{asked.reason}"
    if len(asked.states) == 1:
        return f"{ALL_JOBS}:state:{asked.states[0]}"
    if asked.tenant is not None:
        return f"{ALL_JOBS}:tenant:{asked.tenant}"
    if asked.cluster is not None:
        return f"{ALL_JOBS}:cluster:{asked.cluster}"
    return ALL_JOBS


def _matches(row: query.JobRow, asked: query.JobsQuery) -> bool:
    return (
        (asked.cluster is None or row.cluster == asked.cluster)
        and (not asked.states or row.state in asked.states)
        and (asked.tenant is None or row.tenant == asked.tenant)
        and (asked.node is None or asked.node in row.nodes)
        and (asked.reason is None or asked.reason in row.reasons)
    )


def _offset(after: str | None) -> int:
    if after is None:
        return 0
    if not after.isdigit():
        raise RequestError(400, f"after: expected `next` of an earlier answer, found {after!r}")
    return int(after)


def _node_matches(node: NodeState, asked: query.NodesQuery) -> bool:
    if asked.node is not None and node.name != asked.node:
        return False
    if asked.modes and node.mode not in asked.modes:
        return False
    if asked.leaf is None:
        return True
    return node.fabric is not None and any(item.leaf == asked.leaf for item in node.fabric.attachments)


def _node_row(node: NodeState, heard: str | None) -> query.NodeRow:
    hardware, storage = node.hardware, node.storage
    gpus = hardware.gpus if hardware is not None else ()
    pfs = [pf for pf in hardware.pfs if pf.link_up] if hardware is not None else []
    groups = min((pf.vfs for pf in pfs), default=0)
    free_groups = min((pf.vfs - sum(1 for used, _ in node.vfs_used if used == pf.pci) for pf in pfs), default=0)
    attachments = node.fabric.attachments if node.fabric is not None else ()
    down = tuple(pf.rail for pf in hardware.pfs if not pf.link_up) if hardware is not None else ()
    problems = [f"rail {int(rail)}: link is down" for rail in down]
    problems += [f"GPU {gpu.index}: {gpu.fault or 'not healthy'}" for gpu in gpus if not gpu.healthy]
    if hardware is None:
        problems.append("its agent has not been heard of")
    if node.fabric is None:
        problems.append("not in the fabric inventory")
    return query.NodeRow(
        node=node.name,
        mode=node.mode,
        mode_reason=node.desired.reason if node.desired is not None else None,
        agent_version=hardware.agent_version if hardware is not None else None,
        heard_at=_time(heard),
        leaves=tuple(dict.fromkeys(item.leaf for item in attachments)),
        gpus=len(gpus),
        free_gpus=node.free_whole_gpus,
        free_milli=sum(WHOLE_GPU_MILLI - node.gpu_used.get(gpu.index, 0) for gpu in gpus if gpu.healthy),
        vf_groups=groups,
        free_vf_groups=max(free_groups, 0),
        rails_down=down,
        cache_total_bytes=storage.cache.total_bytes if storage is not None else Bytes(0),
        cache_used_bytes=Bytes(node.cache_used_bytes()),
        scratch_total_bytes=storage.scratch.total_bytes if storage is not None else Bytes(0),
        scratch_free_bytes=Bytes(node.scratch_free_bytes()),
        datasets=sum(1 for _ in node.datasets()),
        jobs=tuple(f"{run.cluster}/{run.job}" for run in node.holds),
        problems=tuple(problems),
    )


def _time(heard: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(heard) if heard else None
    except ValueError:
        return None
