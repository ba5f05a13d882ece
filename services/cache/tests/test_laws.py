"""What holds for every cluster and every job."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from railweave.cache.choice import Choice, sizes_of
from railweave.cache.gang import assign_names
from railweave.cache.model import CacheConfig, Candidate
from railweave.cache.propose import Answered, propose
from railweave.cache.view import Survey
from railweave.contracts.desired import NodeMode
from railweave.contracts.inventory import DatasetState
from railweave.contracts.types import NodeName
from railweave.runtime.gpu_shares import Card, GpuNeed
from railweave.runtime.outstanding import Outstanding
from railweave_testing.clusters import GIB, ClusterBuilder, ask, cached

CONFIG = CacheConfig()
NAMES = ("x", "y", "z")

copies = st.lists(
    st.builds(
        cached,
        st.sampled_from(NAMES),
        st.integers(1, 60).map(lambda gib: gib * GIB),
        uses=st.integers(0, 20),
        state=st.sampled_from([DatasetState.READY] * 4 + [DatasetState.FAILED, DatasetState.FETCHING]),
        pinned=st.sampled_from([False] * 4 + [True]),
        source=st.sampled_from(["file:/x", "file:/x", None]),
    ),
    max_size=3,
    unique_by=lambda item: item.dataset,
)
nodes = st.fixed_dictionaries(
    {
        "gpus": st.integers(0, 4),
        "vfs": st.integers(0, 2),
        "leaf": st.sampled_from(["leaf-1", "leaf-2", "leaf-3"]),
        "cache_bytes": st.integers(20, 120).map(lambda gib: gib * GIB),
        "scratch_bytes": st.sampled_from([0, 100 * GIB]),
        "in_fabric": st.sampled_from([True, True, True, False]),
        "labels": st.sampled_from([{}, {"gpu": "h100"}]),
        "datasets": copies,
    }
)
clusters = st.lists(nodes, min_size=1, max_size=6)
jobs = st.fixed_dictionaries(
    {"workers": st.integers(1, 5), "gpus": st.integers(0, 4)},
    optional={
        "per_node": st.integers(1, 3),
        "gpu_fraction_milli": st.integers(1, 1000),
        "network": st.just({}),
        "exclusive": st.booleans(),
        "selector": st.just({"gpu": "h100"}),
        "topology": st.sampled_from([{"required": level} for level in ("leaf", "pod", "island")]),
        "scratch_bytes": st.sampled_from([0, 40 * GIB]),
        "datasets": st.lists(
            st.sampled_from(
                [
                    f"{no_source}{name}@1={size * GIB}"
                    for name in NAMES
                    for size in (10, 50, 90)
                    for no_source in ("", "", "!")
                ]
            ),
            min_size=1,
            max_size=2,
            unique_by=lambda text: text.removeprefix("!")[0],
        ),
    },
).map(lambda job: job if job["gpus"] else {key: value for key, value in job.items() if key != "gpu_fraction_milli"})


def built(found: list[dict[str, Any]]) -> ClusterBuilder:
    cluster = ClusterBuilder()
    for index, fields in enumerate(found):
        leaf = fields["leaf"]
        cluster.node(f"n{index}", **(fields | {"pod": "pod-1" if leaf == "leaf-1" else "pod-2"}))
    return cluster


def take(cluster: ClusterBuilder, job: str, answer: Answered) -> None:
    """Store what was proposed, with GPUs and VFs as the other services would choose them: the first that fit."""
    for node, hold in answer.holds.items():
        state = cluster.state.node(node)
        gpus: list[tuple[int, int]] = []
        left = {gpu.index: state.free_gpu_milli(gpu.index) for gpu in (state.hardware.gpus if state.hardware else ())}
        for _, milli in hold.gpus:
            index = max(left, key=lambda index: left[index])
            left[index] -= milli
            gpus.append((index, milli))
        used = {index for _, index in state.vfs_used}
        groups = [index for index in range(8) if index not in used][: getattr(hold, "vf_groups", 0)]
        cluster.place(
            job,
            node,
            gpus=gpus,
            vfs=[(rail, index) for index in groups for rail in range(2)],
            fetch=hold.fetch,
            use=sorted(hold.use - hold.fetch.keys()),
            evict=hold.evict,
            scratch_bytes=hold.scratch_bytes,
            exclusive=hold.exclusive,
        )


@given(clusters, st.lists(jobs, min_size=1, max_size=6))
@settings(max_examples=80, deadline=None)
def test_a_plan_fits_and_nothing_used_or_pinned_or_unrepeatable_is_evicted(
    found: list[dict[str, Any]], wanted: list[dict[str, Any]]
) -> None:
    cluster = built(found)
    for number, fields in enumerate(wanted):
        asked = ask(f"j{number}", **fields)
        answer = propose(asked, cluster.state, Outstanding(), CONFIG)
        if answer.nodes.reasons:
            assert not answer.holds
            continue
        assert len(set(answer.nodes.nodes)) == len(answer.nodes.nodes) == asked.spec.slot_count
        for plan in answer.data.nodes if answer.data is not None else ():
            node = cluster.state.node(plan.node)
            gone = {item.dataset: int(item.bytes) for item in plan.evict}
            assert {*plan.use, *plan.fetch} == {want.dataset for want in asked.spec.datasets}
            assert all(node.has_ready(name) for name in plan.use)
            for name in gone:
                item = node.cached(name)
                assert item is not None
                assert not node.is_used(name)
                assert not node.is_pinned(name)
                assert not node.is_evicting(name)
                assert item.source is not None or item.state is DatasetState.FAILED
                assert name not in plan.use
                assert name not in plan.fetch
            new = sum(
                int(size)
                for name, size in plan.fetch.items()
                if node.cached(name) is None and not any(name in hold.fetch for hold in node.holds.values())
            )
            if new:
                total = int(node.storage.cache.total_bytes) if node.storage is not None else 0
                assert node.cache_used_bytes() - sum(gone.values()) + new <= total
        take(cluster, f"j{number}", answer)
        for node in cluster.state.nodes.values():
            assert all(milli <= 1000 for milli in node.gpu_used.values())
            assert sum(hold.scratch_bytes for hold in node.holds.values()) <= int(node.storage.scratch.total_bytes)  # type: ignore[union-attr]
            if node.is_exclusively_held:
                assert len(node.holds) == 1


@given(clusters, jobs, st.data())
@settings(max_examples=80, deadline=None)
def test_a_job_that_fits_the_empty_cluster_is_never_refused_for_good(
    found: list[dict[str, Any]], wanted: dict[str, Any], data: st.DataObject
) -> None:
    # Where to fetch from may still be told: that is no matter of capacity.
    wanted = wanted | {"datasets": [text.removeprefix("!") for text in wanted.get("datasets", ())]}
    bare = [fields | {"datasets": []} for fields in found]
    empty = propose(ask(**wanted), built(bare).state, Outstanding(), CONFIG)
    cluster = built(found)
    for index in range(len(found)):
        if data.draw(st.booleans(), label=f"n{index} in use"):
            cluster.place(f"old-{index}", f"n{index}", gpus=[(0, 1000)], vfs=[(0, 0)], use=["x@1"], exclusive=True)
        if data.draw(st.sampled_from([False, False, True]), label=f"n{index} cordoned"):
            cluster.mode(f"n{index}", NodeMode.CORDONED)
    full = propose(ask(**wanted), cluster.state, Outstanding(), CONFIG)
    if not empty.nodes.reasons:
        assert not full.nodes.never
    else:
        # The bare cluster is as empty as can be: what it cannot hold now it can never hold, unless it is only that
        # nobody knows where a node hangs.
        assert empty.nodes.never or any(not fields["in_fabric"] for fields in found)


@given(clusters, st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6)), max_size=12), jobs)
@settings(max_examples=60, deadline=None)
def test_a_survey_kept_in_step_says_what_a_new_one_says(
    found: list[dict[str, Any]], changes: list[tuple[int, int]], wanted: dict[str, Any]
) -> None:
    cluster = built(found)
    kept = Survey.of(cluster.state, CONFIG)
    placed: list[tuple[str, str]] = []
    for number, (index, what) in enumerate(changes):
        name = f"n{index % len(found)}"
        cluster.touched.clear()
        match what:
            case 0 | 1 if found[index % len(found)]["gpus"]:
                cluster.place(f"p{number}", name, gpus=[(0, 300)], fetch={f"{NAMES[index % 3]}@1": GIB})
                placed.append((f"p{number}", name))
            case 2 if placed:
                cluster.release(*placed.pop())
            case 3:
                cluster.mode(name, NodeMode.CORDONED if number % 2 else NodeMode.SCHEDULABLE)
            case 4:
                cluster.storage(
                    name, cache_bytes=100 * GIB, datasets=[cached(NAMES[number % 3], 10 * GIB, uses=number)]
                )
            case 5:
                cluster.fabric(name, leaf=f"leaf-{number % 4}")
            case _:
                cluster.node(f"new-{number}", gpus=index)
        kept.touch(cluster.touched)
        if number % 3 == 0:
            kept.refresh(cluster.state)
    kept.refresh(cluster.state)
    new = Survey.of(cluster.state, CONFIG)
    assert [facts(kept, candidate) for candidate in kept.candidates] == [
        facts(new, candidate) for candidate in new.candidates
    ]
    assert kept.coming == new.coming
    assert propose(ask(**wanted), cluster.state, Outstanding(), CONFIG, kept) == propose(
        ask(**wanted), cluster.state, Outstanding(), CONFIG, new
    )


def facts(survey: Survey, candidate: Candidate) -> tuple[object, ...]:
    at = survey.members[candidate.shape][candidate.place]
    return (
        candidate.name,
        candidate.order,
        survey.shape(candidate.shape),
        survey.shape(candidate.could_be),
        str(candidate.place),
        candidate.place.size,
        candidate.place.rank,
        candidate.room_bytes,
        candidate.scratch_free_bytes,
        candidate.coming,
        candidate.leaving,
        candidate.used,
        [other.name for other in at],
    )


@given(clusters, jobs)
@settings(max_examples=60, deadline=None)
def test_nodes_looked_at_together_are_those_that_pass_one_by_one(
    found: list[dict[str, Any]], wanted: dict[str, Any]
) -> None:
    cluster = built(found)
    asked = ask(**wanted)
    survey = Survey.of(cluster.state, CONFIG)
    sizes, _ = sizes_of(asked.spec, cluster.state)
    choice = Choice(asked, sizes, cluster.state, Outstanding(), survey)
    for kind in choice.kinds:
        together = {fit[2].name for leaf in choice.fits(kind, evicting=True) for fit in leaf.fits}
        one_by_one = {c.name for c in survey.candidates if choice.first_failure(c, kind) is None}
        assert together == one_by_one
        table = {row.candidate.name: row for row in choice.table(kind)}
        assert {name for name, row in table.items() if row.check is None} == together
        for row in table.values():
            assert all(0.0 <= value <= 1.0 for value in row.terms.values())


options = st.lists(st.lists(st.sampled_from("abcdefg").map(NodeName), unique=True), min_size=1, max_size=4)


@given(options, st.data())
@settings(deadline=None)
def test_a_matching_is_found_wherever_there_is_one(found: list[list[NodeName]], data: st.DataObject) -> None:
    counts = [data.draw(st.integers(0, 3)) for _ in found]

    def possible(slots: list[list[NodeName]], taken: frozenset[NodeName]) -> bool:
        return not slots or any(possible(slots[1:], taken | {name}) for name in slots[0] if name not in taken)

    slots = [mine for mine, count in zip(found, counts, strict=True) for _ in range(count)]
    assigned = assign_names(found, counts)
    assert (assigned is not None) == possible(slots, frozenset())
    if assigned is not None:
        flat = [name for names in assigned for name in names]
        assert len(set(flat)) == len(flat)
        assert all(set(names) <= set(mine) for names, mine in zip(assigned, found, strict=True))
        assert [len(names) for names in assigned] == counts


def test_the_need_of_gpus_is_judged_alike_by_shape_and_by_card() -> None:
    need = GpuNeed(workers=2, gpus=2, fraction_milli=300, is_shared=True)
    assert need.fits([Card("H100", 81_559, 900), Card("H100", 81_559, 300), Card("H100", 81_559, 300)])
    assert not need.fits([Card("H100", 81_559, 900), Card("H100", 81_559, 300)])
