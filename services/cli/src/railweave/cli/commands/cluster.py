"""What the streams say of GPUs, datasets and tenants, read from them directly: no service need run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import typer
from rich.text import Text

from railweave.cli import words
from railweave.cli.arguments import Json, target
from railweave.cli.logs import keep_services_quiet
from railweave.cli.output import Column, print_json, show, table
from railweave.cli.session import connected, run
from railweave.cli.target import Target
from railweave.contracts.inventory import DatasetState
from railweave.runtime.cluster import DESIRED, NODES, PLACEMENTS, ClusterState
from railweave.runtime.held import NodeState


@dataclass(slots=True)
class NodeGpus:
    """The GPUs of a node."""

    node: str
    model: str
    count: int
    healthy: int
    free: int
    """Wholly free and healthy."""
    split: int
    """Shared by fractions, with room left."""
    used_milli: int
    schedulable: bool


def node_gpus(node: NodeState) -> NodeGpus:
    """Count a node's GPUs."""
    cards = node.hardware.gpus if node.hardware is not None else ()
    used = {card.index: node.gpu_used.get(card.index, 0) for card in cards}
    return NodeGpus(
        node=str(node.name),
        model=", ".join(sorted({str(card.model) for card in cards})) or "-",
        count=len(cards),
        healthy=sum(card.healthy for card in cards),
        free=node.free_whole_gpus,
        split=sum(0 < milli < 1000 for milli in used.values()),
        used_milli=sum(used.values()),
        schedulable=node.is_schedulable,
    )


def gpus(ctx: typer.Context, as_json: Json = False) -> None:
    """List GPUs by node: free, shared, unhealthy, and of no use because their node is out."""
    state = run(_read(target(ctx), PLACEMENTS, NODES, DESIRED))
    rows = [node_gpus(node) for _, node in sorted(state.nodes.items()) if node.hardware is not None]
    if as_json:
        print_json({"nodes": [asdict(row) for row in rows]})
        return
    total = sum(row.count for row in rows)
    free = sum(row.free for row in rows if row.schedulable)
    out = sum(row.free for row in rows if not row.schedulable)
    ill = sum(row.count - row.healthy for row in rows)
    milli = sum(row.used_milli for row in rows)
    show(
        table(
            [
                Column("NODE", keep=True),
                Column("MODEL", ratio=1),
                Column("GPUS", right=True),
                Column("FREE", right=True),
                Column("SHARED", right=True),
                Column("IN USE", right=True),
                Column("UNHEALTHY", right=True),
            ],
            [
                (
                    row.node,
                    row.model,
                    str(row.count),
                    str(row.free) if row.schedulable else Text(f"({row.free})", style="dim"),
                    str(row.split),
                    words.gpus(row.used_milli),
                    str(row.count - row.healthy or "-"),
                )
                for row in rows
            ],
        ),
        f"{total} GPUs: {words.gpus(milli)} in use, {free} free, {out} free on nodes that are out, {ill} unhealthy",
    )


@dataclass(slots=True)
class DatasetUse:
    """A dataset over all nodes."""

    dataset: str
    size_bytes: int | None = None
    source: str | None = None
    ready: list[str] = field(default_factory=list)
    fetching: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)
    evicting: list[str] = field(default_factory=list)
    pinned: list[str] = field(default_factory=list)
    uses: int = 0


def dataset_uses(state: ClusterState) -> list[DatasetUse]:
    """Where every dataset is, and who needs it."""
    found: dict[str, DatasetUse] = {}
    for name, registered in state.datasets.items():
        size = int(registered.size_bytes) if registered.size_bytes is not None else None
        found[name] = DatasetUse(name, size, registered.source_uri)
    for node in state.nodes.values():
        wanted = {item for hold in node.holds.values() for item in (*hold.fetch, *hold.use)}
        for name in {item.dataset for item in node.datasets()} | wanted:
            use = found.setdefault(name, DatasetUse(name))
            cached = node.cached(name)
            if cached is not None:
                use.uses += cached.uses
                if use.size_bytes is None and cached.state is DatasetState.READY:
                    use.size_bytes = int(cached.bytes)
                use.source = use.source or cached.source
            for is_so, names in (
                (node.has_ready(name), use.ready),
                (node.is_fetching(name), use.fetching),
                (node.is_used(name), use.used),
                (node.is_evicting(name), use.evicting),
                (node.is_pinned(name), use.pinned),
            ):
                if is_so:
                    names.append(str(node.name))
    for use in found.values():
        for names in (use.ready, use.fetching, use.used, use.evicting, use.pinned):
            names.sort()
    return sorted(found.values(), key=lambda use: use.dataset)


def datasets(ctx: typer.Context, as_json: Json = False) -> None:
    """List datasets: how large, on which nodes, in use by how many."""
    uses = dataset_uses(run(_read(target(ctx), PLACEMENTS, NODES, DESIRED)))
    if as_json:
        print_json({"datasets": [asdict(use) for use in uses]})
        return
    show(
        table(
            [
                Column("DATASET", keep=True),
                Column("SIZE", right=True),
                Column("NODES", right=True),
                Column("FETCHING", right=True),
                Column("IN USE", right=True),
                Column("USES", right=True),
                Column("WHERE", ratio=1),
            ],
            [
                (
                    use.dataset,
                    words.size(use.size_bytes),
                    str(len(use.ready)),
                    str(len(use.fetching) or "-"),
                    str(len(use.used) or "-"),
                    str(use.uses),
                    words.names(use.ready, 6),
                )
                for use in uses
            ],
        )
        if uses
        else "no datasets: nothing is registered and no node holds one"
    )


def tenants(ctx: typer.Context, as_json: Json = False) -> None:
    """List tenants: GPUs in use, guaranteed and at most."""
    state = run(_read(target(ctx), PLACEMENTS, NODES, DESIRED))
    held = {hold.tenant for node in state.nodes.values() for hold in node.holds.values()}
    rows = []
    for name in sorted(held | set(state.tenants)):
        record = state.tenants.get(name)
        rows.append(
            {
                "tenant": name,
                "gpu_milli_in_use": state.tenant_gpu_milli(name),
                "gpus_guaranteed": record.quota.gpus.guaranteed if record is not None else 0,
                "gpus_limit": record.quota.gpus.limit if record is not None else None,
                "weight": record.weight if record is not None else 1,
                "registered": record is not None,
            }
        )
    if as_json:
        print_json({"tenants": rows})
        return
    show(
        table(
            [
                Column("TENANT", keep=True),
                Column("GPUS IN USE", right=True),
                Column("GUARANTEED", right=True),
                Column("LIMIT", right=True),
                Column("WEIGHT", right=True),
            ],
            [
                (
                    str(row["tenant"]),
                    words.gpus(int(str(row["gpu_milli_in_use"]))),
                    str(row["gpus_guaranteed"]),
                    str(row["gpus_limit"]) if row["gpus_limit"] is not None else "none",
                    str(row["weight"]),
                )
                for row in rows
            ],
        )
        if rows
        else "no tenants: none is registered and no job holds anything"
    )


async def _read(where: Target, *streams: str) -> ClusterState:
    keep_services_quiet()
    async with connected(where) as session:
        return await session.cluster(streams)
