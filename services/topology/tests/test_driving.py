"""What is reported of the leaves, and how many are behind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from railweave.contracts.envelope import decode_event
from railweave.contracts.fabric import FabricReport
from railweave.runtime.bootstrap import bootstrap
from railweave.runtime.local_servers import LocalNatsServer
from railweave.runtime.streams import FABRIC, STREAMS
from railweave.topology.driving import FabricDriver
from railweave.topology.inventory import Inventory, replan
from railweave.topology.linux_fabric import FabricOutcome, FabricPlan, FabricRefused
from railweave_testing.buses import connected
from railweave_testing.fabrics import config, fabric, regular


class FabricThatFails:
    """Refuses while `problem` says something."""

    def __init__(self) -> None:
        self.problem = ""
        self.in_use: dict[str, tuple[int, ...]] = {}

    async def sync(self, _desired: FabricPlan) -> FabricOutcome:
        if self.problem:
            raise FabricRefused(self.problem)
        return FabricOutcome((), (), self.in_use)


async def test_a_leaf_that_fails_again_at_one_revision_is_reported_again(
    nats_server: LocalNatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = fabric(regular(["leaf1", "leaf2"], 2, 1))
    found = replan(Inventory(), graph, config(), lambda _node: False)
    assert isinstance(found, Inventory)
    view = SimpleNamespace(state=SimpleNamespace(leaves=found.leaves))
    kernel = FabricThatFails()
    async with connected(nats_server) as bus:
        await bootstrap(bus, streams=[spec for spec in STREAMS if spec.name == FABRIC], consumers=[])
        driver = FabricDriver("rw1", bus, cast("Any", view), cast("Any", SimpleNamespace(graph=graph)))
        monkeypatch.setattr(driver, "_fabric", kernel)
        assert driver.behind() == 2
        for problem in ("", "in use", "", "in use", ""):
            kernel.problem = problem
            assert await driver._sync() is not bool(problem)
            message = await bus.read_last(FABRIC, "rw.fabricreport.leaf1")
            assert message is not None
            report = decode_event(message).data
            assert isinstance(report, FabricReport)
            assert (report.applied, report.text) == (not problem, problem or None)
            assert driver.behind() == (2 if problem else 0)


async def test_a_segment_with_a_member_is_told_and_stays_told_while_nobody_can_look(
    nats_server: LocalNatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = fabric(regular(["leaf1", "leaf2"], 2, 1))
    found = replan(Inventory(), graph, config(segments=2), lambda _node: False)
    assert isinstance(found, Inventory)
    view = SimpleNamespace(state=SimpleNamespace(leaves=found.leaves))
    kernel = FabricThatFails()
    async with connected(nats_server) as bus:
        await bootstrap(bus, streams=[spec for spec in STREAMS if spec.name == FABRIC], consumers=[])
        driver = FabricDriver("rw1", bus, cast("Any", view), cast("Any", SimpleNamespace(graph=graph)))
        monkeypatch.setattr(driver, "_fabric", kernel)
        told: list[tuple[bool, tuple[int, ...]]] = []
        for problem, in_use in (("", (1,)), ("kernel is busy", ()), ("", ())):
            kernel.problem, kernel.in_use = problem, {"leaf1": in_use}
            await driver._sync()
            message = await bus.read_last(FABRIC, "rw.fabricreport.leaf1")
            assert message is not None
            report = decode_event(message).data
            assert isinstance(report, FabricReport)
            told.append((report.applied, report.segments_in_use))
    assert told == [(True, (1,)), (False, (1,)), (True, ())]
