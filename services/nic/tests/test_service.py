"""The nic service: what it keeps in mind between proposing and the commit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from railweave.contracts.proposal import Concern, NodesProposal
from railweave.contracts.types import NodeName
from railweave.nic.service import NicService
from railweave_testing.clusters import ClusterBuilder, ask


def test_nothing_is_kept_for_a_dry_run() -> None:
    """It took the only VF group from a real job, for as long as proposals are kept in mind."""
    cluster = ClusterBuilder()
    cluster.node("n1", vfs=1)
    service = NicService()
    for name, is_dry in (("dry", True), ("real", False), ("late", False)):
        asked = ask(name, network={}).model_copy(update={"dry_run": is_dry})
        nodes = NodesProposal(
            cluster=asked.cluster, job=asked.job, attempt=asked.attempt, round=asked.round, nodes=(NodeName("n1"),)
        )
        view = cast("Any", SimpleNamespace(state=cluster.state))
        made = service.answer(asked, {Concern.NODES: nodes}, view, 0.0)
        assert bool(made.reasons) == (name == "late"), name
