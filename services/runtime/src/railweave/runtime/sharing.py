"""Less memory for what is kept of a thousand nodes: equal parts of models stand in memory once.

A pydantic model carries a set of the fields that were given, which weighs more than its values, and every message
brings its own copy of `0000:10:00.0`, `H100` and `leaf-7`. Models are frozen, so nobody notices who shares what.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

from pydantic import BaseModel

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


@lru_cache(maxsize=65_536, typed=True)
def shared(value: T) -> T:
    """An equal value of the same type that is already there, or this one. Those not seen for long are let go.

    For values that never change: texts, and tuples of texts and numbers.
    """
    return value


@lru_cache(maxsize=4096)
def _shared_names(names: frozenset[str]) -> set[str]:
    return set(names)


def share_parts(model: M) -> M:
    """The same model, made to share what it can; models within it too."""
    for name, value in model.__dict__.items():
        model.__dict__[name] = _with_shared_parts(value)
    object.__setattr__(model, "__pydantic_fields_set__", _shared_names(frozenset(model.model_fields_set)))
    return model


def _with_shared_parts(value: Any) -> Any:
    if isinstance(value, str):
        return shared(value)
    if isinstance(value, BaseModel):
        share_parts(value)
    elif type(value) is tuple:
        for item in value:
            _with_shared_parts(item)
    return value
