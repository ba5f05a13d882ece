"""What an agent does over the life of a placement, on a node in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from railweave.contracts.inventory import NodeHardware, NodeStorage, Report, ReportState
from railweave.contracts.job import StartedWorker
from railweave.contracts.placement import Fence, Placement
from railweave.contracts.proposal import Eviction
from railweave.node_agent.applier import CannotDo
from railweave.node_agent.data import Cached, DataFailed, MemorySpace
from railweave.node_agent.model import EntryState, Record

NETNS = "/run/netns/w"


async def test_a_job_is_prepared_attached_and_undone(rig: Any, make: Any) -> None:
    await rig.tell(make.placement(scratch=100))
    assert rig.reports() == [ReportState.PREPARED]
    await rig.tell(make.placement(scratch=100, netns=NETNS))
    assert {use.namespace for use in rig.table.uses.values()} == {NETNS}
    await rig.tell(make.placement(scratch=100, netns=NETNS, state="releasing"))
    assert rig.reports() == [ReportState.PREPARED, ReportState.ATTACHED, ReportState.UNDONE]
    assert rig.last().fence == Fence(1, 3)
    await rig.tell(make.placement(state="released"))
    assert rig.leftovers() == {}


async def test_reports_say_how_long_each_step_took(rig: Any, make: Any) -> None:
    await rig.tell(make.placement(workers=[make.worker()], datasets=(make.dataset(),)))
    assert [step.name for step in rig.last().steps] == [
        "prepare network: 2 VFs",
        "fetch imagenet@1 (1000 bytes)",
        "arrange the job directory",
    ]


async def test_a_job_without_network_is_attached_as_soon_as_it_is_started(rig: Any, make: Any) -> None:
    await rig.tell(make.placement(workers=[make.worker(vf=None)]))
    await rig.tell(make.placement(workers=[make.worker(vf=None)], started=True))
    assert rig.reports() == [ReportState.PREPARED, ReportState.ATTACHED]


async def test_in_host_mode_nothing_moves(rig: Any, make: Any) -> None:
    await rig.tell(make.placement(attach="host", started=True))
    assert rig.reports() == [ReportState.ATTACHED]
    assert not rig.table.uses


async def test_started_before_prepared_goes_through_to_attached(rig: Any, make: Any) -> None:
    await rig.tell(make.placement(netns=NETNS))
    assert rig.reports() == [ReportState.ATTACHED]


async def test_started_without_a_namespace_fails_and_says_so(rig: Any, make: Any) -> None:
    await rig.tell(make.placement())
    await rig.tell(make.placement(started=True))
    assert rig.last().state is ReportState.FAILED
    assert "nobody said where" in rig.last().failure.text
    await rig.tell(make.placement(state="releasing"))
    assert rig.last().state is ReportState.UNDONE
    assert rig.leftovers() == {}


async def test_release_that_arrives_before_placement_leaves_nothing(rig: Any, make: Any) -> None:
    await rig.tell(make.placement(state="releasing"), sequence=5)
    await rig.tell(make.placement(), sequence=4)
    assert rig.reports() == [ReportState.UNDONE]
    assert rig.leftovers() == {}


async def test_release_before_placement_holds_over_a_restart(rig: Any, make: Any) -> None:
    await rig.tell(make.placement(state="releasing"), sequence=5)
    await rig.start()
    await rig.tell(make.placement(), sequence=4)
    assert rig.leftovers() == {}
    assert set(rig.reports()) == {ReportState.UNDONE}


async def test_a_release_repeated_changes_nothing(rig: Any, make: Any) -> None:
    await rig.tell(make.placement())
    for _ in range(3):
        await rig.tell(make.placement(state="releasing"), sequence=7)
    assert rig.reports() == [ReportState.PREPARED, ReportState.UNDONE]


async def test_a_late_release_of_the_old_round_does_not_undo_the_new_one(rig: Any, make: Any) -> None:
    await rig.tell(make.placement(), sequence=1)
    await rig.tell(make.placement(state="releasing"), sequence=2)
    await rig.tell(make.placement(round=2), sequence=4)
    await rig.tell(make.placement(state="releasing"), sequence=2)
    await rig.tell(make.placement(state="released"), sequence=3)
    assert rig.state() is EntryState.PREPARED
    assert len(rig.table.uses) == 2


async def test_the_same_attempt_is_placed_again_in_a_later_round(rig: Any, make: Any) -> None:
    await rig.tell(make.placement())
    await rig.tell(make.placement(state="releasing"))
    await rig.tell(make.placement(round=2, workers=[make.worker(vf=1, gpus=((1, 500),))]))
    assert rig.reports() == [ReportState.PREPARED, ReportState.UNDONE, ReportState.PREPARED]
    assert {vf for _, vf in rig.table.uses} == {1}


async def test_a_later_round_whose_release_was_never_seen_replaces_the_old_one(rig: Any, make: Any) -> None:
    await rig.tell(make.placement())
    await rig.tell(make.placement(round=2, workers=[make.worker(vf=1, gpus=((1, 500),))]))
    assert {vf for _, vf in rig.table.uses} == {1}
    assert rig.gpus.held(make.gpus[0].uuid) == {}
    assert rig.last().fence == Fence(1, 2)


async def test_a_newer_attempt_waits_until_the_old_one_is_released(rig: Any, make: Any) -> None:
    await rig.tell(make.placement())
    await rig.tell(make.placement(attempt=2, workers=[make.worker(vf=1, gpus=((1, 500),))]))
    assert rig.state(attempt=2) is None
    await rig.tell(make.placement(state="releasing"))
    assert rig.state(attempt=1) is None
    assert rig.state(attempt=2) is EntryState.PREPARED
    assert [(r.attempt, r.state) for r in rig.said if isinstance(r, Report)] == [
        (1, "prepared"),
        (1, "undone"),
        (2, "prepared"),
    ]


async def test_absence_undoes_nothing_and_what_the_record_lacks_is_an_orphan(rig: Any, make: Any) -> None:
    await rig.tell(make.placement(netns=NETNS))
    rig.agent.record_lost()
    await rig.agent.reconcile(make.key().job_key)
    assert rig.reports() == [ReportState.ATTACHED]
    rig.agent.record_ready()
    await rig.agent.reconcile(make.key().job_key)
    orphan = rig.last()
    assert orphan.state is ReportState.ORPHAN
    assert orphan.held == make.placement(netns=NETNS)
    assert orphan.fence == Fence(1, 1)
    assert len(rig.table.uses) == 2


async def test_an_orphan_is_adopted_under_a_new_epoch_without_touching_it(rig: Any, make: Any) -> None:
    await rig.tell(make.placement(netns=NETNS), sequence=50)
    rig.agent.record_lost()
    rig.agent.record_ready()
    await rig.agent.reconcile(make.key().job_key)
    before = dict(rig.table.uses)
    await rig.tell(make.placement(netns=NETNS, epoch=2), sequence=3)
    assert rig.reports() == [ReportState.ATTACHED, ReportState.ORPHAN, ReportState.ATTACHED]
    assert rig.last().fence == Fence(2, 3)
    assert rig.table.uses == before


async def test_an_orphan_is_released_by_a_release_that_names_it(rig: Any, make: Any) -> None:
    await rig.tell(make.placement(netns=NETNS), sequence=50)
    rig.agent.record_lost()
    rig.agent.record_ready()
    await rig.agent.reconcile(make.key().job_key)
    await rig.tell(make.placement(epoch=2, state="releasing"), sequence=3)
    assert rig.last().state is ReportState.UNDONE
    assert rig.leftovers() == {}


async def test_after_a_lost_record_another_placement_does_not_end_what_runs(rig: Any, make: Any) -> None:
    await rig.tell(make.placement(netns=NETNS), sequence=50)
    rig.agent.record_ready()
    await rig.tell(make.placement(epoch=2, workers=[make.worker(vf=2)]), sequence=3)
    assert rig.last().state is ReportState.ORPHAN
    assert rig.last().held == make.placement(netns=NETNS)
    assert {vf for _, vf in rig.table.uses} == {0}


async def test_a_placement_of_another_run_under_the_same_name_waits(rig: Any, make: Any) -> None:
    await rig.tell(make.placement(uid="a"))
    rig.agent.record_ready()
    await rig.tell(make.placement(uid="b", workers=[make.worker(vf=1)]))
    assert rig.last().state is ReportState.ORPHAN
    assert rig.last().uid == "a"
    await rig.tell(make.placement(uid="a", state="releasing"))
    await rig.tell(make.placement(uid="b", workers=[make.worker(vf=1)]))
    assert [(r.uid, r.state) for r in rig.said[-2:]] == [("a", "undone"), ("b", "prepared")]


async def test_a_release_of_another_run_does_not_undo_this_one(rig: Any, make: Any) -> None:
    await rig.tell(make.placement(uid="a"))
    await rig.tell(make.placement(uid="b", state="releasing"))
    assert (rig.last().uid, rig.last().state) == ("b", ReportState.UNDONE)
    assert rig.state() is EntryState.PREPARED


async def test_a_record_put_back_to_an_earlier_round_is_told_what_runs(rig: Any, make: Any) -> None:
    second = make.placement(round=2, workers=[make.worker(vf=1, gpus=((1, 500),))], netns=NETNS)
    await rig.tell(make.placement(), sequence=10)
    await rig.tell(make.placement(state="releasing"), sequence=20)
    await rig.tell(second, sequence=30)
    for older, sequence in ((make.placement(), 10), (make.placement(state="releasing"), 20)):
        rig.agent.record_lost()
        rig.agent.speaker.stream_lost()
        rig.agent.take(Record.of(older, Fence(1, sequence)))
        rig.agent.record_ready()
        await rig.agent.reconcile(make.key().job_key)
        assert rig.last().state is ReportState.ORPHAN
        assert rig.last().held == second
        assert rig.last().fence == Fence(1, 30)
        assert {vf for _, vf in rig.table.uses} == {1}


async def test_a_release_that_was_over_and_is_put_back_was_never_answered_again(rig: Any, make: Any) -> None:
    rig.agent.record_ready()
    await rig.tell(make.placement(), sequence=10)
    await rig.tell(make.placement(state="releasing"), sequence=20)
    await rig.tell(make.placement(state="released"), sequence=30)
    said = len(rig.reports())
    rig.agent.record_lost()
    rig.agent.speaker.stream_lost()
    job = rig.agent.take(Record.of(make.placement(state="releasing"), Fence(1, 20)))
    rig.agent.record_ready()
    assert job is not None
    await rig.agent.reconcile(job)
    assert rig.reports()[said:] == [ReportState.UNDONE]


async def test_what_was_begun_is_finished_when_the_record_was_put_back_meanwhile(rig: Any, make: Any) -> None:
    await rig.tell(make.placement(), sequence=10)
    await rig.agent.journal.save(
        replace(
            rig.agent.journal.entries[make.key()],
            placement=make.placement(netns=NETNS),
            fence=Fence(1, 20),
            state=EntryState.ATTACHING,
        )
    )
    await rig.start()
    await rig.tell(make.placement(), sequence=10)
    assert rig.last().state is ReportState.ATTACHED
    assert rig.last().fence == Fence(1, 20)


async def test_a_record_put_back_is_refused_as_stale(rig: Any, make: Any) -> None:
    await rig.tell(make.placement(), sequence=10)
    await rig.tell(make.placement(netns=NETNS), sequence=20)
    rig.agent.record_lost()
    rig.agent.take(Record.of(make.placement(), Fence(1, 10)))
    rig.agent.record_ready()
    await rig.agent.reconcile(make.key().job_key)
    assert rig.state() is EntryState.ATTACHED
    assert rig.last().state is ReportState.ATTACHED
    assert rig.agent.refused_stale == 1


async def test_a_record_put_back_does_not_start_a_dead_job_again(rig: Any, make: Any) -> None:
    await rig.tell(make.placement(), sequence=10)
    await rig.tell(make.placement(state="releasing"), sequence=20)
    await rig.start()
    await rig.tell(make.placement(), sequence=10)
    assert rig.leftovers() == {}
    assert rig.last().state is ReportState.UNDONE
    assert rig.last().fence == Fence(1, 20)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"requires": ("network", "teleport")}, "cannot do teleport"),
        ({"attach": "magic"}, "attach mode 'magic' is not known"),
    ],
)
async def test_what_the_agent_cannot_do_is_refused_before_anything_is_touched(
    rig: Any, make: Any, fields: dict[str, Any], text: str
) -> None:
    await rig.tell(make.placement(**fields))
    assert rig.last().state is ReportState.REFUSED
    assert text in rig.last().failure.text
    assert not rig.table.uses
    await rig.tell(make.placement(state="releasing", **fields))
    assert rig.last().state is ReportState.UNDONE
    assert rig.leftovers() == {}


async def test_a_device_that_is_not_here_is_refused(rig: Any, make: Any) -> None:
    await rig.tell(make.placement(workers=[make.worker(vf=9)]))
    assert rig.last().state is ReportState.REFUSED
    assert rig.last().failure.error == "ENODEV"
    assert not any(rig.gpus.held(gpu.uuid) for gpu in make.gpus)


async def test_an_unhealthy_gpu_is_refused_but_one_in_use_is_kept(rig: Any, make: Any) -> None:
    await rig.tell(make.placement())
    rig.gpus.set_fault(make.gpus[0].uuid, "Xid 79")
    await rig.agent.reconcile(make.key().job_key, mend=True)
    assert rig.state() is EntryState.PREPARED
    await rig.tell(make.placement("j2", workers=[make.worker(vf=1, gpus=((0, 100),))]))
    assert rig.last("j2").state is ReportState.REFUSED


async def test_a_failed_step_keeps_what_was_done_until_it_is_released(rig: Any, make: Any) -> None:
    rig.gpus.fail_reservations(make.gpus[0].uuid, "EIO")
    await rig.tell(make.placement())
    assert rig.last().state is ReportState.FAILED
    assert rig.last().failure.error == "EIO"
    assert len(rig.table.uses) == 2
    await rig.agent.reconcile(make.key().job_key)
    assert rig.reports() == [ReportState.FAILED]
    await rig.tell(make.placement(state="releasing"))
    assert rig.leftovers() == {}


async def test_a_step_that_is_busy_for_a_moment_is_tried_again(rig: Any, make: Any) -> None:
    rig.table.fail_next("EBUSY")
    rig.table.fail_next("EBUSY")
    await rig.tell(make.placement())
    assert rig.reports() == [ReportState.PREPARED]
    for _ in range(3):
        rig.table.fail_next("EBUSY")
    await rig.tell(make.placement("j2", workers=[make.worker(vf=1, gpus=())]))
    assert rig.last("j2").state is ReportState.FAILED


async def test_no_gpu_is_ever_reserved_beyond_a_whole(rig: Any, make: Any) -> None:
    await rig.tell(make.placement(workers=[make.worker(vf=0, gpus=((0, 600),))]))
    await rig.tell(make.placement("j2", workers=[make.worker(vf=1, gpus=((0, 500),))]))
    assert rig.last("j2").state is ReportState.FAILED
    assert "400 free" in rig.last("j2").failure.text


async def test_the_storage_inventory_goes_before_the_report_that_depends_on_it(rig: Any, make: Any) -> None:
    await rig.agent.speaker.say_inventories()
    await rig.tell(make.placement(datasets=(make.dataset(),)))
    storage, report = rig.said[-2:]
    assert isinstance(storage, NodeStorage)
    assert [item.dataset for item in storage.datasets] == ["imagenet@1"]
    assert report.state is ReportState.PREPARED


async def test_what_is_evicted_is_gone_before_what_needs_the_room_is_fetched(rig: Any, make: Any) -> None:
    rig.space.seed(Cached("old", "1", 9_500, 1))
    evict = (Eviction(dataset="old@1", bytes=9_500, reason="LeastValue"),)
    await rig.tell(make.placement(datasets=(make.dataset(size=8_000),), evict=evict))
    assert rig.last().state is ReportState.PREPARED
    assert [item.dataset for item in rig.space.datasets()] == ["imagenet@1"]


async def test_what_a_live_placement_uses_is_never_evicted(rig: Any, make: Any) -> None:
    await rig.tell(make.placement(datasets=(make.dataset(size=9_000),)))
    evict = (Eviction(dataset="imagenet@1", bytes=9_000, reason="LeastValue"),)
    other = make.placement(
        "j2", workers=[make.worker(vf=1, gpus=())], datasets=(make.dataset("c4", 5_000),), evict=evict
    )
    await rig.tell(other)
    assert rig.space.cached("imagenet@1") is not None
    assert rig.last("j2").state is ReportState.FAILED
    assert rig.last("j2").failure.error == "ENOSPC"


async def test_an_eviction_that_was_done_is_not_done_again_after_a_restart(rig: Any, make: Any) -> None:
    rig.space.seed(Cached("old", "1", 100, 1))
    evict = (Eviction(dataset="old@1", bytes=100, reason="LeastValue"),)
    await rig.tell(make.placement(evict=evict))
    rig.space.seed(Cached("old", "1", 100, 1))
    await rig.start()
    await rig.tell(make.placement(evict=evict), sequence=1)
    await rig.agent.reconcile(make.key().job_key, mend=True)
    assert rig.space.cached("old@1") is not None


async def test_a_fetch_that_fails_is_reported_with_its_reason(rig: Any, make: Any) -> None:
    rig.space.fail_next_fetch(DataFailed("EBADMSG", "its digest is sha256:1, expected sha256:2"))
    await rig.tell(make.placement(datasets=(make.dataset(),)))
    failure = rig.last().failure
    assert (failure.step, failure.error) == ("fetch imagenet@1 (1000 bytes)", "EBADMSG")


async def test_a_dataset_that_is_not_here_and_has_no_source_is_refused(rig: Any, make: Any) -> None:
    wanted = make.dataset(action="use").model_copy(update={"source": None})
    await rig.tell(make.placement(datasets=(wanted,)))
    assert rig.last().state is ReportState.REFUSED


async def test_uses_of_a_dataset_are_counted_by_the_sequence_that_used_it(rig: Any, make: Any) -> None:
    await rig.tell(make.placement(datasets=(make.dataset(),)), sequence=5)
    await rig.tell(make.placement("j2", workers=[make.worker(vf=1, gpus=())], datasets=(make.dataset(),)), sequence=9)
    await rig.agent.speaker.say_storage()
    assert [(item.uses, item.last_used) for item in rig.said[-1].datasets] == [(2, 9)]


async def test_after_a_restart_everything_is_as_it_was_and_is_said_again_where_it_must(rig: Any, make: Any) -> None:
    await rig.tell(make.placement(netns=NETNS))
    rig.said.clear()
    await rig.start()
    await rig.tell(make.placement(netns=NETNS), sequence=1)
    assert rig.reports() == [ReportState.ATTACHED]
    assert rig.agent.mended == 0


async def test_what_the_stream_holds_already_is_not_said_again(rig: Any, make: Any) -> None:
    await rig.tell(make.placement())
    stored = rig.wires[-1]
    await rig.start()
    rig.agent.speaker.heard(_as_stored(stored))
    rig.said.clear()
    await rig.tell(make.placement(), sequence=1)
    assert rig.said == []


async def test_everything_is_said_again_after_the_stream_was_lost(rig: Any, make: Any) -> None:
    await rig.agent.speaker.say_inventories()
    await rig.tell(make.placement())
    rig.said.clear()
    await rig.agent.reconcile(make.key().job_key)
    await rig.agent.speaker.say_inventories()
    fences = [event.fence_seen for event in rig.said if isinstance(event, NodeHardware)]
    assert fences == [Fence(1, 1)]
    rig.said.clear()
    rig.agent.speaker.stream_lost()
    await rig.agent.speaker.say_inventories()
    await rig.agent.reconcile(make.key().job_key)
    assert [type(event) for event in rig.said] == [NodeHardware, NodeStorage, Report]


async def test_revisions_never_repeat_over_restarts(rig: Any, make: Any) -> None:
    for number in range(3):
        await rig.tell(make.placement(f"j{number}", workers=[make.worker(vf=number, gpus=())]))
        await rig.start()
    revisions = [event.revision for event in rig.said]
    assert sorted(set(revisions)) == revisions


async def test_a_report_that_could_not_be_stored_is_said_later(rig: Any, make: Any) -> None:
    rig.is_deaf = True
    await rig.tell(make.placement())
    assert rig.later
    rig.is_deaf = False
    await rig.agent.reconcile(make.key().job_key)
    assert rig.reports() == [ReportState.PREPARED]


async def test_a_new_boot_prepares_anew_what_the_kernel_lost_and_keeps_the_disk(rig: Any, make: Any) -> None:
    await rig.tell(make.placement(netns=NETNS, datasets=(make.dataset(),)))
    rig.table.lose_all()
    for gpu in make.gpus:
        rig.gpus.free(make.key(), gpu.uuid)
    rig.boot = "boot-2"
    assert isinstance(rig.space, MemorySpace)
    fetched = rig.space.bytes_fetched
    await rig.start()
    assert rig.state() is EntryState.PREPARING
    await rig.tell(make.placement(netns=NETNS, datasets=(make.dataset(),)), sequence=1)
    assert rig.last().state is ReportState.ATTACHED
    assert rig.last().boot_id == "boot-2"
    assert rig.space.bytes_fetched == fetched
    await rig.tell(make.placement(state="releasing"))
    assert rig.leftovers() == {}


async def test_drift_is_mended_and_counted(rig: Any, make: Any) -> None:
    await rig.tell(make.placement(netns=NETNS))
    rig.table.lose_all()
    await rig.agent.reconcile(make.key().job_key, mend=True)
    assert {use.namespace for use in rig.table.uses.values()} == {NETNS}
    assert rig.agent.mended == 2
    await rig.tell(make.placement(state="releasing"))
    assert rig.leftovers() == {}


async def test_stopping_undoes_nothing_and_begins_nothing(rig: Any, make: Any) -> None:
    await rig.tell(make.placement())
    rig.agent.stop()
    await rig.tell(make.placement(state="releasing"))
    await rig.tell(make.placement("j2", workers=[make.worker(vf=1, gpus=())]))
    assert len(rig.table.uses) == 2
    assert rig.reports() == [ReportState.PREPARED]
    await rig.start()
    await rig.tell(make.placement(state="releasing"), sequence=2)
    assert rig.leftovers() == {}


async def test_attach_and_detach_by_the_local_socket(rig: Any, make: Any) -> None:
    key = make.key()
    with pytest.raises(CannotDo, match="not prepared"):
        await rig.agent.attach(key, [StartedWorker(worker=0, netns=NETNS)])
    await rig.tell(make.placement(attach="cni"))
    with pytest.raises(CannotDo, match="no worker 3"):
        await rig.agent.attach(key, [StartedWorker(worker=3, netns=NETNS)])
    await rig.agent.attach(key, [StartedWorker(worker=0, netns=NETNS)])
    await rig.agent.reconcile(key.job_key)
    assert rig.last().state is ReportState.ATTACHED
    await rig.agent.detach(key)
    await rig.agent.detach(key)
    await rig.agent.reconcile(key.job_key)
    assert rig.last().state is ReportState.PREPARED
    assert {use.namespace for use in rig.table.uses.values()} == {None}


async def test_a_plan_names_every_step_and_touches_nothing(rig: Any, make: Any) -> None:
    placement: Placement = make.placement(scratch=10)
    rig.agent.take(Record.of(placement, Fence(1, 1)))
    planned = await rig.agent.plan(make.key())
    assert [(step.concern, step.body.describe()) for step in planned] == [
        ("network", "2 VFs of worker 0 on their PFs"),
        ("gpu", f"reserve 1000 thousandths of {make.gpus[0].uuid}"),
        ("data", "arrange the job directory"),
    ]
    assert rig.leftovers() == {}


async def test_tombstones_of_what_is_not_here_cost_nothing(rig: Any, make: Any) -> None:
    for number in range(50):
        await rig.tell(make.placement(f"old-{number}", state="released"))
    assert rig.said == []
    assert rig.agent.jobs() == []
    assert not rig.agent.journal.buried


def _as_stored(message: Any) -> Any:
    from datetime import UTC, datetime

    from railweave.contracts import StoredMessage

    return StoredMessage("NODES", message.subject, 1, datetime.now(UTC), message.headers, message.body)
