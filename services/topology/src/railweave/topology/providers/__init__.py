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
    )
}

__all__ = ["PROVIDERS", "Files", "Found", "ImportOptions", "Imported", "Provider", "SwitchVlan", "VlanMember", "single"]
