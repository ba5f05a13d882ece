"""What a scheduler changes later: priority, nodes, time limit."""

from __future__ import annotations

import pytest
from desk import Desk

from railweave.contracts.envelope import decode_event, encode_event
from railweave.contracts.placement import JobState


def test_a_waiting_job_is_asked_again_with_what_changed() -> None:
    desk = Desk()
    desk.submit(workers=2, gpus=1)
    desk.refuse()
    desk.update(nodes={"node_list": ["n2", "n3"]})
    assert desk.asks[0].spec.nodes.node_list == ("n2", "n3")
    desk.propose()
    assert desk.nodes_of() == ("n2", "n3")
    assert desk.head().updated_revision == 1


def test_a_placed_job_keeps_its_place() -> None:
    desk = Desk()
    desk.place(workers=1, gpus=1)
    desk.update(priority=5)
    assert (desk.state_of(), desk.head().spec.priority) == (JobState.PLACED, 5)
    assert not desk.asks


def test_an_older_revision_changes_nothing() -> None:
    desk = Desk()
    desk.place(workers=1, gpus=1)
    desk.update(revision=2, priority=5)
    desk.update(revision=1, priority=1)
    assert (desk.head().spec.priority, desk.head().updated_revision) == (5, 2)
    assert set(desk.acked) == {1, 2, 3}


def test_an_absent_field_stays_as_it_is() -> None:
    desk = Desk()
    desk.place(workers=1, gpus=1, priority=4, time_limit_s=60)
    desk.update(time_limit_s=90)
    assert (desk.head().spec.priority, desk.head().spec.time_limit_s) == (4, 90)


@pytest.mark.parametrize("listed", [["n0"], ["n0", "n1", "n2"], ["n0", "n0"]])
@pytest.mark.parametrize("is_stored", [True, False])
def test_nodes_that_do_not_fit_the_workers_are_refused_with_their_field(listed: list[str], is_stored: bool) -> None:
    # Stored as it came, the head could not be read by the next committer, who would take the job's nodes for strays.
    desk = Desk()
    desk.submit(workers=2, gpus=1)
    if is_stored:
        desk.propose()
    desk.update(nodes={"node_list": listed}, priority=9)
    assert [refusal.field for refusal in desk.refused] == ["data.nodes.node_list"]
    desk.propose()
    assert desk.state_of() is JobState.PLACED
    assert desk.head().spec.priority == 0
    decode_event(encode_event(desk.head()))
