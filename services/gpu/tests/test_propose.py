"""What a round of proposals gets of the GPUs, and why not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.contracts.proposal import Ask, GpuProposal, NodesProposal
from railweave.contracts.reasons import Lack, ReasonCode
from railweave.contracts.types import NodeName
from railweave.gpu.propose import GpuConfig, holds_of, propose
from railweave.runtime.outstanding import Outstanding
from railweave_testing.clusters import ClusterBuilder, ask


def nodes_for(asked: Ask, names: Sequence[str]) -> NodesProposal:
    return NodesProposal(
        cluster=asked.cluster,
        job=asked.job,
        attempt=asked.attempt,
        round=asked.round,
        nodes=tuple(NodeName(name) for name in names),
    )


def proposed(
    cluster: ClusterBuilder, names: Sequence[str], outstanding: Outstanding | None = None, **wanted: Any
) -> GpuProposal:
    asked = ask(**wanted)
    return propose(asked, nodes_for(asked, names), cluster.state, outstanding or Outstanding(), GpuConfig())


def given_gpus(proposal: GpuProposal) -> dict[int, list[tuple[int, int]]]:
    return {worker.worker: [(gpu, int(milli)) for gpu, milli in worker.gpus] for worker in proposal.workers}


def test_each_worker_gets_its_cards_on_its_node() -> None:
    cluster = ClusterBuilder()
    cluster.node("n1", gpus=4)
    cluster.node("n2", gpus=4)
    proposal = proposed(cluster, ["n1", "n2"], workers=4, per_node=2, gpus=2)
    assert given_gpus(proposal) == {
        0: [(0, 1000), (1, 1000)],
        1: [(2, 1000), (3, 1000)],
        2: [(0, 1000), (1, 1000)],
        3: [(2, 1000), (3, 1000)],
    }


def test_groups_without_gpus_take_no_part() -> None:
    cluster = ClusterBuilder()
    cluster.node("n1", gpus=0)
    cluster.node("n2", gpus=1)
    proposal = proposed(cluster, ["n1", "n2"], workers=[{"name": "ps", "count": 1}, {"count": 1, "gpus": 1}])
    assert given_gpus(proposal) == {1: [(0, 1000)]}


def test_what_is_held_and_what_is_proposed_to_others_is_not_given_again() -> None:
    cluster = ClusterBuilder()
    cluster.node("n1", gpus=2)
    cluster.place("old", "n1", gpus=[(0, 1000)])
    outstanding = Outstanding()
    first = ask("first", gpus=1)
    got = propose(first, nodes_for(first, ["n1"]), cluster.state, outstanding, GpuConfig())
    assert given_gpus(got) == {0: [(1, 1000)]}
    outstanding.put(first.round_key, holds_of(got, first.spec, (NodeName("n1"),)), now=0.0)
    refused = proposed(cluster, ["n1"], outstanding, job="second", gpus=1)
    assert refused.reasons[0].code is ReasonCode.INSUFFICIENT_GPUS
    assert refused.reasons[0].lacks == (Lack.GPU,)
    again = propose(first, nodes_for(first, ["n1"]), cluster.state, outstanding, GpuConfig())
    assert again.workers == got.workers


def test_one_node_short_and_no_worker_gets_anything() -> None:
    cluster = ClusterBuilder()
    cluster.node("n1", gpus=8)
    cluster.node("n2", gpus=8)
    cluster.place("old", "n2", gpus=[(index, 1000) for index in range(3)])
    proposal = proposed(cluster, ["n1", "n2"], workers=2, gpus=8)
    assert proposal.workers == ()
    assert not proposal.never
    (reason,) = proposal.reasons
    assert reason.node == "n2"
    assert reason.numbers["free_gpus"] == 5
    assert reason.numbers["needed_gpus"] == 8


def test_several_nodes_short_are_summed_up_with_the_nearest_named_first() -> None:
    cluster = ClusterBuilder()
    for name, used in (("n1", 4), ("n2", 1), ("n3", 6)):
        cluster.node(name, gpus=8)
        cluster.place("old", name, gpus=[(index, 1000) for index in range(used)])
    reasons = proposed(cluster, ["n1", "n2", "n3"], workers=3, gpus=8).reasons
    assert reasons[0].node == "n2"
    assert reasons[0].numbers["nodes_short"] == 3
    assert reasons[0].numbers["best_free_gpus"] == 7
    assert [reason.node for reason in reasons[1:]] == ["n2", "n1", "n3"]


def test_a_sick_card_is_named_with_its_fault() -> None:
    cluster = ClusterBuilder()
    cluster.node("n1", gpus=[{}, {"healthy": False, "fault": "XID 79"}])
    (reason,) = proposed(cluster, ["n1"], gpus=2).reasons
    assert "GPU 1: XID 79" in reason.text
    assert reason.remedy == "repair GPU 1 of n1"


def test_the_schedulers_choice_of_gpus_is_claimed_as_it_is() -> None:
    cluster = ClusterBuilder()
    cluster.node("n1", gpus=8)
    proposal = proposed(cluster, ["n1"], gpus=2, node_list=["n1"], gpu_indices={"n1": [3, 6]})
    assert given_gpus(proposal) == {0: [(3, 1000), (6, 1000)]}


def test_the_schedulers_choice_of_gpus_that_another_job_holds_is_refused_with_its_name() -> None:
    cluster = ClusterBuilder()
    cluster.node("n1", gpus=8)
    cluster.place("old", "n1", gpus=[(3, 400)])
    proposal = proposed(cluster, ["n1"], gpus=2, node_list=["n1"], gpu_indices={"n1": [3, 6]})
    assert "GPU 3 has 600 of 1000 free, held by slurm-a/old" in proposal.reasons[0].text
    assert not proposal.never


def test_a_gpu_index_that_does_not_exist_is_refused_for_good() -> None:
    cluster = ClusterBuilder()
    cluster.node("n1", gpus=2)
    proposal = proposed(cluster, ["n1"], gpus=1, node_list=["n1"], gpu_indices={"n1": [7]})
    assert proposal.never
    assert "GPU 7 does not exist" in proposal.reasons[0].text


def test_a_node_of_the_schedulers_that_is_too_small_is_refused_for_good_and_a_busy_one_is_not() -> None:
    cluster = ClusterBuilder()
    cluster.node("small", gpus=4)
    cluster.node("busy", gpus=8)
    cluster.place("old", "busy", gpus=[(0, 1000)])
    assert proposed(cluster, ["small"], gpus=8, node_list=["small"]).never
    assert not proposed(cluster, ["busy"], gpus=8, node_list=["busy"]).never


def test_a_tenant_at_its_limit_waits_for_quota_whatever_is_free() -> None:
    cluster = ClusterBuilder()
    cluster.node("n1", gpus=8)
    cluster.tenant("nlp", gpu_limit=4)
    cluster.place("old", "n1", gpus=[(0, 1000), (1, 500)], tenant="nlp")
    assert not proposed(cluster, ["n1"], gpus=2, tenant="nlp").reasons
    (reason,) = proposed(cluster, ["n1"], gpus=3, tenant="nlp").reasons
    assert reason.code is ReasonCode.WAITING_FOR_QUOTA
    assert reason.lacks == (Lack.QUOTA,)
    assert reason.text == "wants 3 GPUs; tenant nlp: limit 4, in use 1.5, 0.5 too many"
    assert not proposed(cluster, ["n1"], gpus=3, tenant="vision").reasons


def test_fractions_count_once_for_every_card_of_every_worker_against_the_quota() -> None:
    cluster = ClusterBuilder()
    cluster.node("n1", gpus=8)
    cluster.tenant("nlp", gpu_limit=1)
    assert not proposed(cluster, ["n1"], workers=1, gpus=2, gpu_fraction_milli=500, tenant="nlp").reasons
    assert proposed(cluster, ["n1"], workers=1, gpus=2, gpu_fraction_milli=600, tenant="nlp").reasons


def test_what_is_proposed_to_the_same_tenant_counts_against_its_limit() -> None:
    cluster = ClusterBuilder()
    cluster.node("n1", gpus=8)
    cluster.tenant("nlp", gpu_limit=4)
    outstanding = Outstanding()
    first = ask("first", gpus=3, tenant="nlp")
    got = propose(first, nodes_for(first, ["n1"]), cluster.state, outstanding, GpuConfig())
    outstanding.put(first.round_key, holds_of(got, first.spec, (NodeName("n1"),)), now=0.0)
    assert proposed(cluster, ["n1"], outstanding, job="second", gpus=2, tenant="nlp").reasons


def test_a_mig_profile_is_refused_for_good_where_no_node_offers_one() -> None:
    cluster = ClusterBuilder()
    cluster.node("n1", gpus=8)
    proposal = proposed(cluster, ["n1"], gpus=1, mig_profile="3g.40gb")
    assert proposal.never
    assert proposal.reasons[0].code is ReasonCode.EXCEEDS_CLUSTER_CAPACITY


def test_a_node_without_inventory_is_a_reason_and_not_a_fault() -> None:
    (reason,) = proposed(ClusterBuilder(), ["ghost"], gpus=1).reasons
    assert reason.node == "ghost"
    assert Lack.AGENT in reason.lacks


asks = st.lists(
    st.fixed_dictionaries(
        {"workers": st.integers(1, 3), "gpus": st.integers(1, 4)},
        optional={"gpu_fraction_milli": st.integers(1, 1000), "per_node": st.just(3)},
    ),
    min_size=1,
    max_size=12,
)


@given(asks)
@settings(max_examples=60, deadline=None)
def test_however_many_jobs_are_asked_no_card_is_given_beyond_its_thousand(wanted: list[dict[str, int]]) -> None:
    cluster = ClusterBuilder()
    names = [NodeName(f"n{index}") for index in range(3)]
    for name in names:
        cluster.node(name, gpus=4)
    outstanding = Outstanding()
    used: dict[tuple[str, int], int] = {}
    for number, fields in enumerate(wanted):
        asked = ask(f"j{number}", **fields)
        mine = names[: asked.spec.slot_count]
        proposal = propose(asked, nodes_for(asked, mine), cluster.state, outstanding, GpuConfig())
        assert bool(proposal.reasons) != bool(proposal.workers)
        holds = holds_of(proposal, asked.spec, mine)
        if number % 2:
            outstanding.put(asked.round_key, holds, now=0.0)
        else:
            for name, hold in holds.items():
                cluster.place(f"j{number}", name, gpus=hold.gpus)
        for name, hold in holds.items():
            for index, milli in hold.gpus:
                used[name, index] = used.get((name, index), 0) + milli
    assert max(used.values(), default=0) <= 1000
