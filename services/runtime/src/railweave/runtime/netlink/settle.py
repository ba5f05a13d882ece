"""Idempotent carrying out: what is there already and what is gone already count as done, after a look.

EEXIST says that something holds the place, not that it is what was asked for (dranet#344); so it is read back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from railweave.runtime.netlink.errors import AlreadyThere, NotThere
from railweave.runtime.netlink.model import (
    Action,
    AddAddress,
    AddRoute,
    AddRule,
    DeleteAddress,
    DeleteLink,
    DeleteRoute,
    DeleteRule,
    Namespace,
)

__all__ = ["settle", "settle_all"]

_DELETES = (DeleteAddress, DeleteLink, DeleteRoute, DeleteRule)


def settle(inside: Namespace, actions: Sequence[Action]) -> list[Exception | None]:
    """`Namespace.execute`, with repeats forgiven: adding what is there (that very thing) and deleting what is not."""
    results = inside.execute(actions)
    unsure = [place for place, result in enumerate(results) if isinstance(result, AlreadyThere)]
    doubted = {type(actions[place]) for place in unsure}
    routes = _route_keys(inside) if AddRoute in doubted else set()
    rules = {rule.key() for rule in inside.rules()} if AddRule in doubted else set()
    addresses = set(inside.addresses()) if AddAddress in doubted else set()
    for place in unsure:
        match actions[place]:
            case AddRoute(route) if route.key() in routes:
                results[place] = None
            case AddRule(rule) if rule.key() in rules:
                results[place] = None
            case AddAddress(address) if address in addresses:
                results[place] = None
    for place, result in enumerate(results):
        if isinstance(result, NotThere) and isinstance(actions[place], _DELETES):
            results[place] = None
    return results


def _route_keys(inside: Namespace) -> set[tuple[str, int, str | None, int, int, str]]:
    """Keys of all routes, each also without its device: it may have been asked for by its gateway alone."""
    routes = inside.routes()
    return {route.key() for route in routes} | {replace(route, device=0).key() for route in routes}


def settle_all(inside: Namespace, actions: Sequence[Action]) -> None:
    """`settle`, raising the first refusal (after all actions have been tried)."""
    for result in settle(inside, actions):
        if result is not None:
            raise result
