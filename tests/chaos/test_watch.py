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


def _placement(job: str, milli: int, state: str = "desired") -> Placement:
    gpu = {"index": 0, "uuid": "GPU-1", "fraction_milli": milli, "memory_mib": 1}
    worker = {"name": "worker", "worker": 0, "gpus": [gpu]}
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
