"""Formats that fabrics are imported from, by name. The rest of Railweave sees graphs only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from railweave.topology.fabric_file import read_fabric_file
from railweave.topology.providers.base import Imported, ImportOptions, Provider
from railweave.topology.topograph import read_topograph

PROVIDERS: Final[Mapping[str, Provider]] = {
    provider.name: provider
    for provider in (
        Provider(
            "railweave",
            "Railweave's own fabric file (docs/operate/fabric-file.md): everything.",
            lambda text, file, _options: Imported(read_fabric_file(text, file)),
        ),
        Provider(
            "topograph",
            "NVIDIA topograph model (YAML): a tree of switches with nodes under it; no rails, no ports.",
            lambda text, file, options: Imported(read_topograph(text, file, rails=options.rails)),
        ),
    )
}

__all__ = ["PROVIDERS", "ImportOptions", "Imported", "Provider"]
