"""Names in disjoint sets: what hangs together."""

from __future__ import annotations


class Sets:
    """Every name is in a set of its own until it is joined with another."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def of(self, name: str) -> str:
        """What stands for the set that a name is in."""
        parent = self._parent
        parent.setdefault(name, name)
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    def join(self, one: str, other: str) -> None:
        """Make one set of two."""
        self._parent[self.of(one)] = self.of(other)
