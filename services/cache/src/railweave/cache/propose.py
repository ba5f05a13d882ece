"""Which nodes a job gets, and what each uses, fetches and evicts; or why none. Pure.

Nodes with room come first; only where they are too few are nodes taken on which room must be made. Nodes that the
scheduler chose are checked and explained, never replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from railweave.cache.choice import Choice, sizes_of
from railweave.cache.explain import why_none
from railweave.cache.gang import Chooser, Leaf
from railweave.cache.listed import check_listed
from railweave.cache.model import CacheConfig, Candidate
from railweave.cache.view import Survey
from railweave.contracts.proposal import Ask, Concern, DataProposal, NodeData, NodesProposal, Proposal
from railweave.contracts.reasons import Lack, Reason, ReasonCode
from railweave.contracts.types import NodeName, build
from railweave.runtime.cluster import ClusterState, Hold
from railweave.runtime.outstanding import Outstanding

P = TypeVar("P", bound=Proposal)


@dataclass(frozen=True, slots=True)
class Answered:
    """Both proposals of a round, and what they would take of each node until they are stored."""

    nodes: NodesProposal
    data: DataProposal | None
    holds: Mapping[NodeName, Hold] = field(default_factory=dict)


def propose(
    ask: Ask, state: ClusterState, outstanding: Outstanding, config: CacheConfig, survey: Survey | None = None
) -> Answered:
    """Give every node slot of the job a node, with a plan for its data, or say why not.

    Args:
        ask: the round.
        state: the folded cluster.
        outstanding: proposals of other jobs that are not stored yet.
        config: weights and watermark.
        survey: the nodes summed up, if it is kept between calls; brought up to date here.
    """
    if survey is None:
        survey = Survey(config)
    survey.refresh(state)
    wanted, unknown = sizes_of(ask.spec, state)
    if unknown:
        return _refused(ask, state, (_size_unknown(unknown),))
    choice = Choice(ask, wanted, state, outstanding, survey)
    if ask.spec.nodes.node_list is not None:
        listed = check_listed(choice, ask.spec.nodes.node_list)
        if listed.reasons:
            return _refused(ask, state, listed.reasons, never=listed.never)
        return _given(choice, listed.nodes)
    chosen = choose_nodes(choice)
    if chosen is None:
        reasons, never = why_none(choice)
        return _refused(ask, state, reasons, never=never)
    return _given(choice, chosen)


def choose_nodes(choice: Choice) -> tuple[Candidate, ...] | None:
    """The nodes of the job by slot; None where none can be found.

    In three steps, each only where the one before finds too few: nodes that have all of the data, nodes with room for
    it, nodes where room can be made.
    """
    if not choice.wanted:
        slots = choice.ask.spec.slot_count
        return _choose(choice, [choice.fits(kind, evicting=False, most=slots) for kind in choice.kinds])
    chosen = _choose(choice, [choice.fits_with_all(kind) for kind in choice.kinds])
    for evicting in (False, True):
        if chosen is None:
            chosen = _choose(choice, [choice.fits(kind, evicting=evicting) for kind in choice.kinds])
    return chosen


def _choose(choice: Choice, fits: Sequence[list[Leaf]]) -> tuple[Candidate, ...] | None:
    topology = choice.ask.spec.nodes.topology
    chooser = Chooser(topology, choice.config.weights, choice.survey.largest_place)
    counts = [kind.count for kind in choice.kinds]
    if len(counts) == 1:
        alike = chooser.choose(fits[0], counts[0])
        chosen = [alike] if alike is not None else None
    else:
        chosen = chooser.choose_mixed(fits, counts)
    if chosen is None:
        return None
    by_slot: dict[int, Candidate] = {}
    for kind, mine in zip(choice.kinds, chosen, strict=True):
        # Rank order is topology order: neighbours in rank are neighbours in the fabric.
        by_slot.update(zip(kind.slots, sorted(mine, key=lambda node: node.order), strict=True))
    return tuple(by_slot[slot] for slot in sorted(by_slot))


def _given(choice: Choice, nodes: tuple[Candidate, ...]) -> Answered:
    ask, state = choice.ask, choice.state
    kind_of = {slot: kind for kind in choice.kinds for slot in kind.slots}
    plans: list[NodeData | None] = [choice.plan(node) if choice.wanted else None for node in nodes]
    holds = {
        node.name: choice.hold(node, kind_of[slot], plan)
        for slot, (node, plan) in enumerate(zip(nodes, plans, strict=True))
    }
    based_on = dict(state.sequences)
    return Answered(
        build(
            NodesProposal,
            cluster=ask.cluster,
            job=ask.job,
            attempt=ask.attempt,
            uid=ask.uid,
            round=ask.round,
            based_on=based_on,
            nodes=tuple(node.name for node in nodes),
        ),
        build(
            DataProposal,
            cluster=ask.cluster,
            job=ask.job,
            attempt=ask.attempt,
            uid=ask.uid,
            round=ask.round,
            based_on=based_on,
            nodes=tuple(plan for plan in plans if plan is not None),
        )
        if Concern.DATA in ask.concerns
        else None,
        holds,
    )


def _refused(ask: Ask, state: ClusterState, reasons: tuple[Reason, ...], *, never: bool = False) -> Answered:
    """Both concerns refuse alike: the data proposal of a round must not be left open beside refused nodes."""
    nodes = _refusal(NodesProposal, ask, state, reasons, never=never)
    data = _refusal(DataProposal, ask, state, reasons, never=never) if Concern.DATA in ask.concerns else None
    return Answered(nodes, data)


def _refusal(made: type[P], ask: Ask, state: ClusterState, reasons: tuple[Reason, ...], *, never: bool) -> P:
    return made(
        cluster=ask.cluster,
        job=ask.job,
        attempt=ask.attempt,
        uid=ask.uid,
        round=ask.round,
        based_on=dict(state.sequences),
        reasons=reasons,
        never=never,
    )


def _size_unknown(datasets: tuple[str, ...]) -> Reason:
    names = ", ".join(datasets)
    return Reason(
        code=ReasonCode.DATASET_SIZE_UNKNOWN,
        text=f"size of {names} is neither declared by the job, nor registered, nor known from a copy",
        numbers={"unknown_datasets": len(datasets)},
        lacks=(Lack.DATASET,),
        remedy=f"say datasets[].size_bytes in the job, or register {datasets[0]} with its size",
    )
