"""The watch on the record sees what it is there to see."""

from __future__ import annotations

import pytest
from rig.watch import RecordWatch

from railweave.contracts import StoredMessage, encode_event
from railweave.contracts.placement import Placement
from railweave.runtime.local_servers import LocalNatsServer
from railweave_testing.buses import connected


def _message(placement: Placement, sequence: int) -> StoredMessage:
    wire = encode_event(placement)
    return StoredMessage("PLACEMENTS", wire.subject, sequence, placement.submitted_at, wire.headers, wire.body)


def _placement(job: str, milli: int, state: str = "desired", segment_of: str | None = None) -> Placement:
    gpu = {"index": 0, "uuid": "GPU-1", "fraction_milli": milli, "memory_mib": 1}
    worker: dict[str, object] = {"name": "worker", "worker": 0, "gpus": [gpu]}
    if segment_of is not None:
        isolation = {"mode": "tenant", "segment": 7, "owner": segment_of}
        worker["network"] = {"vf_group": "g0", "isolation": isolation, "interfaces": []}
    document = {
        "cluster": "c", "job": job, "attempt": 1, "node": "n1", "state": state, "epoch": 1, "round": 1, "commit": "x",
        "submitted_at": "2026-12-01T00:00:00Z", "workers": [worker],
    }  # fmt: skip
    return Placement.model_validate(document, strict=False)


@pytest.mark.parametrize(("second", "violations"), [(500, 0), (501, 1)])
async def test_a_gpu_given_beyond_its_thousandths_is_seen(
    nats_server: LocalNatsServer, second: int, violations: int
) -> None:
    async with connected(nats_server) as bus:
        watch = RecordWatch(bus)
        watch._take([_message(_placement("a", 500), 1), _message(_placement("b", second), 2)])
        assert len(watch.violations) == violations


async def test_what_was_given_back_may_be_given_again(nats_server: LocalNatsServer) -> None:
    async with connected(nats_server) as bus:
        watch = RecordWatch(bus)
        given = [_placement("a", 1000), _placement("a", 1000, "releasing")]
        watch._take([_message(placement, number + 1) for number, placement in enumerate(given)])
        watch._take([_message(_placement("b", 1000), 3)])
        assert len(watch.violations) == 1, "not before its node has undone it"
        watch._take([_message(_placement("a", 1000, "released"), 4), _message(_placement("c", 1000), 5)])
        assert len(watch.violations) == 2
        watch._take([_message(_placement("b", 1000, "released"), 6), _message(_placement("c", 1000, "released"), 7)])
        watch._take([_message(_placement("d", 1000), 8)])
        assert len(watch.violations) == 2


async def test_a_segment_of_two_owners_is_seen_and_one_that_a_tenant_shares_is_not(
    nats_server: LocalNatsServer,
) -> None:
    async with connected(nats_server) as bus:
        watch = RecordWatch(bus)
        red, also_red, blue = (
            _placement(job, 100, segment_of=owner)
            for job, owner in (("a", "tenant/red"), ("b", "tenant/red"), ("c", "tenant/blue"))
        )
        watch._take([_message(red, 1), _message(also_red, 2)])
        assert watch.violations == []
        watch._take([_message(_placement("a", 100, "released"), 3), _message(blue, 4)])
        assert len(watch.violations) == 1, "the other red one is in it still"
        watch._take([_message(_placement(job, 100, "released"), 5 + n) for n, job in enumerate(("b", "c"))])
        watch._take([_message(blue, 7)])
        assert len(watch.violations) == 1
