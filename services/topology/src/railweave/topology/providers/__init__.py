"""Formats that fabrics are imported from, by name. The rest of Railweave sees graphs only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from railweave.topology import fabric_file, topograph
from railweave.topology.providers.base import (
    Files,
    Found,
    Imported,
    ImportOptions,
    Provider,
    SwitchVlan,
    VlanMember,
    single,
)
from railweave.topology.providers.containerlab import read_containerlab
from railweave.topology.providers.cumulus import read_cumulus
from railweave.topology.providers.ibnetdiscover import read_ibnetdiscover
from railweave.topology.providers.links_csv import read_links_csv
from railweave.topology.providers.lldp import read_lldp
from railweave.topology.providers.netbox import read_netbox
from railweave.topology.providers.netq import read_netq
from railweave.topology.providers.slurm import read_slurm
from railweave.topology.providers.slurm_yaml import read_slurm_yaml
from railweave.topology.providers.sonic import read_sonic

PROVIDERS: Final[Mapping[str, Provider]] = {
    provider.name: provider
    for provider in (
        Provider(
            "railweave",
            "Railweave's own fabric file (docs/operate/fabric-file.md): everything.",
            single(lambda text, file, _options: Found(fabric_file.read_cabling(text, file))),
        ),
        Provider(
            "topograph",
            "NVIDIA topograph model (YAML): a tree of switches with nodes under it; no rails, no ports.",
            single(lambda text, file, options: Found(topograph.read_cabling(text, file, rails=options.rails))),
        ),
        Provider(
            "slurm",
            "Slurm topology.conf, tree or block: switches and nodes; no ports, and rails only as leaves of a node.",
            single(read_slurm),
        ),
        Provider(
            "slurm-yaml",
            "Slurm topology.yaml: the default one of its topologies, tree or block; no ports, no rails.",
            single(read_slurm_yaml),
        ),
        Provider(
            "ibnetdiscover",
            "ibnetdiscover dump (InfiniBand): locality and cabling only; no VLANs, no roles.",
            single(read_ibnetdiscover),
        ),
        Provider("netq", "NetQ topology graph (JSON): tiers, hosts and the ports of every link.", single(read_netq)),
        Provider(
            "containerlab",
            "containerlab topology (YAML): nodes and links; switches by kind and group.",
            single(read_containerlab),
        ),
        Provider(
            "links-csv",
            "Links as CSV in the shape of sonic-mgmt's lab files, and maybe devices: ports, rails where told.",
            read_links_csv,
            takes_several=True,
        ),
        Provider(
            "sonic",
            "SONiC config_db.json of each switch: neighbours with their ports, VLANs; rails by the names of NICs.",
            read_sonic,
            takes_several=True,
        ),
        Provider(
            "lldp",
            "LLDP of each device (lldpcli json0, NAPALM, Arista JSON): cabling and locality only.",
            read_lldp,
            takes_several=True,
        ),
        Provider(
            "netbox",
            "NetBox devices, interfaces and cables (JSON of its REST API): cabling, roles, VLANs of ports.",
            read_netbox,
            takes_several=True,
        ),
        Provider(
            "cumulus",
            "Cumulus `nv config show` and LLDP of each switch: VLANs with their addresses, cabling.",
            read_cumulus,
            takes_several=True,
        ),
    )
}

__all__ = ["PROVIDERS", "Files", "Found", "ImportOptions", "Imported", "Provider", "SwitchVlan", "VlanMember", "single"]
