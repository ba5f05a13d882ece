"""What a service proposed and has not seen stored."""

from __future__ import annotations

import pytest

from railweave.contracts.identity import JobRun
from railweave.contracts.placement import JobState
from railweave.contracts.proposal import RoundKey
from railweave.contracts.types import Attempt, ClusterName, JobName, NodeName, RunUid
from railweave.runtime.cluster import ClusterState, HeadSummary, Hold
from railweave.runtime.outstanding import Outstanding

N1, N2 = NodeName("n1"), NodeName("n2")
TWO = Hold(gpus=((0, 1000), (1, 1000)))
ONE = Hold(gpus=((2, 1000),))


def key(job: str = "j", *, number: int = 1, attempt: int = 1, uid: str | None = None) -> RoundKey:
    run = JobRun(ClusterName("slurm-a"), JobName(job), Attempt(attempt), RunUid(uid) if uid else None)
    return RoundKey(run, number)


def with_head(round_key: RoundKey, state: JobState) -> ClusterState:
    cluster = ClusterState()
    cluster.heads[round_key.run.key] = HeadSummary(round_key.run, state, round_key.round, (), 1)
    return cluster


@pytest.fixture
def outstanding() -> Outstanding:
    made = Outstanding(patience_s=5.0)
    made.put(key(), {N1: TWO, N2: ONE}, now=100.0)
    return made


def test_what_was_proposed_is_seen_on_its_nodes(outstanding: Outstanding) -> None:
    assert list(outstanding.on(N1)) == [TWO]
    assert list(outstanding.on(NodeName("n3"))) == []


def test_a_job_does_not_stand_in_its_own_way(outstanding: Outstanding) -> None:
    outstanding.put(key("other"), {N1: ONE}, now=100.0)
    assert list(outstanding.on(N1, other_than=key().run.key)) == [ONE]


def test_a_newer_round_takes_the_place_of_the_older(outstanding: Outstanding) -> None:
    outstanding.put(key(number=2), {N2: TWO}, now=101.0)
    assert list(outstanding.on(N1)) == []
    assert list(outstanding.on(N2)) == [TWO]
    assert len(outstanding) == 1


def test_dropped_nothing_of_it_is_left(outstanding: Outstanding) -> None:
    outstanding.drop(key().run.key)
    outstanding.drop(key().run.key)
    assert (len(outstanding), list(outstanding.on(N1)), outstanding._by_node) == (0, [], {})


@pytest.mark.parametrize(
    ("head", "state", "kept"),
    [
        (key(), JobState.PENDING, True),
        (key(), JobState.PLACED, False),
        (key(), JobState.ATTACHED, False),
        (key(), JobState.RELEASED, False),
        (key(), JobState.REJECTED, False),
        (key(number=2), JobState.PENDING, False),
        (key(attempt=2), JobState.PENDING, False),
    ],
)
def test_it_is_forgotten_when_the_record_says_that_its_round_is_over(
    outstanding: Outstanding, head: RoundKey, state: JobState, kept: bool
) -> None:
    """A head that is pending at the same round is the ask itself, stored before any proposal was made."""
    outstanding.settle(with_head(head, state), now=100.0)
    assert len(outstanding) == int(kept)


def test_an_older_round_or_attempt_in_the_record_changes_nothing() -> None:
    outstanding = Outstanding()
    outstanding.put(key(number=3, attempt=2), {N1: ONE}, now=0.0)
    outstanding.settle(with_head(key(number=2, attempt=2), JobState.PLACED), now=0.0)
    outstanding.settle(with_head(key(number=9, attempt=1), JobState.RELEASED), now=0.0)
    assert len(outstanding) == 1


def test_another_uid_says_nothing_about_this_one() -> None:
    """A new run under an old name begins at attempt 1 again, while the head is still the old run's."""
    outstanding = Outstanding()
    outstanding.put(key(uid="new"), {N1: ONE}, now=0.0)
    outstanding.settle(with_head(key(uid="old", attempt=7), JobState.RELEASING), now=0.0)
    assert len(outstanding) == 1


def test_what_nobody_took_is_forgotten_after_a_while(outstanding: Outstanding) -> None:
    outstanding.settle(ClusterState(), now=104.9)
    assert len(outstanding) == 1
    outstanding.settle(ClusterState(), now=105.0)
    assert len(outstanding) == 0
