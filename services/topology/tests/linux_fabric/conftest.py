"""Software fabrics for tests: two leaves, two spines, two rails."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from railweave.runtime.netlink import LinuxKernel
from railweave.topology.linux_fabric import (
    FabricPlan,
    LinuxFabric,
    SoftwareLeaf,
    SoftwareSpine,
    SoftwareVlan,
    mesh_links,
)

_numbers = itertools.count()


def fabric_plan(
    run: str = "rw1", leaves: int = 2, spines: int = 2, *, vlans: tuple[int, ...] = (100, 101)
) -> FabricPlan:
    """Leaf l carries the VLANs, VLAN v with 10.<l>.<v - 100>.0/24 and fd00:<l>:<v - 100>::/64."""
    leaf_names = [f"leaf-{number}" for number in range(leaves)]
    spine_names = [f"spine-{number}" for number in range(spines)]
    return FabricPlan(
        run,
        tuple(
            SoftwareLeaf(
                name,
                tuple(
                    SoftwareVlan(vlan, f"10.{number}.{vlan - 100}.1/24", f"fd00:{number + 1}:{vlan}::1/64")
                    for vlan in vlans
                ),
            )
            for number, name in enumerate(leaf_names)
        ),
        tuple(SoftwareSpine(name) for name in spine_names),
        mesh_links(leaf_names, spine_names, pool6="fd99::/64"),
    )


@pytest.fixture
def make_plan():
    return fabric_plan


@pytest.fixture
def run() -> Iterator[str]:
    """A prefix for namespaces that nobody else has; what is left under it goes afterwards."""
    if os.geteuid() != 0:
        pytest.skip("needs root: run as root, or in `unshare -Urnm sh -c 'mount -t tmpfs tmpfs /run && make test'`")
    prefix = f"rwf{os.getpid():x}x{next(_numbers)}"
    yield prefix
    kernel = LinuxKernel()
    for name in kernel.netns_names():
        if name.startswith(f"{prefix}-"):
            kernel.delete_netns(name)


@pytest.fixture
def fabric(run: str) -> LinuxFabric:
    return LinuxFabric(LinuxKernel(), run)
