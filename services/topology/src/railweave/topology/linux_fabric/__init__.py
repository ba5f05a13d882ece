"""A spine-leaf fabric in software on one machine: leaves and spines as network namespaces.

outcome = await LinuxFabric(LinuxKernel(), "rw1").sync(FabricPlan("rw1", leaves, spines, mesh_links(...)))
netns_path, interface = port("rw1", "leaf-1", "Ethernet0", vf=0)      # where a node's VF plugs in
"""

from railweave.topology.linux_fabric.driver import FabricOutcome, LinuxFabric
from railweave.topology.linux_fabric.model import (
    FabricLink,
    FabricPlan,
    FabricRefused,
    FabricStep,
    FabricStepKind,
    SoftwareLeaf,
    SoftwareSpine,
    SoftwareVlan,
)
from railweave.topology.linux_fabric.planning import kept_in_use, plan
from railweave.topology.linux_fabric.render import MARK, mesh_links, netns_name, netns_names, port, render

__all__ = [
    "MARK",
    "FabricLink",
    "FabricOutcome",
    "FabricPlan",
    "FabricRefused",
    "FabricStep",
    "FabricStepKind",
    "LinuxFabric",
    "SoftwareLeaf",
    "SoftwareSpine",
    "SoftwareVlan",
    "kept_in_use",
    "mesh_links",
    "netns_name",
    "netns_names",
    "plan",
    "port",
    "render",
]
