"""The decision alone, as a table: what is stored, what the journal holds, what else holds, and what follows."""

from __future__ import annotations

from typing import Any

import pytest

from railweave.contracts.inventory import ReportState
from railweave.contracts.placement import Fence
from railweave.node_agent.model import (
    Buried,
    Do,
    Entry,
    EntryState,
    Node,
    Record,
    Said,
    decide,
    due_report,
    network_workers,
)

NODE = Node(frozenset({"network"}))
S = EntryState


def _record(make: Any, sequence: int, *, epoch: int = 1, **fields: Any) -> Record:
    return Record.of(make.placement(epoch=epoch, **fields), Fence(epoch, sequence))


def _entry(make: Any, state: EntryState, sequence: int = 5, **fields: Any) -> Entry:
    return Entry(make.key(), make.placement(**fields), Fence(1, sequence), state)


@pytest.mark.parametrize(
    ("state", "fields", "do"),
    [
        (S.PREPARING, {}, Do.PREPARE),
        (S.PREPARED, {}, Do.REST),
        (S.PREPARED, {"netns": "/w"}, Do.ATTACH),
        (S.PREPARED, {"netns": "/w", "attach": "cni"}, Do.REST),
        (S.PREPARED, {"started": True, "attach": "host"}, Do.ATTACH),
        (S.ATTACHING, {"netns": "/w"}, Do.ATTACH),
        (S.ATTACHED, {"netns": "/w"}, Do.REST),
        (S.FAILED, {"netns": "/w"}, Do.REST),
        (S.REFUSED, {}, Do.REST),
        (S.UNDOING, {}, Do.UNDO),
    ],
)
def test_what_is_taken_in_goes_on_from_where_it_is(make: Any, state: EntryState, fields: Any, do: Do) -> None:
    entry = _entry(make, state, **fields)
    assert decide(_record(make, 5, **fields), entry, None, None, NODE).do is do


@pytest.mark.parametrize("state", [S.PREPARING, S.PREPARED, S.ATTACHING, S.ATTACHED, S.FAILED, S.REFUSED])
def test_release_wins_over_every_state(make: Any, state: EntryState) -> None:
    for release in ("releasing", "released"):
        assert decide(_record(make, 6, state=release), _entry(make, state), None, None, NODE).do is Do.UNDO


@pytest.mark.parametrize("state", [state for state in S if state is not S.UNDOING])
def test_absence_undoes_nothing_in_any_state(make: Any, state: EntryState) -> None:
    for sees in (True, False):
        assert decide(None, _entry(make, state), None, None, Node(sees_record=sees)).do is Do.REST


def test_a_release_that_was_journaled_is_finished_whatever_the_record_says(make: Any) -> None:
    for record in (None, _record(make, 9), _record(make, 1)):
        assert decide(record, _entry(make, S.UNDOING), None, None, NODE).do is Do.UNDO


@pytest.mark.parametrize(
    ("stored", "do"),
    [
        ({"sequence": 6}, Do.TAKE_IN),
        ({"sequence": 6, "round": 2}, Do.UNDO),
        ({"sequence": 6, "workers": ()}, Do.UNDO),
        ({"sequence": 6, "uid": "other"}, Do.WAIT),
        ({"sequence": 1, "epoch": 2}, Do.TAKE_IN),
        ({"sequence": 1, "epoch": 2, "round": 2}, Do.TAKE_IN),
        ({"sequence": 1, "epoch": 2, "workers": ()}, Do.WAIT),
        ({"sequence": 4, "workers": ()}, Do.REST),
        ({"sequence": 4, "state": "releasing"}, Do.REST),
        ({"sequence": 6, "state": "releasing", "uid": "other"}, Do.REST),
    ],
)
def test_what_a_newer_record_means_for_what_is_held(make: Any, stored: dict[str, Any], do: Do) -> None:
    assert decide(_record(make, **stored), _entry(make, S.ATTACHED), None, None, NODE).do is do


@pytest.mark.parametrize(
    ("stored", "buried", "do"),
    [
        ({"sequence": 3}, None, Do.BEGIN),
        ({"sequence": 3}, 2, Do.BEGIN),
        ({"sequence": 3}, 3, Do.REST),
        ({"sequence": 3}, 4, Do.REST),
        ({"sequence": 3, "state": "releasing"}, None, Do.BURY),
        ({"sequence": 3, "state": "releasing"}, 2, Do.BURY),
        ({"sequence": 3, "state": "releasing"}, 3, Do.REST),
        ({"sequence": 3, "requires": ("network",)}, None, Do.BEGIN),
        ({"sequence": 3, "requires": ("network", "x")}, None, Do.REFUSE),
    ],
)
def test_what_is_not_here(make: Any, stored: dict[str, Any], buried: int | None, do: Do) -> None:
    memory = None if buried is None else Buried(None, Fence(1, buried))
    assert decide(_record(make, **stored), None, memory, None, NODE).do is do


def test_another_run_of_the_job_holds_it_back(make: Any) -> None:
    action = decide(_record(make, 3, attempt=2), None, None, make.key(), NODE)
    assert action.do is Do.WAIT
    assert "c/j1#1 is held" in action.why


@pytest.mark.parametrize(
    ("state", "reported"),
    [
        (S.PREPARING, None),
        (S.PREPARED, ReportState.PREPARED),
        (S.ATTACHING, None),
        (S.ATTACHED, ReportState.ATTACHED),
        (S.FAILED, ReportState.FAILED),
        (S.REFUSED, ReportState.REFUSED),
        (S.UNDOING, None),
    ],
)
def test_each_state_is_reported_as_what_it_is(make: Any, state: EntryState, reported: ReportState | None) -> None:
    due = due_report(_record(make, 5), _entry(make, state), None, NODE)
    assert due == (None if reported is None else Said(reported, Fence(1, 5), None))


@pytest.mark.parametrize("state", [S.PREPARING, S.PREPARED, S.ATTACHING, S.ATTACHED, S.FAILED])
def test_what_the_record_lacks_is_an_orphan_once_the_record_was_read(make: Any, state: EntryState) -> None:
    entry = _entry(make, state)
    due = due_report(None, entry, None, NODE)
    assert due == Said(ReportState.ORPHAN, Fence(1, 5), None)
    unread = due_report(None, entry, None, Node(sees_record=False))
    assert unread is None or unread.state is not ReportState.ORPHAN


def test_only_workers_with_vfs_of_their_own_are_attached(make: Any) -> None:
    workers = [make.worker(0), make.worker(1, vf=None), make.worker(2, vf=1)]
    assert network_workers(make.placement(workers=workers)) == [0, 2]
    assert network_workers(make.placement(workers=workers, attach="host")) == []
