"""The table behind a choice: every term of every node, and what the others failed. Asked by `rw.query.cache.scores`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from railweave.cache.choice import Choice, Scored, sizes_of
from railweave.cache.view import Survey
from railweave.contracts.proposal import Ask
from railweave.contracts.types import Attempt, ClusterName, Document, JobName, NodeName, Round
from railweave.runtime.cluster import ClusterState
from railweave.runtime.outstanding import Outstanding


class ScoresRequest(Document):
    """Of which job."""

    cluster: ClusterName
    job: JobName
    limit: Annotated[int, Field(ge=1, le=10_000)] = 50
    """Most nodes listed of each kind of slot, the best first."""


class NodeScore(Document):
    node: NodeName
    leaf: str
    total: float
    terms: dict[str, float]
    """Each 0 to 1, before its weight."""
    evict: tuple[str, ...] = ()


class KindScores(Document):
    """One kind of node slot."""

    slots: int
    fitting: int
    nodes: tuple[NodeScore, ...]
    failed: dict[str, int]
    """Nodes by the first check they fail."""


class ScoresAnswer(Document):
    cluster: ClusterName
    job: JobName
    attempt: Attempt
    round: Round
    weights: dict[str, float]
    unknown_sizes: tuple[str, ...] = ()
    kinds: tuple[KindScores, ...] = ()


def scores_of(ask: Ask, state: ClusterState, outstanding: Outstanding, survey: Survey, *, most: int) -> ScoresAnswer:
    """The table of an ask as of now. Leaves of a gang are weighed beyond it: locality is a term of whole plans."""
    survey.refresh(state)
    wanted, unknown = sizes_of(ask.spec, state)
    choice = Choice(ask, wanted, state, outstanding, survey)
    weights = survey.config.weights
    kinds = []
    for kind in () if unknown else choice.kinds:
        rows = list(choice.table(kind))
        fitting = sorted((row for row in rows if row.check is None), key=lambda row: (-row.total, row.candidate.order))
        failed: dict[str, int] = {}
        for row in rows:
            if row.check is not None:
                name = row.check.name.lower()
                failed[name] = failed.get(name, 0) + 1
        kinds.append(
            KindScores(
                slots=kind.count,
                fitting=len(fitting),
                nodes=tuple(_row(row) for row in fitting[:most]),
                failed=failed,
            )
        )
    return ScoresAnswer(
        cluster=ask.cluster,
        job=ask.job,
        attempt=ask.attempt,
        round=ask.round,
        weights={name: getattr(weights, name) for name in type(weights).__slots__},
        unknown_sizes=unknown,
        kinds=tuple(kinds),
    )


def _row(row: Scored) -> NodeScore:
    return NodeScore(
        node=row.candidate.name,
        leaf=str(row.candidate.place),
        total=round(row.total, 4),
        terms={name: round(value, 4) for name, value in row.terms.items()},
        evict=tuple(victim.dataset for victim in row.evict),
    )
