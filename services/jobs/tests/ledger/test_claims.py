"""Who holds what: two jobs conflict only where they want the same thing, and nothing is counted twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from desk import make
from hypothesis import given
from hypothesis import strategies as st

from railweave.contracts.identity import JobRun
from railweave.contracts.placement import Claim, ClaimKind, Placement, PlacementState, claims_of
from railweave.contracts.reasons import Lack
from railweave.contracts.types import Attempt, ClusterName, JobName, NodeName
from railweave.jobs.ledger import Ledger
from railweave_testing.clusters import ClusterBuilder, cached

N0 = NodeName("n0")


def run_of(job: str) -> JobRun:
    return JobRun(ClusterName("lab"), JobName(job), Attempt(1), None)


def placement(
    job: str = "j",
    node: str = "n0",
    *,
    gpus: Mapping[str, int] | None = None,
    vfs: Sequence[int] = (),
    address: str = "10.0.0.9/24",
    mac: str = "02:00:00:00:00:02",
    fetch: Mapping[str, int] | None = None,
    use: Sequence[str] = (),
    evict: Sequence[str] = (),
    scratch: int = 0,
    claims: Sequence[Claim] = (),
    **fields: Any,
) -> Placement:
    """What a job would get on a node; `gpus` by UUID in thousandths."""
    interfaces = [
        {
            "name": f"rail{number}",
            "rail": 0,
            "pf": "0000:10:00.0",
            "vf": vf,
            "mac": mac,
            "leaf": "leaf-1",
            "port": "p",
            "vlan": 100,
            "mtu": 1500,
            "addresses": (address,),
            "gateways": ("10.0.0.1",),
            "rules": (),
        }
        for number, vf in enumerate(vfs)
    ]
    worker = {
        "name": "worker",
        "worker": 0,
        "gpus": [
            {"index": index, "uuid": uuid, "fraction_milli": milli, "memory_mib": 1}
            for index, (uuid, milli) in enumerate((gpus or {}).items())
        ],
        "network": {"vf_group": "g", "interfaces": interfaces} if vfs else None,
    }
    datasets = [("fetch", name, size) for name, size in (fetch or {}).items()] + [("use", name, 0) for name in use]
    document = {
        "cluster": "lab",
        "job": job,
        "attempt": 1,
        "node": node,
        "state": PlacementState.DESIRED,
        "epoch": 1,
        "round": 1,
        "commit": "c",
        "workers": [worker],
        "datasets": [
            {"name": name, "version": "1", "action": action, "bytes": size} for action, name, size in datasets
        ],
        "evict": [{"dataset": name, "bytes": 1, "reason": "Obsolete"} for name in evict],
        "scratch": {"bytes": scratch} if scratch else None,
        "claims": claims,
    }
    return make(Placement, **(document | fields))


def ledger(builder: ClusterBuilder | None = None) -> Ledger:
    if builder is None:
        builder = ClusterBuilder()
        builder.node("n0", scratch_bytes=100, cache_bytes=100)
    return Ledger(builder.state)


def hold(book: Ledger, *placements: Placement) -> Ledger:
    for sequence, item in enumerate(placements, 1):
        book.take(item.run, item, sequence)
    return book


EXTRA = Claim(kind="licence", key="n0/matlab", amount=5)

CONFLICTS = [
    ("vf", {"vfs": [1]}, {"vfs": [1], "address": "10.0.0.8/24", "mac": "02:00:00:00:00:04"}, Lack.VF),
    ("address", {"vfs": [1]}, {"vfs": [2], "mac": "02:00:00:00:00:04"}, Lack.FABRIC),
    ("mac", {"vfs": [1]}, {"vfs": [2], "address": "10.0.0.8/24"}, Lack.FABRIC),
    ("gpu_milli", {"gpus": {"GPU-a": 600}}, {"gpus": {"GPU-a": 500}}, Lack.GPU),
    ("node_share", {"exclusive": True}, {}, Lack.NODE),
    ("node_share", {}, {"exclusive": True}, Lack.NODE),
    ("scratch_bytes", {"scratch": 60}, {"scratch": 50}, Lack.SCRATCH),
    ("cache_bytes", {"fetch": {"c4": 60}}, {"fetch": {"pile": 50}}, Lack.CACHE),
    ("licence", {"claims": [EXTRA]}, {"claims": [EXTRA]}, Lack.NODE),
]


@pytest.mark.parametrize(("kind", "held", "wanted", "lack"), CONFLICTS)
def test_what_another_job_holds_is_a_conflict_of_its_kind(
    kind: str, held: dict[str, Any], wanted: dict[str, Any], lack: Lack
) -> None:
    book = hold(ledger(), placement("a", **held))
    conflicts = book.conflicts(run_of("b"), [placement("b", **wanted)])
    assert [conflict.kind for conflict in conflicts] == [kind]
    assert (conflicts[0].lack, conflicts[0].holders) == (lack, (run_of("a"),))
    assert "held by lab/a#1" in str(conflicts[0])


@pytest.mark.parametrize(("kind", "held", "wanted", "lack"), CONFLICTS)
def test_what_was_given_back_is_no_conflict(
    kind: str, held: dict[str, Any], wanted: dict[str, Any], lack: Lack
) -> None:
    book = hold(ledger(), placement("a", **held))
    book.free(run_of("a"), N0)
    assert not book.conflicts(run_of("b"), [placement("b", **wanted)])


OTHERS = {"address": "10.0.0.8/24", "mac": "02:00:00:00:00:04"}
FITS = [
    ("another VF", {"vfs": [1]}, {"vfs": [2], **OTHERS}),
    ("the rest of a GPU", {"gpus": {"GPU-a": 600}}, {"gpus": {"GPU-a": 400}}),
    ("the rest of the scratch space", {"scratch": 60}, {"scratch": 40}),
    ("the rest of the cache space", {"fetch": {"c4": 60}}, {"fetch": {"pile": 40}}),
    ("the same dataset", {"fetch": {"c4": 60}}, {"fetch": {"c4": 60}}),
    ("a dataset that is on its way", {"fetch": {"c4": 60}}, {"use": ["c4"]}),
    ("a shared node", {}, {}),
    ("the same VF index elsewhere", {"vfs": [1]}, {"node": "n1", "vfs": [1], **OTHERS}),
]  # fmt: skip


@pytest.mark.parametrize(("held", "wanted"), [fits[1:] for fits in FITS], ids=[fits[0] for fits in FITS])
def test_what_nobody_holds_fits(held: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert not hold(ledger(), placement("a", **held)).conflicts(run_of("b"), [placement("b", **wanted)])


def test_what_a_job_wants_twice_within_itself_is_a_conflict() -> None:
    two = [placement(vfs=[1]), placement(node="n1", vfs=[2], mac="02:00:00:00:00:04")]
    assert [conflict.kind for conflict in ledger().conflicts(run_of("j"), two)] == ["address"]


def test_amounts_of_one_job_are_added_up() -> None:
    claims = [Claim(kind=ClaimKind.GPU_MILLI, key="n0/GPU-a", amount=600)]
    assert ledger().conflicts(run_of("j"), [placement(gpus={"GPU-a": 500}, claims=claims)])


def test_a_claim_of_an_unknown_kind_is_exclusive_whatever_its_amount() -> None:
    book = ledger()
    assert not book.conflicts(run_of("a"), [placement("a", claims=[EXTRA])])
    hold(book, placement("a", claims=[EXTRA]))
    for amount in (None, 1, 5):
        claim = Claim(kind="licence", key="n0/matlab", amount=amount)
        assert book.conflicts(run_of("b"), [placement("b", claims=[claim])])
    assert not book.conflicts(run_of("b"), [placement("b", claims=[Claim(kind="licence", key="n0/ansys")])])


def test_a_tenants_quota_is_a_claim_of_the_job_as_a_whole() -> None:
    builder = ClusterBuilder()
    builder.node("n0")
    builder.tenant("t", gpu_limit=2)
    book = ledger(builder)
    quota = (Claim(kind=ClaimKind.TENANT_GPU_MILLI, key="t", amount=1500),)
    assert not book.conflicts(run_of("a"), [], quota)
    book.take_claims(run_of("a"), quota)
    conflicts = book.conflicts(run_of("b"), [], quota)
    assert [(item.lack, item.needed, item.free) for item in conflicts] == [(Lack.QUOTA, 1500, 500)]
    book.free(run_of("a"), None)
    assert not book.conflicts(run_of("b"), [], quota)


def test_a_tenant_without_a_limit_has_none() -> None:
    quota = (Claim(kind=ClaimKind.TENANT_GPU_MILLI, key="t", amount=10**9),)
    assert not ledger().conflicts(run_of("a"), [], quota)


def test_freeing_twice_changes_nothing() -> None:
    book = hold(ledger(), placement("a", vfs=[1], gpus={"GPU-a": 1000}), placement("b", scratch=5))
    book.free(run_of("a"), N0)
    once = book.snapshot()
    book.free(run_of("a"), N0)
    assert book.snapshot() == once


def test_a_placement_written_again_replaces_what_it_held() -> None:
    book = hold(ledger(), placement("a", gpus={"GPU-a": 1000}), placement("a", gpus={"GPU-b": 1000}))
    assert not book.conflicts(run_of("b"), [placement("b", gpus={"GPU-a": 1000})])
    assert book.conflicts(run_of("b"), [placement("b", gpus={"GPU-b": 1})])
    assert book.use_of(N0).gpu_milli == 1000


def test_a_releasing_placement_still_holds_everything_and_a_released_one_nothing() -> None:
    full = {"vfs": [1], "gpus": {"GPU-a": 1000}, "scratch": 5}
    releasing = placement("a", **full, state=PlacementState.RELEASING)
    assert list(claims_of(releasing)) == list(claims_of(placement("a", **full)))
    assert not list(claims_of(placement("a", **full, state=PlacementState.RELEASED)))


def test_what_replaces_its_own_hold_on_a_node_is_no_conflict_with_it() -> None:
    mine = placement("a", vfs=[1], gpus={"GPU-a": 1000}, scratch=80)
    book = hold(ledger(), mine)
    assert book.conflicts(run_of("a"), [mine])
    assert not book.conflicts(run_of("a"), [mine], but_on=N0)


SIZES = st.integers(1, 700)
MOVES = st.lists(
    st.tuples(st.sampled_from("abcde"), st.sampled_from(["take", "free"]), st.sampled_from(["GPU-a", "GPU-b"]), SIZES),
    max_size=40,
)


@given(MOVES)
def test_taking_what_has_no_conflict_never_gives_anything_away_twice(
    moves: list[tuple[str, str, str, int]],
) -> None:
    book = ledger()
    held: dict[str, Placement] = {}
    for job, what, gpu, milli in moves:
        wanted = placement(job, gpus={gpu: milli}, vfs=[milli % 3], address=f"10.0.0.{9 + milli % 3}/24")
        wanted = wanted.model_copy(update={"workers": _own_mac(wanted, milli % 3)})
        if what == "free":
            book.free(run_of(job), N0)
            held.pop(job, None)
        elif job not in held and not book.conflicts(run_of(job), [wanted]):
            book.take(run_of(job), wanted, 1)
            held[job] = wanted
        claims = [claim for item in held.values() for claim in claims_of(item)]
        exclusive = [(claim.kind, claim.key) for claim in claims if claim.amount is None]
        assert len(set(exclusive)) == len(exclusive)
        for name in ("GPU-a", "GPU-b"):
            assert sum(claim.amount or 0 for claim in claims if claim.key == f"n0/{name}") <= 1000
    anew = hold(ledger(), *held.values())
    assert anew.snapshot() == book.snapshot()


def _own_mac(item: Placement, vf: int) -> tuple[Any, ...]:
    worker = item.workers[0]
    assert worker.network is not None
    interface = worker.network.interfaces[0].model_copy(update={"mac": f"02:00:00:00:00:0{vf * 2}"})
    return (worker.model_copy(update={"network": worker.network.model_copy(update={"interfaces": (interface,)})}),)


def data_node(*datasets: str, cache_bytes: int = 100) -> Ledger:
    builder = ClusterBuilder()
    builder.node("n0", cache_bytes=cache_bytes, datasets=[cached(name, 40) for name in datasets])
    return Ledger(builder.state)


def kinds(book: Ledger, item: Placement) -> list[str]:
    return [f"{conflict.kind} {conflict.key}" for conflict in book.conflicts(item.run, [item])]


def test_a_dataset_that_is_used_must_be_there_or_on_its_way() -> None:
    assert kinds(data_node(), placement(use=["c4"])) == ["dataset n0/c4@1"]
    assert not kinds(data_node("c4"), placement(use=["c4"]))


def test_a_dataset_that_is_not_ready_is_not_there() -> None:
    builder = ClusterBuilder()
    builder.node("n0", datasets=[cached("c4", 40, state="verifying")])
    assert kinds(Ledger(builder.state), placement(use=["c4"])) == ["dataset n0/c4@1"]


def test_a_dataset_that_a_job_uses_is_evicted_for_nobody() -> None:
    book = hold(data_node("c4"), placement("a", use=["c4"]))
    assert kinds(book, placement("b", evict=["c4@1"])) == ["dataset n0/c4@1"]


def test_a_dataset_that_the_job_itself_uses_is_not_evicted_for_it() -> None:
    assert kinds(data_node("c4"), placement(use=["c4"], evict=["c4@1"])) == ["dataset n0/c4@1"]


def test_a_dataset_that_is_being_evicted_is_used_by_nobody() -> None:
    book = hold(data_node("c4"), placement("a", evict=["c4@1"]))
    assert kinds(book, placement("b", use=["c4"])) == ["dataset n0/c4@1"]


def test_a_dataset_that_was_evicted_may_come_back_for_another_job() -> None:
    book = hold(data_node("c4"), placement("a", evict=["c4@1"]))
    book.settle_evictions(run_of("a"), N0)
    assert not kinds(book, placement("b", use=["c4"]))


def test_room_that_an_eviction_makes_counts_for_the_fetch() -> None:
    book = data_node("c4", "pile")
    assert kinds(book, placement(fetch={"new": 50})) == ["cache_bytes n0"]
    assert not kinds(book, placement(fetch={"new": 50}, evict=["c4@1"]))


def test_fetching_what_is_there_needs_no_room() -> None:
    assert not kinds(data_node("c4", "pile"), placement(fetch={"c4": 40}))


def test_a_node_without_an_inventory_has_no_room_for_data_or_files() -> None:
    book = Ledger(ClusterBuilder().state)
    assert kinds(book, placement(fetch={"c4": 1}, scratch=1)) == ["scratch_bytes n0", "cache_bytes n0"]


def in_segment(number: int, owner: str) -> tuple[Claim, ...]:
    return (Claim(kind=ClaimKind.SEGMENT, key=str(number), owner=owner),)


def test_jobs_of_one_owner_share_a_segment_and_nobody_else_is_in_it_before_the_last_has_left() -> None:
    ledger = Ledger(ClusterBuilder().state)
    ledger.take_claims(run_of("a"), in_segment(7, "tenant/nlp"))
    assert ledger.conflicts(run_of("b"), (), in_segment(7, "tenant/nlp")) == []
    ledger.take_claims(run_of("b"), in_segment(7, "tenant/nlp"))
    (conflict,) = ledger.conflicts(run_of("c"), (), in_segment(7, "tenant/vision"))
    assert (conflict.lack, conflict.holders) == (Lack.SEGMENT, (run_of("a"), run_of("b")))
    assert ledger.conflicts(run_of("c"), (), in_segment(8, "tenant/vision")) == []
    ledger.free(run_of("a"), None)
    assert len(ledger.conflicts(run_of("c"), (), in_segment(7, "tenant/vision"))) == 1
    ledger.free(run_of("b"), None)
    assert ledger.conflicts(run_of("c"), (), in_segment(7, "tenant/vision")) == []
    assert ledger.is_empty()


def test_a_segment_claimed_without_an_owner_is_one_jobs_alone() -> None:
    alone = (Claim(kind=ClaimKind.SEGMENT, key="7"),)
    ledger = Ledger(ClusterBuilder().state)
    ledger.take_claims(run_of("a"), alone)
    assert len(ledger.conflicts(run_of("b"), (), in_segment(7, "tenant/nlp"))) == 1
    assert len(ledger.conflicts(run_of("b"), (), alone)) == 1
    ledger.free(run_of("a"), None)
    ledger.take_claims(run_of("b"), in_segment(7, "tenant/nlp"))
    assert len(ledger.conflicts(run_of("a"), (), alone)) == 1


def test_a_node_that_still_holds_a_segment_given_to_another_is_not_adopted_into_it() -> None:
    ledger = Ledger(ClusterBuilder().state)
    ledger.take_claims(run_of("new"), in_segment(7, "tenant/vision"))
    held = placement("old", vfs=[0])
    claims = in_segment(7, "tenant/nlp")
    assert [c.kind for c in ledger.conflicts(run_of("old"), (held,), claims, but_on=N0)] == [ClaimKind.SEGMENT]
