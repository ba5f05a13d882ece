"""What checks say of real fabrics: the same every time, and nothing of a fabric that is in order."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from railweave.topology.checks import FindingKind, check
from railweave.topology.providers import PROVIDERS
from railweave.topology.providers.base import ImportOptions

FILES = Path(os.environ.get("RAILWEAVE_SHARED", Path(__file__).parents[5] / "shared")) / "data" / "topology"

REAL = {
    ("topograph", "topograph_large.yaml"): {},
    ("slurm", "slurm_10000_nodes.topology.conf"): {},
    ("slurm", "slurm_disconnected.topology.conf"): {FindingKind.ISLAND: 3},
    ("netq", "netq_topology_graph.json"): {},
    ("containerlab", "containerlab_clos02.clab.yml"): {},
    ("links-csv", "sonic_lab_links.csv sonic_lab_devices.csv"): {FindingKind.ISLAND: 3},
    # 69 adapters without a host name, and a host that was never given one.
    ("ibnetdiscover", "ibnetdiscover_h100.txt"): {FindingKind.MISCABLING: 2, FindingKind.MISSING_NAME: 70},
}


def content(files: str) -> dict[str, bytes]:
    if not FILES.exists():
        pytest.skip(f"no real fabric files at {FILES}")
    return {name: (FILES / name).read_bytes() for name in files.split()}


@pytest.mark.parametrize(("provider", "files"), REAL)
def test_findings_are_counted(provider: str, files: str) -> None:
    found = PROVIDERS[provider].read(content(files), ImportOptions())
    findings = check(found)
    assert Counter(finding.kind for finding in findings) == REAL[provider, files]
    assert findings == check(found)
    found.imported()


def test_the_infiniband_fabric_has_two_adapters_of_one_node_swapped() -> None:
    """Nobody told: of 14 nodes of its unit, HCA-5 and HCA-6 of the first are on each other's leaf."""
    found = PROVIDERS["ibnetdiscover"].read(content("ibnetdiscover_h100.txt"), ImportOptions())
    errors = [finding for finding in check(found) if finding.is_error]
    assert [(one.device, one.port, one.expected.partition(",")[0], str(one.where)) for one in errors] == [
        ("b08-p1-dgx-08-c01", "HCA-5", "leaf B09-P1-IBLEAF-03-08", "ibnetdiscover_h100.txt:127"),
        ("b08-p1-dgx-08-c01", "HCA-6", "leaf B09-P1-IBLEAF-04-08", "ibnetdiscover_h100.txt:171"),
    ]


def test_a_swap_in_the_infiniband_fabric_is_found() -> None:
    files = content("ibnetdiscover_h100.txt")
    dump = files["ibnetdiscover_h100.txt"]
    one, other = b'"a08-p1-dgx-04-c03 mlx5_5"', b'"a08-p1-dgx-04-c09 mlx5_0"'
    assert dump.count(one) == dump.count(other) == 2, "told by the leaf, and by itself"
    swapped = dump.replace(one, b"\0").replace(other, one).replace(b"\0", other)
    found = PROVIDERS["ibnetdiscover"].read({"ibnetdiscover_h100.txt": swapped}, ImportOptions())
    assert {(finding.device, finding.port) for finding in check(found) if finding.kind is FindingKind.MISCABLING} >= {
        ("a08-p1-dgx-04-c03", "mlx5_5"),
        ("a08-p1-dgx-04-c09", "mlx5_0"),
    }
