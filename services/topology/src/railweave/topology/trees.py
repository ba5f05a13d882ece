"""How high switches stand in a tree that is told from above: each switch with those under it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


class LoopError(ValueError):
    """A switch that is above itself; the message names it."""


def tree_tiers(children: Mapping[str, Sequence[str]], others: Iterable[str] = ()) -> dict[str, int]:
    """The tier of every switch: 1 for one with none under it, else one more than the highest under it.

    Args:
        children: what is under each switch.
        others: switches that have no place in `children`.

    Raises:
        LoopError: a switch is above itself.
    """
    names = dict.fromkeys([*children, *others, *(child for under in children.values() for child in under)])
    tiers = {name: 1 for name in names if not children.get(name)}
    waiting = [name for name in names if name not in tiers]
    while waiting:
        later: list[str] = []
        for name in waiting:
            below = [tiers.get(child) for child in children[name]]
            if None in below:
                later.append(name)
            else:
                tiers[name] = 1 + max(tier for tier in below if tier is not None)
        if len(later) == len(waiting):
            raise LoopError(f"{min(_in_loop(later, children, tiers))} is above itself")
        waiting = later
    return tiers


def _in_loop(names: Iterable[str], children: Mapping[str, Sequence[str]], tiers: Mapping[str, int]) -> set[str]:
    """The switches of loops alone, without those that merely stand above one."""
    left = set(names)
    while True:
        below = {child for name in left for child in children[name] if child not in tiers}
        if left <= below:
            return left
        left &= below
